"""Models with leaves of several float types, or whose loss computes in half precision."""

import jax
import jax.numpy as jnp
import numpy as np

import fedax

# a step is a sixteenth of the distance of 1 to its neighbour in bfloat16
RATE = 2.0**-12
STEPS = 64
CLIENTS = {"anna": [1.0, 2.0, 5.0], "berta": [3.0, 4.0]}


def slope(p, x):
    """The sum of all numbers of the model, whatever the example: every step is the same."""
    total = sum(leaf.astype(jnp.float32).sum() for leaf in jax.tree.leaves(p))
    return total + jnp.zeros(len(x), jnp.float32)


def run(loss, frozen=None, **kinds):
    start = {name: jnp.ones(2, kind) for name, kind in kinds.items()}
    return fedax.run(
        fedax.FedAvg(),
        fedax.Task(start, loss, CLIENTS, frozen=frozen),
        solver=fedax.SGD(RATE),
        schedule=fedax.Schedule(steps=STEPS, batch_size="full"),
        rounds=2,
        observe=(),
        engine=fedax.Simulation(devices=1),
    )


def test_leaves_of_several_types_are_trained_in_the_widest():
    found = run(slope, a=jnp.bfloat16, b=jnp.float32, c=jnp.float16)
    for leaf in jax.tree.leaves(found.params):
        assert leaf.dtype == jnp.float32
        np.testing.assert_allclose(leaf, 1 - 2 * STEPS * RATE, rtol=1e-6)
    assert found.bits.up[0] == 2 * 6 * 32


def test_a_loss_may_compute_in_half_precision():
    def loss(p, x):
        return slope(jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), p), x)

    found = run(loss, w=jnp.float32)
    np.testing.assert_allclose(found.params["w"], 1 - 2 * STEPS * RATE, rtol=1e-6)
    assert found.bits.up[0] == found.bits.down[0] == 2 * 2 * 32
    half = run(loss, w=jnp.bfloat16)
    np.testing.assert_array_equal(half.params["w"].astype(np.float32), 1)
    assert half.bits.up[0] == half.bits.down[0] == 2 * 2 * 16


def test_frozen_leaves_keep_their_type():
    found = run(slope, frozen="a", a=jnp.bfloat16, b=jnp.float32)
    assert [leaf.dtype for leaf in jax.tree.leaves(found.params)] == [jnp.bfloat16, jnp.float32]
    assert found.bits.up[0] == 2 * 2 * 32
