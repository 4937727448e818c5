"""A loop by hand in JAX, on one device: every round is one compiled program over the rows of its
steps, which it is given."""

import os

os.environ.setdefault(
    "XLA_FLAGS", f"--xla_cpu_multi_thread_eigen={'true' if os.cpu_count() > 1 else 'false'}"
)

import jax
import jax.numpy as jnp
import numpy as np
from serving import serve
from workloads import WORKLOADS

from fedax.data import FederatedData
from fedax.tasks import classification


def prepare(work):
    model = WORKLOADS[work.name].model
    loss = classification(
        FederatedData.from_arrays([{"x": work.x[:1], "y": work.y[:1]}], classes=10), model
    ).loss
    tree = jax.tree.structure(jax.eval_shape(model.init, jax.random.key(0)))
    initial = jax.tree.unflatten(tree, [jnp.asarray(leaf) for leaf in work.leaves(work.initial)])
    x = jnp.asarray(work.x)
    y = jnp.asarray(work.y, jnp.int32)
    rounds = [[work.batches(t, place) for place in range(work.cohort)] for t in range(work.rounds)]
    longest = max(len(steps) for clients in rounds for steps in clients)
    rows = np.zeros((work.rounds, work.cohort, longest, work.batch), np.int32)
    weights = np.zeros(rows.shape, np.float32)
    for t, clients in enumerate(rounds):
        for place, steps in enumerate(clients):
            for i, batch in enumerate(steps):
                rows[t, place, i, : len(batch)] = batch
                weights[t, place, i, : len(batch)] = 1 / len(batch)
    counts = jnp.asarray([[len(steps) for steps in clients] for clients in rounds], jnp.int32)
    sizes = work.sizes[work.cohorts]
    shares = jnp.asarray(sizes / sizes.sum(axis=1, keepdims=True), jnp.float32)
    rows = jnp.asarray(rows)
    weights = jnp.asarray(weights)

    @jax.jit
    def program(params, x, y, rows, weights, counts, shares):
        def client(total, job):
            rows, weights, count, share = job

            def step(i, local):
                batch = {"x": x[rows[i]], "y": y[rows[i]]}
                gradient = jax.grad(lambda p: jnp.sum(weights[i] * loss(p, batch, None)))(local)
                return jax.tree.map(lambda p, g: p - work.rate * g, local, gradient)

            local = jax.lax.fori_loop(0, count, step, params)
            return jax.tree.map(lambda s, p: s + share * p, total, local), None

        zeros = jax.tree.map(jnp.zeros_like, params)
        return jax.lax.scan(client, zeros, (rows, weights, counts, shares))[0]

    def train(count):
        params = initial
        for t in range(count):
            params = program(params, x, y, rows[t], weights[t], counts[t], shares[t])
        return np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(params)])

    return train


if __name__ == "__main__":
    serve(prepare)
