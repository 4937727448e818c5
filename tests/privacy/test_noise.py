"""Clipping and noise in the rounds: against NumPy, on every engine, and refused where no guarantee
holds."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from marks import slow
from problems import regression

RATE = 0.5
DIM = 3
DATA = (
    np.random.default_rng(0).normal(size=(6, 1, DIM))
    * np.array([0.1, 0.5, 1.0, 2.0, 4.0, 8.0])[:, None, None]
)
CONVEX = fedax.Task(np.full(DIM, 0.2), lambda w, x: ((w[None] - x) ** 2).sum(1) / 2, list(DATA))
EVERYONE = fedax.Schedule(steps=1, weights="equal")
DRAWN = fedax.Schedule(steps=1, weights="equal", cohort=3)
POISSON = fedax.Schedule(steps=1, weights="equal", cohort=3, sampling="poisson")


def go(method, privacy=None, schedule=EVERYONE, task=CONVEX, rounds=3, **more):
    channel = None if privacy is None else fedax.Channel(privacy=privacy)
    given = {"solver": fedax.SGD(RATE), "seed": 4, "observe": [], "engine": fedax.Eager()} | more
    return fedax.run(method, task, schedule=schedule, channel=channel, rounds=rounds, **given)


def vector(history):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(history.params)])


@pytest.mark.parametrize("engine", [slow(fedax.Eager()), fedax.Simulation(devices=1)], ids=type)
def test_clipped_means_are_those_of_the_paper(engine):
    """One local step of SGD on a square moves by RATE (b_k - w); McMahan et al. 2018, Alg. 1, in
    NumPy."""
    w = np.full(DIM, 0.2)
    for _ in range(3):
        moves = [RATE * (x[0] - w) for x in DATA]
        w = w + np.mean([d * min(1, 0.7 / np.linalg.norm(d)) for d in moves], 0)
    ours = go(fedax.FedAvg(), fedax.Privacy(clip=0.7, noise=0.0), engine=engine)
    np.testing.assert_allclose(vector(ours), w, rtol=0, atol=1e-12)


def steps(method, privacy, schedule, task, rounds, engine):
    """The models of a run before each round and after the last."""
    session = fedax.start(
        method,
        task,
        seed=4,
        solver=fedax.SGD(RATE),
        schedule=schedule,
        engine=engine,
        channel=fedax.Channel(privacy=privacy),
    )
    state = session.init()
    models = [np.asarray(session.params(state))]
    for _ in range(rounds):
        state, _ = session.step(state)
        models.append(np.asarray(session.params(state)))
    return np.stack(models)


@pytest.mark.slow
def test_poisson_means_have_a_fixed_denominator_and_empty_rounds_are_noisy():
    """Clients that all move by RATE: a round moves by count RATE / m, whatever the count. An empty
    round moves by its noise."""
    same = fedax.Task(np.ones(2), lambda w, x: -(x @ w), [np.ones((1, 2))] * 6)
    rare = fedax.Schedule(steps=1, weights="equal", cohort=1, sampling="poisson")
    plain = steps(
        fedax.FedAvg(),
        fedax.Privacy(clip=9.0, noise=0.0),
        rare,
        same,
        8,
        fedax.Simulation(devices=1),
    )
    counts = np.diff(plain[:, 0]) / RATE
    np.testing.assert_allclose(counts, np.round(counts), atol=1e-9)
    assert 0 in np.round(counts)
    assert len(set(np.round(counts))) > 2
    private = fedax.Privacy(clip=9.0, noise=0.01, delta=1e-3)
    eager, compiled = (
        steps(fedax.SCAFFOLD(), private, rare, same, 8, engine)
        for engine in (fedax.Eager(), fedax.Simulation(devices=2))
    )
    np.testing.assert_allclose(eager, compiled, rtol=0, atol=1e-12)
    assert (np.diff(eager, axis=0) != 0).all()


STILL = fedax.Task(np.zeros(4000), lambda w, x: 0 * x[:, 0] * w.sum(), [np.ones((1, 1))] * 5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "privacy", "expected"),
    [
        (fedax.FedAvg(), fedax.Privacy(clip=0.5, noise=2.0), 0.5 * 2.0 / 5),
        # two parts of an upload: each has noise for both
        (fedax.SCAFFOLD(), fedax.Privacy(clip=(0.5, 3.0), noise=2.0), 0.5 * 2.0 * math.sqrt(2) / 5),
        # a share of the multiplier goes to the counts (Andrew et al. 2021, Theorem 1)
        (
            fedax.FedAvg(),
            fedax.Privacy(clip=0.5, noise=2.0, quantile=0.5, count_noise=1.25),
            0.5 / 5 / math.sqrt(1 / 4 - 1 / 6.25),
        ),
        # at the clients: the mean of five noises
        (
            fedax.FedAvg(),
            fedax.Privacy(clip=0.5, noise=2.0, where="client"),
            0.5 * 2.0 / math.sqrt(5),
        ),
    ],
    ids=["mean", "two parts", "adaptive", "local"],
)
def test_the_noise_on_an_aggregate(method, privacy, expected):
    """Clients that do not move: what is left is the noise."""
    assert np.std(vector(go(method, privacy, task=STILL, rounds=1))) == pytest.approx(
        expected, rel=0.05
    )


@pytest.mark.slow
def test_the_noise_on_the_counts():
    """All uploads are within their bounds, so that what differs from a share of 1 is the noise, of
    deviation sigma_b sqrt(2) / m with two parts."""

    class Zeros(fedax.Algorithm):
        def round(self, fed, w):
            fed.average(self.train, fed.sample(), w)
            return w

        def train(self, client, w):
            return fedax.Upload((0 * w, 0 * w))

    private = fedax.Privacy(noise=2.0, quantile=0.5, count_noise=1.25)
    engine = fedax.Simulation(devices=1)
    shares = go(Zeros(), private, rounds=200, engine=engine).logged["unclipped"]
    assert shares.shape == (200, 2)
    expected = 1.25 * math.sqrt(2) / 6
    assert np.sqrt(np.mean((shares - 1) ** 2)) == pytest.approx(expected, rel=0.15)


class Told(fedax.Algorithm):
    """FedAvg that notes how many answered, and their part of the federation."""

    def round(self, fed, w):
        cohort = fed.sample()
        w = fed.average(self.train, cohort, w)
        fed.log(answered=fed.answered.count, coverage=cohort.coverage)
        return w

    def train(self, client, w):
        return fedax.Upload(client.minimize(start=w))


DROPPING = fedax.Schedule(steps=1, weights="equal", conditions={"dropouts": 0.5})
DAILY = fedax.Schedule(
    steps=1, weights="equal", conditions={"availability": fedax.core.Daily(0.5, period=5)}
)
RANDOM_COUNTS = {
    "poisson": (POISSON, 3 / 6),
    "dropouts": (DROPPING, 1.0),
    "available": (DAILY, 1.0),
}


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "expected"), RANDOM_COUNTS.values(), ids=list(RANDOM_COUNTS))
def test_the_part_of_the_federation_is_the_expected_one(schedule, expected):
    """The actual one would tell how many clients worked."""
    private = fedax.Privacy(clip=9.0, noise=0.0)
    engine = fedax.Simulation(devices=1)
    history = go(Told(), private, schedule, rounds=5, engine=engine)
    np.testing.assert_allclose(history.logged["coverage"], expected)
    assert len(set(history.logged["answered"].tolist())) > 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "control_weights"), [(POISSON, "objective"), (DROPPING, "uniform")]
)
def test_a_private_sum_of_memories_moves_as_they_do(schedule, control_weights):
    """SCAFFOLD's c is the mean of the clients' control variates. The mean of uploads is already
    divided by the expected number of clients."""
    method = fedax.SCAFFOLD(control_weights=control_weights)
    with jax.enable_x64(False):
        task = fedax.Task(
            0.0,
            lambda w, x: (w - x) ** 2 / 2,
            {f"site {k}": [float(k)] * (1 + k % 3) for k in range(6)},
        )
        wide = fedax.Privacy(clip=1e4, noise=0.0)
        session = fedax.start(
            method, task, schedule=schedule, channel=fedax.Channel(privacy=wide), seed=4
        )
        state = session.init()
        for _ in range(3):
            state, _ = session.step(state)
        (carry,) = session._program.split(state.value)
    c = np.asarray(carry.state.c)
    own = np.asarray(carry.state.clients.all()).mean(0)
    assert (np.abs(c) > 0.1).all()
    np.testing.assert_allclose(c, own, rtol=1e-5)


@pytest.mark.slow
def test_mixed_ids_do_not_change_a_private_mean():
    """All weights are equal, so that their order says nothing. The clients stay those of the draw:
    its expected number divides the mean, and its chance counts in epsilon."""
    wide = fedax.Privacy(clip=1e4, noise=0.0)
    noisy = fedax.Privacy(noise=1.0, delta=1e-3)
    results = []
    for ids in ("aligned", "mixed"):
        method = fedax.FedAvg(ids=ids)
        moved = vector(go(method, wide, POISSON, rounds=1, engine=fedax.Simulation(devices=1)))
        spent = fedax.privacy.privacy_spent(
            method, CONVEX, schedule=POISSON, privacy=noisy, rounds=1
        )
        results.append([*moved, spent])
    np.testing.assert_allclose(results[1], results[0], rtol=1e-12)


class Renumbered(Told):
    """The clients of a draw, in an array that the draw did not make."""

    def round(self, fed, w):
        cohort = fed.sample()
        return fed.average(
            self.train, dataclasses.replace(cohort, ids=jnp.asarray(cohort.ids + 0)), w
        )


class AnsweredAgain(Told):
    """A second phase of those who counted in the first."""

    def round(self, fed, w):
        fed.average(self.train, fed.sample(), w)
        return fed.average(self.train, fed.answered, w)


def test_clients_of_unknown_origin_are_refused_at_the_server_only():
    with pytest.raises(fedax.core.InvalidInput, match="Renumbered"):
        go(Renumbered(), fedax.Privacy(noise=1.0, delta=1e-3), POISSON)
    local = fedax.Privacy(noise=1.0, delta=1e-3, where="client")
    assert go(Renumbered(), local, POISSON, rounds=1).outcome.ok


@pytest.mark.parametrize("where", ["server", slow("client")])
def test_those_who_counted_may_work_again(where):
    private = fedax.Privacy(noise=1.0, delta=1e-3, where=where)
    history = go(AnsweredAgain(), private, DRAWN, rounds=1, on_bad_client="drop")
    assert history.outcome.ok


@pytest.mark.slow
@pytest.mark.parametrize("engine", [fedax.Eager(), fedax.Simulation(devices=1)], ids=type)
def test_an_upload_that_is_not_finite_counts_as_zero_and_stays_hidden(engine):
    """The others' clipped moves, divided by all six clients."""

    def loss(w, x):
        return jnp.where(x[:, 0] > 5, jnp.nan, 1.0) * ((w[None] - x) ** 2).sum(1) / 2

    data = [*DATA[:5], np.full((1, DIM), 9.0)]
    task = fedax.Task(np.full(DIM, 0.2), loss, data)
    moves = [RATE * (x[0] - 0.2) for x in data[:5]]
    expected = 0.2 + sum(d * min(1, 0.7 / np.linalg.norm(d)) for d in moves) / 6
    private = fedax.Privacy(clip=0.7, noise=0.0)
    history = go(Told(), private, task=task, rounds=1, engine=engine, on_bad_client="drop")
    np.testing.assert_allclose(vector(history), expected, rtol=1e-12)
    assert history.logged["answered"].tolist() == [6]


