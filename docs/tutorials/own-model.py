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
# # Your own model
#
# You need a pytree of parameters, and a loss that returns **one number per example**. fedax averages
# over the examples, weights the clients and takes the gradients. This page trains a small network
# three times: in plain JAX, as an Equinox module and as a Flax module.
#
# The data are made up: four clients, each with points from two of four clusters.

# %%
import jax
import jax.numpy as jnp
import numpy as np
import optax

import fedax

rng = np.random.default_rng(0)
centres = np.array([[2.0, 0.0], [-2.0, 0.0], [0.0, 2.0], [0.0, -2.0]])


def client(classes, count=60):
    y = rng.choice(classes, size=count)
    return {"x": centres[y] + 0.7 * rng.normal(size=(count, 2)), "y": y}


clients = [client(classes) for classes in ([0, 1], [1, 2], [2, 3], [3, 0])]
data = fedax.FederatedData.from_arrays(clients, central=client([0, 1, 2, 3], count=200))

# %% [markdown]
# ## In plain JAX
#
# `examples` is a minibatch of a client. The first axis of each array runs over its examples. The
# loss returns an array of that length, not its mean, so that fedax can weight minibatches of
# different sizes, padding and clients exactly. fedax refuses another shape before it compiles
# anything. `fedax check --task` finds a loss that couples examples (see the end of this page).


# %%
def logits(params, x):
    hidden = jax.nn.tanh(x @ params["w1"] + params["b1"])
    return hidden @ params["w2"] + params["b2"]


def cross_entropy(outputs, examples):
    return optax.softmax_cross_entropy_with_integer_labels(outputs, examples["y"])


def loss(params, examples):
    return cross_entropy(logits(params, examples["x"]), examples)


def accuracy(params, examples):
    return (logits(params, examples["x"]).argmax(axis=1) == examples["y"]).astype(float)


params = {
    "w1": 0.5 * rng.normal(size=(2, 16)),
    "b1": np.zeros(16),
    "w2": 0.5 * rng.normal(size=(16, 4)),
    "b2": np.zeros(4),
}
task = fedax.Task(params, loss, data, scores={"accuracy": accuracy})

# %%
history = fedax.run(
    fedax.FedAvg(),
    task,
    solver=fedax.SGD(0.2),
    schedule=fedax.Schedule(cohort=2, epochs=2, batch_size=20),
    rounds=30,
    observe=[fedax.observe.TrainLoss(), fedax.observe.TestAccuracy()],
    observe_every=10,
)
for t, value in zip(history.rounds, history.metrics["test_accuracy"], strict=True):
    print(f"round {t:2}: accuracy {value:.2f}")

# %% [markdown]
# `history.params` is the trained model. It has the structure of the initial parameters.

# %%
jax.tree.map(jnp.shape, history.params)

# %% [markdown]
# ## An Equinox module
#
# `fedax.models.equinox` adapts a module that a function makes from a random key, so every seed starts
# from a different model. Values that are not trained, such as activation functions, stay in the
# module. `fedax.from_model` makes the task. Its loss is a function of the outputs and the examples.

# %%
import equinox as eqx


def network(key):
    return eqx.nn.MLP(
        in_size=2, out_size=4, width_size=16, depth=1, activation=jax.nn.tanh, key=key
    )


task = fedax.from_model(fedax.models.equinox(network), cross_entropy, data)
history = fedax.run(
    fedax.SCAFFOLD(),
    task,
    solver=fedax.SGD(0.2),
    schedule=fedax.Schedule(cohort=2, epochs=2, batch_size=20),
    rounds=30,
    observe_every=30,
)
print(f"accuracy {history.last('test_accuracy'):.2f}")

# %% [markdown]
# If the labels are whole numbers and the model has an output for each class, accuracy is a score by
# default. `history.params` is a module again:

# %%
[int(history.params(jnp.array(centre)).argmax()) for centre in centres]

# %% [markdown]
# ## A Flax module
#
# `fedax.models.nnx` adapts a module of Flax NNX, with its batch statistics and dropout. It needs
# `pip install flax`. There are [adapters](../models.md) for Flax Linen, Haiku and PyTorch too.

# %%
from flax import nnx


class Network(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.hidden = nnx.Linear(2, 16, rngs=rngs)
        self.norm = nnx.BatchNorm(16, momentum=0.9, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.head = nnx.Linear(16, 4, rngs=rngs)

    def __call__(self, x):
        return self.head(self.dropout(nnx.relu(self.norm(self.hidden(x)))))


task = fedax.from_model(fedax.models.nnx(Network), cross_entropy, data)
comparison = {
    name: fedax.run_grid(
        [method], task, seed=[0, 1, 2], solver=fedax.SGD(0.1), rounds=30, observe_every=5
    )
    for name, method in {"FedAvg": fedax.FedAvg(), "FedProx": fedax.FedProx(mu=0.1)}.items()
}
for name, runs in comparison.items():
    print(f"{name}: accuracy {np.mean([run.last('test_accuracy') for run in runs]):.2f}")

# %% [markdown]
# `fedax.compare` writes the curves of several runs to one page, which opens in a browser:

# %%
fedax.compare(comparison, "runs/comparison.html", title="Own network")

# %% [markdown]
# ## Common mistakes
#
# - **A scalar loss.** fedax refuses a loss with `jnp.mean` inside, and names the expected shape.
# - **Randomness.** A loss with an argument `key` gets a random key: `loss(params, examples, key)`. In
#   evaluation the key is `None`, so switch dropout off there.
# - **State besides parameters.** Running averages are a state. Flax modules bring their own. Your own
#   loss takes the argument `state` and returns `(losses, new state)`.
# - **Coupled examples.** A loss that couples the examples of a minibatch takes the argument `state`,
#   which is `()` if it has none, and gets full minibatches. `fedax.conformance.check(task)`, or `fedax check --task FILE:NAME`,
#   evaluates examples alone and in a batch, and says where a loss, a score or a prediction differs.
# - **Precision.** Parameters keep their type. Python numbers get JAX's default, which is 32 bits
#   unless `jax_enable_x64` is set.
