"""Compilation cache on disk."""

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path

import jax


def keep_programs(folder: str | Path | None = None) -> Path:
    """Stores compiled programs on disk, from where the next process loads them.

    The command line does so by itself. Call it before the first run. Programs over several CPU
    devices are not stored.

    Args:
        folder: where to store them; by default `fedax/programs` in the user's cache folder
            (`XDG_CACHE_HOME`, or `~/.cache`).

    Returns:
        The folder.

    Example:
        >>> import fedax
        >>> folder = fedax.keep_programs()  # doctest: +SKIP
    """
    if folder is None:
        caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(caches) / "fedax" / "programs"
    path = Path(folder)
    jax.config.update("jax_compilation_cache_dir", str(path))
    # a first run compiles many small programs, which together take as long as a large one
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    return path


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
