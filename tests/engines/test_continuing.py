"""Ends of runs and of members of a grid, and what continues from them: histories in memory,
checkpoints, interrupted grids."""

import re
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.codecs import EF21, TopK
from fedax.core import InvalidInput
from fedax.engine.driver.checkpoint import Checkpoints
from fedax.engine.driver.recorder import spent
from fedax.observe.base import Observer
from problems import regression, vector


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
def test_personal_models_are_those_of_the_end(task):
    """Of a member that ended early; 20 rounds later its models are infinite."""
    rates = [fedax.SGD(100.0), fedax.SGD(0.01)]
    options = SETTING | {
        "stop": fedax.EarlyStopping("train_loss", patience=3),
        "personal": True,
        "rounds": 24,
    }
    early, late = fedax.run_grid([fedax.Ditto(lam=0.1)], task, solver=rates, **options)
    alone = fedax.run(fedax.Ditto(lam=0.1), task, solver=rates[0], **options)
    assert str(early.outcome) == str(alone.outcome) == "stopped after round 3"
    assert late.outcome.ok
    assert lengths([early, late]) == [3, 24]
    np.testing.assert_allclose(early.personal, alone.personal, rtol=1e-5)


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


def test_checkpoints_that_do_not_continue_the_history_stay(task, tmp_path):
    """Those of a run with the present arguments, from which the history was not made."""
    other = run(task, rounds=4, solver=fedax.SGD(0.2))
    run(task, rounds=6, checkpoint=tmp_path)
    files = sorted(path.name for path in tmp_path.glob("round-*"))
    with pytest.raises(InvalidInput, match="checkpoints of other rounds than the history's"):
        run(task, rounds=8, resume=other, checkpoint=tmp_path)
    assert sorted(path.name for path in tmp_path.glob("round-*")) == files


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
def test_a_budget_of_time_may_grow(task):
    """Half an hour a round: a larger budget goes on, the same one does not."""
    devices = {"devices": fedax.Devices(latency=1800.0), "rounds": 9}
    short, long = (run(task, stop=fedax.Budget(hours=hours), **devices) for hours in (1.0, 2.0))
    assert lengths([short, long]) == [2, 4]
    same(run(task, resume=short, stop=fedax.Budget(hours=1.0), **devices), short)
    continued = run(task, resume=short, stop=fedax.Budget(hours=2.0), **devices)
    same(continued, long)
    assert lengths([run(task, resume=continued, **devices)]) == [9]


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


def test_rounds_without_a_clock_cost_no_budget(task):
    """Two rounds without devices, then half an hour a round."""
    begun, stop = run(task, rounds=2), fedax.Budget(hours=1.0)
    options = {"devices": fedax.Devices(latency=1800.0), "stop": stop}
    later = run(task, rounds=3, resume=begun, **options)
    ended = run(task, rounds=9, resume=later, **options)
    assert (ended.outcome.kind, len(ended.bits.up)) == ("stopped", 4)


def test_the_clock_of_a_server_goes_on_in_rounds():
    """Steps of an asynchronous server, rounds without devices, rounds with them."""
    clock, seconds = [2.0, 3.0, np.nan, np.nan, np.nan], [np.nan, np.nan, np.nan, 4.0, 0.5]
    joules = [1.0, 2.0, np.nan, np.nan, 8.0]
    notes = {"clock": clock, "round_seconds": seconds, "round_joules": joules}
    assert spent({name: np.array(values) for name, values in notes.items()}) == (7.5, 11.0)


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


def test_another_mode_is_another_run(task, tmp_path):
    """The best model would be one by another direction."""
    options = {"observe": [Steady()], "keep_best": "steady", "checkpoint": tmp_path}
    run(task, rounds=2, mode="min", **options)
    with pytest.raises(InvalidInput, match=r"run\(checkpoint=...\), mode: got 'max'"):
        run(task, rounds=3, mode="max", **options)
    run(task, rounds=3, mode="min", **options)


def test_the_best_model_of_another_direction_does_not_count(task):
    """The training loss falls: from the last model of the history on, the largest is that one's."""

    class Unknown(fedax.observe.TrainLoss):
        def modes(self, scores):
            return {}

    options = {"observe": [Unknown()], "keep_best": "train_loss"}
    begun = run(task, rounds=2, mode="min", **options)
    assert begun.best.round == 2
    assert run(task, rounds=4, mode="min", resume=begun, **options).best.round == 4
    assert run(task, rounds=4, mode="max", resume=begun, **options).best.round == 2


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
def test_residuals_fit_other_codecs_with_feedback():
    begun = run(regression(), rounds=1, channel=fedax.Channel(up=TopK(0.5)))
    ended = run(regression(), rounds=2, resume=begun, channel=fedax.Channel(up=TopK(0.8)))
    assert lengths([ended]) == [2]
    assert np.isfinite(vector(ended)).all()


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


