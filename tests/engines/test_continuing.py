"""Ends of runs and of members of a grid, and what continues from them: histories in memory,
checkpoints, interrupted grids, best models."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.core import InvalidInput
from fedax.engine.driver.checkpoint import Checkpoints
from fedax.observe.base import Observer

pytestmark = pytest.mark.usefixtures("single_precision")


def half_square(w, x):
    return (w - x) ** 2 / 2


@pytest.fixture
def task():
    """Three named clients with 1, 2 and 3 examples, around 2."""
    clients = {"c": [2.0], "a": [0.0, 0.5], "b": [4.0, 3.0, 1.0]}
    return fedax.Task(0.0, half_square, clients)


ONE = fedax.Simulation(devices=1)
FULL = fedax.Schedule(steps=1, batch_size="full")
SETTING = {"schedule": FULL, "engine": ONE, "observe": [fedax.observe.TrainLoss()]}
FROZEN = {
    "real": {"base": np.float32([1.0, -1.0])},
    "mixed": {
        "base": np.float32([1.0, -1.0]),
        "count": np.int32([3, 4]),
        "half": jnp.full(2, 0.5, jnp.bfloat16),
    },
}


def run(task, rounds=6, **options):
    return fedax.run(
        fedax.FedAvg(), task, rounds=rounds, **{"solver": fedax.SGD(0.1)} | SETTING | options
    )


def lengths(histories):
    return [len(history.bits.up) for history in histories]


def kinds(histories):
    return [history.outcome.kind for history in histories]


def same(one, other):
    """The same history, to the bit."""
    assert one.outcome == other.outcome
    assert one.rounds.tolist() == other.rounds.tolist()
    for name in ("up", "down"):
        np.testing.assert_array_equal(getattr(one.bits, name), getattr(other.bits, name))
    for a, b in ((one.metrics, other.metrics), (one.params, other.params)):
        jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.slow
def test_a_member_that_ended_may_have_another_length(task):
    """The other one goes on from its own last round; two that go on have equally many."""
    rates = [fedax.SGD(0.001), fedax.SGD(0.1)]
    rule = fedax.EarlyStopping("train_loss", patience=2, min_change=0.01)

    def both(**more):
        return fedax.run_grid([fedax.FedAvg()], task, **SETTING, solver=rates, stop=rule, **more)

    ended, begun = both(rounds=4)
    assert lengths([ended, begun]) == [2, 4]
    first, second = both(resume=[ended, begun], rounds=8)
    same(first, ended)
    same(second, both(rounds=8)[1])
    assert np.all(np.diff(second.seconds) >= 0)
    shorter = run(task, rounds=1, solver=rates[0], stop=rule)
    with pytest.raises(InvalidInput) as refusal:
        both(resume=[shorter, begun], rounds=8)
    assert refusal.value.field == "run_grid(resume=...), rounds"


def test_checkpoints_that_are_there_stay(task, tmp_path):
    """A history is continued in a folder of its own."""
    history = run(task, rounds=2)
    run(task, rounds=4, checkpoint=tmp_path, checkpoint_every=2)
    files = {path.name: path.read_bytes() for path in tmp_path.glob("round-*")}
    with pytest.raises(InvalidInput) as refusal:
        run(task, rounds=8, resume=history, checkpoint=tmp_path)
    assert refusal.value.field == "run(checkpoint=...)"
    assert {path.name: path.read_bytes() for path in tmp_path.glob("round-*")} == files
    own = {"checkpoint": tmp_path / "own", "rounds": 6}
    same(run(task, resume=history, **own), run(task, rounds=6))
    same(run(task, **own), run(task, rounds=6))


@pytest.mark.slow
def test_a_budget_of_time_may_grow_after_a_checkpoint(task, tmp_path):
    """The folder remembers what ended the run."""
    options = {"clock": fedax.Clock(latency=1800.0), "rounds": 9}
    stop = fedax.Budget(hours=1.0)
    run(task, stop=stop, checkpoint=tmp_path, **options)
    stored = run(task, stop=stop, checkpoint=tmp_path, **options)
    assert lengths([stored]) == [2]
    assert lengths([run(task, resume=stored, stop=fedax.Budget(hours=2.0), **options)]) == [4]
    # the folder itself continues with other budgets, and with no other rule
    long = fedax.Budget(hours=2.0)
    continued = run(task, stop=[long], checkpoint=tmp_path, **options)
    same(continued, run(task, stop=long, **options))
    with pytest.raises(InvalidInput, match="stop"):
        run(task, stop=[long, fedax.Divergence()], checkpoint=tmp_path, **options)
    same(run(task, checkpoint=tmp_path, **options), run(task, **options))


def test_early_stopping_is_final(task):
    stop = fedax.EarlyStopping("train_loss", patience=2, min_change=1e3)
    ended = run(task, stop=stop)
    assert kinds([ended]) == ["stopped"]
    same(run(task, stop=stop, resume=ended, rounds=9), ended)


class Steady(Observer):
    """A metric that never improves."""

    def modes(self, scores):
        return {"steady": "max"}

    def __call__(self, view):
        return {"steady": jnp.ones(())}


@pytest.mark.parametrize(
    ("rule", "end"),
    [
        (fedax.EarlyStopping("steady", patience=2), "non-finite"),
        (fedax.Budget(hours=1.0), "non-finite"),
        (fedax.Divergence(), "diverged"),
    ],
    ids=["early stopping", "budget", "divergence"],
)
def test_a_run_whose_loss_is_infinite_is_not_ok(task, rule, end):
    """After two rounds, at the observation at which the rule fires too; the model is finite."""
    options = {"observe": [fedax.observe.TrainLoss(), Steady()], "observe_every": 2}
    if isinstance(rule, fedax.Budget):
        options["clock"] = fedax.Clock(latency=1800.0)
    history = run(task, solver=fedax.SGD(1e10), stop=rule, **options)
    assert (history.outcome.kind, history.outcome.round) == (end, 1)
    assert history.outcome.part == ("train_loss" if end == "non-finite" else None)
    assert np.isfinite(history.params)


@pytest.mark.slow
def test_a_grid_breaks_off_between_two_observations(task, tmp_path, monkeypatch):
    """A member that is not finite any more ends at the next observation, as without a break."""
    options = SETTING | {"rounds": 8, "observe_every": 4, "checkpoint_every": 2}

    def both(**more):
        rates = [fedax.SGD(1e20), fedax.SGD(0.1)]
        return fedax.run_grid([fedax.FedAvg()], task, solver=rates, **options, **more)

    straight = both()
    save = Checkpoints.save
    assert lengths(straight) == [4, 8]

    def save_and_die(self, done, *arguments):
        save(self, done, *arguments)
        raise RuntimeError("killed")

    monkeypatch.setattr(Checkpoints, "save", save_and_die)
    with pytest.raises(RuntimeError, match="killed"):
        both(checkpoint=tmp_path)
    monkeypatch.undo()
    assert [path.name for path in tmp_path.glob("round-*")] == ["round-000000002"]
    for one, other in zip(both(checkpoint=tmp_path), straight, strict=True):
        same(one, other)
    # and a folder in which it has ended
    for one, other in zip(both(checkpoint=tmp_path), straight, strict=True):
        same(one, other)


@pytest.mark.slow
def test_the_final_model_is_observed(task, tmp_path, monkeypatch):
    """Of a run that was killed between two observations, and is called for no further round."""
    options = {"observe_every": 5, "checkpoint_every": 2}
    save = Checkpoints.save

    def save_and_die(self, done, *arguments):
        save(self, done, *arguments)
        raise RuntimeError("killed")

    monkeypatch.setattr(Checkpoints, "save", save_and_die)
    with pytest.raises(RuntimeError, match="killed"):
        run(task, rounds=7, checkpoint=tmp_path, **options)
    monkeypatch.undo()
    heard = []
    for _ in range(2):
        ended = run(task, rounds=2, checkpoint=tmp_path, progress=heard.append, **options)
        same(ended, run(task, rounds=2, **options))
    assert [progress.round for progress in heard] == [2]
    longer = run(task, rounds=7, checkpoint=tmp_path, **options)
    assert longer.rounds.tolist() == [0, 2, 5, 7]
    assert longer.params == run(task, rounds=7, **options).params


def task_with(frozen):
    """Three named clients with 1, 2 and 3 examples; the trained leaf is the last one."""
    rows = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
    clients = {"c": rows[:1], "a": rows[1:3], "b": rows[3:]}
    params = {**frozen, "w": np.float32([2.0, 2.0])}

    def loss(params, x):
        return jnp.sum(((params["w"] + params["base"])[None] - x) ** 2, -1) / 2

    return fedax.Task(params, loss, clients, frozen=list(frozen))


def same_best(one, other):
    """The same model, with the types of all leaves."""
    assert (one.metric, one.round, one.value) == (other.metric, other.round, other.value)
    leaves = [jax.tree.leaves(eqx.filter(best.params, eqx.is_array)) for best in (one, other)]
    assert jax.tree.structure(one.params) == jax.tree.structure(other.params)
    for a, b in zip(*leaves, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(np.asarray(a, float), np.asarray(b, float))


@pytest.mark.slow
@pytest.mark.parametrize("frozen", FROZEN.values(), ids=FROZEN)
def test_a_checkpoint_has_the_trained_leaves_of_the_best_model(frozen, tmp_path):
    """And of the best model of a history in memory; no later model is better than the first."""
    options = {"keep_best": "train_loss", "solver": fedax.SGD(5.0)}
    straight = run(task_with(frozen), 4, **options, checkpoint=tmp_path)
    assert straight.best.round == 0
    same_best(run(task_with(frozen), 4, **options, checkpoint=tmp_path).best, straight.best)
    same_best(run(task_with(frozen), 6, **options, resume=straight).best, straight.best)
