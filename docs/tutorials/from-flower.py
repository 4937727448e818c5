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
# # From Flower
#
# In Flower a method is spread over two programs: a strategy on the server, which chooses clients
# and aggregates their messages, and a client, which trains. In fedax it is one class. The same
# class runs compiled on one machine, for research, and over Flower's own SuperLink and SuperNodes,
# for [deployment](../flower.md); you keep the network, the keys and the tools.
#
# ## A Flower app, before
#
# The client trains PyTorch's module on its partition, the server app averages:
#
# ```python
# # client_app.py
# app = ClientApp()
#
# @app.train()
# def train(message, context):
#     model = Net(); model.load_state_dict(message.content["arrays"].to_torch_state_dict())
#     trainloader, _ = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
#     loss = train_fn(model, trainloader, epochs=1, lr=0.1)
#     return Message(content=RecordDict({"arrays": ArrayRecord(model.state_dict()),
#                                        "metrics": MetricRecord({"num-examples": len(trainloader.dataset)})}), reply_to=message)
#
# # server_app.py
# app = ServerApp()
#
# @app.main()
# def main(grid, context):
#     strategy = FedAvg(fraction_train=0.5)
#     result = strategy.start(grid=grid, initial_arrays=ArrayRecord(Net().state_dict()), num_rounds=20)
#     torch.save(result.arrays.to_torch_state_dict(), "model.pt")
# ```
#
# ## The same app, after
#
# `Net` and `load_data` stay; `train_fn`, both apps and their messages go. The examples of the
# quickstart are dicts with the columns `img` and `label`, so `inputs` names the module's argument,
# and the loss takes the labels by name:
#
# ```python
# def cross_entropy(logits, examples):
#     return optax.softmax_cross_entropy_with_integer_labels(logits, examples["label"])
#
# def accuracy(logits, examples):
#     return (logits.argmax(1) == examples["label"]).astype(logits.dtype)
#
# net = Net()
# loaders = [load_data(k, 10) for k in range(10)]
# task = fedax.tasks.from_torch(
#     net, cross_entropy, [train.dataset for train, _ in loaders], inputs="img",
#     test=[test.dataset for _, test in loaders], scores={"accuracy": accuracy},
# )
# history = fedax.run(fedax.FedAvg(), task, solver=fedax.SGD(0.1), rounds=20,
#                     schedule=fedax.Schedule(cohort=5, epochs=1, batch_size=32))
# net.load_state_dict(fedax.tasks.torch_state_dict(net, history))
# torch.save(net.state_dict(), "model.pt")
# ```
#
# | Flower | in fedax | |
# |---|---|---|
# | `Net`, a `torch.nn.Module` | `fedax.tasks.from_torch` | stays |
# | `load_data(partition_id, num_partitions)` | one entry of `clients`, or a data set with a partition | stays |
# | SuperLink, SuperNodes, keys, TLS | `fedax deploy`, see [its page](../flower.md) | stays |
# | the body of `train` | `client.minimize(start=w)` with a solver and a `Schedule` | changes |
# | the loss, `F.cross_entropy` | a function in JAX, one number for each example | changes |
# | `ArrayRecord`, `MetricRecord`, `reply_to` | `Upload(...)` | changes |
# | `"num-examples"` | the size of the client's data: weights of the mean, known to the library | changes |
# | the strategies `FedAvgM`, `FedAdam`, `FedYogi`, `FedAdagrad`, `QFedAvg`, `Krum` | `fedax.FedAvgM()` and so on, by the same names | changes |
# | `flwr_datasets` with `DirichletPartitioner`, `IidPartitioner`, `ShardPartitioner` | the loaded partitions as `clients`; or `fedax.data.dirichlet`, `iid`, `label_shards` of the whole data | changes |
# | `fraction_train=0.5` | `Schedule(cohort=...)`: an exact number of clients | changes |
# | `Strategy.configure_train`, `aggregate_train` | `round(self, fed, state)` | changes |
# | `context.state` | memory that a method declares; on the client's disk when deployed | changes |
# | `evaluate_fn`, `aggregate_evaluate` | observers | changes |
# | `client_resources`, Ray's actors | nothing: the clients of a round are one compiled program | goes |
#
# | cannot be done | instead |
# |---|---|
# | a client's training in scikit-learn, XGBoost or any library but JAX | stay with Flower; a PyTorch module is exported to JAX |
# | a module that branches on values, or with operators without a form in JAX | refused with module and line; rewrite that part |
# | another model at each client | personalized methods with private leaves, of one form |
# | clients in other languages, on phones | stay with Flower |
# | deployments with a state that changes (batch norm), or a solver with `keep=True` | simulate, use MPI, or freeze the state |
# | metrics that a client computes by any code | observers in JAX |
# | Flower's mods | codecs, privacy and attacks of fedax; a mod around messages has no place |
#
# The rest of this page runs the same experiment on digits with a model of the library.

