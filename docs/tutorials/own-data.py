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
# Data come in one of three ways: already by client, as one pool that you want to deal out, or as
# files. All end as a task.
#
# ## Already by client
#
# A list with one entry for each client, each a dictionary of arrays with one row per example.
# Clients may have different numbers of examples.

# %%
import numpy as np

import fedax
from fedax.data import FederatedData, dirichlet, label_shards

rng = np.random.default_rng(0)
clients = [{"x": rng.normal(size=(n, 5)), "y": rng.integers(0, 3, size=n)} for n in (30, 12, 55)]
data = FederatedData(clients, classes=3, name="three clients")
data.sizes, data.label_counts

# %% [markdown]
# `FederatedData` checks shapes, labels and missing values once, and says which client is at fault.
# With a model of `fedax.models` it becomes a classification task with cross-entropy as the loss and
# accuracy as a score.

# %%
task = fedax.tasks.classification(data, fedax.models.Softmax(5, 3))
fedax.run(fedax.FedAvg(), task, rounds=3).outcome.ok

# %% [markdown]
# ## A pool, dealt out
#
# A partition is a list of index arrays. Those of `fedax.data` make clients differ in labels, in
# size, or in both; anything else that you compute is as good.

# %%
x, y = rng.normal(size=(600, 5)), rng.integers(0, 3, size=600)
even = dirichlet(y, clients=4, alpha=100.0)
skewed = dirichlet(y, clients=4, alpha=0.2)
shards = label_shards(y, clients=4, shards_per_client=1)
for name, partition in (("alpha = 100", even), ("alpha = 0.2", skewed), ("one shard each", shards)):
    print(f"{name:15}", [np.bincount(y[part], minlength=3).tolist() for part in partition])

# %% [markdown]
# A share of each client's examples is kept for testing, which is what `ClientAccuracy` looks at; a
# `holdout` belongs to no client and is what `TestAccuracy` looks at.

# %%
data = FederatedData.partitioned(x, y, skewed, classes=3, test_fraction=0.2)
data.sizes, data.test_sizes

# %% [markdown]
# ## Files
#
# `client_files` reads one CSV, NumPy or Parquet file for each client, or one table of all (a file,
# or a frame of pandas): `client_files("all.csv", client="hospital", label="diagnosis",
# labels=["healthy", "ill"], test_fraction=0.2)`. `fedax data list` on the command line names the
# data sets that are known by name, where they are looked for, and how to download them; `digits`
# and `synthetic` need no download.

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
# ## Unequal clients on purpose
#
# The same pool at several levels of heterogeneity tells more than one split:

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
