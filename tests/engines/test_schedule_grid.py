"""Grids of schedules: probabilities are inputs of one program, shapes are not."""

import numpy as np
import pytest

import fedax
from fedax.core.scheduling.schedule import Schedule, as_inputs
from fedax.engine.backends.simulation import engine as simulation
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.results.planned import planned_runs
from fedax.experiments.running.batches import batches_of
from problems import regression, vector

COMMON = {"solver": fedax.SGD(0.05), "rounds": 4, "observe_every": 2, "seed": [1, 2]}
SMALL = {"cohort": 3, "steps": 3, "batch_size": 4}


@pytest.fixture
def programs(monkeypatch):
    """Counts how often a round is traced for a program of its own."""
    made = []
    original = simulation._run_rounds

    def counted(*arguments, **options):
        made.append(arguments)
        return original(*arguments, **options)

    monkeypatch.setattr(simulation, "_run_rounds", counted)
    return made


def varied(name):
    """Schedules that differ in one probability, and the method that they are for."""
    if name == "sync_probability":
        ends = (0.2, 0.5, 1.0)
        return fedax.ProxSkip(), [Schedule(batch_size=4, sync_probability=p) for p in ends]
    return fedax.FedProx(mu=0.1), [Schedule.of(SMALL | {name: p}) for p in (0.0, 0.3, 0.6)]


def test_whole_numbers_vary_like_real_ones_also_with_few_times():
    options = {"schedule": Schedule(times=[4, 8], batch_size=4), "rounds": 2, "observe": []}
    methods = [fedax.FedProx(mu=mu) for mu in (0, 1)]
    grid = fedax.run_grid(methods, regression(), solver=fedax.SGD(0.05), **options)
    for history, mu in zip(grid, (0.0, 1.0), strict=True):
        method = fedax.FedProx(mu=mu)
        single = fedax.run(method, regression(), solver=fedax.SGD(0.05), **options)
        np.testing.assert_allclose(vector(history), vector(single), rtol=1e-12)
    assert (vector(grid[0]) != vector(grid[1])).any()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dropouts", "stragglers", "sync_probability"])
def test_probabilities_are_one_program(name, programs):
    method, schedules = varied(name)
    grid = fedax.run_grid([method], regression(), schedule=schedules, **COMMON)
    assert len(programs) == 1
    runs = [(schedule, seed) for schedule in schedules for seed in (1, 2)]
    assert len(grid) == len(runs)
    for history, (schedule, seed) in zip(grid, runs, strict=True):
        single = fedax.run(method, regression(), schedule=schedule, **{**COMMON, "seed": seed})
        np.testing.assert_allclose(vector(history), vector(single), rtol=1e-10)
        np.testing.assert_array_equal(history.bits.up, single.bits.up)
        assert history.details.settings == single.details.settings
    assert len({vector(history).tobytes() for history in grid}) == len(runs)


@pytest.mark.slow
def test_probabilities_vary_with_the_method_and_the_solver(programs):
    methods = [fedax.FedProx(mu=mu) for mu in (0.0, 1.0)]
    solvers = [fedax.SGD(0.02), fedax.SGD(0.1)]
    _, schedules = varied("dropouts")
    options = {**COMMON, "seed": 1}
    lists = {"solver": solvers, "schedule": schedules[1:]}
    grid = fedax.run_grid(methods, regression(), **{**options, **lists})
    assert len(programs) == 1
    for history, method, solver, schedule in zip(
        grid, methods, solvers, schedules[1:], strict=True
    ):
        own = {**options, "solver": solver, "schedule": schedule}
        np.testing.assert_allclose(
            vector(history), vector(fedax.run(method, regression(), **own)), rtol=1e-10
        )


def test_only_what_differs_is_an_input():
    schedules = [Schedule.of({"dropouts": p, "stragglers": 0.5}) for p in (0.1, 0.2)]
    one, other = (schedule.conditions for schedule in as_inputs(schedules))
    assert (float(one.dropouts), float(other.dropouts)) == (0.1, 0.2)
    assert one.stragglers == other.stragglers == 0.5
    assert isinstance(one.stragglers, float)


def file_of(**grid):
    return Experiment.of(
        name="a",
        task={"name": "synthetic", "alpha": 1.0, "beta": 1.0, "clients": 5},
        schedule={"cohort": 3, "steps": 2},
        algorithm=[{"name": "fedavg"}],
        rounds=2,
        observe=["train_loss"],
        checkpoint_every=0,
        grid=grid,
    )


@pytest.mark.slow
def test_the_grid_of_a_file_is_one_program(programs, tmp_path):
    experiment = file_of(schedule={"dropouts": [0.0, 0.3], "stragglers": [0.0, 1.0]})
    (batch,) = batches_of(planned_runs([experiment]))
    records = batch.run(tmp_path)
    assert len(programs) == 1
    assert [record.settings["schedule"]["stragglers"] for record in records] == [0, 1, 0, 1]
    # a straggler takes 1 or 2 of 2 steps
    assert len({float(record.gradients[-1]) for record in records}) == 2


def test_integers_of_the_schedule_need_a_program_for_each_value():
    real = {"dropouts": [0.0, 0.3], "stragglers": [0.0, 0.5]}
    rates = {"learning_rate": [0.1, 0.2]}
    assert len(batches_of(planned_runs([file_of(schedule=real, solver=rates)]))) == 1
    mixed = {"batch_size": [4, 8], **real, "cohort": [1, 2, 3]}
    assert len(batches_of(planned_runs([file_of(schedule=mixed)]))) == 6
