"""Epsilon against the best attack that is known: neighbouring data sets, the messages of real runs,
and exact bounds from them.

Each test builds a pair of neighbours, measures on real messages how far apart they are and how wide
their noise is, and finds the largest epsilon that a threshold test on these messages proves. The
reported epsilon must not be smaller."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fedax
from fedax.conformance.method import Method, examples_of
from fedax.observe.base import Observer
from marks import slow
from problems import SIZES, kinds_of_laws, named, squares

CLIP = 0.5
DIM = 200
CLIENTS = 50
ONE = fedax.Simulation(devices=1)
POISSON = {"cohort": 10, "sampling": "poisson"}


class Released(Observer):
    """The model after every round, which is what a run publishes."""

    def __call__(self, view):
        return {"w": view.w}


def linear(w, examples):
    """One step of SGD(1.0) adds the client's example to its model, whatever the model; 1e30
    overflows and is left out."""
    x = examples["x"].astype(w.dtype)
    return -((x * jnp.where(x > 1e20, x, 1)) @ w)


def along(length, dim=DIM):
    """One example of some length along the first coordinate."""
    return {"x": np.eye(1, dim, dtype=np.float32) * np.float32(length)}


def history(lengths, privacy, rounds=1, on_bad_client="stop", **schedule):
    """A run whose client k moves by `lengths[k]` along the first coordinate; the others carry the
    noise alone."""
    task = fedax.Task(np.zeros(DIM, np.float32), linear, [along(length) for length in lengths])
    return fedax.run(
        fedax.FedAvg(),
        task,
        solver=fedax.SGD(1.0),
        schedule=fedax.Schedule(steps=1, weights="equal", **schedule),
        channel=fedax.Channel(privacy=privacy),
        observe=[Released()],
        rounds=rounds,
        seed=7,
        engine=ONE,
        on_bad_client=on_bad_client,
    )


def sums(run, expected):
    """The noisy sum of every round, from the models."""
    return np.diff(run.metrics["w"].astype(float), axis=0) * expected


def best_epsilon(one, other, delta):
    """The largest epsilon that a threshold proves between mixtures of Gaussians of width 1, given
    as weights and means."""
    points = np.linspace(-12, 12, 24001) + np.array([mean for _, mean in (*one, *other)])[:, None]

    def tail(law, side):
        return sum(weight * stats.norm.sf(side * (points - mean)) for weight, mean in law)

    found = 0.0
    for side in (1, -1):
        for law, against in ((one, other), (other, one)):
            more = tail(law, side) - delta
            less = tail(against, side)
            proved = (more > 0) & (less > 1e-300)
            found = max(found, float(np.log(more[proved] / less[proved]).max(initial=0.0)))
    return found


def test_the_attack_is_that_of_a_single_gaussian():
    """Balle and Wang 2018, Theorem 8: the exact curve of the Gaussian mechanism."""
    for shift in (0.3, 1.0, 2.5):
        epsilon = best_epsilon([(1.0, shift)], [(1.0, 0.0)], 1e-3)
        exact = stats.norm.cdf(shift / 2 - epsilon / shift) - math.exp(epsilon) * stats.norm.cdf(
            -shift / 2 - epsilon / shift
        )
        assert exact == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, 4])
def test_central_noise_with_everyone(rounds):
    """One client less, which takes the sum back by C."""
    privacy = fedax.Privacy(clip=CLIP, noise=1.5, delta=1e-3)
    with_, without = (history([9.0] * count, privacy, rounds) for count in (CLIENTS, CLIENTS - 1))
    one = sums(with_, CLIENTS)
    other = sums(without, CLIENTS - 1)
    shift = np.abs(one - other)[:, 0]
    noise = one[:, 1:]
    np.testing.assert_allclose(shift, CLIP, rtol=1e-3)
    # epsilon is exact: it lies between what the ends of the deviation's interval prove
    error = 4 / math.sqrt(2 * noise.size)
    low, high = (
        best_epsilon([(1.0, math.sqrt(rounds) * shift[0] / deviation)], [(1.0, 0.0)], 1e-3)
        for deviation in (noise.std() * (1 + error), noise.std() * (1 - error))
    )
    assert low < with_.metrics["epsilon"][-1] < high


@pytest.mark.slow
def test_poisson_sampling():
    """The sum moves by C in the rounds in which the client is drawn, a fifth of them."""
    privacy = fedax.Privacy(clip=CLIP, noise=0.8, delta=1e-3)
    rounds = 120
    present = [9.0] * CLIENTS
    absent = [0.0, *[9.0] * (CLIENTS - 1)]
    one, other = (
        sums(history(lengths, privacy, rounds, **POISSON), 10) for lengths in (present, absent)
    )
    moved = np.abs(one - other)[:, 0]
    drawn = moved > CLIP / 2
    deviation = one[:, 1:].std()
    np.testing.assert_allclose(moved[drawn], CLIP, rtol=2e-2)
    assert abs(drawn.mean() - 0.2) < 4 * math.sqrt(0.2 * 0.8 / rounds)
    shift = CLIP / deviation
    proved = best_epsilon([(0.8, 0.0), (0.2, shift)], [(1.0, 0.0)], 1e-3)
    assert 0.5 * spent(privacy, **POISSON) < proved < spent(privacy, **POISSON)


@pytest.mark.slow
@pytest.mark.parametrize(("cohort", "noise"), [(45, 2.0), (10, 2.0)])
def test_draws_of_a_fixed_number(cohort, noise):
    """One client is replaced by its opposite, and the others are like the new one: a sum moves by 2
    C where it is drawn."""
    privacy = fedax.Privacy(clip=CLIP, noise=noise, delta=1e-3)
    rounds = 80
    pair = ([9.0, *[-9.0] * (CLIENTS - 1)], [-9.0] * CLIENTS)
    one, other = (
        sums(history(lengths, privacy, rounds, cohort=cohort), cohort) for lengths in pair
    )
    moved = np.abs(one - other)[:, 0]
    rate = cohort / CLIENTS
    drawn = moved > CLIP / 2
    deviation = one[:, 1:].std()
    np.testing.assert_allclose(moved[drawn], 2 * CLIP, rtol=2e-2)
    assert abs(drawn.mean() - rate) < 4 * math.sqrt(rate * (1 - rate) / rounds)
    proved = best_epsilon([(1 - rate, 0.0), (rate, 2 * CLIP / deviation)], [(1.0, 0.0)], 1e-3)
    assert 0.4 * spent(privacy, cohort=cohort) < proved < spent(privacy, cohort=cohort)


def spent(privacy, rounds=1, **schedule):
    task = fedax.Task(np.zeros(2, np.float32), linear, [along(1.0, 2)] * CLIENTS)
    schedule = fedax.Schedule(steps=1, weights="equal", **schedule)
    return fedax.privacy.privacy_spent(
        fedax.FedAvg(), task, schedule=schedule, privacy=privacy, rounds=rounds
    )


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "count_noise"), [(1.5, 0.8), (1.0, 2.5)])
def test_adaptive_clipping(noise, count_noise):
    """One of forty clients is absent: the sum of values and the count of short uploads, with what
    each has of noise."""
    privacy = fedax.Privacy(
        clip=CLIP, noise=noise, delta=1e-3, quantile=0.5, count_noise=count_noise, clip_rate=1e-9
    )
    rounds = 120
    clients = 40
    short = 0.999 * CLIP
    runs = [
        history([first, *[short] * (clients - 1)], privacy, rounds, on_bad_client="drop")
        for first in (short, 1e30)
    ]
    assert (runs[1].logged["dropped"][:, 0] == 0).all()
    values = [sums(run, clients) for run in runs]
    counts = [run.logged["unclipped"][:, 0].astype(float) * clients for run in runs]
    value = np.median(np.abs(values[0] - values[1])[:, 0]) / values[0][:, 1:].std()
    count = np.median(np.abs(counts[0] - counts[1])) / count_noise
    assert counts[0].std() == pytest.approx(count_noise, rel=0.25)
    reported = runs[0].metrics["epsilon"][1]
    assert best_epsilon([(1.0, count)], [(1.0, 0.0)], 1e-3) < reported
    exact = math.hypot(short / (CLIP * privacy.noise_of_values(clients)), count)
    # of a width that is measured to some percent
    assert math.hypot(value, count) == pytest.approx(exact, rel=0.15)
    assert 0.6 * reported < best_epsilon([(1.0, exact)], [(1.0, 0.0)], 1e-3) < reported


@pytest.mark.slow
def test_adaptive_bounds_are_those_of_centred_counts():
    """With Poisson sampling too: C exp(-rate ((sum of b - 1/2) / m + 1/2 - quantile)), in NumPy
    from the cohorts' sizes."""
    privacy = fedax.Privacy(clip=CLIP, noise=0.0, delta=1e-3, quantile=0.3, clip_rate=0.2)
    run = history([0.1 * CLIP] * CLIENTS, privacy, 12, **POISSON)
    drawn = np.rint(sums(run, 10)[:, 0] / (0.1 * CLIP))  # nobody is ever clipped
    shares = 0.5 + drawn / 2 / 10
    np.testing.assert_allclose(run.logged["unclipped"][:, 0], shares, rtol=1e-5)
    np.testing.assert_allclose(
        run.logged["clip"][:, 0], CLIP * np.exp(-0.2 * np.cumsum(shares - 0.3)), rtol=1e-4
    )
    assert len(set(drawn)) > 2


