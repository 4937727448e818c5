"""Ends of runs and of members of a grid, and what continues from them: histories in memory,
checkpoints, interrupted grids."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.codecs import EF21, TopK
from fedax.core import InvalidInput
from fedax.engine.driver.checkpoint import Checkpoints
from fedax.observe.base import Observer
from problems import regression


def half_square(w, x):
    return (w - x) ** 2 / 2


@pytest.fixture(autouse=True)
def in_float32():
    with jax.enable_x64(False):
        yield


@pytest.fixture
def task():
    """Three named clients with 1, 2 and 3 examples, around 2."""
    clients = {"c": [2.0], "a": [0.0, 0.5], "b": [4.0, 3.0, 1.0]}
    return fedax.Task(0.0, half_square, clients)


ONE = fedax.Simulation(devices=1)
FULL = fedax.Schedule(steps=1, batch_size="full")
SETTING = {"schedule": FULL, "engine": ONE, "observe": [fedax.observe.TrainLoss()]}


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
def test_members_of_a_program_go_on_from_the_same_round(task):
    grid = [fedax.FedProx(mu=mu) for mu in (0.0, 0.5)]
    options = SETTING | {"solver": fedax.SGD(0.1)}
    short, long = (
        fedax.run(method, task, rounds=rounds, **options)
        for method, rounds in zip(grid, (2, 4), strict=True)
    )
    words = r"run_grid\(resume=...\): got histories of 2 and 4 rounds; allowed: equally many"
    with pytest.raises(InvalidInput, match=words):
        fedax.run_grid(grid, task, resume=[short, long], rounds=6, **options)


@pytest.mark.slow
@pytest.mark.parametrize("end", [2, 6], ids=["shorter", "longer"])
def test_a_member_that_ended_may_have_another_length(task, end):
    """In whichever order: the other one goes on from its own last round."""
    grid = [fedax.FedProx(mu=mu) for mu in (0.0, 0.5)]
    rule = {"stop": fedax.EarlyStopping("train_loss", patience=end, min_change=1e3)}
    options = SETTING | {"solver": fedax.SGD(0.1)}
    ended = fedax.run(grid[0], task, rounds=9, **options, **rule)
    assert kinds([ended]) == ["stopped"]
    begun = fedax.run(grid[1], task, rounds=4, **options)
    first, second = fedax.run_grid(grid, task, resume=[ended, begun], rounds=8, **options)
    same(first, ended)
    assert second.rounds.tolist() == list(range(9))
    whole = fedax.run(grid[1], task, rounds=8, **options)
    np.testing.assert_allclose(second.metrics["train_loss"], whole.metrics["train_loss"], rtol=1e-6)
    assert np.all(np.diff(second.seconds) >= 0)


def test_checkpoints_of_another_run_stay(task, tmp_path):
    """Whether they are of an earlier or a later round than the history."""
    history = run(task, rounds=4)
    for rounds in (2, 6):
        folder = tmp_path / str(rounds)
        run(task, rounds=rounds, seed=7, checkpoint=folder, checkpoint_every=2)
        files = {path.name: path.read_bytes() for path in folder.glob("round-*")}
        with pytest.raises(InvalidInput, match=r"run\(checkpoint=...\), seed: got 0"):
            run(task, rounds=8, resume=history, checkpoint=folder)
        assert {path.name: path.read_bytes() for path in folder.glob("round-*")} == files


def test_a_continued_run_goes_on_from_its_newest_checkpoint(task, tmp_path):
    """The second call continues what the first one left, and an older file is passed."""
    begun, heard = run(task, rounds=2), []

    def killed(progress):
        if progress.round == 6:
            raise RuntimeError("killed")

    options = {"rounds": 8, "resume": begun, "checkpoint": tmp_path, "checkpoint_every": 1}
    with pytest.raises(RuntimeError, match="killed"):
        run(task, progress=killed, **options)
    again = run(task, progress=lambda progress: heard.append(progress.round), **options)
    assert heard == [6, 7, 8]
    same(again, run(task, rounds=8))
    longer = run(task, rounds=10)
    same(run(task, **options | {"rounds": 12, "resume": longer}), run(task, rounds=12))


@pytest.mark.slow
def test_a_budget_of_time_may_grow_after_a_checkpoint(task, tmp_path):
    """The folder remembers what ended the run."""
    options = {"devices": fedax.Devices(latency=1800.0), "rounds": 9}
    stop = fedax.Budget(hours=1.0)
    run(task, stop=stop, checkpoint=tmp_path, **options)
    stored = run(task, stop=stop, checkpoint=tmp_path, **options)
    assert lengths([stored]) == [2]
    assert lengths([run(task, resume=stored, stop=fedax.Budget(hours=2.0), **options)]) == [4]
    # the folder itself continues with other budgets, and with no other rule
    long = fedax.Budget(hours=2.0)
    continued = run(task, stop=[long], checkpoint=tmp_path, **options)
    same(continued, run(task, stop=long, **options))
    with pytest.raises(InvalidInput, match=r"run\(checkpoint=...\), stop: got"):
        run(task, stop=[long, fedax.Divergence()], checkpoint=tmp_path, **options)
    same(run(task, checkpoint=tmp_path, **options), run(task, **options))


def test_early_stopping_is_final(task):
    stop = fedax.EarlyStopping("train_loss", patience=2, min_change=1e3)
    ended = run(task, stop=stop)
    assert kinds([ended]) == ["stopped"]
    same(run(task, resume=ended, rounds=9), ended)


class Steady(Observer):
    """A metric that never improves."""

    def __call__(self, view):
        return {"steady": jnp.ones(())}


@pytest.mark.parametrize(
    ("rule", "end"),
    [
        (fedax.EarlyStopping("steady", patience=2, mode="max"), "non-finite"),
        (fedax.Budget(hours=1.0), "non-finite"),
        (fedax.Divergence(), "diverged"),
    ],
    ids=["early stopping", "budget", "divergence"],
)
def test_a_run_whose_loss_is_infinite_is_not_ok(task, rule, end):
    """After two rounds, at the observation at which the rule fires too; the model is finite."""
    options = {"observe": [fedax.observe.TrainLoss(), Steady()], "observe_every": 2}
    if isinstance(rule, fedax.Budget):
        options["devices"] = fedax.Devices(latency=1800.0)
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

    straight, save = both(), Checkpoints.save
    assert lengths(straight) == [4, 8]

    def save_and_die(self, done, *arguments):
        save(self, done, *arguments)
        raise RuntimeError("killed")

    monkeypatch.setattr(Checkpoints, "save", save_and_die)
    with pytest.raises(RuntimeError, match="killed"):
        both(checkpoint=tmp_path)
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["round-000000002"]
    for one, other in zip(both(checkpoint=tmp_path), straight, strict=True):
        same(one, other)
    # and a folder in which it has ended
    for one, other in zip(both(checkpoint=tmp_path), straight, strict=True):
        same(one, other)


MEMORIES = {
    "other": (TopK(0.5), EF21(TopK(0.5, feedback=False)), "EF21", "'what messages"),
    "none": (None, TopK(0.5), "what messages lost", "None"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", list(MEMORIES))
def test_another_memory_of_a_codec_is_refused(case):
    before, after, got, allowed = MEMORIES[case]
    begun = run(regression(), rounds=1, channel=before and fedax.Channel(up=before))
    name = "memory of the channel"
    before = f"the same run as before, with {allowed}"
    words = re.escape(f"run(resume=...), {name}: got '{got}'; allowed: {before}")
    with pytest.raises(InvalidInput, match=words):
        run(regression(), rounds=2, resume=begun, channel=fedax.Channel(up=after))


@pytest.mark.slow
def test_other_arrivals_are_refused(task):
    """The stored downlinks are those of the versions that clients of this server work on."""

    def schedule(concurrency):
        server = fedax.Asynchronous(fedax.Devices(latency=[1.0, 1.7, 2.3]), concurrency=concurrency)
        return fedax.Schedule(cohort=1, steps=1, batch_size="full", asynchronous=server)

    whole = run(task, rounds=4, schedule=schedule(3))
    begun = run(task, rounds=2, schedule=schedule(3))
    same(run(task, rounds=4, schedule=schedule(3), resume=begun), whole)
    with pytest.raises(InvalidInput, match=r"run\(resume=...\), schedule\.\S*concurrency: got 2"):
        run(task, rounds=4, schedule=schedule(2), resume=begun)
    with pytest.raises(InvalidInput, match=r"run\(resume=...\), schedule.cohort: got"):
        run(task, rounds=4, schedule=schedule(3), resume=run(task, rounds=2))


class Counted(Observer):
    """Metrics that are whole numbers, one of them for each client."""

    def __call__(self, view):
        return {"seven": jnp.array(7), "client_ids": jnp.arange(3)}


def test_metrics_are_not_a_number_where_they_were_not_observed(task):
    begun, whole = run(task, rounds=2), run(task, rounds=6)
    losses = whole.metrics["train_loss"]
    other = run(task, rounds=4, resume=begun, observe=[Steady(), Counted()])
    assert {len(values) for values in other.metrics.values()} == {5}
    gap, ones = [np.nan] * 3, [1.0, 1.0]
    np.testing.assert_array_equal(other.metrics["train_loss"], [*losses[:3], *gap[:2]])
    np.testing.assert_array_equal(other.metrics["steady"], gap + ones)
    np.testing.assert_array_equal(other.metrics["seven"], [*gap, 7, 7])
    ids = other.metrics["client_ids"]
    assert np.isnan(ids[:3]).all()
    assert ids[3:].tolist() == [[0, 1, 2]] * 2
    assert np.isnan(other.last("train_loss"))
    assert other.modes["train_loss"] == "min"
    assert len(other.table().splitlines()) >= 5
    again = run(task, rounds=6, resume=other)
    np.testing.assert_array_equal(again.metrics["train_loss"][5:], losses[5:])
    assert again.params == whole.params


def test_the_final_model_is_observed(task, tmp_path, monkeypatch):
    """Of a run that was killed between two observations, and is called for no further round."""
    options, save = {"observe_every": 5, "checkpoint_every": 2}, Checkpoints.save

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


@pytest.mark.slow
def test_clients_that_were_left_out_stay_known():
    """The largest upload of client b is not finite in 32 bits."""
    clients = {"c": [1.0], "a": [2.0, 3.0], "b": [3e38, 1.0, 1.0]}
    task = fedax.Task(0.0, lambda w, x: w * x * x, clients)
    begun = run(task, rounds=2, observe=[], on_bad_client="drop")
    assert begun.notes["dropped"].tolist() == [[2], [2]]
    schedule = fedax.Schedule(steps=1, batch_size="full", cohort=1)
    ended = run(task, rounds=3, observe=[], resume=begun, schedule=schedule)
    assert ended.notes["dropped"].tolist() == [[2], [2], [-1]]
    assert "dropped" not in run(task, rounds=1, observe=[], schedule=schedule).notes


def test_checkpoints_that_do_not_continue_the_history_stay(task, tmp_path):
    """Those of a run with the present arguments, from which the history was not made."""
    other = run(task, rounds=4, solver=fedax.SGD(0.2))
    run(task, rounds=6, checkpoint=tmp_path)
    files = sorted(path.name for path in tmp_path.glob("round-*"))
    with pytest.raises(InvalidInput, match="checkpoint"):
        run(task, rounds=8, resume=other, checkpoint=tmp_path)
    assert sorted(path.name for path in tmp_path.glob("round-*")) == files
