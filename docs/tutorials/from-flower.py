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
# A Flower method has two halves. A strategy on the server chooses clients and aggregates their
# messages, and a client app trains. In fedax a method is one class. On one machine it is compiled
# and runs as a simulation. For [deployment](../flower.md) the same class runs over Flower's
# SuperLink and SuperNodes, so you keep your network, keys and tools.
#
# ## Before: a Flower app
#
# The client app trains a PyTorch module on its partition. The server app averages the results. An app
# with `client_fn` and a `NumPyClient` moves the same way, and the table below has its functions:
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
# ## After: the same experiment in fedax
#
# You keep `Net` and `load_data`. You no longer need `train_fn`, the two apps and their messages.
# Each example of Flower's quickstart is a dict with the columns `img` and `label`. So `inputs`
# names the column that the module takes, and the loss looks up the labels by name. fedax adds the
# accuracy by itself only where the labels are called `y`, so this task gets it by `scores`:
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
# trains = [torch.utils.data.default_collate([*train.dataset]) for train, _ in loaders]
# tests = [torch.utils.data.default_collate([*test.dataset]) for _, test in loaders]
# model = fedax.models.torch(net, trains[0]["img"])
# data = fedax.FederatedData.from_arrays(trains, test=tests)
# task = fedax.from_model(model, cross_entropy, data, inputs="img", scores={"accuracy": accuracy})
# history = fedax.run(fedax.FedAvg(), task, solver=fedax.SGD(0.1), rounds=20,
#                     schedule=fedax.Schedule(cohort=5, epochs=1, batch_size=32))
# net.load_state_dict(history.state_dict())
# torch.save(net.state_dict(), "model.pt")
# ```
#
# | Flower | fedax | what you do |
# |---|---|---|
# | `Net`, a `torch.nn.Module` | `fedax.models.torch` | keep it |
# | `load_data(partition_id, num_partitions)` | one entry of `clients` | keep it |
# | SuperLink, SuperNodes, keys, TLS | `fedax deploy` ([its page](../flower.md)) | keep them |
# | the body of `train`, or `NumPyClient.fit` | `client.minimize(start=w)` with a solver and a `Schedule` | replace it |
# | `client_fn`, `get_parameters`, `set_parameters` | nothing: fedax passes the model and takes the `Upload` | drop them |
# | `on_fit_config_fn` with a learning rate for each round | the solver's decay: `fedax.SGD(0.5, decay=0.9)` multiplies the rate by 0.9 after every round, and [a schedule](../evaluation.md#learning-rates-over-a-run-weight-decay-clipping) gives any other factors | replace it |
# | the loss, `F.cross_entropy` | a JAX function that returns one number per example | rewrite it |
# | `ArrayRecord`, `MetricRecord`, `reply_to` | `Upload(...)` | replace them |
# | `"num-examples"` | nothing: fedax knows the sizes of the clients and weights the mean by them | drop it |
# | `NumPyClient.evaluate` with a `weighted_average` of the accuracies | the observer `fedax.observe.ClientAccuracy()`; its metric `client_accuracy_pooled` weights clients by their test examples | replace them |
# | the strategy `FedProx`, and its term in the client's loss | `fedax.FedProx(mu=0.1)`, which adds the term | replace it |
# | the strategies `FedMedian`, `FedTrimmedAvg` | `fedax.CoordinateMedian()`, `fedax.TrimmedMean(beta=0.2)`, which rounds the number of left-out clients up where Flower rounds it down | replace them |
# | the strategies `FedAvgM`, `FedAdam`, `FedYogi`, `FedAdagrad`, `QFedAvg`, `Krum` | classes with the same names, such as `fedax.FedAvgM()` | replace them |
# | `flwr_datasets` with `DirichletPartitioner`, `IidPartitioner`, `ShardPartitioner` | pass the loaded partitions as `clients`, or split all data with `fedax.data.dirichlet`, `iid` or `label_shards` | keep or replace them |
# | `DifferentialPrivacyServerSideFixedClipping` and the other wrappers | `channel=fedax.Channel(privacy=fedax.Privacy(...))`, with `quantile=0.5` for adaptive clipping ([privacy](../privacy.md)) | replace them |
# | `run_config` and its values in `pyproject.toml` | the experiment file ([below](#back-onto-flowers-network)) | replace it |
# | `fraction_train=0.5`, `fraction_fit=0.5` | `Schedule(cohort=...)`, an exact number of clients | replace it |
# | `Strategy.configure_train`, `aggregate_train` | `round(self, fed, state)` | rewrite them |
# | `context.state` | client state that the method declares; a deployed client stores it on its disk | rewrite it |
# | `evaluate_fn`, `aggregate_evaluate` | observers | replace them |
# | `client_resources`, Ray's actors | nothing: the clients of a round are one compiled program | drop them |
#
# `fedax.observe.TestLoss()` and `TestAccuracy()` look at the task's `central`. Without one they look
# at the test examples of all clients together. Flower's distributed loss is the mean over the
# clients' test examples. If your task has a `central`, observe `fedax.observe.ClientAccuracy("loss")`
# for it: the metric is `client_loss_pooled`.
#
# Some things have no equivalent:
#
# | in Flower | what to do |
# |---|---|
# | training in scikit-learn, XGBoost or another library than JAX and PyTorch | stay with Flower |
# | a PyTorch module that branches on values or has operators without a JAX form | fedax refuses it and names the module and the line; rewrite that part |
# | clients with different architectures | use a personalized method: clients share one architecture and keep some of its layers to themselves |
# | clients in other languages or on phones | stay with Flower |
# | deployed batch norm, or a deployed solver with `keep=True` | simulate, use MPI, or freeze the statistics |
# | metrics that a client computes with arbitrary code | write an observer in JAX |
# | Flower's mods | use fedax's codecs, privacy and attacks |
#
# The rest of this page runs an experiment like this on digits, with a model of fedax.

