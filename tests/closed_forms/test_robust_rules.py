"""Bulyan, centered clipping, bucketing and nearest-neighbour mixing against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.core import Gathered
from fedax.numerics.gram import ClientVectors
from fedax.numerics.robust import krum_ranks, mix_neighbours, squared_distances
from fedax.utils.random import stream
from problems import quadratic, regression, vector
from transcription import LR, ROUNDS, SCHEDULE, SEED, World

STEP = {"solver": fedax.SGD(1.0), "schedule": fedax.Schedule(steps=1, batch_size="full")}
"""One gradient step of size 1 on a bowl around b_k ends at b_k."""
ENGINES = {
    "sequential": fedax.Simulation(devices=1),
    "mesh": fedax.Simulation(chunk=2, devices=2),
    "eager": fedax.Eager(),
}


def run(method, b, rounds=1, seed=SEED, **options):
    """Rounds of a method on bowls around the rows of b, all of size 1."""
    task = quadratic(np.tile(np.eye(b.shape[1]), (len(b), 1, 1)), b)
    return fedax.run(method, task, rounds=rounds, seed=seed, **(STEP | options))


def bulyan(models, f):
    left = list(range(len(models)))
    picked = []
    while len(picked) < max(len(models) - 2 * f, 1):
        scores = []
        for i in left:
            others = sorted(np.sum((models[i] - models[j]) ** 2) for j in left if j != i)
            scores.append(sum(others[: max(len(left) - f - 2, 1)]))
        picked.append(left.pop(int(np.argmin(np.round(scores, 12)))))
    chosen = models[picked]
    order = np.argsort(np.abs(chosen - np.median(chosen, axis=0)), axis=0, kind="stable")
    return np.take_along_axis(chosen, order, 0)[: max(len(picked) - 2 * f, 1)].mean(0)


def mixed(models, f):
    """Nearest-neighbour mixing."""
    rows = []
    for x in models:
        nearest = np.argsort(((models - x) ** 2).sum(1), kind="stable")[: len(models) - f]
        rows.append(models[nearest].mean(0))
    return np.array(rows)


def clipped(changes, center, tau, iterations=1):
    for _ in range(iterations):
        offsets = changes - center
        lengths = np.linalg.norm(offsets, axis=1, keepdims=True)
        center = center + (offsets * np.minimum(1, tau / np.maximum(lengths, 1e-300))).mean(0)
    return center


@pytest.mark.slow
@pytest.mark.parametrize(("many", "f"), [(8, 1), (11, 2)])
def test_bulyan(many, f):
    b = np.random.default_rng(many).normal(size=(many, 3))
    assert f == 0 or np.abs(bulyan(b, f) - bulyan(b, 0)).max() > 0.01
    found = run(fedax.Bulyan(byzantine=f), b)
    np.testing.assert_allclose(vector(found), bulyan(b, f), atol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["mesh", "eager"])
def test_bulyan_with_a_client_left_out(engine):
    """On a cohort that is smaller than its capacity: f stays, and n is what arrived."""
    b = np.random.default_rng(9).normal(size=(12, 3))
    b[3] = 1e200  # its squares are infinite in the loss, and the client is left out
    method = fedax.Bulyan(byzantine=2)
    found = run(Broken(method), b, engine=ENGINES[engine], on_bad_client="drop")
    np.testing.assert_allclose(vector(found), bulyan(np.delete(b, 3, 0), 2), atol=1e-12)


def Broken(method):
    """The method, with a client whose model is NaN."""

    class WithBroken(type(method)):
        def train(self, client, w):
            upload = super().train(client, w)
            value = jax.numpy.where(client.index == 3, jax.numpy.nan, upload.value)
            return fedax.Upload(value, reference=w)

    return WithBroken(byzantine=method.byzantine)


@pytest.mark.parametrize(
    ("method", "rule"),
    [
        (fedax.CoordinateMedian(mixing=2), lambda x: np.median(x, axis=0)),
        (fedax.TrimmedMean(beta=0.25, mixing=3), lambda x: np.sort(x, axis=0)[2:-2].mean(0)),
    ],
)
def test_mixing(method, rule):
    """Eight models, some of them equal."""
    b = np.random.default_rng(5).normal(size=(8, 3))
    b[6] = b[1]
    f = method.mixing
    assert np.abs(rule(mixed(b, f)) - rule(b)).max() > 0.01
    np.testing.assert_allclose(vector(run(method, b)), rule(mixed(b, f)), atol=1e-13)


def test_buckets():
    """The median of means of pairs, drawn anew in every round; of seven clients one is alone."""
    many = 7
    b = np.random.default_rng(many).normal(size=(many, 3))
    for seed in (1, 2):
        root = jax.random.fold_in(jax.random.key(seed), 1)
        order = np.asarray(jax.random.permutation(stream(root, "server", 0, "buckets"), many))
        # the client with the lowest number in the permutation comes first
        ranked = b[np.argsort(order)]
        means = np.array([ranked[i : i + 2].mean(0) for i in range(0, many, 2)])
        found = vector(run(fedax.CoordinateMedian(bucket=2), b, seed=seed))
        np.testing.assert_allclose(found, np.median(means, axis=0), atol=1e-13)


def test_one_bucket_is_the_mean():
    """Of clients of unequal sizes, whose weights add up."""
    b = np.random.default_rng(2).normal(size=(5, 3))
    task = quadratic(np.tile(np.eye(3), (5, 1, 1)), b, [1, 2, 3, 4, 5])
    found = vector(fedax.run(fedax.GeometricMedian(bucket=5, nu=1e30), task, rounds=1, **STEP))
    np.testing.assert_allclose(found, b.mean(0), atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("momentum", "form", "tau", "unit", "engine"),
    [
        (0.0, "as_written", 0.05, "one", "mesh"),
        (0.7, "as_released", 0.05, "one", "sequential"),
        (0.7, "as_written", 0.8, "median", "sequential"),
        (0.7, "as_written", 0.8, "median", "eager"),
    ],
)
def test_centered_clipping(momentum, form, tau, unit, engine):
    """Three of five clients in a round, unequal sizes: the center is that of the round before, and
    a client's momentum that of the last time it was drawn."""
    world = World()
    rounds = 2 if engine == "eager" else ROUNDS
    w = world.start
    center = np.zeros(4)
    momenta = {}
    bound = 0
    for cohort in world.cohorts()[:rounds]:
        for k in cohort:
            change = world.sgd(k, w)[0] - w
            if k in momenta:
                factor = 1 - momentum if form == "as_written" else 1
                change = factor * change + momentum * momenta[k]
            momenta[k] = change
        changes = np.array([momenta[k] for k in cohort])
        lengths = np.linalg.norm(changes - center, axis=1)
        reach = tau * np.median(lengths) if unit == "median" else tau
        bound += (lengths > reach).sum()
        center = clipped(changes, center, reach, 2)
        w = w + center
    assert bound > 1  # clipping acts
    found = fedax.run(
        fedax.CenteredClip(tau=tau, unit=unit, iterations=2, momentum=momentum, form=form),
        regression(),
        solver=fedax.SGD(LR),
        schedule=SCHEDULE,
        rounds=rounds,
        seed=SEED,
        engine=ENGINES[engine],
    )
    np.testing.assert_allclose(vector(found), w, rtol=0, atol=1e-12)


