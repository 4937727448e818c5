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
# A task, a method, a run, a comparison, and a model to keep: all of it on the small digits that
# scikit-learn ships, dealt out so that every client has few of the ten labels.

# %%
import fedax

data = fedax.data.digits("shards", clients=10)
data.label_counts

# %% [markdown]
# Each row is a client, each column a digit. The task of the same name has a model, softmax
# regression, and examples of each client kept for testing.

# %%
task = fedax.tasks.digits("shards", clients=10)
history = fedax.run(
    fedax.FedAvg(),
    task,
    solver=fedax.SGD(0.1),
    schedule=fedax.Schedule(cohort=5, epochs=2, batch_size=20),
    rounds=20,
    observe_every=5,
)
print(history.table())

# %% [markdown]
# In every round five clients are drawn; each takes two passes over its examples from the global
# model, and the server averages. The table has what was observed: the loss on all training
# examples, and the accuracy on all test examples. Everything else of the run is in the history too.

# %%
history.outcome.ok, int(history.bits.up.sum()), history.params.kernel.shape

# %% [markdown]
# ## A comparison
#
# Methods are compared with the same seed: they see the same cohorts and the same minibatches.
# Several seeds say how much is luck.

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
# SCAFFOLD's clients send their control variates beside their models: twice as much. A page with the
# curves, the mean of the seeds and a band, that opens in any browser:

# %%
fedax.compare(histories, "runs/tutorial.html")

# %% [markdown]
# `fedax compare` does the same on the command line, for the tasks that have a name there.
#
# ## A mistake
#
# A mistake is said before anything is compiled:

# %%
try:
    fedax.run(fedax.FedAvg(), task, schedule=fedax.Schedule(cohort=11))
except fedax.InvalidInput as error:
    print(error)

# %% [markdown]
# ## A model to keep
#
# The model goes into a file, comes back in its structure, and can be the start of another run.

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
# The first loss is the last one of the run above. From here: [your own model](own-model.md), [your
# own data](own-data.md), [your own method](own-method.md).