def test_a_resumed_run_spends_what_all_its_messages_give_away():
    privacy = fedax.Privacy(clip=CLIP, noise=2.0, delta=1e-3)
    task = fedax.Task(np.zeros(DIM, np.float32), linear, [along(9.0)] * CLIENTS)
    given = {
        "solver": fedax.SGD(1.0),
        "schedule": fedax.Schedule(steps=1, weights="equal"),
        "observe": [Released()],
        "seed": 7,
    }
    given |= {"channel": fedax.Channel(privacy=privacy)}
    half = fedax.run(fedax.FedAvg(), task, rounds=3, **given)
    whole = fedax.run(fedax.FedAvg(), task, rounds=6, resume=half, **given)
    noise = sums(whole, CLIENTS)[:, 1:]
    # of six rounds, each with noise of its own
    assert np.abs(np.corrcoef(noise) - np.eye(6)).max() < 0.3
    proved = best_epsilon([(1.0, math.sqrt(6) * CLIP / noise.std())], [(1.0, 0.0)], 1e-3)
    assert 0.6 * whole.metrics["epsilon"][-1] < proved < whole.metrics["epsilon"][-1]
    np.testing.assert_array_equal(whole.metrics["epsilon"][:4], half.metrics["epsilon"])


@pytest.mark.parametrize(
    "schedule",
    [
        {"cohort": 10, "conditions": {"dropouts": 0.2}},
        {"cohort": 10, "conditions": {"availability": {"name": "daily", "fraction": 0.3}}},
    ],
    ids=["drop-outs", "availability"],
)
def test_a_draw_among_some_is_not_amplified(schedule):
    """Of those who are there a client is drawn more often: it counts as drawn in every round, and
    its sum may move by 2 C."""
    privacy = fedax.Privacy(clip=CLIP, noise=3.0, delta=1e-3)
    proved = best_epsilon([(1.0, 2 / 3.0)], [(1.0, 0.0)], 1e-3)
    assert (
        proved
        < spent(privacy, **schedule)
        == pytest.approx(spent(fedax.Privacy(noise=1.5, delta=1e-3)), rel=1e-9)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "schedule"), [(0.3, POISSON), (1.0, {"cohort": 45}), (4.0, {"cohort": 10})]
)
def test_more_rounds_and_less_noise_spend_more(noise, schedule):
    """From the first round on: an order at which the accountant knows no bound must not count as
    one that costs nothing."""
    spends = [
        spent(fedax.Privacy(noise=noise, delta=1e-3), t, **schedule) for t in (0, 1, 2, 3, 10)
    ]
    assert spends[0] == 0
    assert np.all(np.diff(spends) > 0)
    assert spent(fedax.Privacy(noise=1.1 * noise, delta=1e-3), 1, **schedule) < spends[1]


