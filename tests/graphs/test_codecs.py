"""Codecs against their definitions: bytes, bounds, bias."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax import codecs
from fedax.communication.channel import bits_of, decode

DIM = 37
DRAWS = 2000
ALL = [
    codecs.Identity(),
    *(codecs.Quantizer(b=b) for b in (2, 8, 32)),
    codecs.Quantizer(b=8, rounding="floor"),
    codecs.Quantizer(b=3, step=0.1),
    codecs.Quantizer(b=1, step=0.5),
    codecs.QSGD(b=2),
    codecs.TopK(0.2),
    codecs.RandK(0.2),
    codecs.Sign(),
]
every_codec = pytest.mark.parametrize("codec", ALL, ids=repr)


def vector(seed=0, dtype=float):
    return jnp.asarray(np.random.default_rng(seed).normal(size=DIM).astype(dtype))


@pytest.mark.slow
@every_codec
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_bytes_are_the_declared_bits_and_carry_everything(codec, dtype):
    v = vector(dtype=dtype)
    key = jax.random.key(1)
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


@every_codec
def test_codecs_are_biased_or_not_and_err_as_they_declare(codec):
    """The mean of many draws is within 4 sigma of v in every coordinate, or far from it in some;
    the mean square error is within the declared bounds.

    The largest entry lies a 32-bit rounding of the step below a grid point: too rarely drawn below
    it to estimate a sigma."""
    v = vector()
    draws = np.asarray(
        jax.vmap(codec.roundtrip, (0, None))(jax.random.split(jax.random.key(0), DRAWS), v)
    )
    sigma = draws.std(0) / np.sqrt(DRAWS)
    off = np.abs(draws.mean(0) - v)
    error = ((draws - np.asarray(v)) ** 2).sum(1).mean()
    known = codec.relative_error(DIM)
    if codec.is_unbiased:
        assert (off <= 4 * sigma + 1e-6).all()
    elif known != 0:
        assert (off > 8 * sigma + 1e-6).any()
    assert known is not None or getattr(codec, "step", 0)
    if known is not None:
        assert error <= known * float((v**2).sum()) * 1.05 + 1e-12
    if type(codec) is codecs.Quantizer and codec.is_unbiased:
        step = np.abs(v).max() / (2 ** (codec.b - 1) - 1)
        assert error <= DIM * step**2 / 4 * 1.05


@pytest.mark.slow
def test_relative_errors_are_reached():
    """Vectors for which the constants are exact: all entries alike, one entry, and for rounding
    just off the grid's points."""
    ones = jnp.ones(10)
    key = jax.random.key(0)
    for codec in (codecs.TopK(0.3), codecs.RandK(0.3)):
        error = ((codec.roundtrip(key, ones) - ones) ** 2).sum() / 10
        np.testing.assert_allclose(error, codec.relative_error(10), rtol=1e-6)
    one = jnp.zeros(10).at[2].set(3.0)
    error = ((codecs.Sign().roundtrip(key, one) - one) ** 2).sum() / 9
    np.testing.assert_allclose(error, codecs.Sign().relative_error(10), rtol=1e-6)


def test_codecs_within_others():
    """Bits, bytes and errors are those of the codec within; what does not fit is refused."""
    inner = codecs.TopK(0.2, feedback=False)
    v = vector()
    key = jax.random.key(0)
    outer = codecs.EF21(inner)
    parts = outer.compress(v, key)
    assert outer.bits(DIM, 64) == inner.bits(DIM, 64)
    back = outer.decode(outer.encode(parts, DIM), DIM)
    np.testing.assert_array_equal(
        outer.restore(jax.tree.map(jnp.asarray, back), DIM, "float64"), inner.roundtrip(key, v)
    )
    assert outer.relative_error(DIM) == inner.relative_error(DIM)
    assert not outer.is_unbiased
    scaled = codecs.EF21(codecs.RandK(0.25))
    assert not scaled.is_unbiased
    assert scaled.relative_error(1000) == pytest.approx(3 / 4)
    assert codecs.DIANA(codecs.RandK(0.25)).rate(1000) == 0.25
    assert codecs.DIANA(codecs.RandK(0.25), alpha=0.1).rate(1000) == 0.1
    assert codecs.DIANA(codecs.RandK(0.25)).is_unbiased


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_uncompressed_bytes_are_read_in_the_type_they_were_written(dtype):
    codec = codecs.Identity()
    v = vector().astype(dtype)
    parts = codec.compress(v, jax.random.key(0))
    arrived = codec.decode(codec.encode(parts, DIM), DIM)
    back = codec.restore(jax.tree.map(jnp.asarray, arrived), DIM, v.dtype)
    assert back.dtype == v.dtype
    np.testing.assert_array_equal(np.asarray(back, "f4"), np.asarray(v, "f4"))


