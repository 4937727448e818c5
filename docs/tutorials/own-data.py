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
# # Your own data
#
# Your data are already split by client, or they are one pool that you want to split, or they are
# files. This page makes a task from each.
#
# ## Already split by client
#
# Make a list with one entry for each client. Each entry is a dictionary of arrays with one row per
# example. Clients may have different numbers of examples.

# %%
import numpy as np

import fedax
from fedax.data import FederatedData, dirichlet, label_shards

rng = np.random.default_rng(0)
clients = [{"x": rng.normal(size=(n, 5)), "y": rng.integers(0, 3, size=n)} for n in (30, 12, 55)]
data = FederatedData.from_arrays(clients, classes=3, name="three clients")
data.sizes, data.label_counts

# %% [markdown]
# `FederatedData` checks shapes, labels and missing values, and names the client of a mistake. Add a
# model from `fedax.models`, and you have a classification task. Its loss is the cross-entropy, and
# its score is the accuracy.

# %%
task = fedax.tasks.classification(data, fedax.models.Softmax(5, 3))
fedax.run(fedax.FedAvg(), task, rounds=3).outcome.ok

# %% [markdown]
# ## Split a pool
#
# A partition is a list of index arrays, one for each client. The functions of `fedax.data` make
# partitions whose clients differ in labels, in size, or in both. You can also compute your own.

# %%
x, y = rng.normal(size=(600, 5)), rng.integers(0, 3, size=600)
even = dirichlet(y, clients=4, alpha=100.0)
skewed = dirichlet(y, clients=4, alpha=0.2)
shards = label_shards(y, clients=4, shards_per_client=1)
for name, partition in (("alpha = 100", even), ("alpha = 0.2", skewed), ("one shard each", shards)):
    print(f"{name:15}", [np.bincount(y[part], minlength=3).tolist() for part in partition])

# %% [markdown]
# `test_fraction` keeps a share of each client's examples for testing. `ClientAccuracy` uses those. A
# `central` is a test set that belongs to no client. `TestAccuracy` uses that if there is one.

# %%
data = FederatedData.partitioned(x, y, skewed, classes=3, test_fraction=0.2)
data.sizes, data.test_sizes

# %% [markdown]
# ## Files
#
# `client_files` reads a folder with one CSV, NumPy or Parquet file for each client. It also reads one
# table of all clients, from a file or a pandas frame:
# `client_files("all.csv", client="hospital", label="diagnosis", labels=["healthy", "ill"], test_fraction=0.2)`.
#
# `fedax data list` on the command line lists the data sets that fedax knows by name, where it looks
# for them, and how to download them. `digits` and `synthetic` need no download.

# %%
from pathlib import Path
from tempfile import TemporaryDirectory

with TemporaryDirectory() as folder:
    for k in range(3):
        table = np.column_stack([rng.normal(size=(20, 2)), rng.integers(0, 2, size=20)])
        np.savetxt(
            Path(folder) / f"client-{k}.csv", table, delimiter=",", header="a,b,y", comments=""
        )
    task = fedax.tasks.client_files(folder=folder)
task.train.clients, task.train.sizes

# %% [markdown]
# ## Vary the heterogeneity
#
# One split says little. Compare the same pool at several levels of heterogeneity. `B` is 1 if all
# clients agree ([Measure it](../guides/heterogeneity.md#measure-it)):

# %%
for alpha in (100.0, 1.0, 0.1):
    task = fedax.tasks.digits("dirichlet", clients=10, alpha=alpha)
    history = fedax.run(
        fedax.FedAvg(),
        task,
        solver=fedax.SGD(0.05),
        schedule=fedax.Schedule(cohort=5, batch_size=10),
        rounds=10,
        observe=[fedax.observe.TestAccuracy(), fedax.observe.Dissimilarity()],
        observe_every=10,
    )
    print(
        f"alpha {alpha:5}: accuracy {history.last('test_accuracy'):.2f}, B "
        f"{history.last('dissimilarity'):.1f}"
    )
