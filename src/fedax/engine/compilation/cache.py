"""Compilation cache on disk, and the time that compiling takes."""

import collections
import contextlib
import functools
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from fedax.errors import InvalidInput


class CompileClock:
    """Clock of the seconds that this process spends on tracing, compiling and loading programs."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._spans = collections.deque[tuple[float, float]](maxlen=256)
        jax.monitoring.register_event_duration_secs_listener(self._record)

    def _record(self, event: str, duration_secs: float, **_: Any) -> None:
        if not event.startswith("/jax/core/compile/"):
            return
        # JAX reports a duration when it ends, and nested programs report theirs before
        end = time.perf_counter()
        begin = end - duration_secs
        # spans of inner programs are part of this one: each second counts once
        while self._spans and self._spans[-1][0] >= begin:
            inner_begin, inner_end = self._spans.pop()
            self.seconds -= inner_end - inner_begin
        begin = max(begin, self._spans[-1][1] if self._spans else begin)
        self._spans.append((begin, end))
        self.seconds += end - begin


@functools.cache
def compile_clock() -> CompileClock:
    """Returns the process's compile clock, which counts from the first call on."""
    return CompileClock()


def keep_programs(folder: str | Path | None = None, *, seconds: float = 0.0) -> Path:
    """Stores compiled programs on disk, from where the next process loads them.

    The command line does so by itself. Call it before the first run. Programs over several CPU
    devices are not stored.

    Args:
        folder: where to store them; by default `fedax/programs` in the user's cache folder
            (`XDG_CACHE_HOME`, or `~/.cache`).
        seconds: programs that compile faster than this are not stored, at least 0. A first run
            compiles many small programs, which together take as long as a large one.

    Returns:
        The folder.

    Raises:
        InvalidInput: seconds below 0.

    Example:
        >>> import fedax
        >>> folder = fedax.keep_programs()  # doctest: +SKIP
    """
    if not 0 <= seconds < math.inf:
        raise InvalidInput.of("keep_programs(seconds=...)", seconds, "finite numbers >= 0")
    path = _programs_folder() if folder is None else Path(folder)
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", seconds)
    return path


def _programs_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedax" / "programs"


@contextlib.contextmanager
def bypass_persistent_cache(devices: int) -> Iterator[None]:
    """Keeps programs of several CPU devices out of JAX's persistent cache.

    A program loaded from there has lost the order of its collectives: two devices may enter
    different ones, wait for each other and be aborted after forty seconds (jaxlib 0.10.2; a second
    run of the same program hung in two of three cases).
    """
    if devices < 2 or jax.default_backend() != "cpu":
        yield
        return
    name = "jax_persistent_cache_min_compile_time_secs"
    previous = jax.config.values[name]
    jax.config.update(name, math.inf)
    try:
        yield
    finally:
        jax.config.update(name, previous)
