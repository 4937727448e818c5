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
# A federated simulation in PyTorch is usually three nested loops: rounds, the clients of a round,
# minibatches. fedax has all three, compiled. You bring the module, its loss, and the data of each
# client. This page moves one such program over, and its weights back. It needs PyTorch: `pip
# install torch --index-url https://download.pytorch.org/whl/cpu`.
#
# ```python
# for t in range(20):
#     updates, sizes = [], []
#     for k in rng.choice(10, size=5, replace=False):
#         local = copy.deepcopy(net)
#         optimizer = torch.optim.SGD(local.parameters(), lr=0.02, momentum=0.9)
#         for x, y in DataLoader(clients[k], batch_size=20, shuffle=True):
#             optimizer.zero_grad()
#             F.cross_entropy(local(x), y).backward()
#             optimizer.step()
#         updates.append(local.state_dict()); sizes.append(len(clients[k]))
#     net.load_state_dict(weighted_mean(updates, sizes))
# ```
#
# ## The module and the data stay
#
# Ten clients with images of one or two digits each.

# %%
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Subset, TensorDataset, default_collate

torch.manual_seed(0)
net = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10)
)

x, y = load_digits(return_X_y=True)
images = TensorDataset(
    torch.tensor(x / 16, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(y)
)
order = np.random.default_rng(0).permutation(len(y))
held = order[:300]
rest = order[300:]
by_label = rest[np.argsort(y[rest], kind="stable")]
clients = [Subset(images, part.tolist()) for part in np.array_split(by_label, 10)]
central = Subset(images, held.tolist())

# %% [markdown]
# ## The loss is a function in JAX
#
# It gives one number for each example, what `reduction="none"` gives in PyTorch. fedax takes the
# mean: `reduction="mean"` would weigh a short last minibatch as much as a full one. A data set
# becomes arrays by PyTorch's own `default_collate`. The first `fedax.models.torch` of a process can
# take ten seconds or more, because it loads `torch.export`.

# %%
import optax

import fedax


def cross_entropy(logits, examples):
    return optax.softmax_cross_entropy_with_integer_labels(logits, examples["y"])


def arrays(dataset):
    x, y = default_collate([*dataset])
    return {"x": x, "y": y}


data = [arrays(client) for client in clients]
model = fedax.models.torch(net, data[0]["x"])
task = fedax.from_model(
    model, cross_entropy, fedax.data.FederatedData.from_arrays(data, central=arrays(central))
)

# %% [markdown]
# ## The loops go
#
# | PyTorch | fedax |
# |---|---|
# | `torch.optim.SGD(lr=0.02, momentum=0.9)` | `fedax.SGD(0.02, momentum=0.9)`; any Optax optimizer by `fedax.Optax` |
# | `DataLoader(batch_size=20, shuffle=True)`, one epoch | `fedax.Schedule(batch_size=20, epochs=1)` |
# | `DataLoader(batch_size=len(data))` | `fedax.Schedule(batch_size="full")` |
# | `DataLoader(shuffle=False)` | `fedax.Schedule(order="given")` |
# | a scheduler of the learning rate, such as `StepLR` | `fedax.SGD(0.02, decay=0.9)` for a factor after every round, or [any schedule](../evaluation.md#learning-rates-over-a-run-weight-decay-clipping) |
# | `rng.choice(10, size=5, replace=False)` | `fedax.Schedule(cohort=5)` |
# | `weighted_mean(updates, sizes)` | part of the algorithm: `fedax.FedAvg()` |
# | `torch.manual_seed(0)` | `seed=0`, which fixes every draw |
# | `net.eval()` and a loop over the test set | `observe=[fedax.observe.TestAccuracy()]` |

# %%
arguments = {
    "solver": fedax.SGD(0.02, momentum=0.9),
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
# Another algorithm is another word. SCAFFOLD's control variates divide by the learning rate, so
# that it asks for plain SGD; all get it here.

# %%
plain = arguments | {"solver": fedax.SGD(0.1)}
for algorithm in (fedax.FedAvg(), fedax.FedProx(mu=0.1), fedax.SCAFFOLD(), fedax.FedDyn(alpha=0.1)):
    result = fedax.run(algorithm, task, **plain)
    print(f"{type(algorithm).__name__:9} accuracy {result.metrics['test_accuracy'][-1]:.2f}")

# %% [markdown]
# ## The weights go back
#
# `history.state_dict()` has what was trained, by PyTorch's names. Load it with `strict=False` if the
# module has shared weights or buffers that training does not change.

# %%
net.load_state_dict(history.state_dict())
with torch.no_grad():
    right = net.eval()(torch.stack([image for image, _ in central])).argmax(1).numpy() == y[held]
print(f"accuracy in PyTorch {right.mean():.2f}")

# %% [markdown]
# ## What changes, and what cannot be done
#
# | | |
# |---|---|
# | parameters and buffers | a dict of arrays by the names in `state_dict()` |
# | batch statistics | state beside the parameters: averaged, kept at each client, or frozen, see [libraries](../models.md) |
# | dropout | draws from the step's key |
# | `requires_grad=False` | frozen: not sent and not counted |
# | momentum | starts at zero at each client and round, as in the loop above |
# | data sets | read once, with their transforms; random ones draw once |
# | devices | clients are spread over all devices of the machine |
# | branches on values in `forward` | refused by PyTorch |
# | operators without a form in JAX | refused by their names |
# | `.detach()`, `torch.no_grad()`, hooks, counters and Python's random numbers in `forward` | refused, with the parameter and the difference from PyTorch |
