"""Command classes that import the library only when a command does its work, not for help or
complaints, and the last line of a command.
"""

import errno
import shlex
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from typer import Exit, echo
from typer.core import TyperCommand, TyperGroup

from fedax.errors import FedaxError, UnknownName


def shell(*words: str | Path | int) -> str:
    """Returns a command of fedax as a shell takes it, for messages.

    >>> shell("resume", "my run")
    "fedax resume 'my run'"
    """
    return shlex.join(["fedax", *map(str, words)])


def next_step(purpose: str, *words: str | Path | int) -> None:
    """Prints what to do next as one line, on the error output, which scripts do not read.

    Args:
        purpose: what the command does, or the whole sentence if there is none.
        words: of the command of fedax.
    """
    step = f"`{shell(*words)}` {purpose}" if words else purpose
    echo(f"Next: {step}", err=True)


def print_table(rows: Sequence[Mapping[str, object]], right: Collection[str] = ()) -> None:
    """Prints rows below the names of their columns. A long line is left to the terminal to break.

    Args:
        rows: by column, at least one.
        right: the columns that are aligned to the right.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
    for column in rows[0]:
        table.add_column(column, justify="right" if column in right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console(width=2_000).print(table)


class Command(TyperCommand):
    """Command that sets up JAX before its work.

    Attributes:
        cpus: host devices; None means one for each core.
    """

    cpus: int | None = None

    def invoke(self, ctx: Any) -> Any:
        # imported here, so that help does not load JAX
        from fedax.experiments.running import setup

        setup.set_up_jax(self.cpus)
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            return super().invoke(ctx)


class OneDeviceCommand(Command):
    """Command whose numbers do not depend on how many cores the machine has."""

    cpus = 1


class Commands(TyperGroup):
    """Group of commands that prints errors of fedax as one message, without a traceback."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        # Click and Typer have hints of their own, which come twice or never, by their versions
        if args[0] not in self.commands and not ctx.resilient_parsing:
            raise UnknownName.among("command", args[0], self.commands)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except OSError as error:
            if error.errno in (None, errno.EPIPE):  # a closed pipe, such as `fedax ... | head`
                raise
            _print_error(f"{error.filename or ''}: {error.strerror or error}.")
            raise Exit(2) from error
        except FedaxError as error:
            _print_error(str(error))
            raise Exit(2) from error


def _show_warning(message: Warning | str, *_: Any) -> None:
    """Prints a warning as one line, without the line of code that it comes from."""
    echo(f"Warning: {message}", err=True)


def _print_error(message: str) -> None:
    from rich.console import Console
    from rich.text import Text

    text = Text.assemble(("Error: ", "bold red"), (message, "red"))
    Console(stderr=True).print(text, soft_wrap=True)
