"""Fills names of the library into help texts: `{observers}` stands for the list of observers."""

import dataclasses

from fedax.cli.graph import constructors, usage
from fedax.cli.new import FAMILIES
from fedax.cli.theory_papers import PAPERS
from fedax.core import Schedule
from fedax.core.hyper import declared
from fedax.experiments.config.observers import OBSERVERS
from fedax.experiments.config.sections import ENGINES, SOLVERS
from fedax.experiments.running.predictions import SPLITS
from fedax.models.storage import FORMATS
from fedax.report.drawing import figures
from fedax.report.drawing.charts import AXES
from fedax.report.methods import one_line, overview

_LISTS = {
    "engines": ENGINES,
    "observers": OBSERVERS,
    "formats": figures.FORMATS,
    "axes": AXES,
    "graphs": [usage(name) for name in constructors()],
    "papers": PAPERS,
    "families": FAMILIES,
    "model_formats": FORMATS,
    "splits": SPLITS,
}


def fill_names(text: str) -> str:
    """Replaces each placeholder of a help text by the names it stands for."""
    for key, names in _LISTS.items():
        text = text.replace(f"{{{key}}}", ", ".join(names))
    return text.replace("{sections}", _list_sections()) if "{sections}" in text else text


def _list_sections() -> str:
    lines = ["### Algorithms", *(f"- {line}" for line in overview()), "### Solvers"]
    lines += [f"- {one_line(name, declared(kind))}" for name, kind in SOLVERS.items()]
    lines += [
        "### Schedule",
        "- " + ", ".join(f"{field.name}={field.default}" for field in dataclasses.fields(Schedule)),
    ]
    return "\n\n".join(lines)
