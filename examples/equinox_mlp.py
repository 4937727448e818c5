"""An Equinox module: seeds differ in the starting point, and the history has a module again."""

import equinox as eqx
import optax

import fedax


def loss(outputs, examples):
    return optax.softmax_cross_entropy_with_integer_labels(outputs, examples["y"])


task = fedax.from_model(
    fedax.models.equinox(lambda key: eqx.nn.MLP(64, 10, width_size=32, depth=1, key=key)),
    loss,
    fedax.data.digits("dirichlet", clients=10, alpha=0.3),
)
histories = [
    fedax.run(fedax.FedProx(mu=0.1), task, solver=fedax.SGD(0.1), rounds=20, seed=seed)
    for seed in range(3)
]
print([round(float(history.metrics["test_accuracy"][-1]), 3) for history in histories])
print(histories[0].params(fedax.data.digits().train[0]["x"][0]).argmax())
