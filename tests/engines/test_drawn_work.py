"""Work, stragglers, drop-outs and cohorts that are drawn: the same on every engine, and as often as
they should be."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.core import InvalidInput
from fedax.core.scheduling.sampling import weighted_subset
from problems import SIZES, regression, vector

DRAWS = 6000


@functools.cache
def all_keys():
    return jax.random.split(jax.random.key(4), DRAWS)


HYBRID = {
    "cohort": 4,
    "epochs": (2, 5),
    "batch_size": (10, "all"),
    "stragglers": 0.4,
    "dropouts": 0.3,
}
SCHEDULES = {
    "hybrid": fedax.Schedule.of(HYBRID),
    "drawn steps": fedax.Schedule(
        cohort=3, steps=(1, 4), batch_size=(2, 6), conditions={"stragglers": 0.5}
    ),
    "times": fedax.Schedule(times=(1, 3, 4, 8), batch_size=4, conditions={"dropouts": 0.2}),
    "floor": fedax.Schedule(cohort=4, epochs=(2, 5), batch_size=(10, "all"), epoch_steps="floor"),
}
CASES = [
    ("hybrid", fedax.FedNova),
    ("floor", fedax.FedAvg),
    ("drawn steps", fedax.SCAFFOLD),
    ("times", fedax.FedAvg),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), CASES, ids=lambda v: getattr(v, "__name__", v))
def test_drawn_work_is_the_same_on_every_engine(name, kind):
    rounds = 4 if name == "times" else 1  # the reference compiles nothing and is slow
    options = {
        "solver": fedax.SGD(0.05),
        "schedule": SCHEDULES[name],
        "rounds": rounds,
        "seed": 2,
        "observe_every": 4,
    }
    reference = fedax.run(kind(), regression(), engine=fedax.Eager(), **options)
    for engine in (
        fedax.Simulation(devices=1),
        fedax.Simulation(devices=2),
        fedax.Simulation(chunk=2, devices=1),
    ):
        other = fedax.run(kind(), regression(), engine=engine, **options)
        np.testing.assert_allclose(vector(other), vector(reference), rtol=1e-12, atol=1e-12)
        assert np.array_equal(other.bits.up, reference.bits.up)


class Work(fedax.Algorithm):
    """Notes what everybody had to do, in two phases of a round."""

    def round(self, fed, w):
        notes = {}
        for name, work in (("first", self.first), ("second", self.second)):
            sent = fed.gather(work, fed.everyone, w)
            notes[name] = sent.value[jnp.argsort(sent.ids)]
        fed.log(**notes)
        return w

    def first(self, client, w):
        return fedax.Upload(
            jnp.stack([jnp.asarray(number, w.dtype) for number in (client.steps, client.batch)])
        )

    def second(self, client, w):
        return self.first(client, w)


@pytest.mark.slow
def test_all_phases_of_a_round_see_the_same_work():
    runs = [
        fedax.run(
            Work(),
            regression(),
            engine=engine,
            schedule=SCHEDULES["hybrid"],
            rounds=6,
            seed=3,
            observe_every=6,
        ).logged
        for engine in (fedax.Eager(), fedax.Simulation())
    ]
    for notes in runs:
        np.testing.assert_array_equal(notes["first"], notes["second"])
    np.testing.assert_array_equal(runs[0]["first"], runs[1]["first"])
    steps, batches = np.moveaxis(runs[0]["first"], -1, 0)
    assert len({tuple(row) for row in batches.tolist()}) == 6  # another draw in every round
    assert np.all(batches[:, [0, 3]] == (7, 4))  # clients with fewer than 10 examples take them all
    assert np.all((batches >= np.minimum(SIZES, 10)) & (batches <= SIZES))
    epochs = steps / -(-np.array(SIZES) // batches)
    assert np.all((epochs == epochs.round()) & (epochs >= 1) & (epochs <= 5))


@pytest.mark.slow
@pytest.mark.parametrize(("batch_size", "most"), [(9, 9), (64, 64), ("full", 64), ((9, 9), 9)])
def test_a_batch_has_at_most_the_clients_examples(batch_size, most):
    """On every engine, also where all clients are smaller than the schedule's number."""
    expected = np.minimum(SIZES, most)
    schedule = fedax.Schedule(batch_size=batch_size)
    for engine in (
        fedax.Eager(),
        fedax.Simulation(chunk=2),
        fedax.Simulation(chunk=1),
    ):
        found = fedax.run(
            Work(), regression(), schedule=schedule, engine=engine, rounds=1, observe=[]
        )
        assert found.logged["first"][0, :, 1].tolist() == expected.tolist()
        assert found.logged["first"][0, :, 0].tolist() == (-(-np.array(SIZES) // expected)).tolist()


def counts(values, numbers):
    return np.array([(np.asarray(values) == number).sum() for number in numbers])


def evenly(observed, chances):
    """Within five standard errors."""
    draws = np.sum(observed)
    chances = np.asarray(chances)
    assert np.all(
        np.abs(observed - draws * chances) < 5 * np.sqrt(draws * chances * (1 - chances)) + 1e-9
    )


@pytest.mark.parametrize(
    ("options", "size", "steps"),
    [
        ({"epochs": (2, 5), "batch_size": 10}, 25, {6: 1 / 4, 9: 1 / 4, 12: 1 / 4, 15: 1 / 4}),
        (
            {"epochs": (2, 5), "batch_size": 10, "epoch_steps": "floor"},
            25,
            {5: 1 / 4, 7: 1 / 4, 10: 1 / 4, 12: 1 / 4},
        ),
        (
            {"epochs": 4, "batch_size": 10, "epoch_steps": "floor", "stragglers": 1.0},
            25,
            dict.fromkeys((2, 5, 7, 10), 1 / 4),
        ),
        ({"epochs": (1, 2), "batch_size": "full", "epoch_steps": "floor"}, 9, {1: 1 / 2, 2: 1 / 2}),
        ({"steps": (1, 4)}, 25, {1: 1 / 4, 2: 1 / 4, 3: 1 / 4, 4: 1 / 4}),
        (
            {"epochs": 4, "batch_size": 10, "stragglers": 1.0},
            25,
            {3: 1 / 4, 6: 1 / 4, 9: 1 / 4, 12: 1 / 4},
        ),
        ({"steps": 3, "stragglers": 0.5}, 25, {1: 1 / 6, 2: 1 / 6, 3: 2 / 3}),
        (
            {"epochs": (1, 2), "batch_size": "full", "stragglers": 0.5},
            9,
            {1: 1 / 2 + 1 / 8, 2: 3 / 8},
        ),
    ],
)
def test_amounts_of_work_are_drawn_uniformly(options, size, steps):
    work = jax.vmap(lambda key: fedax.Schedule.of(options).work(key, size, 0).steps)(all_keys())
    evenly(counts(work, steps), list(steps.values()))
    assert set(np.asarray(work).tolist()) == set(steps)


@pytest.mark.parametrize(
    ("pair", "size", "numbers"),
    [
        ((10, "all"), 16, range(10, 17)),
        ((10, "all"), 7, [7]),
        ((3, 6), 16, range(3, 7)),
        ((3, 6), 4, [3, 4]),
        ((5, 5), 9, [5]),
    ],
)
def test_batch_sizes_are_drawn_uniformly(pair, size, numbers):
    batches = jax.vmap(lambda key: fedax.Schedule(batch_size=pair).work(key, size, 0).batch)(
        all_keys()
    )
    evenly(counts(batches, numbers), np.full(len(numbers), 1 / len(numbers)))


@pytest.mark.parametrize("size", [3, 10, 11, 250])
def test_steps_rounded_down_are_those_of_the_papers_formula(size):
    """FedAWARE's Hybrid+, K = floor(E n / B), draw by draw beside the same draws rounded up; and
    what the schedule says of them."""
    down, up = (
        fedax.Schedule(epochs=(2, 5), batch_size=(10, "all"), epoch_steps=how)
        for how in ("floor", "ceil")
    )
    fewer, more = (
        jax.vmap(lambda key, s=schedule: s.work(key, size, 0))(all_keys())
        for schedule in (down, up)
    )
    steps = np.asarray(fewer.steps)
    batch = np.asarray(fewer.batch)
    assert np.array_equal(batch, more.batch)
    epochs = np.asarray(more.steps) / np.ceil(size / batch)
    # B is 10 at least, also for a client with 3 examples
    formula = np.floor(epochs * size / np.maximum(batch, 10))
    assert np.array_equal(steps, np.maximum(formula, 1))
    assert steps.max() <= down.most_steps(size) == max(5 * size // 10, 1)
    assert abs(down.mean_steps(size) - steps.mean()) < 1


@pytest.mark.parametrize("epoch_steps", ["ceil", "floor"])
@pytest.mark.parametrize("batch_size", [20, (20, 20), (16, 20), (6, "all")])
@pytest.mark.parametrize("size", [3, 19, 45])
def test_predicted_steps_are_those_taken(epoch_steps, batch_size, size):
    """Also by clients smaller than a minibatch; and a pair of two equal numbers is that number."""
    schedule = fedax.Schedule(epochs=3, batch_size=batch_size, epoch_steps=epoch_steps)
    taken = np.asarray(
        jax.vmap(lambda key: schedule.work(key, size, 0).steps)(
            jax.random.split(jax.random.key(1), 200)
        )
    )
    assert schedule.most_steps(size) == taken.max()
    # within three standard errors of the draws
    assert abs(taken.mean() - schedule.mean_steps(size)) <= 3 * taken.std() / 200**0.5
    assert schedule.equal_steps([size]) == (len(set(taken.tolist())) == 1)
    if batch_size in (20, (20, 20)):
        of_size, of_ten = (
            max(3 * n // 20, 1) if epoch_steps == "floor" else 3 * -(-n // 20) for n in (size, 10)
        )
        assert set(taken.tolist()) == {of_size}
        assert schedule.mean_steps(size) == of_size
        assert schedule.equal_steps([10, size]) == (of_ten == of_size)


@pytest.mark.parametrize(
    ("options", "size", "expected"),
    [
        ({"steps": (1, 4)}, 9, 2.5),
        ({"epochs": 2, "batch_size": 4}, 5, 2 * 2),
        ({"epochs": 2, "batch_size": 4, "epoch_steps": "floor"}, 5, 2 * 5 // 4),
        # a straggler does 1, 2, 3 or 4 of 4 steps, as often
        ({"steps": 4, "stragglers": 0.5}, 9, (4 + 2.5) / 2),
        ({"epochs": 3, "batch_size": 4, "stragglers": 1.0}, 9, 3 * 2),
        # rounds of 1, 2, 1 and 4 steps
        ({"times": (1, 3, 4, 8)}, 9, 2),
        ({"times": (1, 3, 4, 8), "stragglers": 1.0}, 9, (1 + 1.5 + 1 + 2.5) / 4),
    ],
)
def test_mean_steps_are_the_expectation(options, size, expected):
    assert fedax.Schedule.of(options).mean_steps(size) == expected


def test_epochs_are_rounded_down_where_their_examples_exceed_32_bits():
    schedule = fedax.Schedule(epochs=2**20, batch_size=2**11, epoch_steps="floor")
    steps = jax.jit(lambda size: schedule.work(jax.random.key(0), size, 0).steps)(2**12 - 1)
    assert steps == schedule.most_steps(2**12 - 1) == 2**20 * (2**12 - 1) // 2**11


def test_times_give_the_steps_of_every_round():
    schedule = fedax.Schedule(times=(1, 3, 4, 8), batch_size="full")
    assert [int(schedule.work(all_keys()[0], 9, jnp.int32(t)).steps) for t in range(4)] == [
        1,
        2,
        1,
        4,
    ]
    with pytest.raises(InvalidInput, match=r"run\(rounds=...\): got 5; allowed: .*4"):
        fedax.run(fedax.LocalGD(), regression(), schedule=schedule, rounds=5)


@pytest.mark.slow
def test_dropouts_send_nothing():
    """Each of 4 drawn clients stays away with probability 0.4; those that do send and receive
    nothing."""
    asked = 4 * 300
    schedule = fedax.Schedule(cohort=4, steps=1, batch_size=4, conditions={"dropouts": 0.4})
    bits = fedax.run(fedax.FedAvg(), regression(), schedule=schedule, rounds=300).bits
    np.testing.assert_array_equal(bits.down, bits.up)
    # a model has 256 bits
    assert abs(bits.up.sum() / 256 - asked * 0.6) < 5 * np.sqrt(asked * 0.4 * 0.6)


@pytest.mark.parametrize("sampling", ["uniform", "proportional", "poisson"])
def test_zero_weights_only_fill(sampling):
    """Whatever the schedule's sampling: as many as it says, first those with a weight, then the
    rest uniformly."""
    schedule = fedax.Schedule(cohort=3, sampling=sampling)
    offsets = jnp.asarray([0, 5, 6, 7, 9, 20], jnp.int32)
    given = jnp.asarray([0.0, 0.3, 0.0, 0.0, 0.7])
    ids, many = jax.vmap(lambda key: schedule.draw(key, offsets, given))(all_keys())
    ids = np.asarray(ids)
    assert np.all(many == 3)
    assert np.all(np.sort(ids[:, :2], axis=1) == (1, 4))
    evenly(counts(ids[:, 0], [1, 4]), [0.3, 0.7])
    evenly(counts(ids[:, 2], [0, 2, 3]), np.full(3, 1 / 3))


@pytest.mark.parametrize("x64", [True, False])
@pytest.mark.parametrize(
    "given", [[0.0] * 10, [0.0] * 9 + [1e-30]], ids=["nobody has a weight", "one has"]
)
def test_fill_ups_are_uniform_in_both_precisions(given, x64):
    """Three of ten: whoever has a weight is in, and the others are drawn evenly, also where the
    noise has 24 bits."""
    with jax.enable_x64(x64):
        values = jnp.asarray(np.array(given), jnp.float64 if x64 else jnp.float32)
        drawn = np.asarray(jax.vmap(lambda key: weighted_subset(key, values, 3)[0])(all_keys()))
    certain = [k for k, value in enumerate(given) if value > 0]
    others = [k for k in range(10) if k not in certain]
    assert all(len(set(row)) == 3 for row in drawn.tolist())
    assert np.all(np.isin(drawn, certain).sum(1) == len(certain))
    evenly(counts(drawn[np.isin(drawn, others)], others), np.full(len(others), 1 / len(others)))


@pytest.mark.slow
def test_everybody_is_as_likely_to_drop_out():
    schedule = fedax.Schedule(cohort=3, conditions={"dropouts": 0.25})
    draw = jax.vmap(lambda key: schedule.draw(key, jnp.arange(6, dtype=jnp.int32)))
    ids, many = map(np.asarray, draw(all_keys()))
    there = np.arange(3) < many[:, None]
    for k in range(5):
        chance = 3 / 5 * 0.75
        assert abs(((ids == k) & there).sum() - DRAWS * chance) < 5 * np.sqrt(
            DRAWS * chance * (1 - chance)
        )
