"""Server methods against straight NumPy transcriptions of the papers' pseudocode, written without
the library's code."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import nnls
from scipy.stats import chi2_contingency, chisquare

import fedax
from fedax.algorithms.server.released import mixed_weights
from fedax.core.scheduling.sampling import weighted_subset
from fedax.utils.random import stream
from marks import slow
from problems import SIZES, regression, vector
from transcription import L2, LR, ROUNDS, SCHEDULE, SEED, P, World

ONE = fedax.Simulation(devices=1)


def run(algorithm, momentum=0.0, schedule=SCHEDULE, rounds=ROUNDS, **options):
    solver = fedax.SGD(LR, momentum=momentum)
    return fedax.run(
        algorithm,
        regression(),
        solver=solver,
        schedule=schedule,
        rounds=rounds,
        seed=SEED,
        engine=ONE,
        **options,
    )


def agree(history, expected, tolerance=1e-12):
    np.testing.assert_allclose(vector(history), expected, rtol=0, atol=tolerance)


def test_fednova_with_a_proximal_term():
    """The weight of every single gradient in the model's change is followed from step to step."""
    world = World()
    mu = 0.7
    momentum = 0.6
    w = world.start
    for cohort in world.cohorts():
        directions = []
        sums = []
        for k in cohort:
            mine, steps = world.sgd(k, w, lambda v, w=w: mu * (v - w), momentum)
            # weights in the velocity, and in -(change) / lr
            fast = np.zeros(steps)
            inside = np.zeros(steps)
            for j in range(steps):
                fast = momentum * fast + np.eye(steps)[j] - mu * LR * inside
                inside = inside + fast
            sums.append(np.abs(inside).sum())
            directions.append((w - mine) / sums[-1])
        w = w - np.average(sums, weights=P[cohort]) * np.average(
            directions, axis=0, weights=P[cohort]
        )
    agree(run(fedax.FedNova(mu=mu), momentum), w)


@pytest.mark.parametrize("equal", [False, slow(True)])
def test_fedexp(equal):
    """Alg. 1; with equal weights the means are those of its formula."""
    world = World()
    eps = 1e-6
    w = world.start
    steps = []
    weights = np.ones(len(P)) if equal else P
    for cohort in world.cohorts():
        changes = np.array([w - world.sgd(k, w)[0] for k in cohort])
        p = weights[cohort] / weights[cohort].sum()
        mean = p @ changes
        steps.append(max(1.0, p @ (changes**2).sum(1) / (2 * (mean @ mean + eps))))
        w = w - steps[-1] * mean
    assert max(steps) > 1
    history = run(
        fedax.FedExP(eps=eps),
        schedule=fedax.Schedule.of(SCHEDULE.options | {"weights": "equal" if equal else "size"}),
    )
    agree(history, w)
    np.testing.assert_allclose(history.logged["server_step"], steps, rtol=1e-10)


def shortest_in_a_box(vectors, low, high):
    """The QP by trying every choice of weights at the lower bound, at the upper bound, and
    between."""
    count = len(vectors)
    best = None
    least = np.inf
    for kinds in itertools.product("lhf", repeat=count):
        free = [i for i in range(count) if kinds[i] == "f"]
        weights = np.array(
            [{"l": low, "h": high, "f": 0 * low}[kind][i] for i, kind in enumerate(kinds)]
        )
        if free:  # stationarity on the free ones and the sum, as one linear system
            gram = vectors @ vectors.T
            system = np.block(
                [
                    [gram[np.ix_(free, free)], np.ones((len(free), 1))],
                    [np.ones((1, len(free))), np.zeros((1, 1))],
                ]
            )
            right = np.append(-gram[free] @ weights, 1 - weights.sum())
            weights[free] = np.linalg.lstsq(system, right)[0][:-1]
        feasible = (
            np.all(weights >= low - 1e-12)
            and np.all(weights <= high + 1e-12)
            and abs(weights.sum() - 1) < 1e-12
        )
        if feasible and np.linalg.norm(weights @ vectors) < least:
            best = weights
            least = np.linalg.norm(weights @ vectors)
    return best


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_fedmgda(epsilon):
    world = World()
    lr = 0.5
    w = world.start
    for cohort in world.cohorts():
        updates = np.array([w - world.sgd(k, w)[0] for k in cohort])
        unit = updates / np.linalg.norm(updates, axis=1, keepdims=True)
        usual = P[cohort] / P[cohort].sum()
        weights = shortest_in_a_box(
            unit, np.maximum(usual - epsilon, 0), np.minimum(usual + epsilon, 1)
        )
        w = w - lr * weights @ unit
    agree(run(fedax.FedMGDA(lr=lr, epsilon=epsilon)), w, 1e-8)


