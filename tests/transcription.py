"""The world of the NumPy transcriptions, without the library's code.

Five rounds, two epochs of minibatches of 4 in the given order, unequal sizes, 3 of 5 clients a
round; linear regression in float64."""

import jax
import jax.numpy as jnp
import numpy as np

import fedax
from fedax.utils.random import stream
from problems import SIZES, regression

LR = 0.05
L2 = 0.01
ROUNDS = 5
SEED = 7
SCHEDULE = fedax.Schedule(cohort=3, epochs=2, batch_size=4, order="given")
P = np.array(SIZES) / sum(SIZES)


class World:
    """The task of `problems.regression` as plain arrays: parameters are (b, w)."""

    def __init__(self):
        task = regression()
        self.x = [
            np.hstack([np.ones((n, 1)), np.asarray(task.train[k]["x"])])
            for k, n in enumerate(SIZES)
        ]
        self.y = [np.asarray(task.train[k]["y"]) for k in range(5)]
        self.start = np.array([0.0, 0.1, 0.1, 0.1])

    def gradient(self, k, w, rows=slice(None)):
        x = self.x[k][rows]
        y = self.y[k][rows]
        return x.T @ (x @ w - y) / len(y) + L2 * w

    def loss(self, k, w):
        return np.mean((self.x[k] @ w - self.y[k]) ** 2) / 2 + L2 / 2 * w @ w

    def sgd(self, k, w, extra=lambda w: 0.0, momentum=0.0):
        """The local model and how many steps it took."""
        speed = np.zeros(4)
        steps = 0
        for _ in range(2):
            for begin in range(0, SIZES[k], 4):
                speed = momentum * speed + self.gradient(k, w, slice(begin, begin + 4)) + extra(w)
                w = w - LR * speed
                steps = steps + 1
        return w, steps

    def cohorts(self):
        offsets = jnp.asarray(np.concatenate([[0], np.cumsum(SIZES)]), jnp.int32)
        root = jax.random.fold_in(jax.random.key(SEED), 1)
        return [
            np.asarray(SCHEDULE.draw(stream(root, "cohort", t, 0), offsets)[0])
            for t in range(ROUNDS)
        ]
