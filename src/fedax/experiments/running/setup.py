"""JAX as the command line wants it."""

import contextlib
import os
from pathlib import Path

import jax


def set_up_jax(cpus: int | None = None) -> None:
    """Spreads clients over the cores, and keeps compiled programs between runs. What the user has set stays.

    Args:
        cpus: host devices; None means all cores. Without effect once JAX has started.
    """
    # threads inside one operation only get in the way of clients on all cores
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    set_by_user = jax.config.values
    if set_by_user["jax_compilation_cache_dir"] is None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedax" / "programs"
        jax.config.update("jax_compilation_cache_dir", str(cache))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
    by_flag = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if not by_flag and set_by_user["jax_num_cpu_devices"] == -1:
        # refused once JAX has started
        with contextlib.suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", cpus or os.cpu_count() or 1)
