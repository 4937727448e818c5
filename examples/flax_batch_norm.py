"""A Flax CNN with batch norm, on digits of another contrast at every client: averaged, with local
statistics, by FedBN.
"""

import numpy as np
import optax
from flax import nnx

import fedax


class CNN(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.conv = nnx.Conv(1, 8, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(8, momentum=0.9, rngs=rngs)
        self.head = nnx.Linear(8 * 16, 10, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.norm(self.conv(x.reshape(-1, 8, 8, 1))))
        return self.head(nnx.avg_pool(x, (2, 2), (2, 2)).reshape(len(x), -1))


def loss(outputs, examples):
    return optax.softmax_cross_entropy_with_integer_labels(outputs, examples["y"])


def lit(examples, contrast, light):
    return [
        {"x": a * np.asarray(own["x"]) + b, "y": own["y"]}
        for own, a, b in zip(examples, contrast, light)
    ]


data = fedax.data.digits("shards", clients=20)
rng = np.random.default_rng(0)
scene = rng.choice([-1.0, 0.3, 1.0, 3.0], 20), rng.normal(size=20)
for method, policy in (
    (fedax.FedAvg(), "average"),
    (fedax.FedAvg(), "local"),
    (fedax.FedBN(), "local"),
):
    task = fedax.from_model(
        fedax.models.nnx(CNN),
        loss,
        fedax.FederatedData.from_arrays(lit(data.train, *scene), test=lit(data.test, *scene)),
        state_policy=policy,
    )
    observe = [fedax.observe.LocalAccuracy()]
    history = fedax.run(
        method, task, solver=fedax.SGD(0.05), rounds=20, observe=observe, observe_every=4
    )
    print(
        f"{type(method).__name__}, statistics {policy}: local accuracy "
        f"{history.metrics['local_accuracy_mean'][-1]:.3f}"
    )
