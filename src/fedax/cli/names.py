"""Names of the library in help texts: `{observers}` there stands for the observers."""

import dataclasses

from fedax.cli.graph import RANDOM
from fedax.cli.listing import one_line, overview
from fedax.cli.new import FAMILIES
from fedax.cli.theory import PAPERS
from fedax.core import Schedule
from fedax.core.hyper import declared
from fedax.experiments.config.observers import OBSERVERS
from fedax.experiments.config.sections import ENGINES, SOLVERS
from fedax.experiments.running.predictions import SPLITS
from fedax.graphs import TOPOLOGIES
from fedax.models.storage import FORMATS
from fedax.report.drawing import figures
from fedax.report.drawing.charts import AXES

_LISTS = {
    "engines": ENGINES,
    "observers": OBSERVERS,
    "formats": figures.FORMATS,
    "axes": AXES,
    "topologies": TOPOLOGIES,
    "random": [f"{name}:key=value,..." for name in RANDOM],
    "papers": PAPERS,
    "families": FAMILIES,
    "model_formats": FORMATS,
    "splits": SPLITS,
}


def filled(text: str) -> str:
    """A help text with the names that it asks for."""
    for key, names in _LISTS.items():
        text = text.replace(f"{{{key}}}", ", ".join(names))
    return text.replace("{sections}", _sections()) if "{sections}" in text else text


def _sections() -> str:
    lines = ["### Algorithms", *(f"- {line}" for line in overview()), "### Solvers"]
    lines += [f"- {one_line(name, declared(kind))}" for name, kind in SOLVERS.items()]
    lines += ["### Schedule", "- " + ", ".join(f"{field.name}={field.default}" for field in dataclasses.fields(Schedule))]
    return "\n\n".join(lines)
