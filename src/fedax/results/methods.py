"""Describes algorithms as plain values and as text, for `fedax algorithms` and help pages."""

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fedax.algorithms import algorithm_classes
from fedax.core import Algorithm, Card, Reduction
from fedax.core.hyper import Hyper, declared
from fedax.engine.round.footprint import Footprint, PhaseCost, footprint


def describe_algorithm(kind: type[Algorithm[Any]]) -> dict[str, Any]:
    """Returns an algorithm's citation, hyperparameters and traced rounds as plain values, for
    JSON.
    """
    card, default = _card(kind), _default_footprint(kind)
    module = "fedax" if kind.__module__.startswith("fedax.") else kind.__module__
    return {
        "name": kind.__name__.lower(),
        "class": f"{module}.{kind.__name__}",
        "paper": card.paper,
        "equation": card.equation,
        "read": list(card.read),
        "hyperparameters": [_describe_hyperparameter(limits) for limits in declared(kind).values()],
        "memory": default.memory._asdict(),
        "phases": [_describe_phase(phase) for phase in default.phases],
        "forms": [
            {"setting": setting, "phases": [_describe_phase(phase) for phase in phases]}
            for setting, phases in _forms(kind)
        ],
        "reductions": [dataclasses.asdict(reduction) for reduction in card.reductions],
    }


def _card(kind: type[Algorithm[Any]]) -> Card:
    """Returns a method's citation, which your own need not have."""
    return getattr(kind, "card", Card("not published", read=()))


@functools.cache
def _default_footprint(kind: type[Algorithm[Any]]) -> Footprint:
    """Traces a round with the default hyperparameters."""
    return footprint(kind())


def _forms(kind: type[Algorithm[Any]]) -> Iterator[tuple[dict[str, Any], tuple[PhaseCost, ...]]]:
    """Yields choices and switches that change what a round calls, sends or computes."""
    default = _default_footprint(kind).phases
    for name, limits in declared(kind).items():
        # each choice on its own, with the defaults of everything else
        for choice in limits.choices or ():
            phases = (
                default if choice == limits.default else footprint(kind(**{name: choice})).phases
            )
            if phases != default:
                yield {name: choice}, phases


def _describe_phase(phase: PhaseCost) -> dict[str, Any]:
    return {
        "work": phase.work,
        "down": phase.down._asdict(),
        "up": phase.up._asdict(),
        "to_every_neighbour": phase.links,
        "coded": phase.coded,
        "gradients": {"each_step": phase.step_gradients, "full": phase.full_gradients},
    }


def _describe_hyperparameter(limits: Hyper) -> dict[str, Any]:
    finite = {
        key: bound if math.isfinite(bound) else None
        for key, bound in (("low", limits.low), ("high", limits.high))
    }
    default = (
        limits.default
        if not isinstance(limits.default, float) or math.isfinite(limits.default)
        else str(limits.default)
    )
    return {
        "name": limits.name,
        "default": default,
        "allowed": limits.allowed,
        **finite,
        "doc": limits.doc,
    } | {
        "choices": None if limits.choices is None else list(limits.choices),
        "open_low": limits.open_low,
        "open_high": limits.open_high,
        "per_client": limits.per_client,
    }


def panel(kind: type[Algorithm[Any]]) -> RenderableType:
    """Returns an algorithm's description for the terminal."""
    default, card = _default_footprint(kind), _card(kind)
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for title in ("hyperparameter", "default", "allowed", ""):
        table.add_column(title)
    for limits in declared(kind).values():
        table.add_row(limits.name, str(limits.default), limits.allowed, limits.doc)
    facts = [
        ("paper", "; ".join(filter(None, (card.paper, card.equation)))),
        ("read", ", ".join(card.read)),
        ("round", "; ".join(_format_traffic(phase) for phase in default.phases)),
        *(
            (_format_pairs(setting), "; ".join(_format_traffic(phase) for phase in phases))
            for setting, phases in _forms(kind)
        ),
        ("memory", _format_amount(*default.memory)),
        *(("special case", _format_reduction(reduction)) for reduction in card.reductions),
    ]
    lines = Table.grid(padding=(0, 2, 0, 0))
    for name, fact in facts:
        lines.add_row(Text(name, style="dim"), Text(fact))
    head = Text.assemble((kind.__name__, "bold"), ("  " + kind.__name__.lower(), "cyan"))
    return Group(
        head,
        Padding(lines, (0, 0, 0, 2)),
        *([Padding(table, (0, 0, 0, 2))] if declared(kind) else []),
        Text(),
    )


def _format_traffic(phase: PhaseCost) -> str:
    counts = (
        f"{phase.step_gradients} a step" * (phase.step_gradients > 0),
        f"{phase.full_gradients} full" * (phase.full_gradients > 0),
    )
    gradients = ", gradients: " + " + ".join(filter(None, counts)) if any(counts) else ""
    if phase.links:
        return (
            f"{phase.work}: {_format_amount(*phase.up)}{' in few bits' * phase.coded} to "
            f"every neighbour{gradients}"
        )
    return (
        f"{phase.work}: down {_format_amount(*phase.down)}, up {_format_amount(*phase.up)}"
        f"{gradients}"
    )


def _format_amount(vectors: int, numbers: int) -> str:
    phrases = [f"{vectors} model{'s' * (vectors != 1)}"] * (vectors > 0) + [
        f"{numbers} number{'s' * (numbers != 1)}"
    ] * (numbers > 0)
    return " + ".join(phrases) or "nothing"


def _format_reduction(reduction: Reduction) -> str:
    other = algorithm_classes()[reduction.to].__name__ + (
        f"({_format_pairs(reduction.other)})" if reduction.other else ""
    )
    return f"{_format_pairs(reduction.setting)} is {other}" + (
        " if all clients have equally many examples" if reduction.equal_sizes else ""
    )


def _format_pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items())
