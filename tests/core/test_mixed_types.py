"""Models that compute in half precision: masters of 32 bits are trained, sent and kept; each leaf
reaches the loss in its type."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax

# a step is a sixteenth of the distance of 1 to its neighbour in bfloat16
RATE, STEPS = 2.0**-12, 64
SCHEDULE = fedax.Schedule(steps=STEPS, batch_size="full")
OPTIONS = {
    "solver": fedax.SGD(RATE),
    "schedule": SCHEDULE,
    "rounds": 2,
    "observe": (),
    "engine": fedax.Simulation(devices=1),
}
SEEN = set()


def slope(p, x):
    """The sum of all numbers of the model, whatever the example: every step is the same."""
    SEEN.add(tuple(str(leaf.dtype) for leaf in jax.tree.leaves(p)))
    total = sum(leaf.astype(jnp.float32).sum() for leaf in jax.tree.leaves(p))
    return total + jnp.zeros(len(x), jnp.float32)


def start(**kinds):
    return {name: jnp.ones(2, kind) for name, kind in kinds.items()}


def run(params, **more):
    SEEN.clear()
    return fedax.run(
        fedax.FedAvg(),
        fedax.tasks.from_loss(slope, params, [[1.0, 2.0], [3.0, 4.0]], **more),
        **OPTIONS,
    )


@pytest.mark.slow
@pytest.mark.parametrize("made", [False, True], ids=["an array", "a function"])
def test_masters_take_steps_that_half_precision_loses(made):
    model = start(w=jnp.float32)
    found = run((lambda key: model) if made else model, compute="bfloat16")
    assert {("bfloat16",)} == SEEN
    assert found.params["w"].dtype == jnp.float32
    np.testing.assert_array_equal(found.params["w"], 1 - 2 * STEPS * RATE)  # exact in 32 bits
    assert found.bits.up[0] == found.bits.down[0] == 2 * 2 * 32
    half = run(start(w=jnp.bfloat16))
    np.testing.assert_array_equal(half.params["w"].astype(np.float32), 1)
    assert half.bits.up[0] == half.bits.down[0] == 2 * 2 * 16


def test_leaves_of_several_types_have_masters_of_the_widest():
    found = run(start(a=jnp.bfloat16, b=jnp.float32, c=jnp.float16))
    assert {("bfloat16", "float32", "float16")} == SEEN
    for leaf in jax.tree.leaves(found.params):
        np.testing.assert_array_equal(
            leaf, np.full(2, 1 - 2 * STEPS * RATE, np.float32), strict=True
        )
    assert found.bits.up[0] == 2 * 6 * 32


@pytest.mark.slow
def test_a_step_is_that_of_the_loss_in_half_precision():
    """Against the gradient by JAX itself, with the cast written out."""
    x = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)

    def loss(p, e):
        return ((e["x"].astype(jnp.bfloat16) @ p["w"] - e["y"].astype(jnp.bfloat16)) ** 2).astype(
            jnp.float32
        )

    examples, w = {"x": x, "y": x.sum(1)}, jnp.full(3, 0.3, jnp.float32)
    task = fedax.tasks.from_loss(loss, {"w": w}, [examples], compute=jnp.bfloat16)
    found = fedax.run(
        fedax.FedAvg(),
        task,
        **OPTIONS | {"solver": fedax.SGD(0.1), "schedule": fedax.Schedule(steps=3, batch_size=8)},
    )
    for _ in range(6):
        w = w - 0.1 * jax.grad(lambda w: loss({"w": w.astype(jnp.bfloat16)}, examples).mean())(w)
    # the order of sums differs, by roundings of 8 bits
    np.testing.assert_allclose(found.params["w"], w, rtol=2e-2)
    np.testing.assert_allclose(w, 1, atol=0.5)


def test_frozen_leaves_keep_their_type():
    found = run(start(a=jnp.bfloat16, b=jnp.float32), frozen="a", compute="float16")
    assert {("bfloat16", "float16")} == SEEN
    assert [leaf.dtype for leaf in jax.tree.leaves(found.params)] == [jnp.bfloat16, jnp.float32]
    assert found.bits.up[0] == 2 * 2 * 32
