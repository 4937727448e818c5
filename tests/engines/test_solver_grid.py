"""Grids of solvers: learning rates are inputs of one program; Optax's optimizers by name and as
they are."""

import numpy as np
import optax
import pytest

import fedax
from fedax.core.hyper import declared
from fedax.core.solver import optax_names, optax_solver
from fedax.engine.driver import loop as driver
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.config.sections import SolverSection
from fedax.experiments.running.batches import batches_of
from problems import regression, vector

SCHEDULE = fedax.Schedule(cohort=3, steps=3, batch_size=4)
COMMON = {"schedule": SCHEDULE, "rounds": 3, "observe_every": 3}
RATES = (0.02, 0.05, 0.1)


@pytest.fixture
def programs(monkeypatch):
    """Counts the programs that are made."""
    made, original = [], driver.Grid

    def counted(*arguments):
        made.append(arguments)
        return original(*arguments)

    monkeypatch.setattr(driver, "Grid", counted)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("maker", [fedax.SGD, optax_solver("adam")])
def test_learning_rates_are_one_program(maker, programs):
    solvers = [maker(learning_rate=rate) for rate in RATES]
    grid = fedax.run_grid(
        [fedax.FedProx(mu=0.1)], regression(), seed=[1, 2], solver=solvers, **COMMON
    )
    assert len(programs) == 1
    assert len(grid) == 6
    for i, (solver, seed) in enumerate((solver, seed) for solver in solvers for seed in (1, 2)):
        alone = fedax.run(fedax.FedProx(mu=0.1), regression(), seed=seed, solver=solver, **COMMON)
        np.testing.assert_allclose(vector(grid[i]), vector(alone), rtol=1e-10)
        np.testing.assert_allclose(
            grid[i].metrics["train_loss"], alone.metrics["train_loss"], rtol=1e-10
        )
        assert grid[i].settings == alone.settings
        assert grid[i].arguments["solver"] == alone.arguments["solver"]


@pytest.mark.slow
def test_solvers_and_hyperparameters_vary_together(programs):
    methods, solvers = (
        [fedax.FedProx(mu=mu) for mu in (0.0, 1.0)],
        [fedax.SGD(0.02), fedax.SGD(0.1)],
    )
    grid = fedax.run_grid(methods, regression(), solver=solvers, **COMMON)
    for history, method, solver in zip(grid, methods, solvers, strict=True):
        np.testing.assert_allclose(
            vector(history),
            vector(fedax.run(method, regression(), solver=solver, **COMMON)),
            rtol=1e-10,
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("solvers", "engine"),
    [
        ([fedax.SGD(0.05), fedax.SGD(0.05, momentum=0.5)], None),
        ([fedax.SGD(0.02), fedax.SGD(0.1)], fedax.Eager()),
    ],
)
def test_others_are_refused(solvers, engine):
    with pytest.raises(fedax.InvalidInput, match=r"run_grid\(solver=...\): .*real hyperparameters"):
        fedax.run_grid([fedax.FedAvg()], regression(), solver=solvers, engine=engine, **COMMON)


@pytest.mark.slow
def test_a_grid_of_solvers_resumes(tmp_path):
    """From checkpoints to the same bits, and not with other rates."""
    solvers = [fedax.SGD(rate) for rate in RATES]
    options = {**COMMON, "checkpoint": tmp_path, "checkpoint_every": 1}
    straight = fedax.run_grid([fedax.FedAvg()], regression(), solver=solvers, **COMMON)
    fedax.run_grid([fedax.FedAvg()], regression(), solver=solvers, **{**options, "rounds": 2})
    with pytest.raises(fedax.InvalidInput, match="solver"):
        fedax.run_grid(
            [fedax.FedAvg()], regression(), solver=[*solvers[:2], fedax.SGD(0.3)], **options
        )
    resumed = fedax.run_grid([fedax.FedAvg()], regression(), solver=solvers, **options)
    for one, other in zip(straight, resumed, strict=True):
        np.testing.assert_array_equal(vector(one), vector(other))


def test_the_grid_of_a_file_is_one_program():
    sections = {"task": {"name": "digits"}, "algorithm": [{"name": "fedprox"}], "seeds": [0, 1]}
    experiment = Experiment.of(
        name="a",
        **sections,
        grid={"fedprox": {"mu": [0.0, 1.0]}, "solver": {"learning_rate": list(RATES)}},
    )
    (batch,) = batches_of([experiment])
    assert len(batch.labels) == 6
    other = Experiment.of(name="a", **sections, grid={"solver": {"momentum": [0.0, 0.5]}})
    assert len(batches_of([other])) == 2


@pytest.mark.slow
def test_an_optax_optimizer_is_taken_as_it_is():
    mine = fedax.run(fedax.FedAvg(), regression(), solver=optax.adam(0.01), **COMMON)
    wrapped = fedax.run(
        fedax.FedAvg(), regression(), solver=fedax.Optax(optax.adam(0.01)), **COMMON
    )
    named = fedax.run(
        fedax.FedAvg(), regression(), solver=optax_solver("adam")(learning_rate=0.01), **COMMON
    )
    np.testing.assert_array_equal(vector(mine), vector(wrapped))
    np.testing.assert_allclose(vector(mine), vector(named), rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adam", "adamw", "lion", "yogi", "rmsprop", "contrib.muon"])
def test_optimizers_by_name_take_steps(name):
    assert name in optax_names()
    solver = SolverSection(name=name, learning_rate=0.01).make()
    history = fedax.run(fedax.FedAvg(), regression(), solver=solver, **COMMON)
    assert history.outcome.ok
    assert history.metrics["train_loss"][-1] < history.metrics["train_loss"][0]
    assert history.settings["solver"]["type"] == name


def test_arguments_of_optimizers_are_checked():
    with pytest.raises(
        fedax.InvalidInput,
        match=r"adam\(learning_rate=...\): got -1.0; allowed: numbers in "
        r"\(0, infinity\)",
    ):
        SolverSection(name="adam", learning_rate=-1).make()
    with pytest.raises(fedax.InvalidInput, match="option of solver 'adam': got 'beta1'"):
        SolverSection(name="adam", beta1=0.9).make()
    with pytest.raises(fedax.InvalidInput, match=r"solver: got 'adm'.*Did you mean 'adam'"):
        SolverSection(name="adm").make()
    assert declared(optax_solver("adam"))["b1"].default == 0.9


def test_refused_solvers():
    task, two = regression(), [fedax.FedProx(mu=0.1), fedax.FedProx(mu=1.0)]
    with pytest.raises(
        fedax.InvalidInput,
        match=r"run_grid\(solver=...\): got 3 solvers; "
        r"allowed: one solver, or 2",
    ):
        fedax.run_grid(two, task, solver=[fedax.SGD(rate) for rate in RATES])
    with pytest.raises(fedax.InvalidInput, match=r"got 0.1; allowed: an object of Solver"):
        fedax.run_grid(two, task, solver=[fedax.SGD(0.1), 0.1])
