"""Weights that PyTorch wrote, trained on, and written for PyTorch again."""

import jax.numpy as jnp
import numpy as np
import optax
from safetensors.numpy import load_file, save_file

import fedax

# safetensors.torch.save_file(torch.nn.Linear(64, 10).state_dict(), "linear.safetensors") writes
# such a file
save_file(
    {"weight": np.zeros((10, 64), np.float32), "bias": np.zeros(10, np.float32)},
    "linear.safetensors",
)


def loss(params, e):
    return optax.softmax_cross_entropy_with_integer_labels(
        e["x"] @ params["kernel"].T + params["bias"], e["y"]
    )


model = {"kernel": jnp.zeros((10, 64)), "bias": jnp.zeros(10)}
names = {"kernel": "weight"}
params = fedax.load_params("linear.safetensors", like=model, names=names)
task = fedax.Task(params, loss, fedax.data.digits("iid", clients=10))
history = fedax.run(fedax.FedAvg(), task, solver=fedax.SGD(0.1), rounds=10)
fedax.save_params(history.params, "trained.safetensors", names=names)
print({name: array.shape for name, array in load_file("trained.safetensors").items()})
