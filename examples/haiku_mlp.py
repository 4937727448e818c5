"""A Haiku function with dropout, which trains with a random key and is evaluated without one."""

import haiku as hk
import jax
import optax

import fedax


def network(x, is_training):
    x = jax.nn.relu(hk.Linear(32)(x))
    return hk.Linear(10)(hk.dropout(hk.next_rng_key(), 0.2, x) if is_training else x)


def loss(outputs, examples):
    return optax.softmax_cross_entropy_with_integer_labels(outputs, examples["y"])


data = fedax.data.digits("shards", clients=10)
model = fedax.models.haiku(network, data.train[0]["x"], train="is_training")
task = fedax.from_model(model, loss, data)
history = fedax.run(fedax.SCAFFOLD(), task, solver=fedax.SGD(0.1), rounds=20)
print(f"test accuracy {history.metrics['test_accuracy'][-1]:.3f}")