@pytest.mark.slow
def test_bounds_adapt_as_in_the_paper():
    """C <- C exp(-0.2 (b - 0.5)), b the share of lengths up to C."""
    private = fedax.Privacy(clip=0.3, noise=0.0, quantile=0.5)
    w = np.full(DIM, 0.2)
    bound = 0.3
    bounds = []
    for _ in range(6):
        moves = [RATE * (x[0] - w) for x in DATA]
        lengths = [np.linalg.norm(d) for d in moves]
        w = w + np.mean([d * min(1, bound / n) for d, n in zip(moves, lengths, strict=True)], 0)
        bound *= math.exp(-0.2 * (np.mean([n <= bound for n in lengths]) - 0.5))
        bounds.append(bound)
    whole = go(fedax.FedAvg(), private, rounds=6)
    np.testing.assert_allclose(whole.logged["clip"][:, 0], bounds, rtol=1e-5)
    np.testing.assert_allclose(vector(whole), w, rtol=1e-5)


@pytest.mark.slow
class Twice(fedax.Algorithm):
    """Two phases whose uploads are zeros."""

    def round(self, fed, w):
        cohort = fed.sample()
        one = fed.average(self.one, cohort, w)
        fed.log(difference=one - fed.average(self.two, cohort, w))
        return w

    def one(self, client, w):
        return fedax.Upload(0 * w)

    def two(self, client, w):
        return fedax.Upload(0 * w)


