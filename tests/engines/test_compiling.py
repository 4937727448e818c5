"""Seconds of a run, and what its program is compiled to."""

import re
import time

import jax
import numpy as np
import pytest

import fedax
from fedax.engine.backends.simulation.engine import SimulationProgram
from fedax.engine.compilation.fused_loop import compiler_options
from fedax.engine.driver.grid import Grid
from fedax.engine.driver.options import RunOptions
from problems import compiled_rounds, regression

pytestmark = pytest.mark.slow


def test_seconds_begin_before_the_data_are_placed_and_the_first_program_compiled(monkeypatch):
    placed = SimulationProgram.__init__
    started = SimulationProgram.start
    pause = 0.25

    def slow_to_place(self, *arguments, **options):
        time.sleep(pause)
        placed(self, *arguments, **options)

    def slow_to_start(self, models):
        time.sleep(pause)
        return started(self, models)

    monkeypatch.setattr(SimulationProgram, "__init__", slow_to_place)
    monkeypatch.setattr(SimulationProgram, "start", slow_to_start)
    options = {"rounds": 1, "schedule": fedax.Schedule(batch_size=7)}
    begun = time.perf_counter()
    history = fedax.run(fedax.FedAvg(), regression(), **options)
    assert 2 * pause < history.seconds[0] <= history.seconds[-1] < time.perf_counter() - begun
    resumed = fedax.run(fedax.FedAvg(), regression(), resume=history, **{**options, "rounds": 2})
    assert resumed.seconds[-1] > history.seconds[-1] + pause


@pytest.mark.skipif(not compiler_options(), reason="this compiler does not have the option")
@pytest.mark.parametrize(("features", "expected"), [(60, False), (7_000, True)])
def test_products_of_small_models_alone_are_left_to_the_compiler(features, expected):
    """Beside the library's products, which go by its name; 70,010 parameters are no small model."""
    clients = [{"x": np.ones((4, features), np.float32), "y": np.zeros(4, np.int32)}]
    task = fedax.classification(
        fedax.FederatedData.from_arrays(clients, classes=10),
        fedax.models.Softmax(features, 10),
    )
    options = RunOptions.of({"rounds": 1, "schedule": fedax.Schedule(steps=1), "observe": ()})
    grid = Grid([fedax.FedAvg()], task, [0], options)
    jax.clear_caches()
    grid.program.advance(grid.init(), 0, 1)
    (text,) = compiled_rounds()
    assert ("%ynn_fusion" in text) == expected


@pytest.mark.parametrize(
    "method",
    [fedax.FedAvg(), fedax.SCAFFOLD(), fedax.FedBC()],
    ids=lambda method: type(method).__name__,
)
def test_devices_meet_for_the_sums_of_a_phase_alone(method):
    options = {
        "solver": fedax.SGD(0.01),
        "schedule": fedax.Schedule(batch_size=3),
        "rounds": 2,
        "observe": [],
    }
    grid = Grid(
        [method],
        regression(),
        [0],
        RunOptions.of(options | {"engine": fedax.Simulation(devices=2)}),
    )
    jax.clear_caches()
    grid.program.advance(grid.init(), 0, 1)
    (text,) = compiled_rounds()
    meetings = [
        line
        for line in text.splitlines()
        if re.search(r" (all-|reduce-scatter|collective-)[-a-z]*\(", line)
    ]
    assert meetings
    assert all("fedax.aggregation/shard_map/psum" in line for line in meetings), meetings
