"""Sums over many examples in one batch, and clipping of uploads whose squares overflow, in
float32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.communication.privacy import add_noise, clip_leaves
from fedax.utils.norms import power_of_two, unit

ONE = fedax.Simulation(devices=1)


@pytest.mark.parametrize("count", [100, 30_000, 2_000_000])
def test_the_mean_of_ones_is_one(count):
    """A full step of size 1 from 0 ends at the mean of the client's numbers; its loss there is
    0."""
    with jax.enable_x64(False):
        task = fedax.Task(0.0, lambda w, x: (w - x) ** 2 / 2, [np.ones(count, np.float32)])
        options = {
            "solver": fedax.SGD(1.0),
            "schedule": fedax.Schedule(batch_size="full"),
            "engine": ONE,
        }
        history = fedax.run(fedax.FedAvg(), task, rounds=1, observe=[], **options)
    assert abs(float(history.params) - 1) < 5e-6


@pytest.mark.parametrize(("batch_size", "width"), [(48, 48), ((1, 48), 32)], ids=["fixed", "drawn"])
def test_only_batches_of_a_random_size_pass_in_pieces(batch_size, width):
    """Batches of a fixed size pass through the model at once, up to `microbatch` examples."""
    widths = set()

    def loss(w, x):
        widths.add(len(x))
        return (w - x) ** 2 / 2

    task = fedax.Task(0.0, loss, [np.ones(48)])
    schedule = fedax.Schedule(steps=1, batch_size=batch_size)
    fedax.run(fedax.FedAvg(), task, rounds=1, observe=[], engine=ONE, schedule=schedule)
    assert widths & {32, 48} == {width}


@pytest.mark.parametrize("length", [0.0, 1e-30, 1e-3, 0.5, 1.0, 1e10, 1e25, 3e38])
@pytest.mark.parametrize("bound", [1e-3, 1.0, 1e20, np.inf])
def test_clipped_uploads_have_the_length_they_may_have(length, bound):
    direction = np.array([1.0, -1.0, 1.0, 1.0]) / 2
    vector = (direction * length).astype(np.float32)
    with jax.enable_x64(False):
        made = clip_leaves(jnp.asarray(vector), jnp.asarray([bound], jnp.float32))
    expected = vector.astype(np.float64)
    size = np.linalg.norm(expected)
    bound = np.float64(np.float32(bound))
    if size > bound * (1 + 1e-6):
        expected = expected * (bound / size)
    np.testing.assert_allclose(np.asarray(made.value, np.float64), expected, rtol=1e-6)
    assert abs(size - bound) <= 1e-6 * bound or (float(made.inside[0]) > 0) == (size < bound)


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e12, 1e30])
def test_a_unit_vector_has_length_one(scale):
    with jax.enable_x64(False):
        v = jnp.asarray(np.array([3.0, 4.0]) * scale, jnp.float32)
        np.testing.assert_allclose(unit(v), [0.6, 0.8], rtol=1e-6)
        assert (np.asarray(unit(jnp.zeros(2, jnp.float32))) == 0).all()
        assert float(power_of_two(jnp.float32(3.0))) == 1


@pytest.mark.parametrize("length", [1e-3, 30.0, 1e4])
def test_clipped_half_precision_does_not_exceed_its_bound(length):
    vector = jnp.asarray(np.random.default_rng(0).normal(size=2000) * length, jnp.float16)
    for bound in (1e-6, 1e-5, 1e-3):
        made = clip_leaves(vector, jnp.asarray([bound], jnp.float32)).value
        assert made.dtype == vector.dtype
        assert np.linalg.norm(np.asarray(made, float)) <= bound * (1 + 1e-6)
    # entries of the grid of float16, 6e-8, keep the length up to rounding
    assert np.linalg.norm(np.asarray(made, float)) > 0.99 * bound


def test_noise_of_half_precision_has_its_deviation_and_its_tails():
    with jax.enable_x64(False):
        small = add_noise(jnp.zeros(20_000, jnp.float16), [2e-8], jax.random.key(0))
        large = add_noise(jnp.zeros(200_000, jnp.float16), [1.0], jax.random.key(1))
    # an entry of 6e-8 is reached from 3e-8 on, by 13 % of the noise
    share = float((small != 0).mean())
    assert 0.12 < share < 0.15
    assert 4 < float(jnp.abs(large).max()) < 6


def test_products_with_a_hessian_are_summed_over_the_pieces_of_a_batch():
    """Per-FedAvg and the spectrum of each client, with 8 examples at once and with all of them."""

    def loss(params, examples):
        return jnp.cosh(examples["x"] @ params["w"] - examples["y"])

    rng = np.random.default_rng(0)
    clients = {
        name: {"x": rng.normal(size=(n, 3)), "y": rng.normal(size=n)}
        for name, n in (("a", 40), ("b", 9), ("c", 21))
    }
    task = fedax.Task({"w": np.zeros(3)}, loss, clients, l2=0.1)

    def run(microbatch):
        return fedax.run(
            fedax.PerFedAvg(alpha=0.05, order="second"),
            task,
            solver=fedax.SGD(0.05),
            schedule=fedax.Schedule(cohort=2, batch_size=20),
            rounds=2,
            observe=[fedax.observe.Curvature(steps=3)],
            engine=fedax.Simulation(devices=1, microbatch=microbatch),
        )

    whole = run(256)
    parts = run(8)
    np.testing.assert_allclose(parts.params["w"], whole.params["w"], rtol=1e-10)
    np.testing.assert_allclose(parts.metrics["smoothness"], whole.metrics["smoothness"], rtol=1e-10)
