"""Commands, run in this process."""

from typing import Any
from unittest import mock

from typer.testing import CliRunner

from fedax import cli


def call(*arguments: Any) -> Any:
    """Runs `fedax` with some arguments, and returns what it printed and how it ended."""
    # it would change the settings of this process
    with mock.patch("fedax.experiments.running.setup.set_up_jax"):
        return CliRunner(env={"COLUMNS": "200"}).invoke(cli.app, list(map(str, arguments)))


def succeed(*arguments: Any) -> Any:
    """Runs `fedax` with some arguments, and checks that it ends well."""
    done = call(*arguments)
    assert done.exit_code == 0, done.output
    return done