# %%
import fedax

task = fedax.tasks.digits(partition="shards", clients=10)
arguments = {
    "solver": fedax.SGD(0.1),
    "schedule": fedax.Schedule(cohort=5, epochs=1, batch_size=20),
    "observe": [fedax.observe.TestAccuracy()],
    "observe_every": 10,
    "rounds": 20,
}
history = fedax.run(fedax.FedAvg(), task, **arguments)
for t, value in zip(history.rounds, history.metrics["test_accuracy"], strict=True):
    print(f"round {t:2}: accuracy {value:.2f}")

# %% [markdown]
# ## Your own strategy
#
# A strategy that keeps a momentum on the server and lets the last two cohorts count would override
# `aggregate_train`, hold arrays between rounds, and zip lists of NumPy arrays. As an algorithm it
# reads like its definition,
#
# $$ m \leftarrow \beta m + (\bar w - w), \qquad w \leftarrow w + m . $$
#
# `init` makes the state, `model` says which part of it is the model, and `fed.average` is the only
# communication.

# %%
from typing import NamedTuple

import jax.numpy as jnp

from fedax import Algorithm, Scalar, Upload, Vector, hyper


class State(NamedTuple):
    w: Vector
    m: Vector


class Heavy(Algorithm[State]):
    """Federated averaging with heavy-ball momentum on the server."""

    beta: Scalar = hyper(0.5, low=0.0, high=1.0)

    def init(self, fed, w):
        return State(w, jnp.zeros_like(w))

    def round(self, fed, state):
        mean = fed.average(self.train, fed.sample(), state.w)
        m = self.beta * state.m + (mean - state.w)
        return State(state.w + m, m)

    def train(self, client, w):
        return Upload(client.minimize(start=w))

    def model(self, state):
        return state.w


heavy = fedax.run(Heavy(beta=0.5), task, **arguments)
print(f"accuracy {heavy.last('test_accuracy'):.2f}")

# %% [markdown]
# The library has this one as `FedAvgM(momentum=0.5)`; both agree.

# %%
import jax

known = fedax.run(fedax.FedAvgM(momentum=0.5), task, **arguments)
print(
    max(
        float(abs(a - b).max())
        for a, b in zip(*map(jax.tree.leaves, (known.params, heavy.params)), strict=True)
    )
)

# %% [markdown]
# ## Back onto Flower's network
#
# An experiment file names task, algorithms and settings; the same file is simulated and deployed.
#
# ```
# # simulated
# fedax run experiment.toml
# # SuperLink and five SuperNodes, with TLS, on this machine
# fedax deploy init trial --experiment experiment.toml --clients 5
# fedax deploy run trial --trial
# ```
#
# With the same seed both give the same parameters to float32's rounding. What changes for a user of
# Flower in a deployment, and what stays, is on [its page](../flower.md#for-users-of-flower).
