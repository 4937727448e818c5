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

    kinds = (
        [algorithm_class(name) for name in names] if names else list(algorithm_classes().values())
    )
    console = Console()
    for kind in kinds:
        console.print(panel(kind))
    example = names[0] if names else "scaffold"
    next_step("compares it with FedAvg.", "compare", "fedavg", example)