def shortest(vectors):
    """The weights of the shortest convex combination, as a problem of non-negative least
    squares."""
    weights = nnls(
        np.vstack([vectors.T, np.ones(len(vectors))]), np.append(np.zeros(vectors.shape[1]), 1.0)
    )[0]
    return weights / weights.sum()


def test_fedaware_as_the_paper_has_it():
    """Over the clients seen so far: the zero momentum of another one would be the shortest."""
    world = World()
    alpha = 0.3
    lr = 0.8
    x = world.start
    momenta = np.zeros((5, 4))
    seen = []
    for cohort in world.cohorts():
        for k in cohort:
            momenta[k] = alpha * momenta[k] + (1 - alpha) * (x - world.sgd(k, x)[0])
        seen = sorted({*seen, *cohort})
        x = x - lr * shortest(momenta[seen]) @ momenta[seen]
    agree(run(fedax.FedAWARE(alpha=alpha, lr=lr)), x, 1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("weighted", [True, False])
def test_fednova_as_released_with_fedaware(weighted):
    """Weights p_k / tau_k of the changes, normalised to 1; also as the harmonic mean of tau in
    FedNova's own formula."""
    world = World()
    schedule = fedax.Schedule(
        cohort=3, epochs=2, batch_size=4, order="given", weights="size" if weighted else "equal"
    )
    w = world.start
    harmonic = world.start
    for cohort in world.cohorts():
        p = (P if weighted else np.full(5, 0.2))[cohort]
        p = p / p.sum()
        models, steps = zip(*(world.sgd(k, w) for k in cohort), strict=True)
        shares = p / steps / (p / steps).sum()
        directions = (harmonic - np.array([world.sgd(k, harmonic)[0] for k in cohort])) / np.array(
            steps
        )[:, None]
        harmonic = harmonic - (p @ directions) / (p / steps).sum()
        w = w - shares @ (w - np.array(models))
    found = run(fedax.FedNova(form="as_released"), schedule=schedule)
    agree(found, w)
    agree(found, harmonic)
    assert np.abs(vector(found) - vector(run(fedax.FedNova(), schedule=schedule))).max() > 1e-3


@pytest.mark.slow
def test_fedaware_starts_with_everybody():
    """`startup="all"`: round 0 is everyone's, and already a step along the shortest combination;
    then cohorts by the weights."""
    world = World()
    alpha = 0.3
    lr = 0.2
    offsets = jnp.asarray(np.concatenate([[0], np.cumsum(SIZES)]), jnp.int32)
    root = jax.random.fold_in(jax.random.key(SEED), 1)
    x = world.start
    momenta = np.zeros((5, 4))
    weights = np.ones(5)
    old = []
    new = []
    for t in range(4):
        drawn = SCHEDULE.draw(stream(root, "cohort", t, 0), offsets, jnp.asarray(weights))[0]
        cohort = np.arange(5) if t == 0 else np.asarray(drawn)
        updates = np.array([x - world.sgd(k, x)[0] for k in cohort])
        lengths = np.linalg.norm(updates, axis=1)
        mean = np.linalg.norm(updates.mean(0))
        old.append(lengths.mean() / mean)
        new.append(np.sqrt((lengths**2).mean()) / mean)
        momenta[cohort] = alpha * momenta[cohort] + (1 - alpha) * updates
        unit = momenta / np.linalg.norm(momenta, axis=1, keepdims=True)
        weights = shortest(unit)
        x = x - lr * weights @ unit
    method = fedax.FedAWARE(alpha=alpha, lr=lr, normalize="unit", startup="all", feedback=True)
    options = {
        "solver": fedax.SGD(LR),
        "schedule": SCHEDULE,
        "rounds": 4,
        "seed": SEED,
        "engine": ONE,
    }
    found = fedax.run(method, regression(), **options)
    agree(found, x, 1e-8)
    np.testing.assert_allclose(found.logged["diversity_2023"], old, rtol=1e-7)
    np.testing.assert_allclose(found.logged["diversity"], new, rtol=1e-7)
    assert (found.bits.up / (4 * 64)).tolist() == [5, 3, 3, 3]


@pytest.mark.slow
def test_clients_without_weight_never_work_again():
    """The segment between two clients' updates is the nearest to zero; the other three, and their
    momenta, are left alone."""
    data = [[[1.0, 1.0]], [[-1.0, 1.0]], [[0.0, 3.0]], [[1.0, 4.0]], [[-1.0, 5.0]]]
    task = fedax.Task(np.zeros(2), lambda w, x: ((w[None] - x) ** 2).sum(1) / 2, data)
    method = fedax.FedAWARE(lr=1e-3, startup="all", feedback=True)
    options = {
        "solver": fedax.SGD(0.1),
        "schedule": fedax.Schedule(cohort=1, steps=1),
        "engine": ONE,
    }
    first, last = (fedax.run(method, task, rounds=rounds, **options) for rounds in (1, 30))
    np.testing.assert_allclose(first.state.weights, [0.5, 0.5, 0, 0, 0], rtol=0, atol=1e-9)
    moved = np.any(
        np.asarray(first.state.momenta.vectors) != np.asarray(last.state.momenta.vectors), axis=1
    )
    assert moved.tolist() == [True, True, False, False, False]


@pytest.mark.slow
@pytest.mark.parametrize("feedback", [True, False])
def test_fedaware_as_released(feedback):
    """Unit momenta; first everybody once with FedAvg's steps; then, with feedback, cohorts by the
    last weights."""
    world = World()
    alpha = 0.3
    lr = 0.2
    rounds = 5
    offsets = jnp.asarray(np.concatenate([[0], np.cumsum(SIZES)]), jnp.int32)
    root = jax.random.fold_in(jax.random.key(SEED), 1)
    x = world.start
    momenta = np.zeros((5, 4))
    seen = np.zeros(5, bool)
    weights = np.ones(5)
    drawn = []
    for t in range(rounds):
        chances = (weights if feedback else np.ones(5)) if seen.all() else 1.0 - seen
        cohort = np.asarray(
            SCHEDULE.draw(stream(root, "cohort", t, 0), offsets, jnp.asarray(chances))[0]
        )
        updates = np.array([x - world.sgd(k, x)[0] for k in cohort])
        momenta[cohort] = alpha * momenta[cohort] + (1 - alpha) * updates
        seen[cohort] = True
        drawn.append(set(cohort.tolist()))
        if not seen.all():
            x = x - lr * np.average(updates, axis=0, weights=P[cohort])
            continue
        unit = momenta / np.linalg.norm(momenta, axis=1, keepdims=True)
        weights = shortest(unit)
        x = x - lr * weights @ unit
    assert drawn[0] | drawn[1] == set(range(5))  # everybody is seen as soon as there is room
    agree(
        run(
            fedax.FedAWARE(
                alpha=alpha, lr=lr, normalize="unit", startup="explore", feedback=feedback
            )
        ),
        x,
        1e-8,
    )


class ReleasedSampler:
    """The released `FeedbackSampler`: a cohort is returned sorted and remembered as it was drawn.

    Orders of draws come from outside, so that its cohorts are those of the library.
    """

    def __init__(self, clients):
        self.clients = clients
        self.unseen = set(range(clients))
        self.explored = False

    def sample(self, drawn):
        if self.explored:
            self.last_sampled = drawn
        else:
            # the first draw is from a shuffled list; after it the list is made of a set, which
            # small numbers leave in order
            first = len(self.unseen) == self.clients
            self.last_sampled = drawn if first else sorted(drawn)
            self.unseen -= set(drawn)
            self.explored = not self.unseen
        return sorted(drawn)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("startup", "feedback"), [("all", False), ("all", True), ("explore", True)]
)
def test_fedaware_with_the_released_ids(startup, feedback):
    """The n-th update by id enters the momentum of the n-th client drawn, and in a step of FedAvg
    has its weight."""
    world = World()
    alpha = 0.3
    lr = 0.2
    rounds = 6
    offsets = jnp.asarray(np.concatenate([[0], np.cumsum(SIZES)]), jnp.int32)
    root = jax.random.fold_in(jax.random.key(SEED), 1)
    sampler = ReleasedSampler(5)
    x = world.start
    momenta = np.zeros((5, 4))
    weights = np.ones(5)
    mixed = 0
    for t in range(rounds):
        weighted = startup == "explore" or feedback
        unseen = np.isin(np.arange(5), list(sampler.unseen)).astype(float)
        chances = (weights if feedback else np.ones(5)) if sampler.explored else unseen
        order = np.asarray(
            weighted_subset(stream(root, "server", t, "ids"), jnp.asarray(chances), 5)[0]
        ).tolist()
        drawn = SCHEDULE.draw(
            stream(root, "cohort", t, 0), offsets, jnp.asarray(chances) if weighted else None
        )[0].tolist()
        if startup == "all" and t == 0:
            drawn = order
        elif not weighted:
            drawn = [k for k in order if k in drawn]
        ids = sampler.sample(drawn)
        indices = sampler.last_sampled
        mixed += ids != indices
        updates = np.array([x - world.sgd(k, x)[0] for k in ids])
        momenta[indices] = alpha * momenta[indices] + (1 - alpha) * updates
        if not sampler.explored:
            x = x - lr * np.average(updates, axis=0, weights=P[indices])
            continue
        unit = momenta / np.linalg.norm(momenta, axis=1, keepdims=True)
        weights = shortest(unit)
        x = x - lr * weights @ unit
    assert mixed >= 3
    method = fedax.FedAWARE(
        alpha=alpha, lr=lr, normalize="unit", startup=startup, feedback=feedback, ids="mixed"
    )
    options = {"solver": fedax.SGD(LR), "schedule": SCHEDULE, "rounds": rounds, "seed": SEED}
    found = fedax.run(method, regression(), engine=ONE, **options)
    np.testing.assert_allclose(found.state.momenta.vectors, momenta, rtol=0, atol=1e-8)
    agree(found, x, 1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("shared", ["updates", "momenta"])
def test_fedaware_whose_cohorts_share(shared):
    """The clients of a cohort count alike, whatever their sizes; the others' momenta stay."""
    world = World()
    alpha = 0.3
    lr = 0.8
    x = world.start
    momenta = np.zeros((5, 4))
    seen = []
    for cohort in world.cohorts():
        updates = np.array([x - world.sgd(k, x)[0] for k in cohort])
        if shared == "updates":
            updates[:] = updates.mean(0)
        momenta[cohort] = alpha * momenta[cohort] + (1 - alpha) * updates
        if shared == "momenta":
            momenta[cohort] = momenta[cohort].mean(0)
        seen = sorted({*seen, *cohort})
        x = x - lr * shortest(momenta[seen]) @ momenta[seen]
    agree(run(fedax.FedAWARE(alpha=alpha, lr=lr, shared=shared)), x, 1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "cohort"), [(fedax.FedAvg, 3), (fedax.FedNova, 5)])
