"""Cohorts, shuffles and placement, against counting."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

import fedax
from fedax.core import Ragged
from fedax.core.scheduling.sampling import subset, successive_subset
from fedax.engine.backends.simulation.backend import SimulationBackend, assign_longest_first
from fedax.engine.backends.simulation.engine import one_round
from fedax.engine.round.client import Setup
from fedax.engine.round.trace import initial_carry
from fedax.examples.ragged import Population
from fedax.numerics.permutation import permutation, permutation_by_size

DRAWS = 4000


def test_subset_is_uniform_without_replacement():
    """Each of 7 clients is in 3/7 of the cohorts, each pair in 1/7, within 5 standard errors."""
    chosen = np.asarray(
        jax.vmap(lambda key: subset(key, 7, 3))(jax.random.split(jax.random.key(0), DRAWS))
    )
    assert all(len(set(row)) == 3 for row in chosen.tolist())
    present = (chosen[:, :, None] == np.arange(7)).any(1)
    for counts, p in (
        (present.sum(0), 3 / 7),
        (np.array([(present[:, 0] & present[:, k]).sum() for k in range(1, 7)]), 1 / 7),
    ):
        assert np.all(np.abs(counts - DRAWS * p) < 5 * np.sqrt(DRAWS * p * (1 - p)))


def test_proportional_draws_follow_the_sizes():
    schedule = fedax.Schedule(cohort=2, sampling="proportional")
    offsets = jnp.array([0, 1, 4, 10], jnp.int32)
    ids = np.asarray(
        jax.vmap(lambda key: schedule.draw(key, offsets)[0])(
            jax.random.split(jax.random.key(1), DRAWS)
        )
    ).ravel()
    for k, p in enumerate((0.1, 0.3, 0.6)):
        assert abs((ids == k).sum() - len(ids) * p) < 5 * np.sqrt(len(ids) * p * (1 - p))


def successive(chances, count):
    """The chance of every ordered draw without replacement, by enumeration."""
    drawn = {}
    for order in itertools.permutations(range(len(chances)), count):
        left = 1.0
        chance = 1.0
        for k in order:
            chance = chance * chances[k] / left
            left = left - chances[k]
        drawn[order] = chance
    return drawn


@pytest.mark.parametrize("x64", [True, False])
def test_proportional_draws_without_replacement_are_successive(x64):
    """Inclusion of each client and of each pair of four, of sizes 1, 3, 6 and 10, within 5 standard
    errors."""
    schedule = fedax.Schedule(cohort=2, sampling="proportional_without_replacement")
    offsets = jnp.array([0, 1, 4, 10, 20], jnp.int32)
    with jax.enable_x64(x64):
        keys = jax.random.split(jax.random.key(5), DRAWS)
        ids = np.asarray(jax.vmap(lambda key: schedule.draw(key, offsets)[0])(keys))
    exact = successive([0.05, 0.15, 0.3, 0.5], 2)
    for group in [*itertools.combinations(range(4), 1), *itertools.combinations(range(4), 2)]:
        p = sum(chance for order, chance in exact.items() if set(group) <= set(order))
        observed = np.all([(ids == k).any(1) for k in group], axis=0).sum()
        assert abs(observed - DRAWS * p) < 5 * np.sqrt(DRAWS * p * (1 - p))


def test_successive_draws_that_do_not_look_at_everybody():
    """The ordered pairs of four clients of sizes 1, 3, 6 and 10, by chi-square; and of 5,000
    clients no one twice."""
    offsets = jnp.array([0, 1, 4, 10, 20], jnp.int32)
    keys = jax.random.split(jax.random.key(6), DRAWS)
    pairs = np.asarray(jax.vmap(lambda key: successive_subset(key, offsets, 2))(keys)) @ [4, 1]
    exact = {4 * a + b: p for (a, b), p in successive([0.05, 0.15, 0.3, 0.5], 2).items()}
    assert set(pairs.tolist()) <= set(exact)
    expected = DRAWS * np.array(list(exact.values()))
    observed = np.array([(pairs == pair).sum() for pair in exact])
    assert ((observed - expected) ** 2 / expected).sum() < scipy.stats.chi2(len(exact) - 1).isf(
        1e-6
    )
    sizes = np.where(np.arange(5000) == 17, 20_000, 1)
    rule = fedax.Schedule(cohort=50, sampling="proportional_without_replacement")
    drawn = rule.draw(
        jax.random.key(0), jnp.asarray(np.concatenate([[0], np.cumsum(sizes)]), jnp.int32)
    )[0].tolist()
    assert len(set(drawn)) == 50
    assert drawn.index(17) < 25  # chance of another: 5000 / 25000 to the power of 25


def large_values(jaxpr, size):
    """The operations of a program, and of those within it, that write `size` numbers or more."""
    found = set()
    for equation in jaxpr.eqns:
        inner = [
            leaf.jaxpr
            for leaf in jax.tree.leaves(list(equation.params.values()))
            if hasattr(leaf, "jaxpr")
        ]
        inner += [
            leaf
            for leaf in jax.tree.leaves(list(equation.params.values()))
            if hasattr(leaf, "eqns")
        ]
        if not inner and any(np.size(out.aval) >= size for out in equation.outvars):
            found.add(equation.primitive.name)
        found |= set().union(*(large_values(own, size) for own in inner))
    return found


@pytest.mark.parametrize(
    "sampling", ["uniform", "proportional", "proportional_without_replacement"]
)
def test_a_round_costs_its_cohort(sampling):
    """Among 10,000 clients nothing of that size is computed, but the rows of the cohort in
    everybody's memory are set."""
    clients = 10_000
    root = jax.random.key(0)
    train = Ragged.flat({"x": np.ones((clients, 2))}, np.ones(clients, int))
    task = fedax.Task(
        lambda key: np.zeros(2),
        lambda w, data, key: ((data["x"] - w[None]) ** 2).sum(1),
        fedax.FederatedData.from_arrays(train),
    )
    schedule = fedax.Schedule(cohort=10, sampling=sampling)
    for method, written in ((fedax.FedAvg(), set()), (fedax.SCAFFOLD(), {"scatter"})):
        setup = Setup.of(method, task, schedule, fedax.SGD(0.1))
        carry = initial_carry(SimulationBackend(setup), root, jnp.zeros(2))
        arrays, code = eqx.partition(carry, eqx.is_array)
        program = jax.make_jaxpr(
            lambda arrays, t, setup=setup, code=code: one_round(
                setup, root, t, eqx.combine(arrays, code)
            )[0]
        )(arrays, jnp.int32(0))
        assert large_values(program.jaxpr, clients) == written


