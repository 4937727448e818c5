"""JAX as the command line wants it."""

import contextlib
import os

import jax

from fedax.engine.compilation.cache import keep_programs


def cores() -> list[int]:
    """Returns the cores that this process may use."""
    return (
        sorted(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else list(range(os.cpu_count() or 1))
    )


def share_of_cores(index: int, processes: int) -> list[int]:
    """Returns the cores of one of several processes: none of another's, as long as there are
    enough.

    >>> len(share_of_cores(0, 1)) == len(cores())
    True
    """
    all_cores = cores()
    # with more processes than cores, several share one
    per_process = max(1, len(all_cores) // processes)
    start = index % processes * per_process % len(all_cores)
    return all_cores[start : start + per_process]


def set_up_jax(cpus: int | None = None) -> None:
    """Spreads clients over the cores, and keeps compiled programs between runs. What the user has
    set stays.

    Args:
        cpus: host devices; None means one for each core that the process may use. Without effect
            once JAX has started.
    """
    # threads inside one operation only get in the way of clients on all cores
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    set_by_user = jax.config.values
    if set_by_user["jax_compilation_cache_dir"] is None:
        keep_programs()
    set_by_flag = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if not set_by_flag and set_by_user["jax_num_cpu_devices"] == -1:
        # refused once JAX has started
        with contextlib.suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", cpus or len(cores()))
