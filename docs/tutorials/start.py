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
# # A first federation
#
# On this page you make a task, run a method, compare three methods, and save a model. The data are
# the small digits that come with scikit-learn. Each client has only a few of the ten labels.

# %%
import fedax

data = fedax.data.digits("shards", clients=10)
data.label_counts

# %% [markdown]
# Each row is a client, and each column is a digit. `fedax.task` makes a task of these data:
# it adds a model, softmax regression, and keeps examples of each client for testing.

# %%
task = fedax.task("digits", partition="shards", clients=10)
history = fedax.run(
    fedax.FedAvg(),
    task,
    solver=fedax.SGD(0.1),
    schedule=fedax.Schedule(cohort=5, epochs=2, batch_size=20),
    rounds=20,
    observe_every=5,
)
print(history)

# %% [markdown]
# In every round fedax draws five clients. Each starts from the global model and takes two passes
# over its examples, and the server averages the results. The table has the loss on all training
# examples and the accuracy on all test examples. The history holds everything else of the run.

# %%
history.outcome.ok, int(history.bits.up.sum()), history.params.kernel.shape

# %% [markdown]
# ## A comparison
#
# With the same seed, all methods get the same cohorts and minibatches. With several seeds you see how
# much of a difference is chance.

# %%
methods = {"FedAvg": fedax.FedAvg(), "FedProx": fedax.FedProx(mu=0.1), "SCAFFOLD": fedax.SCAFFOLD()}
options = {"solver": fedax.SGD(0.1), "schedule": fedax.Schedule(cohort=5, epochs=2, batch_size=20)}
histories = {}
for name, method in methods.items():
    runs = histories[name] = fedax.run_grid(
        [method], task, seed=[0, 1, 2], rounds=20, observe_every=2, **options
    )
    found = ", ".join(f"{run.last('test_accuracy'):.3f}" for run in runs)
    print(
        f"{name:8}: accuracy {found}; {runs[0].bits.up.sum() / 8e3:.0f} kB sent by the "
        "clients of one run"
    )

# %% [markdown]
# SCAFFOLD's clients also send control variates, so they send twice as much. `fedax.compare` writes
# a page with the curves, as means over the seeds with a band, which opens in any browser:

# %%
fedax.compare(histories, "runs/tutorial.html")

# %% [markdown]
# `fedax compare` does the same on the command line, also with your own task, model and method in files.
#
# ## A mistake
#
# fedax finds mistakes before it compiles anything, and names the allowed values:

# %%
try:
    fedax.run(fedax.FedAvg(), task, schedule=fedax.Schedule(cohort=11))
except fedax.InvalidInput as error:
    print(error)

# %% [markdown]
# ## A model to keep
#
# Save the model to a file, load it in its structure, and start another run from it.

# %%
from pathlib import Path
from tempfile import TemporaryDirectory

with TemporaryDirectory() as folder:
    path = Path(folder) / "digits.safetensors"
    history.save(path)
    again = fedax.load_params(path, like=task)
more = fedax.run(fedax.FedAvg(), task, params=again, rounds=5, observe_every=5, **options)
more.metrics["train_loss"]

# %% [markdown]
# The first loss equals the last one of the run above. Next: [your own model](own-model.md), [your
# own data](own-data.md), [your own method](own-method.md).