def gathered(rows, dtype="float32", weights=None):
    weights = np.ones(len(rows)) if weights is None else weights
    ids = jnp.arange(len(rows), dtype=jnp.int32)
    valid = jnp.ones(len(rows), bool)
    return Gathered(jnp.asarray(rows, dtype), jnp.asarray(weights, dtype), ids, valid)


def ranks_by_krum(models, f):
    squares = ((models[:, None] - models[None]) ** 2).sum(-1)
    scores = [
        np.sort(np.delete(row, i))[: len(models) - f - 2].sum() for i, row in enumerate(squares)
    ]
    return np.argsort(np.argsort(scores, kind="stable"))


@pytest.mark.slow
@pytest.mark.parametrize(("hostile", "honest"), [(1e3, 1.0), (3e38, 1.0), (3e38, 1e-20)])
def test_one_huge_upload_leaves_distances_between_others(honest, hostile):
    """In float32, in which no common scale fits them all."""
    rng = np.random.default_rng(1)
    models = honest * rng.normal(size=(8, 5))
    models[0] += 3 * honest  # an outlier, which equal scores would pick as the first
    models[-1] = hostile * np.array([1, -1, 1, 1, -1])
    models = np.asarray(models, np.float32)
    wide = models.astype(float)
    center = jnp.zeros(5, jnp.float32)
    with jax.enable_x64(False):
        uploads = gathered(models)
        ranks = krum_ranks(squared_distances(uploads.value, uploads.valid), uploads.valid, 1)
        np.testing.assert_array_equal(ranks, ranks_by_krum(wide, 1))
        krum = fedax.Krum(byzantine=1, selected=3).combine(uploads, center)
        chosen = wide[np.argsort(ranks_by_krum(wide, 1))[:3]].mean(0)
        found = fedax.Bulyan(byzantine=1).combine(uploads, center)
        near = mix_neighbours(uploads, 3, center).value
    atol = 1e-6 * honest
    np.testing.assert_allclose(krum, chosen, atol=atol)
    np.testing.assert_allclose(found, bulyan(wide / honest, 1) * honest, atol=atol)
    np.testing.assert_allclose(near[:-1], mixed(wide, 3)[:-1], atol=atol)