def test_released_baselines_mix_up_weights(kind, cohort):
    """A client's model is its own unit vector, so that the mean shows the weights: the cohort's, in
    another order."""
    data = [np.eye(5)[[k] * (k + 1)] for k in range(5)]
    task = fedax.Task(np.zeros(5), lambda w, x: -(x @ w), data)
    schedule = fedax.Schedule(cohort=cohort, steps=1, batch_size="full")
    right = []
    for seed in range(4):
        options = {
            "solver": fedax.SGD(1.0),
            "schedule": schedule,
            "rounds": 1,
            "seed": seed,
            "engine": fedax.Eager(),
        }
        weights, mixed = (
            np.asarray(fedax.run(kind(ids=ids), task, **options).params)
            for ids in ("aligned", "mixed")
        )
        np.testing.assert_allclose(np.sort(mixed), np.sort(weights), atol=1e-12)
        assert np.array_equal(mixed > 0, weights > 0)
        right.append(np.allclose(mixed, weights))
    assert all(right) if cohort == 5 else not all(right)


@pytest.mark.parametrize("count", [1, 3, 4])
def test_mixed_weights_are_a_uniform_permutation_of_those_that_count(count):
    weights = jnp.arange(4.0) + 1
    cohort = fedax.core.Cohort(jnp.arange(4), count, weights, weights, jnp.float64(1))
    mixed = jax.vmap(lambda key: mixed_weights(cohort, key))(
        jax.random.split(jax.random.key(0), 3000)
    )
    assert np.array_equal(np.sort(mixed[:, :count]), np.tile(weights[:count], (3000, 1)))
    orders, counts = np.unique(mixed[:, :count], axis=0, return_counts=True)
    assert len(orders) == math.factorial(count)
    assert len(orders) == 1 or chisquare(counts).pvalue > 1e-3


