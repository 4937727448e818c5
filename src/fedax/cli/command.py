"""Commands that say their help and complaints at once: the library is imported when there is work."""

import errno
import sys
from typing import Any

from typer import Exit
from typer.core import TyperCommand, TyperGroup


class Command(TyperCommand):
    """A command. JAX is set up before its work, and its help may name the library's own: `{engines}` is filled in when shown."""

    def invoke(self, ctx: Any) -> Any:
        from fedax.experiments.running import setup

        setup.set_up_jax()
        return super().invoke(ctx)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        for part in self.params:
            part.help = _filled(getattr(part, "help", None))  # pyright: ignore[reportAttributeAccessIssue]
        self.epilog = _filled(self.epilog)
        super().format_help(ctx, formatter)


def _filled(text: str | None) -> str | None:
    if text is None or "{" not in text:
        return text
    from fedax.cli.names import filled

    return filled(text)


class Commands(TyperGroup):
    """Prints the library's own errors as one message, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except OSError as error:
            if error.errno in (None, errno.EPIPE):  # a reader of the output that has gone
                raise
            _refuse(f"{error.filename or ''}: {error.strerror or error}.")
            raise Exit(2) from error
        except Exception as error:
            core = sys.modules.get("fedax.core")  # without it, an error of the command line itself
            if core is None or not isinstance(error, core.FedaxError):
                raise
            _refuse(str(error))
            raise Exit(2) from error


def _refuse(message: str) -> None:
    from rich.console import Console
    from rich.text import Text

    from fedax.engine.distributed import abort

    here = abort.current_rank()
    head = f"Error ({here}): " if here and here.rank else "Error: "
    text = Text.assemble((head, "bold red"), (message, "red"))

    def say() -> None:
        Console(stderr=True).print(text, soft_wrap=True)

    if here:
        abort.abort_all(say, 2, here)
    else:
        say()