def test_random_entries_are_scaled_and_all_are_drawn_alike():
    v = vector()
    keys = jax.random.split(jax.random.key(0), DRAWS)
    sent = np.asarray(jax.vmap(codecs.RandK(0.2).roundtrip, (0, None))(keys, v))
    count = round(0.2 * DIM)
    assert ((sent != 0).sum(1) == count).all()
    np.testing.assert_allclose(
        sent[sent != 0], np.tile(v * DIM / count, (DRAWS, 1))[sent != 0], rtol=1e-6
    )
    share = (sent != 0).mean(0)
    assert (abs(share - count / DIM) < 4.5 * np.sqrt(count / DIM / DRAWS)).all()
    square = ((sent - np.asarray(v)) ** 2).sum(1).mean()
    bound = codecs.RandK(0.2).relative_error(DIM) * (v**2).sum()
    np.testing.assert_allclose(square, bound, rtol=0.1)


def test_quantizer_is_the_papers():
    """Points of the grid around each entry, floor below it, the rest clipped."""
    v = vector()
    step = 0.25
    floor = codecs.Quantizer(b=4, step=step, rounding="floor")
    exact = np.floor(np.asarray(v) / step)
    message = floor.message(v, jax.random.key(0))
    np.testing.assert_array_equal(message.value, np.clip(exact, -8, 7) * step)
    assert ((exact < -8) | (exact > 7)).any()
    drawn = np.asarray(codecs.Quantizer(b=8, step=step).roundtrip(jax.random.key(0), v)) / step
    assert np.isin(drawn - exact, [0, 1]).all()
    assert {0, 1} <= set((drawn - exact).tolist())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rounding", "x64", "sign"), [("floor", False, -1), ("stochastic", True, 1)]
)
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


@pytest.mark.slow
@pytest.mark.parametrize(("b", "x64"), [(2, True), (8, False)])
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


def test_rounding_down_misses_the_papers_bound():
    """Theorem 3 needs E|Q(x) - x|^2 <= d s^2 / 4, which floor exceeds: three points of four just
    below a grid point."""
    v = jnp.array([0.9, 1.9, 2.9, 0.0])
    codec = codecs.Quantizer(b=4, step=1.0, rounding="floor")
    error = float(((codec.roundtrip(jax.random.key(0), v) - v) ** 2).sum())
    assert 4 * 1.0 / 4 < error <= 4 * 1.0


@pytest.mark.slow
def test_zeros_and_non_finite_vectors():
    zero = jnp.zeros(4)
    for codec in ALL:
        assert np.abs(codec.roundtrip(jax.random.key(0), zero)).max() == 0
        poisoned = codec.roundtrip(jax.random.key(0), zero.at[1].set(jnp.nan))
        assert not np.isfinite(poisoned).all(), codec


def test_messages_are_opened_in_a_tree():
    codec = codecs.Quantizer(b=2, step=0.1)
    v = vector()
    tree = decode({"a": codec.message(v, jax.random.key(0)), "b": v})
    np.testing.assert_array_equal(tree["a"], codec.roundtrip(jax.random.key(0), v))
    np.testing.assert_array_equal(tree["b"], v)


@pytest.mark.parametrize(
    "codec",
    [codecs.Quantizer(b=8), codecs.Quantizer(b=32), codecs.QSGD(b=8), codecs.Sign()],
    ids=repr,
)
@pytest.mark.parametrize(
    ("dtype", "size"), [("float16", 1e-6), ("float16", 1e3), ("bfloat16", 1.0)]
)
def test_half_precision_rounds_what_arrives_and_nothing_else(codec, dtype, size):
    """Steps and scales of small changes have no place in float16."""
    v = jnp.asarray(size * np.random.default_rng(2).normal(size=DIM), dtype)
    with jax.enable_x64(False):
        messages = [codec.message(v.astype(kind), jax.random.key(4)) for kind in (dtype, "float32")]
        found, wide = (message.value for message in messages)
        np.testing.assert_array_equal(found, wide.astype(dtype))
        arrived = codec.decode(codec.encode(messages[0].parts, DIM), DIM)
        np.testing.assert_array_equal(
            codec.restore(jax.tree.map(jnp.asarray, arrived), DIM, v.dtype), found
        )
    assert found.dtype == v.dtype


def test_the_mean_magnitude_of_large_entries_is_finite():
    v = jnp.asarray([3e38, -2e38, 1e38], "float32")
    found = codecs.Sign().roundtrip(jax.random.key(0), v)
    np.testing.assert_allclose(found, [2e38, -2e38, 2e38], rtol=1e-6)


@pytest.mark.slow
def test_a_half_precision_model_moves_as_far_as_its_messages():
    rng = np.random.default_rng(0)
    rate = 0.03
    start = 1e-2 * rng.normal(size=40)
    clients = [
        {"c": (start + 1e-3 * rng.normal(size=(3 + i, 40))).astype(np.float16)} for i in range(3)
    ]
    task = fedax.Task(
        jnp.asarray(start, jnp.float16),
        lambda w, e: ((w[None] - e["c"].astype(w.dtype)) ** 2).sum(-1) / 2,
        clients,
    )
    schedule = fedax.Schedule(steps=1, batch_size="full")
    moves = []
    for codec in (None, codecs.Quantizer(b=8)):
        history = fedax.run(
            fedax.FedAvg(),
            task,
            rounds=1,
            solver=fedax.SGD(rate),
            schedule=schedule,
            channel=fedax.Channel(up=codec),
        )
        moves.append(np.asarray(history.params, float) - start.astype(np.float16))
    for move in moves[1:]:
        assert np.linalg.norm(move - moves[0]) < 0.1 * np.linalg.norm(moves[0])
