"""Measured placements: the fastest is taken, kept for the machine, and does not change a run."""

import inspect
import json
import types

import jax
import numpy as np
import pytest

import fedax
from fedax.core import InvalidInput
from fedax.engine.backends.simulation import calibration
from fedax.engine.backends.simulation.calibration import Placement
from fedax.engine.distributed.process_group import ProcessGroup
from problems import vector

OPTIONS = {
    "solver": fedax.SGD(0.1),
    "schedule": fedax.Schedule(epochs=2, batch_size=2),
    "rounds": 2,
    "observe": (),
}
TASK = fedax.tasks.from_loss(
    lambda w, x: (w - x) ** 2 / 2, 0.0, clients=[[1.0, 2.0, 4.0], [5.0, 6.0], [7.0]]
)


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """Milliseconds by placement, which can be set; what has been measured, in order; and the folder
    of the choices."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    times, seen = {}, []

    def seconds(program, models):
        placement = Placement(program.setup.placement, program.setup.chunk, program.setup.devices)
        seen.append(placement)
        return times.get(placement, 9.0)

    monkeypatch.setattr(calibration, "time_rounds", seconds)
    return times, seen, tmp_path / "fedax" / "placements"


def run(**engine):
    return fedax.run(
        fedax.SCAFFOLD(), TASK, engine=fedax.Simulation("measured", **engine), **OPTIONS
    )


def numbers(history):
    return {name: value.item() for name, value in history.fitted.items()}


def test_the_fastest_is_taken_and_kept(measured):
    times, seen, folder = measured
    times[Placement("chunked", 3, 1)] = 1.0
    first = run()
    assert seen == [
        Placement("sequential", 1, 1),
        Placement("sequential", 1, 2),
        Placement("chunked", 3, 1),
        Placement("chunked", 3, 2),
    ]
    assert numbers(first) == {"engine.chunk": 3, "engine.devices": 1}
    (file,) = folder.iterdir()
    times[Placement("sequential", 1, 2)] = 0.1  # another mood of the machine
    assert numbers(run()) == numbers(first)
    assert len(seen) == 4
    assert json.loads(file.read_text())["choice"] == ["chunked", 3, 1]
    given = fedax.run(
        fedax.SCAFFOLD(), TASK, engine=fedax.Simulation("chunked", chunk=3, devices=1), **OPTIONS
    )
    np.testing.assert_array_equal(vector(first), vector(given))
    assert given.fitted == {}


def test_numbers_of_the_user_stay(measured):
    _, seen, _ = measured
    run(devices=1, chunk=2)
    assert seen == [Placement("sequential", 1, 1), Placement("chunked", 2, 1)]


@pytest.mark.parametrize(
    "damage",
    [
        lambda kept: "{",
        lambda kept: "[]",
        lambda kept: json.dumps(kept | {"choice": ["chunked", 77, 1]}),
        lambda kept: json.dumps(kept | {"choice": 3}),
        lambda kept: json.dumps(kept | {"key": kept["key"] | {"machine": ["another"]}}),
    ],
    ids=["cut", "list", "no candidate", "number", "foreign"],
)
def test_files_that_are_damaged_or_foreign_are_written_anew(measured, damage):
    times, seen, folder = measured
    times[Placement("sequential", 1, 2)] = 1.0
    run()
    (file,) = folder.iterdir()
    whole = file.read_text()
    file.write_text(damage(json.loads(whole)))
    assert numbers(run()) == {"engine.chunk": 1, "engine.devices": 2}
    assert len(seen) == 8
    assert file.read_text() == whole


@pytest.mark.slow
def test_only_alike_runs_share_a_choice(measured):
    _, _, folder = measured

    def files(algorithm=None, task=TASK, **changed):
        fedax.run(
            algorithm or fedax.FedProx(mu=1.0),
            task,
            engine=fedax.Simulation("measured"),
            **(OPTIONS | changed),
        )
        return len(list(folder.iterdir()))

    assert files() == 1
    assert files(fedax.FedProx(mu=2.0), solver=fedax.SGD(0.2), seed=3) == 1
    assert files(schedule=fedax.Schedule(epochs=3, batch_size=2)) == 2
    assert files(fedax.FedAvg()) == 3
    wider = fedax.tasks.from_loss(
        lambda w, x: ((w[None] - x[:, None]) ** 2).sum(1),
        np.zeros(4),
        clients=[[1.0, 2.0], [5.0, 6.0]],
    )
    assert files(task=wider) == 4


def test_choices_that_cannot_be_kept_are_measured_each_time(measured, tmp_path):
    (tmp_path / "fedax").write_text("a file in the place of the folder")
    with pytest.warns(UserWarning, match="the next start measures again"):
        run()


def test_times_are_those_of_warm_rounds(monkeypatch):
    """A program whose first call compiles: the faster one of the others counts."""
    now, calls = [0.0], []

    def advance(state, first, count):
        assert (state, count) == (len(calls), 2)
        now[0] += (9.0, 2.0, 1.5)[len(calls)]
        calls.append(first)
        return state + 1, []

    program = types.SimpleNamespace(start=lambda models: 0, advance=advance)

    monkeypatch.setattr(calibration.time, "perf_counter", lambda: now[0])
    assert inspect.unwrap(calibration.time_rounds)(program, []) == 1.5
    assert calls == [0, 2, 4]


def test_checkpoints_go_on_with_another_choice(measured, tmp_path):
    times, _, folder = measured
    times[Placement("sequential", 1, 2)] = 1.0
    options = OPTIONS | {
        "engine": fedax.Simulation("measured"),
        "checkpoint": tmp_path / "kept",
        "checkpoint_every": 1,
    }
    fedax.run(fedax.SCAFFOLD(), TASK, **options)
    for file in folder.iterdir():
        file.unlink()
    times[Placement("sequential", 1, 1)] = 0.5
    resumed = fedax.run(fedax.SCAFFOLD(), TASK, **(options | {"rounds": 4}))
    whole = fedax.run(fedax.SCAFFOLD(), TASK, **(OPTIONS | {"rounds": 4}))
    assert numbers(resumed)["engine.devices"] == 1
    np.testing.assert_allclose(vector(resumed), vector(whole), rtol=1e-12)


def test_several_hosts_do_not_measure(monkeypatch):
    class Two(ProcessGroup):
        size = 2

    monkeypatch.setattr("fedax.engine.backends.simulation.engine.multihost_group", Two)
    plain = inspect.unwrap(fedax.Simulation.__init__)
    with pytest.raises(
        InvalidInput,
        match=r"placement=...\): got 'measured'; allowed: one of 'auto', "
        r"'sequential', 'chunked'",
    ):
        plain(object.__new__(fedax.Simulation), "measured")
    assert jax.process_count() == 1
