"""`fedax doctor`: versions, devices and native layers that this installation uses or lacks."""

import platform

from typer import echo

import fedax
from fedax.cli.command import next_step


def doctor() -> None:
    """Say what this installation uses.

    That is versions, devices, and whether the native layers for the CPU are there.
    """
    for line in diagnosis():
        echo(line)
    next_step("compares five methods in at most three minutes.", "demo")


def diagnosis() -> list[str]:
    """Returns one line for each thing that matters to speed."""
    import jax
    import numpy as np

    from fedax.engine.compilation.fused_loop import unavailable_reason
    from fedax.ops.extension import slower, status

    devices = jax.devices()
    lines = [
        f"fedax {fedax.__version__}, Python {platform.python_version()}, jax {jax.__version__}, "
        f"NumPy {np.__version__}",
        f"devices: {len(devices)} x {devices[0].device_kind} ({jax.default_backend()})",
    ]
    if jax.default_backend() != "cpu":
        return [*lines, "native layers: not needed; XLA's own run on this device"]
    missing = unavailable_reason()
    lines.append(
        "steps of small models: "
        f"{f'an operation at a time, because {missing}' if missing else 'one kernel'}"
    )
    return [*lines, slower() or f"native layers: in use, compiled for {status().level}"]
