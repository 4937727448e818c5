"""Codecs against their definitions: bytes, bounds, bias."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedax import codecs
from fedax.communication.channel import bits_of, decode
from fedax.core import InvalidInput

DIM, DRAWS = 37, 2000
ALL = [
    codecs.Identity(),
    *(codecs.Quantizer(b=b) for b in (2, 4, 8, 16, 32)),
    codecs.Quantizer(b=8, rounding="floor"),
    codecs.Quantizer(b=3, step=0.1),
    codecs.Quantizer(b=1, step=0.5),
    codecs.QSGD(b=2),
    codecs.QSGD(b=8),
    codecs.TopK(0.2),
    codecs.TopK(1.0),
    codecs.RandK(0.2),
    codecs.RandK(1.0),
    codecs.Natural(),
    codecs.Sign(),
]
every_codec = pytest.mark.parametrize("codec", ALL, ids=repr)
UNBIASED = [
    codec
    for codec in ALL
    if type(codec) in (codecs.Quantizer, codecs.QSGD) and codec.rounding == "stochastic"
]
UNBIASED = [codec for codec in UNBIASED if not codec.step] + [codecs.RandK(0.2), codecs.Natural()]


def vector(seed=0, dtype=float):
    return jnp.asarray(np.random.default_rng(seed).normal(size=DIM).astype(dtype))


@every_codec
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_bytes_are_the_declared_bits_and_carry_everything(codec, dtype):
    v, key = vector(dtype=dtype), jax.random.key(1)
    message = codec.message(v, key)
    data = codec.encode(message.parts, DIM)
    assert message.bits == codec.bits(DIM, np.dtype(dtype).itemsize * 8) == bits_of({"a": message})
    assert len(data) == -(-message.bits // 8)
    arrived = codec.restore(jax.tree.map(jnp.asarray, codec.decode(data, DIM)), DIM, dtype)
    np.testing.assert_array_equal(arrived, codec.roundtrip(key, v))
    assert arrived.dtype == v.dtype


def test_declared_bits():
    """32 + d b as in the paper; k (32 + ceil(log2 d)); 32 + d."""
    assert [codecs.Quantizer(b=b).bits(199_210) for b in (4, 8, 16, 32)] == [
        32 + 199_210 * b for b in (4, 8, 16, 32)
    ]
    assert codecs.TopK(0.01).bits(199_210) == 1992 * (32 + 18)
    assert codecs.Sign().bits(199_210) == 32 + 199_210
    assert codecs.Identity().bits(199_210) == 32 * 199_210


@pytest.mark.parametrize("codec", UNBIASED, ids=repr)
def test_stochastic_rounding_is_unbiased_within_its_bound(codec):
    """The mean of many draws within 4 sigma of v in every coordinate; the mean square error within
    the declared bound.

    The largest entry lies a 32-bit rounding of the step below a grid point: too rarely drawn below
    it to estimate a sigma."""
    v = vector()
    draws = np.asarray(
        jax.vmap(codec.roundtrip, (0, None))(jax.random.split(jax.random.key(0), DRAWS), v)
    )
    sigma = draws.std(0) / np.sqrt(DRAWS)
    assert (np.abs(draws.mean(0) - v) <= 4 * sigma + 1e-6).all()
    squares = ((draws - np.asarray(v)) ** 2).sum(1)
    assert squares.mean() <= codec.bound(v) * 1.05
    if type(codec) is codecs.Quantizer:
        step = np.abs(v).max() / (2 ** (codec.b - 1) - 1)
        np.testing.assert_allclose(codec.bound(v), DIM * step**2 / 4, rtol=1e-6)


def test_random_entries_are_scaled_and_all_are_drawn_alike():
    v, keys = vector(), jax.random.split(jax.random.key(0), DRAWS)
    sent = np.asarray(jax.vmap(codecs.RandK(0.2).roundtrip, (0, None))(keys, v))
    count = round(0.2 * DIM)
    assert ((sent != 0).sum(1) == count).all()
    np.testing.assert_allclose(
        sent[sent != 0], np.tile(v * DIM / count, (DRAWS, 1))[sent != 0], rtol=1e-6
    )
    share = (sent != 0).mean(0)
    assert (abs(share - count / DIM) < 4.5 * np.sqrt(count / DIM / DRAWS)).all()
    square = ((sent - np.asarray(v)) ** 2).sum(1).mean()
    np.testing.assert_allclose(square, codecs.RandK(0.2).bound(v), rtol=0.1)
    with pytest.raises(InvalidInput, match="RandK"):
        codecs.RandK(feedback=True)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_natural_compression_rounds_to_powers_of_two(dtype):
    v, codec = vector(dtype=dtype) * 10.0 ** np.linspace(-8, 8, DIM).astype(dtype), codecs.Natural()
    sent = np.abs(np.asarray(codec.roundtrip(jax.random.key(3), v)))
    below = 2.0 ** np.floor(np.log2(np.abs(np.asarray(v, float))))
    assert np.isin(sent / below, [1, 2]).all()
    powers = jnp.asarray([0.0, 1.0, -2.0, 0.5, 2.0**-126, -(2.0**127)], dtype)
    np.testing.assert_array_equal(codec.roundtrip(jax.random.key(0), powers), powers)
    broken = codec.roundtrip(jax.random.key(0), jnp.asarray([1.0, jnp.nan, jnp.inf], dtype))
    assert np.isnan(broken[1:]).all()
    assert broken[0] == 1


def test_quantizer_is_the_papers():
    """Points of the grid around each entry, floor below it, the rest clipped and counted."""
    v, step = vector(), 0.25
    floor = codecs.Quantizer(b=4, step=step, rounding="floor")
    exact = np.floor(np.asarray(v) / step)
    message = floor.message(v, jax.random.key(0))
    np.testing.assert_array_equal(message.value, np.clip(exact, -8, 7) * step)
    assert int(message.clipped) == int(((exact < -8) | (exact > 7)).sum()) > 0
    drawn = np.asarray(codecs.Quantizer(b=8, step=step).roundtrip(jax.random.key(0), v)) / step
    assert np.isin(drawn - exact, [0, 1]).all()
    assert {0, 1} <= set((drawn - exact).tolist())


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("b", [2, 8, 25, 32])
def test_a_step_for_every_message_clips_nothing(b, dtype):
    for seed in range(20):
        message = codecs.Quantizer(b=b).message(
            vector(seed, dtype) * 10.0**seed, jax.random.key(seed)
        )
        assert int(message.clipped) == 0


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("x64", [True, False])
@pytest.mark.parametrize("rounding", ["floor", "stochastic"])
def test_the_largest_entry_keeps_its_value(rounding, x64, sign):
    """For every b: max |v| is the highest level of a step chosen for it, up to the 32 bits of that
    step.

    At random it may go a step down by chance, where there are so many levels that the step's
    rounding shows."""
    with jax.enable_x64(x64):
        for b in range(2, 33 if rounding == "floor" else 13):
            codec = codecs.Quantizer(b=b, rounding=rounding)
            for seed in range(3):
                v = vector(seed, float if x64 else np.float32) / (4 if seed == 0 else 1)
                v = v.at[3].set(sign * (1.0 if seed == 0 else 1.1 * jnp.abs(v).max()))
                message = codec.message(v, jax.random.key(seed))
                np.testing.assert_allclose(message.value[3], v[3], rtol=2.0**-21, atol=0)
                assert int(message.clipped) == 0


@pytest.mark.parametrize("x64", [True, False])
@pytest.mark.parametrize("b", [2, 4, 8, 16])
def test_points_of_the_grid_stay(b, x64):
    """Whole numbers with the highest level as their maximum, times a power of two: the step is
    exact."""
    top = 2 ** (b - 1) - 1
    with jax.enable_x64(x64):
        v = jnp.asarray(
            np.linspace(-top, top, 2 * min(top, 50) + 1).round() / 8, float if x64 else np.float32
        )
        for rounding in ("floor", "stochastic"):
            np.testing.assert_array_equal(
                codecs.Quantizer(b=b, rounding=rounding).roundtrip(jax.random.key(0), v), v
            )
        tenths = codecs.Quantizer(b=b, step=0.1, rounding="floor").roundtrip(
            jax.random.key(0), 0.1 * 8 * v
        )
        np.testing.assert_allclose(tenths, 0.1 * 8 * v, rtol=1e-6, atol=0)


def test_rounding_down_stays_below():
    """Never above the entry by more than the step's own rounding, never a step below, also where
    the grid is finer than that."""
    for b in (2, 8, 16, 24, 32):
        v = vector(b)
        codec = codecs.Quantizer(b=b, rounding="floor")
        error = np.asarray(v - codec.roundtrip(jax.random.key(0), v))
        step = float(codec.message(v, jax.random.key(0)).parts["step"])
        assert np.all(error >= -np.abs(v) * 2.0**-22)
        assert np.all(error <= step)
        assert (error**2).sum() <= float(codec.bound(v))


def test_rounding_down_misses_the_papers_bound():
    """Theorem 3 needs E|Q(x) - x|^2 <= d s^2 / 4, which floor exceeds: three points of four just
    below a grid point."""
    v = jnp.array([0.9, 1.9, 2.9, 0.0])
    codec = codecs.Quantizer(b=4, step=1.0, rounding="floor")
    error = float(((codec.roundtrip(jax.random.key(0), v) - v) ** 2).sum())
    assert 4 * 1.0 / 4 < error <= float(codec.bound(v))


@pytest.mark.parametrize("codec", [codecs.TopK(0.2), codecs.Sign()], ids=repr)
def test_biased_codecs_contract(codec):
    for seed in range(5):
        v = vector(seed)
        error = float(((codec.roundtrip(jax.random.key(0), v) - v) ** 2).sum())
        assert error <= float(codec.bound(v)) * (1 + 1e-6) < float((v**2).sum())


def test_top_k_keeps_the_largest():
    v = jnp.array([0.5, -3.0, 0.0, 2.0, 1.0])
    np.testing.assert_array_equal(
        codecs.TopK(0.4).roundtrip(jax.random.key(0), v), [0, -3, 0, 2, 0]
    )
    np.testing.assert_allclose(
        codecs.Sign().roundtrip(jax.random.key(0), v), [1.3, -1.3, 1.3, 1.3, 1.3], rtol=1e-7
    )


def test_zeros_and_non_finite_vectors():
    zero = jnp.zeros(4)
    for codec in ALL:
        assert np.abs(codec.roundtrip(jax.random.key(0), zero)).max() == 0
        poisoned = codec.roundtrip(jax.random.key(0), zero.at[1].set(jnp.nan))
        assert not np.isfinite(poisoned).all(), codec


def test_messages_are_opened_in_a_tree():
    codec, v = codecs.Quantizer(b=2, step=0.1), vector()
    tree, clipped = decode({"a": codec.message(v, jax.random.key(0)), "b": v})
    np.testing.assert_array_equal(tree["a"], codec.roundtrip(jax.random.key(0), v))
    np.testing.assert_array_equal(tree["b"], v)
    assert int(clipped) > 0
    assert decode({"b": v})[1] is None


def test_bad_options_are_refused():
    cases = [
        (
            lambda: codecs.Quantizer(b=0),
            r"Quantizer\(b=...\): got 0; allowed: whole numbers in "
            r"\[1, 32\]",
        ),
        (lambda: codecs.Quantizer(b=1), "2 to 32, or 1 with a fixed step"),
        (lambda: codecs.Quantizer(rounding="up"), "one of 'stochastic', 'floor'"),
        (lambda: codecs.Quantizer(step=-1.0), r"numbers in \[0, infinity\)"),
        (lambda: codecs.QSGD(step=0.1), "its definition"),
        (lambda: codecs.TopK(0.0), r"numbers in \(0, 1\]"),
        (lambda: codecs.make_codec("quantiser"), "Did you mean 'quantizer'"),
        (lambda: codecs.make_codec("topk", k=3), "option of codec 'topk'"),
    ]
    for make, message in cases:
        with pytest.raises(InvalidInput, match=message):
            make()