def choose_as_released(random, p, k):
    """The released sampler's draw after its start: zero weights only fill up."""
    positive = int((p > 0).sum())
    if positive > k:
        return random.choice(len(p), k, p=p, replace=False)
    drawn = random.choice(len(p), positive, p=p, replace=False)
    return np.concatenate(
        [drawn, random.choice(np.setdiff1d(np.arange(len(p)), drawn), k - positive, replace=False)]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "p", [[0.1, 0.2, 0.3, 0.4], [0.7, 0.3, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]]
)
def test_cohorts_come_in_the_order_of_the_released_draws(p):
    """Frequencies of all orders of 3 of 4 clients, since the order decides which update enters
    which momentum."""
    p = np.array(p)
    draws = 4000
    random = np.random.RandomState(0)
    orders = list(itertools.permutations(range(4), 3))
    released = np.zeros(len(orders))
    for _ in range(draws):
        released[orders.index(tuple(choose_as_released(random, p, 3).tolist()))] += 1
    schedule = fedax.Schedule(cohort=3)
    draw = jax.vmap(lambda key: schedule.draw(key, jnp.arange(5), jnp.asarray(p))[0])
    ours = np.zeros(len(orders))
    for order in np.asarray(draw(jax.random.split(jax.random.key(1), draws))).tolist():
        ours[orders.index(tuple(order))] += 1
    some = released + ours > 0
    assert chi2_contingency(np.stack([released, ours])[:, some]).pvalue > 1e-3