@pytest.mark.parametrize("hostile", [1e15, 3e38])
def test_a_huge_upload_is_clipped_and_counts(hostile):
    models = np.random.default_rng(3).normal(size=(5, 4))
    models[2] = hostile * np.array([1, 0.5, -1, 0.25])
    models = np.asarray(models, np.float32)
    with jax.enable_x64(False):
        method = fedax.CenteredClip(tau=1.0, unit="one", iterations=2)
        found = method.clip(gathered(models), jnp.zeros(4, jnp.float32))
    np.testing.assert_allclose(found, clipped(models.astype(float), np.zeros(4), 1.0, 2), atol=1e-6)


def smoothed_median(models, shares, nu, iterations=3):
    """Weiszfeld's steps or those of Vardi and Zhang, compared model by model."""
    v = np.zeros(models.shape[1])

    def smoothed(x):
        distance = np.linalg.norm(models - x, axis=1)
        return np.where(distance > nu, distance, (distance**2 / nu + nu) / 2)

    for _ in range(iterations):
        distance = np.linalg.norm(models - v, axis=1)
        pull = shares / np.maximum(distance, nu)
        held = shares[distance <= nu].sum()
        step = escape = pull @ models / pull.sum()
        if 0 < held < 1:
            pull = np.where(distance > nu, pull, 0)
            others = pull @ models / pull.sum()
            stay = min(held / (np.linalg.norm(others - v) * pull.sum()), 1)
            escape = (1 - stay) * others + stay * v
        v = escape if shares @ (smoothed(escape) - smoothed(step)) < 0 else step
    return v


