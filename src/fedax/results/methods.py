"""Describes algorithms in texts, for `fedax algorithms` and the pages of algorithms."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedax.algorithms import algorithm_classes
from fedax.core import Algorithm, Citation, Reduction
from fedax.core.hyper import declared
from fedax.engine.round.trace import PhaseCost, footprint
from fedax.results.tables.summary import counted


def describe_algorithm(kind: type[Algorithm[Any]]) -> dict[str, Any]:
    """Returns an algorithm's citation, hyperparameters and traced rounds.

    The texts are `paper`, `equation`, `round` and `memory`; `read` and `reductions` are lists of
    them, `forms` are those of a round by the settings that change it, and `hyperparameters` are
    rows with name, default, range and meaning.
    """
    # your own method need not have a citation
    citation = getattr(kind, "citation", Citation("not published", ()))
    default = footprint(kind())
    fields = declared(kind)
    forms = {}
    for name, limits in fields.items():
        # each choice on its own, with the defaults of everything else
        for choice in limits.choices or ():
            phases = footprint(kind(**{name: choice})).phases
            if phases != default.phases:
                forms[f"{name}={choice}"] = _format_phases(phases)
    return {
        "paper": citation.paper,
        "equation": citation.equation,
        "read": list(citation.read),
        "round": _format_phases(default.phases),
        "forms": forms,
        "memory": _format_amount(*default.memory),
        "reductions": [_format_reduction(case) for case in citation.reductions],
        "hyperparameters": [
            (limits.name, str(limits.default), limits.allowed, limits.doc)
            for limits in fields.values()
        ],
    }


def _format_phases(phases: Sequence[PhaseCost]) -> str:
    texts = []
    for phase in phases:
        up = _format_amount(*phase.up)
        text = f"{phase.work}: down {_format_amount(*phase.down)}, up {up}"
        if phase.links:
            coded = " in few bits" if phase.coded else ""
            text = f"{phase.work}: {up}{coded} to every neighbour"
        counts = {"a step": phase.step_gradients, "full": phase.full_gradients}
        gradients = " + ".join(f"{count} {word}" for word, count in counts.items() if count)
        texts.append(text + (f", gradients: {gradients}" if gradients else ""))
    return "; ".join(texts)


def _format_amount(vectors: int, numbers: int) -> str:
    amounts = {"model": vectors, "number": numbers}
    return " + ".join(counted(n, noun) for noun, n in amounts.items() if n) or "nothing"


def _format_reduction(case: Reduction) -> str:
    options = f"({_format_pairs(case.other)})" if case.other else ""
    condition = " if all clients have equally many examples" if case.equal_sizes else ""
    target = algorithm_classes()[case.to].__name__
    setting = _format_pairs(case.setting) or "the global model"
    return f"{setting} is {target}{options}{condition}"


def _format_pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items())