def test_noise_of_the_system_is_gaussian():
    from fedax.communication.privacy import system_gaussians

    first, second = (
        np.concatenate([x.ravel() for x in system_gaussians([(2000, 5), (), (3,)])])
        for _ in range(2)
    )
    assert stats.kstest(first, "norm").pvalue > 1e-4
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.05
    assert abs(np.corrcoef(first[:5000], first[5000:10000])[0, 1]) < 0.07
    assert jnp.isfinite(first).all()


def neighbour(labels):
    """Linear regression in which client 1 has these labels."""
    clients = examples_of(SIZES, np.float32)
    clients[1]["y"] = np.full_like(clients[1]["y"], labels)
    start = {"b": np.zeros((), np.float32), "w": np.full(3, 0.1, np.float32)}
    return fedax.Task(start, squares, clients, l2=0.01)


def private_run(kind, task, **options):
    """A run whose noise is so wide that the uploads are lost in its rounding."""
    privacy = fedax.Privacy(clip=1e-20, noise=1e20, delta=1e-3)
    return fedax.run(
        kind(),
        task,
        schedule=fedax.Schedule(steps=2, weights="equal"),
        channel=fedax.Channel(privacy=privacy),
        rounds=2,
        engine=ONE,
        **options,
    )


def published(history):
    """All that a history has, but for its wall times and the task's function."""
    hidden = {"bits", "seconds", "details"}
    names = sorted({field.name for field in dataclasses.fields(history)} - hidden)
    return jax.tree.leaves(
        [
            history.bits.up,
            history.bits.down,
            history.details._replace(predictor=None),
            [getattr(history, n) for n in names],
        ]
    )


