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
# A model is any pytree of numbers, and a loss that gives **one number per example**. fedax averages
# over examples, weighs clients and takes gradients. This page trains a small network three times:
# in plain JAX, as an Equinox and as a Flax module.
#
# The data are made here: four clients, each with points from two of four clusters.

# %%
import jax
import jax.numpy as jnp
import numpy as np

import fedax

rng = np.random.default_rng(0)
centres = np.array([[2.0, 0.0], [-2.0, 0.0], [0.0, 2.0], [0.0, -2.0]])


def client(classes, count=60):
    y = rng.choice(classes, size=count)
    return {"x": centres[y] + 0.7 * rng.normal(size=(count, 2)), "y": y}


clients = [client(classes) for classes in ([0, 1], [1, 2], [2, 3], [3, 0])]
holdout = client([0, 1, 2, 3], count=200)

# %% [markdown]
# ## In plain JAX
#
# `examples` is what a client holds, with a first axis over the examples of a minibatch. The loss
# returns an array of that length, not its mean: minibatches of different sizes, padding and the
# weights of clients are then exact. A loss that couples examples is refused before anything is
# compiled, unless it says so (see the end of this page).


# %%
def logits(params, x):
    hidden = jax.nn.tanh(x @ params["w1"] + params["b1"])
    return hidden @ params["w2"] + params["b2"]


def loss(params, examples):
    z = logits(params, examples["x"])
    return (
        jax.nn.logsumexp(z, axis=1) - jnp.take_along_axis(z, examples["y"][:, None], axis=1)[:, 0]
    )


def accuracy(params, examples):
    return (logits(params, examples["x"]).argmax(axis=1) == examples["y"]).astype(float)


params = {
    "w1": 0.5 * rng.normal(size=(2, 16)),
    "b1": np.zeros(16),
    "w2": 0.5 * rng.normal(size=(16, 4)),
    "b2": np.zeros(4),
}
task = fedax.tasks.from_loss(loss, params, clients, scores={"accuracy": accuracy}, holdout=holdout)

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
# `history.params` is the trained model in the form in which the start was given.

# %%
jax.tree.map(jnp.shape, history.params)

# %% [markdown]
# ## An Equinox module
#
# A module also holds values that are not trained, such as activation functions. `from_equinox` splits that
# off and puts it back; the loss is a function of the module's outputs and the examples. A function
# of a random key instead of the module gives every seed its own starting point.

# %%
import equinox as eqx


def network(key):
    return eqx.nn.MLP(
        in_size=2, out_size=4, width_size=16, depth=1, activation=jax.nn.tanh, key=key
    )


def cross_entropy(outputs, examples):
    return (
        jax.nn.logsumexp(outputs, axis=1)
        - jnp.take_along_axis(outputs, examples["y"][:, None], axis=1)[:, 0]
    )


task = fedax.tasks.from_equinox(network, cross_entropy, clients, holdout=holdout)
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
# Accuracy is a score by itself where there are whole labels and an output for each.
# `history.params` is a module again:

# %%
[int(history.params(jnp.array(centre)).argmax()) for centre in centres]

# %% [markdown]
# ## A Flax module
#
# `from_flax` takes a module of NNX or Linen: its class, and every seed gets a starting point of its
# own. Batch statistics, dropout and whether the model trains are dealt with. Needs `pip install
# flax`; [Haiku](../libraries.md) modules go in by `from_haiku`.

# %%
from flax import nnx


class Network(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.hidden, self.norm = (
            nnx.Linear(2, 16, rngs=rngs),
            nnx.BatchNorm(16, momentum=0.9, rngs=rngs),
        )
        self.dropout, self.head = nnx.Dropout(0.1, rngs=rngs), nnx.Linear(16, 4, rngs=rngs)

    def __call__(self, x):
        return self.head(self.dropout(nnx.relu(self.norm(self.hidden(x)))))


task = fedax.tasks.from_flax(Network, cross_entropy, clients, holdout=holdout)
comparison = {
    name: fedax.run_grid(
        [method], task, seed=[0, 1, 2], solver=fedax.SGD(0.1), rounds=30, observe_every=5
    )
    for name, method in {"FedAvg": fedax.FedAvg(), "FedProx": fedax.FedProx(mu=0.1)}.items()
}
for name, runs in comparison.items():
    print(f"{name}: accuracy {np.mean([run.last('test_accuracy') for run in runs]):.2f}")

# %% [markdown]
# The curves of several runs on one page, which opens in a browser:

# %%
fedax.compare(comparison, "comparison.html", title="Own network")

# %% [markdown]
# ## The usual stumbles
#
# - **A scalar loss.** `jnp.mean` inside the loss is refused with the shape that was expected.
# - **Randomness.** A loss with a third argument gets a key: `loss(params, examples, key)`. The key
#   is `None` when the loss is only
#   observed, so that dropout is off there.
# - **State beside parameters.** Running averages are a state: modules of Flax bring theirs, a loss
#   of your own takes `state` and
#   returns `(losses, new state)`. A loss that couples the examples of a minibatch takes `mask`, which is False for padding.
# - **Precision.** Parameters keep the type in which they are given; Python numbers become JAX's
#   default, 32 bits unless
#   `jax_enable_x64` is set.
