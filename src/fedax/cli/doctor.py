"""`fedax doctor`: versions, devices and native layers that this installation uses or lacks."""

import platform

from typer import echo

import fedax
from fedax.cli.command import next_step

COST = (
    "Without them a step of the MNIST CNN takes 3 times as long, of the CIFAR CNN 4.6, of "
    "LeNet 5, of the LSTM 1.2 times."
)
"""Measured in docs/performance.md."""


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
    from fedax.ops.extension import VARIABLE, status

    devices = jax.devices()
    lines = [
        f"fedax {fedax.__version__}, Python {platform.python_version()}, jax {jax.__version__}, "
        f"NumPy {np.__version__}",
        f"devices: {len(devices)} x {devices[0].device_kind} ({jax.default_backend()})",
    ]
    native = status()
    # native layers replace XLA's on CPUs only
    if jax.default_backend() != "cpu":
        return [*lines, "native layers: not needed; XLA's own run on this device"]
    missing = unavailable_reason()
    lines.append(
        "steps of small models: "
        f"{f'an operation at a time, because {missing}' if missing else 'one kernel'}"
    )
    if native.used:
        return [*lines, f"native layers: in use, compiled for {native.level}"]
    # switched off by the variable, or not compiled
    remedy = (
        f"Unset {VARIABLE}."
        if VARIABLE in native.reason
        else ("Install g++ or clang and then fedax again.")
    )
    return [*lines, f"native layers: not in use: {native.reason}.", f"{COST} {remedy}"]
