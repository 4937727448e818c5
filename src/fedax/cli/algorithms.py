"""`fedax algorithms`: lists the algorithms."""

from typing import Annotated

from typer import Argument

from fedax.cli.command import next_step


def algorithms(
    names: Annotated[
        list[str] | None,
        Argument(
            help="Only these; your own is path/to/file.py:Class.",
            metavar="[NAME]...",
            show_default=False,
        ),
    ] = None,
) -> None:
    """List the algorithms with their hyperparameters.

    Each has its paper, defaults and ranges, traffic, memory and special cases.
    """
    from rich.console import Console

    from fedax.algorithms import algorithm_class, algorithm_classes
    from fedax.results.methods import panel

    console = Console()
    for name in names or algorithm_classes():
        console.print(panel(algorithm_class(name)))
    example = names[0] if names else "scaffold"
    next_step("compares it with FedAvg.", "compare", "fedavg", example)
