"""Describes algorithms as plain values and as text, for `fedax algorithms` and help pages."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fedax.algorithms import algorithm_classes
from fedax.core import Algorithm, Card
from fedax.core.hyper import Hyper, declared
from fedax.engine.round.footprint import PhaseCost, footprint
from fedax.results.tables.summary import counted


def describe_algorithm(kind: type[Algorithm[Any]]) -> dict[str, Any]:
    """Returns an algorithm's citation, hyperparameters and traced rounds as plain values, for
    JSON.
    """
    # your own method need not have a citation
    card: Card = getattr(kind, "card", Card("not published", read=()))
    default = footprint(kind())
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
        "forms": list(_describe_forms(kind, default.phases)),
        "reductions": [dataclasses.asdict(reduction) for reduction in card.reductions],
    }


def _describe_forms(
    kind: type[Algorithm[Any]], default: tuple[PhaseCost, ...]
) -> Iterator[dict[str, Any]]:
    """Yields choices and switches that change what a round calls, sends or computes."""
    for name, limits in declared(kind).items():
        # each choice on its own, with the defaults of everything else
        for choice in limits.choices or ():
            if choice == limits.default:
                continue
            phases = footprint(kind(**{name: choice})).phases
            if phases != default:
                described = [_describe_phase(phase) for phase in phases]
                yield {"setting": {name: choice}, "phases": described}


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
    default = limits.default
    if isinstance(default, float) and not math.isfinite(default):
        default = str(default)
    return {
        "name": limits.name,
        "default": default,
        "allowed": limits.allowed,
        "low": limits.low if math.isfinite(limits.low) else None,
        "high": limits.high if math.isfinite(limits.high) else None,
        "doc": limits.doc,
        "choices": None if limits.choices is None else list(limits.choices),
        "open_low": limits.open_low,
        "open_high": limits.open_high,
        "per_client": limits.per_client,
    }


def panel(kind: type[Algorithm[Any]]) -> RenderableType:
    """Returns an algorithm's description for the terminal."""
    about = describe_algorithm(kind)
    facts = [
        ("paper", "; ".join(filter(None, (about["paper"], about["equation"])))),
        ("read", ", ".join(about["read"])),
        ("round", _format_traffic(about["phases"])),
        *((_format_pairs(f["setting"]), _format_traffic(f["phases"])) for f in about["forms"]),
        ("memory", _format_amount(**about["memory"])),
        *(("special case", _format_reduction(**reduction)) for reduction in about["reductions"]),
    ]
    lines = Table.grid(padding=(0, 2, 0, 0))
    for name, fact in facts:
        lines.add_row(Text(name, style="dim"), Text(fact))
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for title in ("hyperparameter", "default", "allowed", ""):
        table.add_column(title)
    for option in about["hyperparameters"]:
        table.add_row(option["name"], str(option["default"]), option["allowed"], option["doc"])
    head = Text.assemble((kind.__name__, "bold"), (f"  {about['name']}", "cyan"))
    tables = [lines, table] if table.rows else [lines]
    return Group(head, *(Padding(part, (0, 0, 0, 2)) for part in tables), Text())


def _format_traffic(phases: list[dict[str, Any]]) -> str:
    texts = []
    for phase in phases:
        up = _format_amount(**phase["up"])
        text = f"{phase['work']}: down {_format_amount(**phase['down'])}, up {up}"
        if phase["to_every_neighbour"]:
            coded = " in few bits" if phase["coded"] else ""
            text = f"{phase['work']}: {up}{coded} to every neighbour"
        words = {"each_step": "a step", "full": "full"}
        counts = [f"{phase['gradients'][k]} {w}" for k, w in words.items() if phase["gradients"][k]]
        texts.append(text + (f", gradients: {' + '.join(counts)}" if counts else ""))
    return "; ".join(texts)


def _format_amount(vectors: int, numbers: int) -> str:
    amounts = {"model": vectors, "number": numbers}
    return " + ".join(counted(n, noun) for noun, n in amounts.items() if n) or "nothing"


def _format_reduction(
    to: str, setting: Mapping[str, Any], other: Mapping[str, Any], equal_sizes: bool
) -> str:
    options = f"({_format_pairs(other)})" if other else ""
    condition = " if all clients have equally many examples" if equal_sizes else ""
    return f"{_format_pairs(setting)} is {algorithm_classes()[to].__name__}{options}{condition}"


def _format_pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items())