@pytest.mark.parametrize("count", [3, 100])
def test_sizes_of_some_clients(count):
    sizes = np.random.default_rng(0).integers(1, 9, 500)
    ids = np.random.default_rng(1).integers(0, 500, count)
    np.testing.assert_array_equal(
        Population.of(sizes).sizes_of(jnp.asarray(ids, jnp.int32)), sizes[ids]
    )


class MeanNumber(fedax.Algorithm):
    """Notes the mean of the drawn clients' numbers, and the part of the federation that they
    are."""

    def round(self, fed, w):
        cohort = fed.sample()
        fed.log(mean=fed.average(self.work, cohort, w), part=cohort.coverage, ids=cohort.ids)
        return w

    def work(self, client, w):
        return fedax.Upload(jnp.asarray(client.index, w.dtype) + 0 * w.sum())


@pytest.mark.slow
def test_simple_averages_are_unbiased_with_replacement_only():
    """Sizes 1, 2 and 7, two draws: sum_k p_k k = 1.6 on average; without replacement what
    enumeration says."""
    task = fedax.Task(0.0, lambda w, x: 0 * x + w, [[1.0], [1.0] * 2, [1.0] * 7])
    rounds = 600
    expected = {
        "proportional": 1.6,
        "proportional_without_replacement": sum(
            c * np.mean(o) for o, c in successive([0.1, 0.2, 0.7], 2).items()
        ),
    }
    assert expected["proportional_without_replacement"] < 1.4
    for sampling, value in expected.items():
        schedule = fedax.Schedule(cohort=2, sampling=sampling)
        options = {"rounds": rounds, "observe_every": rounds}
        notes = fedax.run(MeanNumber(), task, schedule=schedule, **options).logged
        assert abs(notes["mean"].mean() - value) < 5 * notes["mean"].std() / np.sqrt(rounds)
        parts = [sum((0.1, 0.2, 0.7)[k] for k in set(row)) for row in notes["ids"].tolist()]
        np.testing.assert_allclose(notes["part"], parts, rtol=1e-12)


