"""The table of what each algorithm uses, read from its source."""

import ast
import inspect
import textwrap
from typing import Any

from fedax.core import Algorithm
from fedax.results.methods import describe_algorithm

VERBS = {
    "solver": "minimize",
    "local problem": "LocalProblem",
    "hook in the step": "step_gradient",
    "own loss of the examples": "mean_of gradient_of added_gradient",
    "own loop over steps": "for_each_minibatch repeat fold",
    "full gradient": "client.gradient",
    "sampled cohort": "sample",
    "all clients": "everyone",
    "mean": "average",
    "single uploads": "gather",
    "graph": "exchange",
    "client state": "memory",
    "part of the model": "part head minimize_only",
    "codec": "message codec code",
    "random key": "client.key fed.key",
}
"""The names in an algorithm's code that show each verb: attributes (with their object if they need
it), functions, keywords."""
GRAPHS = {"both": "doubly stochastic", "row": "row-stochastic", "column": "column-stochastic"}
"""By `Gossip.needs`: the weights that a graph method takes."""


def written(kind: type[Algorithm[Any]]) -> list[type]:
    """Returns the classes whose code a round of the algorithm runs: itself and its parents below
    `Algorithm`."""
    return [
        place for place in kind.__mro__ if issubclass(place, Algorithm) and place is not Algorithm
    ]


def logic_lines(kind: type) -> int:
    """Counts the statements of a class, a compound statement's head as one: no docstrings, and not
    the card, which is data."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            if ast.get_docstring(node) is not None:
                del node.body[0]
            node.body = [part for part in node.body if not _is_card(part)] or [ast.Pass()]
    return sum(bool(line.strip()) for line in ast.unparse(tree).splitlines())


def _is_card(node: ast.stmt) -> bool:
    return isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "card"


def names(kind: type[Algorithm[Any]]) -> set[str]:
    """Returns the attributes, called functions and keywords in the code of an algorithm, its
    overridden parents' left out."""
    found, seen = set[str](), set[str]()
    for place in written(kind):
        own = [
            name
            for name, value in vars(place).items()
            if inspect.isfunction(value) and name[:2] != "__"
        ]
        for name in own:
            if name in seen and f"super().{name}" not in inspect.getsource(kind):
                continue
            for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(vars(place)[name])))):
                match node:
                    case ast.Attribute(value=ast.Name(id=thing), attr=word):
                        found |= {word, f"{thing}.{word}"}
                    case ast.Attribute(attr=word) | ast.keyword(arg=str(word)):
                        found.add(word)
                    case ast.Call(func=ast.Name(id=word)):
                        found.add(word)
        seen |= set(own)
    return found


def used(kind: type[Algorithm[Any]]) -> list[str]:
    """Returns the verbs that an algorithm uses, with the weights of its graph."""
    words, weights = names(kind), " or ".join(GRAPHS[need] for need in getattr(kind, "needs", ()))
    found = [verb for verb, spellings in VERBS.items() if words & set(spellings.split())]
    return [f"graph ({weights})" if verb == "graph" else verb for verb in found]


def amount(counts: dict[str, int]) -> str:
    """Returns models and numbers in words."""
    parts = [
        f"{count} {noun}{'s' * (count != 1)}"
        for count, noun in zip(counts.values(), ("model", "number"), strict=True)
        if count
    ]
    return " + ".join(parts) or "nothing"


def table(families: dict[str, list[type[Algorithm[Any]]]]) -> str:
    """Returns the page: a row for each algorithm."""
    lines = [
        "# What each algorithm uses",
        "",
        "Made from the source of each algorithm when this site is built. Lines are those of its "
        "class with code; docstrings,",
        "comments and the citation do not count, and code that it inherits counts with the "
        "class that has it.",
        "",
        "| method | lines | uses | a client keeps |",
        "| --- | --- | --- | --- |",
    ]
    for kinds in families.values():
        for kind in kinds:
            keeps = amount(describe_algorithm(kind)["memory"])
            link = f"[{kind.__name__}]({kind.__name__.lower()}.md)"
            lines.append(f"| {link} | {logic_lines(kind)} | {', '.join(used(kind))} | {keeps} |")
    return "\n".join([*lines, ""])
