"""Measured placement: times a few placements on the run's rounds and stores the fastest."""

import contextlib
import copy
import hashlib
import json
import os
import platform
import time
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedax.engine.compilation.cache import cache_folder
from fedax.engine.compilation.fingerprint import hash_arrays, random_settings
from fedax.engine.round.client import Setup
from fedax.engine.round.engine import Program
from fedax.errors import WriteFailed
from fedax.utils.files import write, writing

TIMED_ROUNDS, REPEATS = 2, 2
"""Rounds of a timed call, and timed calls, of which the fastest counts. One more call before them
compiles."""


class Placement(NamedTuple):
    """A placement of clients on devices; `chunk` is 1 if clients run one after the other."""

    placement: str
    chunk: int
    devices: int


def candidate_placements(setup: Setup, chunk: int | None, devices: int | None) -> list[Placement]:
    """Returns at most four placements worth measuring, with the user's chunk and devices."""
    device_count, cpu = len(jax.devices()), jax.default_backend() == "cpu"
    capacity = setup.schedule.capacity(setup.population.clients)
    meshes = (
        [devices] if devices is not None else sorted({1, device_count}) if cpu else [device_count]
    )
    meshes = meshes if setup.solver.on_mesh else [1]
    chunks = [chunk] if chunk is not None else [8] if cpu and len(meshes) > 1 else [8, 32]
    # chunks larger than the cohort would be padding; a chunk of 1 is the sequential placement
    chunks = sorted({min(size, capacity) for size in chunks} - {1})
    sequential = [Placement("sequential", 1, mesh) for mesh in meshes]
    return sequential + [Placement("chunked", size, mesh) for size in chunks for mesh in meshes]


def calibrate(
    engine: Any, algorithms: Sequence[Any], setup: Setup, roots: Sequence[Any], longest: int
) -> Any:
    """Returns the program of these runs with the fastest placement, which `fitted` records."""
    placement = choose_placement(engine, algorithms, setup, roots, longest)
    program = with_placement(engine, placement).program(algorithms, setup, roots, longest)
    program.fitted = {
        "engine.chunk": np.asarray(placement.chunk),
        "engine.devices": np.asarray(placement.devices),
    }
    return program


def with_placement(engine: Any, placement: Placement) -> Any:
    """Returns a copy of a simulation with this placement."""
    simulation = copy.copy(engine)
    simulation.placement, simulation.chunk, simulation.devices = placement
    return simulation


def choose_placement(
    engine: Any, algorithms: Sequence[Any], setup: Setup, roots: Sequence[Any], longest: int
) -> Placement:
    """Returns the fastest placement for these runs, stored on this machine or measured now."""
    choices = candidate_placements(setup, engine.chunk, engine.devices)
    if len(choices) == 1:
        return choices[0]
    key = placement_key(engine, algorithms, setup, len(roots), choices)
    path = (
        cache_folder("placements")
        / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]}.json"
    )
    if (stored_choice := _load_choice(path, key, choices)) is not None:
        return stored_choice
    model = setup.layout.ravel(setup.task.start(jax.random.key(0)))
    timings: dict[Placement, float] = {}
    for placement in choices:
        program = with_placement(engine, placement).program(algorithms, setup, roots, longest)
        timings[placement] = time_rounds(program, [model] * len(roots))
    best = min(timings, key=lambda placement: timings[placement])
    times = [{**placement._asdict(), "seconds": seconds} for placement, seconds in timings.items()]
    # the key is stored too: the file's name is a short hash of it
    content = {"key": key, "choice": list(best), "measured": times}
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path, json.dumps(content, indent=2) + "\n")
    except WriteFailed as error:
        warnings.warn(
            f"The measured placement is not kept, and the next start measures again: {error}",
            stacklevel=2,
        )
    return best


def time_rounds(program: Program, models: Sequence[Any]) -> float:
    """Returns the seconds of `TIMED_ROUNDS` rounds of a program, without compilation."""
    state, times = program.start(models), list[float]()
    # the first call compiles
    for call in range(1 + REPEATS):
        begin = time.perf_counter()
        state, _ = program.advance(state, call * TIMED_ROUNDS, TIMED_ROUNDS)
        times.append(time.perf_counter() - begin)
    return min(times[1:])


def placement_key(
    engine: Any, algorithms: Sequence[Any], setup: Setup, seeds: int, choices: Sequence[Placement]
) -> dict[str, Any]:
    """Returns what the fastest placement depends on: machine, versions, the work of a round."""
    model = jax.eval_shape(setup.task.start, jax.random.key(0))
    sizes = np.quantile(np.asarray(setup.population.sizes), np.linspace(0, 1, 11)).round().tolist()
    settings = {
        name: value
        for name, value in vars(engine).items()
        if name not in ("placement", "chunk", "devices", "process_group")
    }
    facts = {
        "machine": _describe_machine(),
        "versions": {name: version(name) for name in ("fedax", "jax", "jaxlib")},
        "jax": random_settings()
        | {
            name: os.environ.get(name, "")
            for name in ("XLA_FLAGS", "FEDAX_NATIVE", "FEDAX_KERNELS")
        },
        "runs": [len(algorithms), seeds],
        "algorithm": [type(algorithms[0]).__qualname__, _hash_structure(algorithms[0])],
        "solver": [type(setup.solver).__qualname__, _hash_structure(setup.solver)],
        "channel": _hash_structure(setup.channel),
        "model": [
            setup.layout.dim,
            str(setup.layout.dtype),
            [list(leaf.shape) for leaf in jax.tree.leaves(model)],
        ],
        "examples": {
            name: [str(a.dtype), list(a.shape[1:])] for name, a in setup.task.train.arrays.items()
        },
        "clients": [setup.population.clients, sizes],
        "schedule": setup.schedule.options,
        "engine": settings,
        "choices": choices,
    }
    return json.loads(json.dumps(facts, default=repr))


def _describe_machine() -> list[Any]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return [
        jax.default_backend(),
        jax.devices()[0].device_kind,
        len(jax.devices()),
        _processor_name(),
        cores,
    ]


def _processor_name() -> str:
    """Returns the processor's name as far as the system tells it."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(
            line.partition(":")[2].strip() for line in lines if line.startswith("model name")
        )
    return platform.processor() or platform.machine()


def _hash_structure(record: Any) -> str:
    """Returns a hash of a record's structure; values of numbers do not affect the time."""
    return hash_arrays(jax.tree.map(lambda leaf: np.zeros(np.shape(leaf)), record))


def _load_choice(path: Path, key: dict[str, Any], choices: Sequence[Placement]) -> Placement | None:
    """Returns the choice stored in a file; None if the file is damaged or for another key."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        content = json.loads(path.read_text(encoding="utf-8"))
        placement = Placement(*content["choice"])
        return placement if content["key"] == key and placement in choices else None
    return None