PUBLISHED = {"FedPer", "FedRep", "LGFedAvg", "FedBN", "PFedMe", "SCAFFOLD"}
KINDS = [kind if named(kind) in ("FedPer", "SCAFFOLD") else slow(kind) for kind in kinds_of_laws()]


@pytest.mark.parametrize("kind", KINDS, ids=named)
@pytest.mark.usefixtures("single_precision")
def test_neighbours_differ_in_what_the_noise_covers_only(kind):
    """Every method that stores something at its clients: all else in a history is the same to the
    bit."""
    if not any(Method.of(kind).footprint.memory):
        pytest.skip("nothing stays at its clients")
    try:
        histories = [private_run(kind, neighbour(labels)) for labels in (5.0, -5.0)]
    except fedax.InvalidInput as refusal:
        if named(kind) in PUBLISHED:
            raise
        pytest.skip(str(refusal))
    require_alike(*histories)
    with pytest.raises(fedax.InvalidInput, match="checkpoint"):
        private_run(kind, neighbour(5.0), resume=histories[0])


def require_alike(one, other):
    rows = list(zip(published(one), published(other), strict=True))
    assert len(rows) > 10
    for mine, theirs in rows:
        np.testing.assert_array_equal(mine, theirs)


def running_mean(w, e, *, state, training):
    """Squares around a mean that every client keeps of its inputs."""
    mean = {"mean": (state["mean"] + e["x"].mean()) / 2} if training else state
    losses = (w - e["x"] + mean["mean"]) ** 2
    return (losses, mean) if training else losses


@pytest.mark.usefixtures("single_precision")
def test_statistics_that_clients_keep_stay_with_them():
    histories = []
    for value in (1.0, 100.0):
        clients = [{"x": np.full(3, x, np.float32)} for x in (0.0, value)]
        state = {"mean": np.zeros((), np.float32)}
        task = fedax.Task(np.float32(0.5), running_mean, clients, state=state, state_policy="local")
        histories.append(private_run(fedax.FedAvg, task, observe=[fedax.observe.ClientWeights()]))
    require_alike(*histories)
    assert histories[0].final_state == {"mean": 0}


class ReadsMemories(fedax.FedAvg):
    """FedAvg that reads what its clients store, in a round or for the model that it publishes."""

    in_round: bool = fedax.hyper(True, doc="where")

    def init(self, fed, w):
        return w, fed.client_states(w)

    def round(self, fed, state):
        w, memory = state
        mean = memory.mean() if self.in_round else w
        return fed.average(self.train, fed.everyone, mean), memory

    def model(self, state):
        return state[0] if self.in_round else state[1].mean()


@pytest.mark.parametrize(("in_round", "words"), [(True, "a round reads"), (False, "default")])
@pytest.mark.usefixtures("single_precision")
def test_servers_that_read_memories_are_refused(in_round, words):
    with pytest.raises(fedax.InvalidInput, match=words):
        private_run(lambda: ReadsMemories(in_round=in_round), neighbour(1.0))
