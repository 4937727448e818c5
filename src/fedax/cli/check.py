"""`fedax check`: tests a method of your own against the laws that all methods obey."""

from typing import Annotated

import typer

MARKS = {"holds": "[green]holds[/]", "broken": "[red]broken[/]", "skipped": "[yellow]skipped[/]"}


def check(
    method: Annotated[
        str,
        typer.Argument(
            help="path/to/file.py:Class, or another name of an algorithm; hyperparameters "
            "follow as :key=value,...",
            metavar="FILE:CLASS",
        ),
    ],
    only: Annotated[list[str] | None, typer.Option(help="Only this law; may be repeated.")] = None,
) -> None:
    """Check a method of your own in about two minutes: it learns, has no side effects, counts its
    messages, does not change the states of absent clients, and more.

    The exit code is 0 if all tests pass, else 1. Tests that do not apply to the method are skipped,
    with the reason.

    Example: `fedax check half.py:FedHalf:lr=0.5`
    """
    from rich.console import Console

    from fedax.algorithms import make_algorithm
    from fedax.conformance import LAWS
    from fedax.conformance import check as verdicts
    from fedax.errors import UnknownName
    from fedax.experiments.config.shorthand import parse_section

    for name in only or ():
        if name not in LAWS:
            raise UnknownName.among("--only", name, LAWS)
    section, console = parse_section(method), Console()
    algorithm = make_algorithm(section.pop("name"), **section)
    # in the order of the marks, for the last line
    counts = dict.fromkeys(MARKS, 0)
    # verdicts come one by one: each law takes seconds
    for verdict in verdicts(algorithm, [LAWS[name] for name in only] if only else None):
        counts[verdict.kind] += 1
        console.print(
            f"{MARKS[verdict.kind]}  {verdict.law.says} [dim]({verdict.law.name})[/]",
            highlight=False,
            soft_wrap=True,
        )
        if verdict.reason:
            console.print(f"    {verdict.reason}", markup=False, highlight=False, soft_wrap=True)
    console.print(
        ", ".join(f"{count} {kind}" for kind, count in counts.items() if count) + ".",
        highlight=False,
    )
    if counts["broken"]:
        raise typer.Exit(1)