def project_by_bisection(v):
    low = v.min() - 1
    high = v.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(v - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(v - low, 0)


@pytest.mark.slow
def test_afl():
    """Fig. 1, which returns the mean of w_1 to w_T."""
    world = World()
    rate = 0.05
    w = world.start
    mixture = P
    models_so_far = []
    for _ in range(ROUNDS):
        models = np.array([world.sgd(k, w)[0] for k in range(5)])
        losses = np.array([world.loss(k, w) for k in range(5)])
        w = mixture @ models
        mixture = project_by_bisection(mixture + rate * losses)
        models_so_far.append(w)
    assert np.any(mixture == 0)  # the projection does something
    agree(run(fedax.AFL(mixture_lr=rate)), w)
    agree(run(fedax.AFL(mixture_lr=rate, returned="mean")), np.mean(models_so_far, axis=0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "form"), [("part", "as_written"), ("one", "as_written"), ("part", "as_released")]
)
def test_fedadmm(step, form):
    """The form "as_released" as `update_weights` and the server's loop of the authors' code."""
    world = World()
    rho = 0.4
    theta = world.start
    models = np.tile(theta, (5, 1))
    duals = np.zeros((5, 4))
    for cohort in world.cohorts():
        changes = []
        for k in cohort:
            start = models[k].copy() if form == "as_written" else theta
            before = duals[k].copy()
            models[k], _ = world.sgd(
                k, start, lambda v, k=k, theta=theta: duals[k] + rho * (v - theta)
            )
            duals[k] = duals[k] + rho * (models[k] - theta)
            changes.append(models[k] - start + (duals[k] - before) / rho)
        size = P[cohort].sum() if (step, form) == ("part", "as_written") else 1.0
        theta = theta + size * np.average(changes, axis=0, weights=P[cohort])
    if size != 1:  # the invariant that makes the server's sum the right one
        np.testing.assert_allclose(theta, P @ (models + duals / rho), rtol=0, atol=1e-12)
    agree(run(fedax.FedADMM(rho=rho, step=step, form=form)), theta)


def test_gd():
    world = World()
    w = world.start
    for _ in range(ROUNDS):
        w = w - LR * sum(P[k] * world.gradient(k, w) for k in range(5))
    agree(run(fedax.GD()), w)


@pytest.mark.slow
@pytest.mark.parametrize(("weights", "batch"), [("size", 4), ("equal", "full")])
def test_local_gd_at_given_times(weights, batch):
    """Synchronised at steps 1, 3, 4, 8, 9; the mean of the iterates is that of all clients' points
    before each step."""
    world = World()
    times = (1, 3, 4, 8, 9)
    shares = P if weights == "size" else np.full(5, 0.2)
    points = np.tile(world.start, (5, 1))
    met = np.zeros(5, int)
    iterates = []
    for t in range(times[-1]):
        iterates.append(shares @ points)
        for k in range(5):
            width = SIZES[k] if batch == "full" else batch
            begin = met[k] % -(-SIZES[k] // width) * width
            points[k] = points[k] - LR * world.gradient(k, points[k], slice(begin, begin + width))
        met += 1
        if t + 1 in times:
            # a round begins with the first batch
            points = np.tile(shares @ points, (5, 1))
            met = np.zeros(5, int)
    schedule = fedax.Schedule(times=times, batch_size=batch, order="given", weights=weights)
    agree(run(fedax.LocalGD(), schedule=schedule), points[0])
    # noise around the model received, and no change of it
    noise = fedax.Channel(attack=fedax.attacks.Noise(share=1.0, std=1e-15))
    agree(run(fedax.LocalGD(), schedule=schedule, channel=noise), world.start)
    mean = fedax.LocalGD(returned="mean")
    agree(run(mean, schedule=schedule), np.mean(iterates, axis=0))
    agree(run(mean, schedule=schedule, rounds=0), world.start)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["as_written", "as_released"])
def test_scaffold_with_uniform_control_weights(form):
    """As the code released for FedBC: models by size, control variates by 1/N, the correction
    outside the momentum."""
    world = World()
    released = form == "as_released"
    momentum = 0.5 if form == "as_released" else 0.0
    method = fedax.SCAFFOLD(control_weights="uniform", form=form)
    options = {
        "solver": fedax.SGD(LR, momentum=momentum),
        "schedule": SCHEDULE,
        "seed": SEED,
        "engine": ONE,
    }
    c = np.asarray(fedax.run(method, regression(), rounds=0, **options).state.c)
    assert (np.abs(c) > 0).all() == released  # the start of the control variates
    own = np.tile(c, (5, 1))
    w = world.start
    for cohort in world.cohorts():
        models = []
        before = own.copy()
        for k in cohort:
            y = w
            speed = np.zeros(4)
            steps = 0
            correction = c - before[k]
            for _ in range(2):
                for begin in range(0, SIZES[k], 4):
                    speed = momentum * speed + world.gradient(k, y, slice(begin, begin + 4))
                    y = y - LR * speed - LR * correction
                    steps = steps + 1
            own[k] = before[k] - c + (w - y) / (steps * LR)
            models.append(y)
        w = np.average(models, axis=0, weights=P[cohort])
        c = c + (own - before).sum(0) / 5
    history = fedax.run(method, regression(), rounds=ROUNDS, **options)
    agree(history, w)
    np.testing.assert_allclose(history.state.c, c, rtol=0, atol=1e-12)


def test_released_control_variates_start_as_a_random_network():
    """Uniform in +-1/sqrt(m): a matrix has as many inputs as rows, a vector as entries."""
    params = {"a": np.zeros((25, 200)), "b": np.zeros(5000), "c": np.zeros((10, 10, 50))}
    task = fedax.Task(params, lambda w, x: 0 * x[:, 0], [np.ones((1, 1))] * 2)
    method = fedax.SCAFFOLD(form="as_released")
    c = fedax.run(method, task, rounds=0, seed=SEED, engine=ONE).state.c
    for part, m in zip(np.split(c, 3), (25, 5000, 100), strict=True):
        quarters, _ = np.histogram(part * np.sqrt(m), bins=4, range=(-1, 1))
        assert quarters.sum() == 5000
        assert chisquare(quarters).pvalue > 1e-3


@pytest.mark.slow
def test_uniform_control_variates_lead_to_the_equally_weighted_optimum():
    """Local models rest where corrections equal local gradients, so the optimum is that of the
    control variates' weights."""
    world = World()
    hessians = [x.T @ x / len(x) + L2 * np.eye(4) for x in world.x]
    pulls = [x.T @ y / len(y) for x, y in zip(world.x, world.y, strict=True)]
    optima = {}
    for name, weights in (("uniform", np.full(5, 0.2)), ("objective", P)):
        optima[name] = np.linalg.solve(
            np.tensordot(weights, hessians, 1), np.tensordot(weights, pulls, 1)
        )
    schedule = fedax.Schedule(cohort=3, steps=20, batch_size="full")
    for name, optimum in optima.items():
        method = fedax.SCAFFOLD(control_weights=name)
        history = fedax.run(
            method,
            regression(),
            solver=fedax.SGD(LR),
            schedule=schedule,
            rounds=1500,
            seed=SEED,
            engine=ONE,
        )
        np.testing.assert_allclose(vector(history), optimum, atol=1e-6)
    assert np.linalg.norm(optima["uniform"] - optima["objective"]) > 0.01


@pytest.mark.slow
def test_qfedavg_as_released_with_momentum():
    """As the code released for FedBC: the distance moved in place of the gradient, the learning
    rate as set, momentum 0.5."""
    world = World()
    q = 2.0
    w = world.start
    for cohort in world.cohorts():
        top = np.zeros(4)
        bottom = 0.0
        for k in cohort:
            move = w - world.sgd(k, w, momentum=0.5)[0]
            loss = world.loss(k, w) + 1e-10
            top = top + P[k] * loss**q * move / LR
            bottom += P[k] * (q * loss ** (q - 1) * move @ move + loss**q / LR)
        w = w - top / bottom
    agree(run(fedax.QFedAvg(q=q, form="as_released"), momentum=0.5), w)
    with pytest.raises(fedax.InvalidInput, match="momentum"):
        run(fedax.QFedAvg(q=q), momentum=0.5)
