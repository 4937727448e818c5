"""Compiled programs and the memory that they hold."""

import contextlib
import ctypes
import functools
import gc
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.errors

from fedax.errors import InvalidInput
from fedax.utils.arguments import checked_call

SHARE = 0.25
"""Of the memory maps that the kernel allows a process, the share from which on programs are dropped."""


FEW = 65_536
"""Parameters of a model up to which programs of rounds have `small_products`."""
_OWN: dict[str, str | bool] = {"xla_cpu_experimental_ynn_fusion_type": "", "xla_cpu_multi_thread_eigen": False}


@functools.cache
def small_products() -> dict[str, str | bool]:
    """The option that leaves small products to the compiler; none on other devices than CPUs, and where XLA does not have it.

    XLA's CPU compiler hands products to a library (YNNPACK), whose workspaces all devices of a process take from one list: steps of
    some microseconds wait for each other. Larger products are faster in the library.
    """
    if jax.default_backend() != "cpu":
        return {}
    try:
        jax.jit(lambda: 0, compiler_options=_OWN).lower().compile()
    except jax.errors.JaxRuntimeError:
        return {}
    return _OWN


_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"}
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt, from malloc.h


class Compiling:
    """The seconds that this process has spent on tracing, lowering and compiling (or loading) programs, as JAX reports them."""

    def __init__(self) -> None:
        self._before, self._spans = 0.0, list[tuple[float, float]]()
        jax.monitoring.register_event_duration_secs_listener(self._hear)

    @property
    def seconds(self) -> float:
        return self._before + sum(end - begin for begin, end in self._spans)

    def _hear(self, event: str, duration_secs: float, **_: Any) -> None:
        if not event.startswith("/jax/core/compile/"):
            return
        end = time.perf_counter()
        begin = end - duration_secs
        while self._spans and self._spans[-1][0] >= begin:  # a program within this one, which has its seconds too
            self._spans.pop()
        self._spans.append((max(begin, self._spans[-1][1] if self._spans else begin), end))
        if len(self._spans) > 256:
            old, self._spans = self._spans[:128], self._spans[128:]
            self._before += sum(end - begin for begin, end in old)


@functools.cache
def compiling() -> Compiling:
    """The clock of this process's compiling, which counts from the first call on."""
    return Compiling()


def make_room(share: float = SHARE) -> bool:
    """Drops all compiled programs of the process if it holds many memory maps; the next call of each compiles it again.

    A program on the CPU takes some ten maps, a run on a new task some hundreds. JAX keeps programs for ever, and beyond the
    kernel's limit (65,530 by default on Linux) the compiler fails for lack of memory. A quarter of it is about fifty runs on new
    tasks, and a gigabyte; what is dropped is used again, so that memory stays flat from there on.

    Returns:
        Whether programs were dropped. Never on systems that show no maps.
    """
    try:
        limit = int(Path("/proc/sys/vm/max_map_count").read_bytes())
        with open("/proc/self/maps", "rb") as maps:
            count = sum(1 for _ in maps)
    except (OSError, ValueError):
        return False
    if count <= share * limit:
        return False
    jax.clear_caches()
    gc.collect()
    with contextlib.suppress(AttributeError):  # glibc keeps what is freed, in pieces that later programs do not fit
        ctypes.CDLL(None).malloc_trim(0)
    return True


@functools.cache
def hold_memory() -> bool:
    """Lets the process hold up to 256 MB of freed memory, so that the next call of a program finds its working memory in place.

    By default glibc returns blocks of more than 32 MB to the system as soon as they are freed. The working memory of a round
    with a large model is one such block, and each call then waits for the system to fill its pages with zeros again: 25,000 page
    faults, 30 of 260 ms, for a round of the MNIST CNN (1.7 million parameters).

    Returns:
        Whether it does. Not on other devices than CPUs, with other C libraries than glibc, or where the environment says
        something about the allocator (`MALLOC_MMAP_THRESHOLD_`, `MALLOC_TRIM_THRESHOLD_`, `GLIBC_TUNABLES`).
    """
    if jax.default_backend() != "cpu" or not _ALLOCATOR.isdisjoint(os.environ):
        return False
    try:
        option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # the last on Windows
        return False
    return all(option(name, size) == 1 for name, size in ((_MMAP_THRESHOLD, 128 << 20), (_TRIM_THRESHOLD, 256 << 20)))


def cache_folder(name: str) -> Path:
    """A folder of fedax in the user's cache folder, which need not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedax" / name


@checked_call
def keep_programs(folder: str | Path | None = None, *, seconds: float = 0.0) -> Path:
    """Keeps compiled programs between processes: what was compiled once is loaded by the next start.

    The command line does so by itself. Call it before the first run; programs over several CPU devices are not kept.

    Args:
        folder: where; by default `fedax/programs` in the user's cache folder (`XDG_CACHE_HOME`, or `~/.cache`).
        seconds: the least time of compiling that makes a program worth keeping, at least 0. A first run compiles many small ones,
            which together take as long as a large one.

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
    path = cache_folder("programs") if folder is None else Path(folder)
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", seconds)
    return path


@contextlib.contextmanager
def uncached(devices: int) -> Iterator[None]:
    """Compiles programs of several CPU devices without leaving them in JAX's persistent cache.

    Loaded from there, such a program has lost the order of its collectives: two devices may enter different ones, wait for each
    other and be aborted after forty seconds (jaxlib 0.10.2; a second run of the same program hung in two of three cases).
    """
    if devices < 2 or jax.default_backend() != "cpu":
        yield
        return
    name = "jax_persistent_cache_min_compile_time_secs"
    before = jax.config.values[name]
    jax.config.update(name, math.inf)
    try:
        yield
    finally:
        jax.config.update(name, before)
