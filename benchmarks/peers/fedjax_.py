"""FedJAX's federated averaging, with its backend that compiles every client's step. It needs JAX of
2023."""

import os

os.environ.setdefault(
    "XLA_FLAGS", f"--xla_cpu_multi_thread_eigen={'true' if os.cpu_count() > 1 else 'false'}"
)

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from fedjax.algorithms import fed_avg
from serving import serve


def pooled(h):
    """The largest of every 2 x 2 pixels, and ReLU."""
    return jax.nn.relu(
        jax.lax.reduce_window(h, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    )


def model_of(work):
    """The logits of a batch."""

    def logits(leaves, x):
        pairs = list(zip(leaves[::2], leaves[1::2], strict=True))
        h = x.reshape(-1, *work.image) if work.convolutional else x
        for kernel, bias in (pair for pair in pairs if pair[0].ndim == 4):
            h = jax.lax.conv_general_dilated(
                h, kernel, (1, 1), work.padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            h = pooled(h + bias)
        h = h.reshape(h.shape[0], -1)
        *hidden, last = [pair for pair in pairs if pair[0].ndim == 2]
        for kernel, bias in hidden:
            h = jax.nn.relu(h @ kernel + bias)
        return h @ last[0] + last[1]

    return logits


class Batches:
    """A client's data as FedJAX asks for it: the batches of the work in place of its own
    shuffles."""

    def __init__(self, work, t, place):
        self.work = work
        self.t = t
        self.place = place

    def __len__(self):
        return int(self.work.sizes[self.work.cohorts[self.t, self.place]])

    def shuffle_repeat_batch(self, hparams):
        for rows in self.work.batches(self.t, self.place):
            yield {"x": self.work.x[rows], "y": self.work.y[rows]}


def prepare(work):
    logits = model_of(work)

    def loss(params, batch, rng):
        logs = jax.nn.log_softmax(logits(params, batch["x"]))
        return -jnp.take_along_axis(logs, batch["y"][:, None], axis=1).mean()

    hparams = fedjax.ShuffleRepeatBatchHParams(batch_size=work.batch)
    algorithm = fed_avg.federated_averaging(
        jax.grad(loss), fedjax.optimizers.sgd(work.rate), fedjax.optimizers.sgd(1.0), hparams
    )
    initial = [jnp.asarray(leaf) for leaf in work.leaves(work.initial)]
    key = jax.random.PRNGKey(0)  # nothing is drawn from it

    def train(rounds):
        state = algorithm.init(initial)
        for t in range(rounds):
            state, _ = algorithm.apply(
                state, [(place, Batches(work, t, place), key) for place in range(work.cohort)]
            )
        return np.concatenate([np.asarray(leaf).ravel() for leaf in state.params])

    return train


if __name__ == "__main__":
    serve(prepare)
