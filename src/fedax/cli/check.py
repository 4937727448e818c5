"""`fedax check`: tests a method or a task of your own against the laws that all of them obey."""

import inspect
import traceback
from typing import Annotated, Any

from typer import Argument, Exit, Option

from fedax.cli.command import next_step

MARKS = {"holds": "[green]holds[/]", "broken": "[red]broken[/]", "skipped": "[yellow]skipped[/]"}


def check(
    name: Annotated[
        str,
        Argument(
            help="path/to/file.py:Class, or another name of an algorithm or a task; options "
            "follow as :key=value,...",
            metavar="FILE:NAME",
        ),
    ],
    task: Annotated[
        bool, Option("--task", help="Check a task: its loss, scores and predictions.")
    ] = False,
    only: Annotated[list[str] | None, Option(help="Only this law; may be repeated.")] = None,
) -> None:
    """Check a method or a task of your own against the laws.

    A method learns, has no side effects, counts its messages, does not change the states of absent
    clients, and more; that takes about a minute. With --task, the loss of a task sees every
    example alone and changes nothing outside.

    The exit code is 0 if all tests pass, else 1. Tests that do not apply to the method are skipped,
    with the reason.

    Example: `fedax check half.py:FedHalf:lr=0.5`
    """
    from collections import Counter

    from rich.console import Console

    from fedax.algorithms import make_algorithm
    from fedax.conformance import LAWS, TASK_LAWS
    from fedax.conformance import check as verdicts
    from fedax.conformance.method import regression
    from fedax.core import Client, Federation
    from fedax.engine.driver.run import start
    from fedax.errors import FedaxError, InvalidInput, UnknownName
    from fedax.experiments.config.sections import check_names
    from fedax.experiments.config.shorthand import parse_section
    from fedax.tasks import task as make_task

    laws = TASK_LAWS if task else LAWS
    check_names("--only", only or (), laws)
    console = Console(highlight=False)
    counts = Counter()
    subject: Any = (make_task if task else make_algorithm)(**parse_section(name))
    try:
        session = None if task else start(subject, regression())
    except InvalidInput:
        session = None  # laws are skipped where the method refuses their setting
    # an error here would break every law
    try:
        if session is not None:
            session.step(session.init())
    except FedaxError:
        raise
    except Exception as error:
        if isinstance(error, AttributeError) and isinstance(error.obj, Client | Federation):
            known = [verb for verb in dir(error.obj) if not verb.startswith("_")]
            raise UnknownName.among(f"{name}, in its round", str(error.name), known) from error
        # those of the engine in between say nothing about the method
        frames = traceback.extract_tb(error.__traceback__)
        file = inspect.getfile(type(subject))
        own = [frame for frame in frames if frame.filename == file]
        traceback.print_list(own or frames)
        raise FedaxError(f"{type(error).__name__}: {error}") from error
    # verdicts come one by one: each law takes seconds
    for verdict in verdicts(subject, [laws[law] for law in only or laws]):
        counts[verdict.kind] += 1
        console.print(
            f"{MARKS[verdict.kind]}  {verdict.law.says} [dim]({verdict.law.name})[/]",
            soft_wrap=True,
        )
        if verdict.reason:
            console.out(f"    {verdict.reason}")
    console.print(", ".join(f"{counts[kind]} {kind}" for kind in MARKS if counts[kind]) + ".")
    if counts["broken"]:
        next_step("tests it again after a change.", "check", *["--task"] * task, name)
        raise Exit(1)
    if task:
        next_step("compares methods on it.", "compare", "fedavg", "scaffold", "--task", name)
    else:
        next_step("places it among the built-in methods.", "bench", name)