@pytest.mark.slow
def test_other_devices_of_the_run_are_other_arrivals(task):
    """Whether the server has devices or the run: the same ones are the same server."""
    latencies = ([1.0, 1.7, 2.3], [2.3, 1.0, 1.7])
    devices, others = (fedax.Devices(latency=seconds) for seconds in latencies)

    def schedule(server):
        return fedax.Schedule(cohort=1, steps=1, batch_size="full", asynchronous=server)

    shared = {"schedule": schedule(fedax.Asynchronous())}
    whole = run(task, rounds=4, devices=devices, **shared)
    begun = run(task, rounds=2, devices=devices, **shared)
    same(run(task, rounds=4, devices=devices, resume=begun, **shared), whole)
    own = schedule(fedax.Asynchronous(devices))
    same(run(task, rounds=4, schedule=own, resume=begun), whole)
    words = r"run\(resume=...\), schedule\.\S*devices\S*latency\S*: got"
    with pytest.raises(InvalidInput, match=words):
        run(task, rounds=4, devices=others, resume=begun, **shared)


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


def test_rules_see_what_was_observed(task):
    """Early stopping counts from the first value; a rise is one over the newest value known."""
    begun = run(task, rounds=2)
    rule = fedax.EarlyStopping("steady", patience=2, mode="max")
    ended = run(task, rounds=9, resume=begun, observe=[Steady()], stop=rule)
    assert str(ended.outcome) == "stopped after round 5"
    assert ended.best.round == 3
    rule = fedax.EarlyStopping("train_loss", patience=2, mode="min")
    with pytest.raises(InvalidInput, match="observers that give train_loss"):
        run(task, rounds=9, resume=begun, observe=[Steady()], stop=rule)
    assert fedax.Divergence(rise=1.0, window=1).fires([0, 1, 2], [0.5, np.nan, 2.0])
    assert not fedax.Divergence(rise=1.0, window=2).fires([1, 2, 3], [np.nan, 0.5, 2.0])


def test_fewer_rounds_than_there_are_are_refused(task):
    begun = run(task, rounds=3)
    words = r"run\(rounds=...\): got 1; allowed: whole numbers >= 3"
    with pytest.raises(InvalidInput, match=words):
        run(task, rounds=1, resume=begun)
    same(run(task, rounds=3, resume=begun), begun)


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


def test_a_folder_may_be_in_the_home_directory(task, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    run(task, rounds=1, checkpoint="~/runs")
    assert [path.name for path in (tmp_path / "home" / "runs").glob("round-*")] == [
        "round-000000001"
    ]
    assert not list((tmp_path / "here").iterdir())


@pytest.fixture
def python_handles_interrupts():
    """The handler of a plain Python process, which test runners may replace."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.usefixtures("python_handles_interrupts")
@pytest.mark.parametrize("by", ["signal", "hook"])
def test_an_interruption_ends_all_members_of_a_grid(task, by):
    """They go on to the same bits."""
    heard, options = [], {"solver": [fedax.SGD(lr) for lr in (0.1, 0.2)], "rounds": 5} | SETTING

    def hook(progress):
        heard.append(progress.round)
        if progress.round == 2 and by == "signal":
            signal.raise_signal(signal.SIGINT)
        return progress.round == 2

    def grid(**more):
        return fedax.run_grid([fedax.FedAvg()], task, **options, **more)

    parts, straight = grid(progress=hook), grid()
    assert kinds(parts) == ["interrupted"] * 2
    assert lengths(parts) == [2, 2]
    assert heard == [0, 1, 2]
    for part, whole in zip(parts, straight, strict=True):
        assert part.metrics["train_loss"].tolist() == whole.metrics["train_loss"][:3].tolist()
    for whole, again in zip(straight, grid(resume=parts), strict=True):
        same(again, whole)


def test_a_session_takes_the_synchronisation_times_of_its_schedule(task):
    schedule = fedax.Schedule(times=(1, 2, 4), batch_size="full")
    session = fedax.start(
        fedax.FedAvg(), task, solver=fedax.SGD(0.1), schedule=schedule, engine=ONE
    )
    state = session.init()
    for _ in range(3):
        state, _ = session.step(state)
    history = run(task, rounds=3, schedule=schedule)
    assert session.params(state) == history.params
    with pytest.raises(InvalidInput, match=r"Session.step: got round 4; allowed: at most 3 rounds"):
        session.step(state)


@pytest.mark.slow
def test_metrics_of_training_predictions_see_poisoned_labels():
    """One of three clients learns from flipped labels, and both metrics compare with these."""
    task, flip = fedax.task("synthetic", clients=3), fedax.attacks.LabelFlip(share=0.4)
    metric = fedax.observe.SetMetric("hits", lambda y, p: (p.argmax(1) == y).mean(), split="train")
    watch = [fedax.observe.TrainScore("accuracy"), metric]
    work = fedax.Schedule(steps=9, batch_size="full")
    setting = {"solver": fedax.SGD(0.1), "schedule": work, "engine": ONE}
    setting["channel"] = fedax.Channel(attack=flip)
    history = fedax.run(fedax.FedAvg(), task, rounds=1, observe=watch, **setting)
    names = ("train_accuracy", "train_hits")
    by_program, by_host = (history.metrics[name] for name in names)
    np.testing.assert_allclose(by_host, by_program, rtol=1e-6)
    assert 0 < by_host[-1] < 1
    session = fedax.start(fedax.FedAvg(), task, **setting)
    seen = session.observe(session.init(), *watch)
    np.testing.assert_allclose(seen["train_hits"], seen["train_accuracy"], rtol=1e-6)