def test_the_work_of_large_clients_does_not_overflow():
    """2^16 examples, 40,000 times: those that drop out train in neither case."""
    task = fedax.Task(0.0, lambda w, x: 0 * x + w, np.ones((6, 2**16)))
    short, long = [
        fedax.run(
            MeanNumber(),
            task,
            schedule=fedax.Schedule(steps=n, batch_size="full", conditions={"dropouts": 0.5}),
            rounds=2,
        )
        for n in (1, 40_000)
    ]
    np.testing.assert_array_equal(short.logged["mean"], long.logged["mean"])


def test_poisson_draws_each_client_on_its_own():
    schedule = fedax.Schedule(cohort=2, sampling="poisson")
    offsets = jnp.arange(9, dtype=jnp.int32)
    ids, counts = jax.vmap(lambda key: schedule.draw(key, offsets))(
        jax.random.split(jax.random.key(2), DRAWS)
    )
    present = np.zeros((DRAWS, 8))
    for row, (k, n) in enumerate(zip(np.asarray(ids), np.asarray(counts), strict=True)):
        present[row, k[:n]] = 1
    error = 5 * np.sqrt(DRAWS * 0.25 * 0.75)
    assert np.all(np.abs(present.sum(0) - DRAWS * 0.25) < error)
    assert abs(np.asarray(counts).mean() - 2) < 5 * np.sqrt(8 * 0.25 * 0.75 / DRAWS)


@pytest.mark.parametrize("size", [1, 2, 63, 64, 65, 200])
def test_shuffle_is_a_permutation_whatever_the_padding(size):
    key = jax.random.key(size)
    plain = np.asarray(permutation(key, size, size))
    assert sorted(plain.tolist()) == list(range(size))
    for wider in (permutation(key, size, 300), permutation_by_size(key, size, 300, 310)):
        assert np.array_equal(np.asarray(wider)[:size], plain)


def test_shuffle_is_uniform():
    """Every example is at every place equally often, within 5 standard errors."""
    orders = np.asarray(
        jax.vmap(lambda key: permutation(key, 5, 5))(jax.random.split(jax.random.key(3), DRAWS))
    )
    counts = np.array(
        [[(orders[:, place] == example).sum() for example in range(5)] for place in range(5)]
    )
    assert np.all(np.abs(counts - DRAWS / 5) < 5 * np.sqrt(DRAWS * 0.2 * 0.8))


@pytest.mark.slow
@given(st.lists(st.integers(1, 100), min_size=1, max_size=12), st.integers(1, 4), st.data())
@settings(max_examples=25, deadline=None)
def test_longest_first_places_everybody_once(steps, devices, data):
    count = data.draw(st.integers(0, len(steps)))
    table, held = assign_longest_first(jnp.array(steps, jnp.float32), jnp.int32(count), devices)
    rows = [row[:n] for row, n in zip(np.asarray(table), np.asarray(held), strict=True)]
    assert sorted(np.concatenate(rows)) == list(range(count))
    loads = [sum(steps[p] for p in row) for row in rows]
    # Graham's bound: no device exceeds the average by more than the longest client
    if count:
        assert max(loads) <= sum(steps[:count]) / devices + max(steps[:count])


class Cohorts(fedax.Algorithm):
    """Notes two draws of a round."""

    def round(self, fed, w):
        one = fed.sample()
        two = fed.sample()
        fed.log(one=one.ids, two=two.ids)
        return fed.average(self.work, one, w)

    def work(self, client, w):
        return fedax.Upload(w)


def test_two_draws_of_a_round_are_independent():
    task = fedax.Task(0.0, lambda w, x: 0 * x + w, [[1.0]] * 40)
    history = fedax.run(
        Cohorts(), task, schedule=fedax.Schedule(cohort=4), rounds=50, observe_every=50
    )
    one, two = (np.sort(history.logged[name], axis=1) for name in ("one", "two"))
    assert not np.any((one == two).all(1))  # chance of one equal pair: 50 / 91390
    assert len({tuple(row) for row in one.tolist()}) == 50


@pytest.mark.parametrize(("size", "width"), [(0, 4), (5, 5), (600, 1000), (60_000, 1 << 16)])
def test_the_extension_orders_examples_as_xla_does(size, width, monkeypatch):
    key = jax.random.key(size)
    native = np.asarray(permutation(key, size, width))
    monkeypatch.setattr("fedax.numerics.permutation._is_native", lambda *_: False)
    jax.clear_caches()
    assert np.array_equal(native[:size], permutation(key, size, width)[:size])
    jax.clear_caches()
    assert sorted(native[:size]) == list(range(size))
