"""Many runs on new tasks in one process."""

import gc
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import fedax
from fedax.core import programs
from fedax.engine.driver.grid import Grid
from fedax.engine.driver.options import RunOptions

MAPS = Path("/proc/self/maps")
pytestmark = pytest.mark.skipif(not MAPS.exists(), reason="this system shows no memory maps")


def maps() -> int:
    return len(MAPS.read_bytes().splitlines())


def task_of(k: int) -> fedax.Task:
    return fedax.Task(0.0, lambda w, x: (w - x) ** 2 / 2 + 0 * k, [[1.0, 2.0], [5.0, 6.0]])


def run_on(task: fedax.Task) -> float:
    schedule = fedax.Schedule(steps=2)
    solver = fedax.SGD(0.5)
    return float(
        fedax.run(fedax.FedProx(mu=1.0), task, solver=solver, schedule=schedule, rounds=1).params
    )


def test_a_dropped_task_frees_its_programs() -> None:
    """Of three tasks, as many maps remain as of one: each run needs some hundreds."""
    counts = []
    for k in range(3):
        run_on(task_of(k))
        gc.collect()
        counts.append(maps())
    assert counts[2] < counts[0] + 50


@pytest.mark.slow
def test_a_process_keeps_no_more_programs_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of tasks that are all still there."""
    monkeypatch.setattr(programs, "MOST_PROGRAMS", 4)
    tasks = [task_of(k) for k in range(4)]
    counts = []
    for task in tasks:
        run_on(task)
        counts.append(maps())
    assert counts[3] < counts[1] + 50
    assert run_on(tasks[0]) == run_on(tasks[1])


SETTINGS = SimpleNamespace(target=1.0)


def helper(w, x):
    return (w - SETTINGS.target * x) ** 2 / 2


def test_a_new_task_reads_anew_what_its_loss_reads_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def model_and_loss() -> tuple[float, float]:
        task = fedax.Task(0.0, lambda w, x: helper(w, x), [[1.0, 1.0]])
        observe = [fedax.observe.TrainLoss()]
        history = fedax.run(
            fedax.FedAvg(),
            task,
            rounds=1,
            observe=observe,
            solver=fedax.SGD(1.0),
            schedule=fedax.Schedule(batch_size="full"),
        )
        return float(history.params), float(history.metrics["train_loss"][0])

    assert model_and_loss() == (1.0, 0.5)
    monkeypatch.setattr(SETTINGS, "target", 5.0)
    assert model_and_loss() == (5.0, 12.5)


def test_tasks_of_the_package_share_programs() -> None:
    first = fedax.task("synthetic", clients=4)
    second = fedax.task("synthetic", clients=4)
    assert jax.tree.structure(first) == jax.tree.structure(second)


COMPILE = """
import sys, jax
jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_compilation_cache_dir", sys.argv[2])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
import fedax
task = fedax.Task(0.0, lambda w, x: (w - x) ** 2 / 2, [[1.0, 2.0], [5.0, 6.0]])
fedax.run(fedax.FedAvg(), task, rounds=1, engine=fedax.Simulation(devices=int(sys.argv[1])))
"""


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_programs_of_several_devices_are_not_kept_on_disk(devices: int, tmp_path: Path) -> None:
    """A copy from there has lost the order of its collectives, and may hang."""
    subprocess.run(
        [sys.executable, "-c", COMPILE, str(devices), str(tmp_path)], check=True, timeout=300
    )
    assert bool(list(tmp_path.glob("jit__run_rounds*"))) == (devices == 1)


@pytest.mark.slow
def test_programs_are_kept_between_processes(tmp_path):
    """A second process finds what the first one left."""
    lines = [
        "import jax, fedax, sys",
        "hits = []",
        "jax.monitoring.register_event_listener(lambda name, **_: "
        "hits.append(name.endswith('cache_hits')))",
        "fedax.keep_programs(sys.argv[1])",
        "jax.jit(lambda x: x * 2 + 1)(jax.numpy.arange(3.0))",
        "print(sum(hits))",
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    command = [sys.executable, "-c", "\n".join(lines), str(tmp_path / "kept")]
    first, second = (
        int(
            subprocess.run(
                command, capture_output=True, text=True, check=True, env=environment
            ).stdout
        )
        for _ in range(2)
    )
    assert first == 0
    assert second > 0


def test_cpu_devices_share_the_examples_of_the_task() -> None:
    """No copy for each device: both read the memory of the task, which nobody else can change."""
    x = np.arange(20_000.0).reshape(-1, 2)
    task = fedax.Task(
        np.zeros(2),
        lambda w, x: ((w[None] - x["x"]) ** 2).sum(1),
        [{"x": x[:7000]}, {"x": x[7000:]}],
    )
    held = task.train.arrays["x"]
    engine = fedax.Simulation(devices=2)
    program = Grid([fedax.FedAvg()], task, [0], RunOptions.of({"engine": engine})).program
    shards = program.setup.task.train.arrays["x"].addressable_shards
    assert [shard.data.unsafe_buffer_pointer() for shard in shards] == [held.ctypes.data] * 2
    x[:] = 0
    np.testing.assert_array_equal(held, np.arange(20_000.0).reshape(-1, 2))
    with pytest.raises(ValueError, match="read-only"):
        held[0] = 1
