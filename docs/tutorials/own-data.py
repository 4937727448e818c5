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
task = fedax.classification(data, fedax.models.Softmax(5, 3))
fedax.run(fedax.FedAvg(), task, rounds=3).outcome.ok

# %% [markdown]
# ## Split a pool
#
# A partition is a list of index arrays, one for each client. The functions of `fedax.data` make
# partitions whose clients differ in labels, in size, or in both. You can also compute your own.

# %%
x = rng.normal(size=(600, 5))
y = rng.integers(0, 3, size=600)
even = dirichlet(y, clients=4, alpha=100.0)
skewed = dirichlet(y, clients=4, alpha=0.2)
shards = label_shards(y, clients=4, shards_per_client=1)
for name, partition in (("alpha = 100", even), ("alpha = 0.2", skewed), ("one shard each", shards)):
    print(f"{name:15}", [np.bincount(y[part], minlength=3).tolist() for part in partition])

# %% [markdown]
# `test_fraction` keeps a share of each client's examples for testing. `ClientAccuracy` uses those.
# `central` is a test set that belongs to no client. `TestAccuracy` uses that if there is one.

# %%
data = FederatedData.partitioned(x, y, skewed, classes=3, test_fraction=0.2)
data.sizes, data.test_sizes

# %% [markdown]
# ## Tables
#
# `from_table` reads a pandas frame, a CSV or Parquet file, or a table of Hugging Face's `datasets`.
# Name the column of the labels, `y`, and the column that says whose a row is, `client`. All other
# columns are features.

# %%
import pandas as pd

from fedax.data import from_table

n = 200
frame = pd.DataFrame(
    {
        "ward": rng.choice(["east", "north", "west"], n),
        "age": rng.normal(60, 12, n).round(),
        "sex": rng.choice(["f", "m"], n),
    }
)
risk = (frame["age"] - 60) / 12 + (frame["sex"] == "m")
frame["outcome"] = np.where(risk + rng.normal(size=n) > 0.5, "relapse", "well")

data = from_table(frame, client="ward", y="outcome", test_fraction=0.2)
data

# %% [markdown]
# The data have one `encoding` for all clients. Columns of numbers are standardized by their mean and
# standard deviation over all clients' training rows. Columns of text are categories, one feature of 0
# or 1 each. `classes=["well", "relapse"]` would set the order of the labels,
# `columns={"standardize": False}` would leave numbers as they are, and `columns={"missing": "drop"}`
# or `"mean"` say what is done about missing cells, which are refused otherwise.

# %%
data.encoding

# %% [markdown]
# A run with privacy takes only means and deviations that you give, because measured ones tell about
# all rows: `columns={"standardize": ({"age": 60}, {"age": 12})}`.
#
# The trained model predicts for other tables by the names of their columns. Their order does not
# matter, and they need no labels.

# %%
task = fedax.classification(data, fedax.models.Softmax(3, 2))
history = fedax.run(fedax.FedAvg(), task, rounds=20, solver=fedax.SGD(0.1))
history.predict(pd.DataFrame({"sex": ["m", "f"], "age": [75, 41]})).round(2)

# %% [markdown]
# A folder has a file for each client, which is named as the client. A list of paths or a mapping from
# names to frames does the same. A table without a column of clients is dealt out by a `partition`.

# %%
from pathlib import Path
from tempfile import TemporaryDirectory

plain = frame.drop(columns="ward")
with TemporaryDirectory() as folder:
    for ward, rows in plain.groupby(frame["ward"]):
        rows.to_csv(Path(folder) / f"{ward}.csv", index=False)
    by_file = from_table(folder, y="outcome")
dealt = from_table(plain, y="outcome", partition="dirichlet", clients=4, alpha=1.0)
by_file.sizes, dealt.sizes

# %% [markdown]
# Parquet and tables of the `datasets` library are read in the same way:
# `from_table("all.parquet", client="ward", y="outcome")` and
# `from_table(datasets.load_from_disk("wards"), client="ward", y="outcome")`. Columns of arrays or
# images are no columns of a table: make arrays of them, and use `FederatedData.partitioned`.
#
# In an experiment file and on the command line, the same options belong to the task `table`:
#
# ```toml
# [task]
# name = "table"
# table = "wards.csv"       # or a folder with a file for each client
# client = "ward"
# y = "outcome"
# test_fraction = 0.2
# ```
#
# `fedax predict runs/wards new.csv` writes the predictions for another file. `fedax data list`
# lists the data sets that fedax knows by name, where it looks for them, and how to download them.

# %% [markdown]
# ## Vary the heterogeneity
#
# One split says little. Compare the same pool at several levels of heterogeneity. `B` is 1 if all
# clients agree ([Measure it](../guides/heterogeneity.md#measure-it)):

# %%
for alpha in (100.0, 1.0, 0.1):
    task = fedax.task("digits", partition="dirichlet", clients=10, alpha=alpha)
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
