# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # From PyTorch
#
# A federated simulation in PyTorch is usually three nested loops: rounds, the clients of a round, minibatches. fedax has the two
# outer ones, compiled; what you bring is the model, its loss, and the data of each client. This page moves one such program over,
# and its weights both ways.
#
# ```python
# model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
# for t in range(20):
#     updates, sizes = [], []
#     for k in rng.choice(10, size=5, replace=False):
#         local = copy.deepcopy(model)
#         optimizer = torch.optim.SGD(local.parameters(), lr=0.1, momentum=0.9)
#         for x, y in DataLoader(clients[k], batch_size=20, shuffle=True):
#             optimizer.zero_grad()
#             F.cross_entropy(local(x), y).backward()
#             optimizer.step()
#         updates.append(local.state_dict()); sizes.append(len(clients[k]))
#     model.load_state_dict(weighted_mean(updates, sizes))
# ```
#
# ## Data
#
# One dictionary of NumPy arrays for each client, with examples along the first axis; there is no loader. Minibatches are drawn
# inside the compiled round.

# %%
import numpy as np
from sklearn.datasets import load_digits

x, y = load_digits(return_X_y=True)
x = (x / 16).astype(np.float32)
rng = np.random.default_rng(0)
order = rng.permutation(len(x))
held, rest = order[:300], order[300:]
by_label = rest[np.argsort(y[rest], kind="stable")]
clients = [{"x": x[part], "y": y[part]} for part in np.array_split(by_label, 10)]
holdout = {"x": x[held], "y": y[held]}

# %% [markdown]
# ## The model
#
# A function of parameters and inputs. Its kernels stand as (inputs, outputs), the transpose of `torch.nn.Linear`. Modules of Flax,
# Haiku and Equinox are taken as they are: see [libraries](../libraries.md).

# %%
import jax
import jax.numpy as jnp
import optax


def forward(params, x):
    hidden = jax.nn.relu(x @ params["first"]["kernel"] + params["first"]["bias"])
    return hidden @ params["second"]["kernel"] + params["second"]["bias"]


def loss(params, examples):
    """One number for each example: what `reduction="none"` gives in PyTorch."""
    return optax.softmax_cross_entropy_with_integer_labels(forward(params, examples["x"]), examples["y"])


def accuracy(params, examples):
    return (forward(params, examples["x"]).argmax(axis=1) == examples["y"]).astype(jnp.float32)


# %% [markdown]
# ## Weights that PyTorch wrote
#
# `safetensors.torch.save_file(model.state_dict(), "model.safetensors")` writes a file with PyTorch's names; here NumPy stands in
# for it. `load_params` puts its arrays where the model has them, and refuses what does not fit.

# %%
from safetensors.numpy import load_file, save_file

import fedax

bound = {64: 1 / np.sqrt(64), 32: 1 / np.sqrt(32)}  # the initialisation of torch.nn.Linear
written = {
    "0.weight": rng.uniform(-bound[64], bound[64], (32, 64)).astype(np.float32),
    "0.bias": rng.uniform(-bound[64], bound[64], 32).astype(np.float32),
    "2.weight": rng.uniform(-bound[32], bound[32], (10, 32)).astype(np.float32),
    "2.bias": rng.uniform(-bound[32], bound[32], 10).astype(np.float32),
}
save_file(written, "model.safetensors")

like = {
    "first": {"kernel": jnp.zeros((64, 32)), "bias": jnp.zeros(32)},
    "second": {"kernel": jnp.zeros((32, 10)), "bias": jnp.zeros(10)},
}
there = {
    "names": {
        "first.kernel": "0.weight",
        "first.bias": "0.bias",
        "second.kernel": "2.weight",
        "second.bias": "2.bias",
    },
    "transpose": ["first.kernel", "second.kernel"],
}
params = fedax.load_params("model.safetensors", like=like, **there)

# %% [markdown]
# ## The loops
#
# | PyTorch | fedax |
# |---|---|
# | `torch.optim.SGD(lr=0.1, momentum=0.9)` | `fedax.SGD(0.1, momentum=0.9)`; any Optax optimizer by `fedax.Optax` |
# | `DataLoader(batch_size=20, shuffle=True)`, one epoch | `fedax.Schedule(batch_size=20, epochs=1)` |
# | `rng.choice(10, size=5, replace=False)` | `fedax.Schedule(cohort=5)` |
# | `weighted_mean(updates, sizes)` | part of the algorithm: `fedax.FedAvg()` |
# | `torch.manual_seed(0)` | `seed=0`, which fixes every draw |
# | `model.eval()` and a loop over the test set | `observe=[fedax.observe.TestAccuracy()]` |

# %%
task = fedax.tasks.from_loss(loss, params, clients, scores={"accuracy": accuracy}, holdout=holdout)
arguments = {
    "solver": fedax.SGD(0.1, momentum=0.9),
    "schedule": fedax.Schedule(cohort=5, epochs=1, batch_size=20),
    "observe": [fedax.observe.TrainLoss(), fedax.observe.TestAccuracy()],
    "observe_every": 5,
    "rounds": 20,
    "seed": 0,
}
history = fedax.run(fedax.FedAvg(), task, **arguments)
for t, value in zip(history.rounds, history.metrics["test_accuracy"], strict=True):
    print(f"round {t:2}: accuracy {value:.2f}")

# %% [markdown]
# Another algorithm is another word. The data here are sorted by label, which FedAvg feels. SCAFFOLD's control variates divide by
# the learning rate, so that it asks for plain SGD; all get it here.

# %%
plain = arguments | {"solver": fedax.SGD(0.1)}
for algorithm in (fedax.FedAvg(), fedax.FedProx(mu=0.1), fedax.SCAFFOLD(), fedax.FedDyn(alpha=0.1)):
    result = fedax.run(algorithm, task, **plain)
    print(f"{type(algorithm).__name__:9} accuracy {result.metrics['test_accuracy'][-1]:.2f}")

# %% [markdown]
# ## And back
#
# `model.load_state_dict(safetensors.torch.load_file("trained.safetensors"))` reads the result in PyTorch.

# %%
fedax.save_params(history.params, "trained.safetensors", **there)
{name: array.shape for name, array in load_file("trained.safetensors").items()}

# %% [markdown]
# ## Differences to know
#
# - **The loss is per example.** fedax averages; `reduction="mean"` would weigh a short last minibatch as much as a full one.
# - **Images are channels last**, (rows, columns, channels), as in Flax. `fedax.layers.conv2d` is fast on CPUs.
# - **Batch statistics** are state, not parameters: averaged, kept at each client, or frozen, as you say. See
#   [libraries](../libraries.md).
# - **Momentum starts anew** at each client and round, as in the loop above.
# - **Nothing is moved to a device by hand.** Clients are spread over all devices of the machine.
