"""Grids of solvers: learning rates are inputs of one program; Optax's optimizers by name and as
they are."""

import numpy as np
import optax
import pytest

import fedax
from fedax.core.solver import optax_solver
from fedax.engine.driver import loop as driver
from problems import regression, vector

pytestmark = pytest.mark.slow

SCHEDULE = fedax.Schedule(cohort=3, steps=3, batch_size=4)
COMMON = {"schedule": SCHEDULE, "rounds": 3, "observe_every": 3}
RATES = (0.02, 0.05, 0.1)


@pytest.fixture
def programs(monkeypatch):
    """Counts the programs that are made."""
    made = []
    original = driver.Grid

    def counted(*arguments, **options):
        made.append(arguments)
        return original(*arguments, **options)

    monkeypatch.setattr(driver, "Grid", counted)
    return made


@pytest.mark.parametrize("maker", [fedax.SGD, optax_solver("adam")])
def test_learning_rates_are_one_program(maker, programs):
    solvers = [maker(learning_rate=rate) for rate in RATES]
    grid = fedax.run_grid(
        [fedax.FedProx(mu=0.1)], regression(), seed=[1, 2], solver=solvers, **COMMON
    )
    assert len(programs) == 1
    given = [(solver, seed) for solver in solvers for seed in (1, 2)]
    for one, (solver, seed) in zip(grid, given, strict=True):
        alone = fedax.run(fedax.FedProx(mu=0.1), regression(), seed=seed, solver=solver, **COMMON)
        np.testing.assert_allclose(vector(one), vector(alone), rtol=1e-10)
        assert one.details.settings == alone.details.settings
    with pytest.raises(fedax.InvalidInput, match="2 algorithms, 3 solvers"):
        fedax.run_grid([fedax.FedAvg()] * 2, regression(), solver=solvers)
    # equal ones are one, so that every engine takes them
    fedax.run_grid(
        [fedax.FedAvg()], regression(), solver=[maker(), maker()], engine=fedax.Eager(), rounds=0
    )


@pytest.mark.parametrize("name", ["adam", "rmsprop"])
def test_an_optax_optimizer_is_taken_as_it_is(name):
    """RMSProp has a `decay` of its own, which is not that of the learning rate."""
    optimizer = getattr(optax, name)(0.01)
    solvers = [optimizer, fedax.Optax(optimizer), optax_solver(name)(learning_rate=0.01)]
    mine, wrapped, named = [
        vector(fedax.run(fedax.FedAvg(), regression(), solver=solver, **COMMON))
        for solver in solvers
    ]
    np.testing.assert_array_equal(mine, wrapped)
    np.testing.assert_allclose(mine, named, rtol=1e-10)