# %%
import fedax

task = fedax.task("digits", partition="shards", clients=10)
arguments = {
    "solver": fedax.SGD(0.1),
    "schedule": fedax.Schedule(cohort=5, epochs=1, batch_size=20),
    "observe": [fedax.observe.TestAccuracy()],
    "observe_every": 10,
    "rounds": 20,
}
history = fedax.run(fedax.FedAvg(), task, **arguments)
print(history)

# %% [markdown]
# ## Your own strategy
#
# In Flower, a strategy with server momentum overrides `aggregate_train`, stores arrays between
# rounds and combines lists of NumPy arrays. In fedax the code reads like the definition:
#
# $$ m \leftarrow \beta m + (\bar w - w), \qquad w \leftarrow w + m . $$
#
# `init` creates the state, and `model` says which part of it is the model. All communication
# happens in `fed.average`.

# %%
from typing import NamedTuple

import jax.numpy as jnp

from fedax.core import Algorithm, Scalar, Upload, Vector, hyper


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
# fedax has this method as `FedAvgM(momentum=0.5)`. The largest difference of the two models:

# %%
import jax

known = fedax.run(fedax.FedAvgM(momentum=0.5), task, **arguments)
difference = jax.tree.map(lambda a, b: abs(a - b).max(), known.params, heavy.params)
print(f"{max(jax.tree.leaves(difference)):.1g}")

# %% [markdown]
# ## Back onto Flower's network
#
# An experiment file names the task, the algorithms and their settings. You simulate and deploy the
# same file:
#
# ```
# # simulated
# fedax run experiment.toml
# # a Flower app, with scripts of a SuperLink and SuperNodes with TLS
# fedax deploy init experiment.toml --clients 5
# ```
#
# With the same seed both give the same parameters, up to rounding in float32.
# [For users of Flower](../flower.md#for-users-of-flower) says what else changes in a deployment.