@pytest.mark.parametrize("idle", [False, True])
@pytest.mark.parametrize(("hostile", "size"), [(1e3, 1.0), (3e38, 1.0), (3e38, 1e-20)])
def test_the_geometric_median_does_not_depend_on_how_far_a_hostile_model_is(hostile, size, idle):
    rng = np.random.default_rng(5)
    models = size * rng.normal(size=(9, 4))
    models[-1] = hostile * np.array([1, -1, 1, 1])
    if idle:  # its model holds the median, unless the step of Vardi and Zhang is seen to be better
        models[2] = 0
    models = np.asarray(models, np.float32)
    weights = np.asarray(rng.integers(1, 5, size=9), np.float32)
    nu = 1e-6 * size
    with jax.enable_x64(False):
        uploads = gathered(models, weights=weights)
        method = fedax.GeometricMedian(nu=nu)
        found = method.combine(uploads, jnp.zeros(4, jnp.float32))
    expected = smoothed_median(models.astype(float), weights / float(weights.sum()), nu)
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


def test_distances_of_half_precision_do_not_overflow():
    models = 100 * np.random.default_rng(1).normal(size=(7, 40))
    models[0] += 300
    models = np.asarray(models, np.float16)
    with jax.enable_x64(False):
        uploads = gathered(models, "float16")
        ranks = krum_ranks(squared_distances(uploads.value, uploads.valid), uploads.valid, 1)
        center = fedax.CenteredClip(tau=1e-3, unit="one").clip(uploads, jnp.zeros(40, "float16"))
    np.testing.assert_array_equal(ranks, ranks_by_krum(models.astype(float), 1))
    expected = clipped(models.astype(float), np.zeros(40), 1e-3)
    np.testing.assert_allclose(np.asarray(center, float), expected, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("hostile", [1.0, 1e30])
def test_the_shortest_combination_with_a_huge_vector(hostile):
    """Orthogonal ones: the huge one has no part, the others the inverses of their squares."""
    vectors = np.diag([1.0, 2.0, hostile, 4.0]).astype(np.float32)
    inverses = 1 / np.diagonal(vectors).astype(float) ** 2
    with jax.enable_x64(False):
        uploads = gathered(vectors)
        known = ClientVectors.zeros(4, jnp.zeros(4, jnp.float32))
        found, _ = known.update(uploads, uploads.value).combine(jnp.ones(4, jnp.float32))
    np.testing.assert_allclose(found, 1 / np.diagonal(vectors) / inverses.sum(), atol=1e-3)


@pytest.mark.slow
def test_fedmgda_with_a_huge_upload():
    b = np.random.default_rng(4).normal(size=(6, 3))
    moves = []
    for std in (1e3, 1e25):
        with jax.enable_x64(False):
            history = run(
                fedax.FedMGDA(epsilon=1.0),
                b.astype(np.float32),
                channel=fedax.Channel(attack=fedax.attacks.Noise(share=0.2, std=std)),
            )
        assert history.outcome.kind == "ok"
        moves.append(vector(history))
    np.testing.assert_allclose(moves[0], moves[1], atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "dtype"),
    [
        (fedax.GeometricMedian(nu=6e4), "float16"),
        (fedax.CenteredClip(tau=0.5, iterations=2), "bfloat16"),
        (fedax.Krum(byzantine=1, selected=3), "float16"),
        (fedax.Bulyan(byzantine=1), "bfloat16"),
        (fedax.CoordinateMedian(mixing=2), "float16"),
        (fedax.FedMGDA(), "float16"),
        (fedax.FedAWARE(), "bfloat16"),
    ],
)
def test_rules_of_half_precision_models(method, dtype):
    """The same as in float32, up to rounding."""
    rng = np.random.default_rng(6)
    names = [f"site {i}" for i in rng.permutation(7)]
    clients = {
        name: {"c": rng.normal(size=(2 + i, 3)).astype(np.float32)} for i, name in enumerate(names)
    }

    def loss(w, e):
        return ((w[None] - e["c"].astype(w.dtype)) ** 2).sum(-1) / 2

    found = []
    for kind in (dtype, "float32"):
        with jax.enable_x64(False):
            task = fedax.Task(jnp.zeros(3, kind), loss, clients)
            found.append(vector(fedax.run(method, task, rounds=2, **STEP)).astype(float))
    np.testing.assert_allclose(found[0], found[1], atol=0.02)
