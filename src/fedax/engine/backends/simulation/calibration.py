"""Placements that are measured: the fastest of a few on this very setup, kept for the machine."""

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

ROUNDS, REPEATED = 2, 2
"""Rounds of a timed call, and calls of which the faster one counts; one more compiles."""


class Way(NamedTuple):
    """A placement with its numbers; `chunk` is 1 if clients follow each other."""

    placement: str
    chunk: int
    devices: int


def ways(setup: Setup, chunk: int | None, devices: int | None) -> list[Way]:
    """The placements that are worth measuring, at most four, with the numbers that the user has given."""
    here, cpu = len(jax.devices()), jax.default_backend() == "cpu"
    places = setup.schedule.capacity(setup.population.clients)
    meshes = [devices] if devices is not None else sorted({1, here}) if cpu else [here]
    meshes = meshes if setup.solver.on_mesh else [1]
    chunks = [chunk] if chunk is not None else [8] if cpu and len(meshes) > 1 else [8, 32]
    chunks = sorted({min(each, places) for each in chunks} - {1})
    sequential = [Way("sequential", 1, mesh) for mesh in meshes]
    return sequential + [Way("chunked", each, mesh) for each in chunks for mesh in meshes]


def calibrated(engine: Any, algorithms: Sequence[Any], setup: Setup, roots: Sequence[Any], longest: int) -> Any:
    """The program of these runs with the fastest placement, which says it in `fitted`."""
    way = chosen(engine, algorithms, setup, roots, longest)
    program = engine_for(engine, way).program(algorithms, setup, roots, longest)
    program.fitted = {"engine.chunk": np.asarray(way.chunk), "engine.devices": np.asarray(way.devices)}
    return program


def engine_for(engine: Any, way: Way) -> Any:
    """A simulation as another one, with this placement."""
    chosen = copy.copy(engine)
    chosen.placement, chosen.chunk, chosen.devices = way
    return chosen


def chosen(engine: Any, algorithms: Sequence[Any], setup: Setup, roots: Sequence[Any], longest: int) -> Way:
    """The fastest placement for these runs: the one kept for them on this machine, or the one measured now, which is kept."""
    choices = ways(setup, engine.chunk, engine.devices)
    if len(choices) == 1:
        return choices[0]
    key = likeness(engine, algorithms, setup, len(roots), choices)
    path = cache_folder("placements") / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]}.json"
    if (kept := _kept(path, key, choices)) is not None:
        return kept
    model = setup.layout.ravel(setup.task.start(jax.random.key(0)))
    found: dict[Way, float] = {}
    for way in choices:
        program = engine_for(engine, way).program(algorithms, setup, roots, longest)
        found[way] = seconds(program, [model] * len(roots))
    best = min(found, key=lambda way: found[way])
    times = [{**way._asdict(), "seconds": spent} for way, spent in found.items()]
    content = {"key": key, "choice": list(best), "measured": times}
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path, json.dumps(content, indent=2) + "\n")
    except WriteFailed as error:
        warnings.warn(f"The measured placement is not kept, and the next start measures again: {error}", stacklevel=2)
    return best


def seconds(program: Program, models: Sequence[Any]) -> float:
    """The time of some rounds of a program, compiled and warm."""
    state, times = program.start(models), list[float]()
    for call in range(1 + REPEATED):
        begin = time.perf_counter()
        state, _ = program.advance(state, call * ROUNDS, ROUNDS)
        times.append(time.perf_counter() - begin)
    return min(times[1:])


def likeness(engine: Any, algorithms: Sequence[Any], setup: Setup, seeds: int, choices: Sequence[Way]) -> dict[str, Any]:
    """All that the fastest placement depends on, as plain values: the machine, the versions, the work of a round."""
    model = jax.eval_shape(setup.task.start, jax.random.key(0))
    sizes = np.quantile(np.asarray(setup.population.sizes), np.linspace(0, 1, 11)).round().tolist()
    settings = {
        name: value for name, value in vars(engine).items() if name not in ("placement", "chunk", "devices", "process_group")
    }
    facts = {
        "machine": _machine(),
        "versions": {name: version(name) for name in ("fedax", "jax", "jaxlib")},
        "jax": random_settings()
        | {name: os.environ.get(name, "") for name in ("XLA_FLAGS", "FEDAX_NATIVE", "FEDAX_KERNELS")},
        "runs": [len(algorithms), seeds],
        "algorithm": [type(algorithms[0]).__qualname__, _form(algorithms[0])],
        "solver": [type(setup.solver).__qualname__, _form(setup.solver)],
        "channel": _form(setup.channel),
        "model": [setup.layout.dim, str(setup.layout.dtype), [list(leaf.shape) for leaf in jax.tree.leaves(model)]],
        "examples": {name: [str(a.dtype), list(a.shape[1:])] for name, a in setup.task.train.arrays.items()},
        "clients": [setup.population.clients, sizes],
        "schedule": setup.schedule.options,
        "engine": settings,
        "choices": choices,
    }
    return json.loads(json.dumps(facts, default=repr))


def _machine() -> list[Any]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return [jax.default_backend(), jax.devices()[0].device_kind, len(jax.devices()), _processor(), cores]


def _processor() -> str:
    """The processor's name, where the system says it."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return platform.processor() or platform.machine()


def _form(part: Any) -> str:
    """A hash of a record without the values of its numbers, on which no time depends."""
    return hash_arrays(jax.tree.map(lambda leaf: np.zeros(np.shape(leaf)), part))


def _kept(path: Path, key: dict[str, Any], choices: Sequence[Way]) -> Way | None:
    """The choice in a file, if it is one of these for this key; a file that is damaged or another's counts as none."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        content = json.loads(path.read_text(encoding="utf-8"))
        way = Way(*content["choice"])
        return way if content["key"] == key and way in choices else None
    return None