def test_local_noise_differs_between_the_phases_of_a_round():
    channel = fedax.Channel(privacy=fedax.Privacy(clip=1.0, delta=0.01, where="client"))
    schedule = fedax.Schedule(weights="equal")
    history = fedax.run(Twice(), regression(), rounds=1, schedule=schedule, channel=channel)
    assert history.logged["difference"].all()


def test_a_budget_ends_the_run():
    private = fedax.Privacy(noise=2.0, delta=1e-3, budget=5.0)
    spent = [
        fedax.privacy.privacy_spent(
            fedax.FedAvg(), CONVEX, schedule=EVERYONE, privacy=private, rounds=t
        )
        for t in range(12)
    ]
    last = max(t for t in range(12) if spent[t] <= 5.0)
    history = go(fedax.FedAvg(), private, rounds=12)
    assert 0 < last < 11
    assert (history.outcome.kind, history.outcome.round, len(history.bits.up)) == (
        "stopped",
        last - 1,
        last,
    )
    np.testing.assert_allclose(history.metrics["epsilon"], spent[: last + 1])


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        (fedax.FedAWARE(), {}, "FedAWARE"),
        (fedax.FedBC(), {}, "FedBC"),
        (fedax.DFedAvgM(graph=fedax.Graph.ring(6)), {}, "DFedAvgM"),
        (fedax.FedAvg(), {"weights": "size"}, "weights="),
        (fedax.FedAvg(), {"sampling": "proportional", "weights": "size"}, "Schedule"),
    ],
)
def test_refused_with_the_reason(method, changes, message):
    schedule = fedax.Schedule(**{"cohort": 3, "weights": "equal"} | changes)
    with pytest.raises(fedax.core.InvalidInput, match=message):
        go(method, fedax.Privacy(noise=1.0), schedule)


@pytest.mark.parametrize(
    "given",
    [
        {"clip": math.inf},
        {"clip": (1.0, 2.0)},
        {"delta": 0.2},  # of ten clients, one published whole at random would have delta 0.1
        {"quantile": 0.5, "where": "client"},
        {"count_noise": 0.4, "quantile": 0.5},
        {"budget": 0.1},
    ],
    ids=lambda given: next(iter(given)),
)
def test_values_that_give_no_guarantee(given):
    field = next(iter(given))
    with pytest.raises(fedax.InvalidInput, match=field):
        go(fedax.FedAvg(), fedax.Privacy(**{"noise": 2.0} | given))
