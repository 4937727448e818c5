"""Flower, imported on demand, without telemetry and without looking for updates."""

import os

from fedax.errors import FedaxError, install_hint

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""The environment of every process of Flower: nobody is told that it runs, and nothing is installed
by a message."""

VERSION = "1.42."


def need_flower() -> None:
    """Imports Flower.

    Raises:
        FedaxError: it is not installed, or another version is.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    hint = install_hint("flower")
    try:
        import flwr
    except ImportError as error:
        raise FedaxError(f"deployment needs Flower ({error}). Try: {hint}.") from error
    if not flwr.__version__.startswith(VERSION):
        raise FedaxError(
            f"deployment needs Flower {VERSION}*, found {flwr.__version__}. Try: {hint}."
        )
