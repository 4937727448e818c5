"""`fedax algorithms`: lists the algorithms."""

from typing import Annotated

from typer import Argument, echo

from fedax.cli.command import next_step, print_table


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
    from fedax.algorithms import algorithm_class, algorithm_classes
    from fedax.results.methods import describe_algorithm

    for name in names or algorithm_classes():
        kind = algorithm_class(name)
        about = describe_algorithm(kind)
        facts = {
            "paper": "; ".join(filter(None, (about["paper"], about["equation"]))),
            "read": ", ".join(about["read"]),
            "round": about["round"],
            **about["forms"],
            "memory": about["memory"],
            "special cases": "; ".join(about["reductions"]),
        }
        echo(f"{kind.__name__} ({kind.__name__.lower()})")
        for title, fact in facts.items():
            echo(f"  {title}: {fact or '-'}")
        heads = ["hyperparameter", "default", "allowed", ""]
        if rows := [dict(zip(heads, row, strict=True)) for row in about["hyperparameters"]]:
            print_table(rows)
        echo()
    next_step("runs algorithms on a task.", "compare", *(names or ("fedavg", "scaffold")))
