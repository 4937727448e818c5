"""One page for each algorithm: its docstring, its source, its ranges and the trace of a round."""

import inspect
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import jinja2

from fedax.algorithms import algorithm_classes
from fedax.results.methods import describe_algorithm

TITLES = {
    "server": "One model, with a server",
    "personalized": "A model for every client",
    "decentralized": "Without a server",
}
FAMILIES = {
    title: [kind for kind in algorithm_classes().values() if f".{family}." in kind.__module__]
    for family, title in TITLES.items()
}
"""All algorithms by the title of their family."""
HERE = Path(__file__).parent
ADVICE = tomllib.loads((HERE / "advice.toml").read_text())
"""By class name: `tune`, where to begin with its hyperparameters, and `fails`, the conditions under
which it disappoints."""
TEMPLATES = jinja2.Environment(loader=jinja2.FileSystemLoader(HERE), autoescape=False)
TEMPLATES.globals["getdoc"] = inspect.getdoc


def pages() -> dict[str, str]:
    """Returns Markdown by address: the list of all, and one page for each."""
    template = TEMPLATES.get_template("algorithm.md.jinja")
    made = {}
    families = {}
    for family, kinds in FAMILIES.items():
        families[family] = {kind: describe_algorithm(kind) for kind in kinds}
        for kind, facts in families[family].items():
            made[f"algorithms/{kind.__name__.lower()}.md"] = template.render(
                kind=kind, family=family, facts=facts, code=code(kind), advice=ADVICE
            )
    overview = TEMPLATES.get_template("algorithms.md.jinja").render(families=families)
    return made | {"algorithms/index.md": overview}


def code(kind: type) -> str:
    """Returns the functions of a class, and `init` and `round` of the parents that have them."""
    functions: dict[str, Any] = {}
    for place in kind.__mro__:
        for name, value in vars(place).items():
            if name in ("init", "round") or (place is kind and inspect.isfunction(value)):
                functions.setdefault(name, value)
        if "round" in functions:
            break
    shown = [value for name, value in functions.items() if name[:2] != "__" and name != "check"]
    return "\n".join(textwrap.dedent(inspect.getsource(function)) for function in shown)
