"""`fedax doctor`: versions, devices and native layers that this installation uses or lacks."""

import platform

from typer import echo

import fedax
from fedax.cli.command import next_step


def doctor() -> None:
    """Say what this installation uses.

    That is versions, devices, and whether the native layers for the CPU are there.
    """
    import jax
    import numpy as np

    from fedax.engine.compilation.fused_loop import unavailable_reason
    from fedax.ops.extension import slower, status

    backend = jax.default_backend()
    devices = jax.devices()
    echo(
        f"fedax {fedax.__version__}, Python {platform.python_version()}, jax {jax.__version__}, "
        f"NumPy {np.__version__}\n"
        f"devices: {len(devices)} x {devices[0].device_kind} ({backend})"
    )
    if backend == "cpu":
        missing = unavailable_reason()
        form = f"an operation at a time, because {missing}" if missing else "one kernel"
        echo(f"steps of small models: {form}")
        echo(slower() or f"native layers: in use, compiled for {status().level}")
    else:
        echo("native layers: not needed; XLA's own run on this device")
    next_step("compares five methods in at most three minutes.", "demo")
