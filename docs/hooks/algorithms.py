"""One page for each algorithm, from its docstring, its source and the trace of a round."""

import inspect
import re
import textwrap
import tomllib
from pathlib import Path
from typing import Any

from fedax.algorithms import algorithm_classes
from fedax.core import Algorithm
from fedax.results.methods import describe_algorithm

VERBS = {
    "client.minimize": "runs the local solver for the round's scheduled work",
    "fed.average": "is the weighted mean of the uploads",
    "fed.gather": "returns the uploads one by one",
    "fed.exchange": "sends to the neighbours of a graph, and adds up what they send",
}
"""What the verbs of a round do, for the pages that have them."""

FAMILIES = {
    "server": "One model, with a server",
    "personalized": "A model for every client",
    "decentralized": "Without a server",
}
ADVICE = tomllib.loads((Path(__file__).parent / "advice.toml").read_text())
"""By class name: `tune`, where to begin with its hyperparameters, and `fails`, the conditions under
which it disappoints."""


def family(kind: type[Algorithm[Any]]) -> str:
    """The folder of its module."""
    return kind.__module__.split(".")[2]


def address(kind: type[Algorithm[Any]]) -> str:
    """The page of an algorithm, below the documents."""
    return f"algorithms/{kind.__name__.lower()}.md"


def by_family() -> dict[str, list[type[Algorithm[Any]]]]:
    """All algorithms, in the order of `FAMILIES`, others after them."""
    kinds = list(algorithm_classes().values())
    names = [*FAMILIES, *sorted({family(kind) for kind in kinds} - set(FAMILIES))]
    return {name: [kind for kind in kinds if family(kind) == name] for name in names}


def pages(root: Path) -> dict[str, str]:
    """Markdown by address: the list of all, and one page for each."""
    appearances = _appearances(root / "docs" / "reproduction")
    return {"algorithms/index.md": _overview()} | {
        address(kind): page(kind, appearances.get(kind.__name__.lower(), []))
        for kind in algorithm_classes().values()
    }


def _overview() -> str:
    lines = [
        "# Algorithms",
        "",
        "Every page is made from the algorithm's own source: formulas and ranges from its "
        "docstring and declarations, traffic,",
        "memory and gradients from one abstract trace of a round. [How to choose](../choose.md) "
        "compares them,",
        "and [a guide](../guides/method.md) says what a round can do. The last column says what was read "
        "to write the method.",
        "",
    ]
    for name, kinds in by_family().items():
        lines += [
            f"## {FAMILIES.get(name, name.capitalize())}",
            "",
            "| method | idea | a round sends, for each client | keeps | read |",
        ]
        lines += ["| --- | --- | --- | --- | --- |"]
        for kind in kinds:
            facts = describe_algorithm(kind)
            sent = "; ".join(_traffic(phase) for phase in facts["phases"])
            idea = sections(kind)["text"].split("\n\n")[0].replace("\n", " ").replace("|", r"\|")
            keeps = _amount(facts["memory"])
            lines.append(
                f"| [{kind.__name__}]({kind.__name__.lower()}.md) | {idea} | {sent} | {keeps} | "
                f"{', '.join(facts['read'])} |"
            )
        lines.append("")
    return "\n".join(lines)


def page(kind: type[Algorithm[Any]], appearances: list[tuple[str, str]]) -> str:
    """The page of one algorithm."""
    facts, parts, name = describe_algorithm(kind), sections(kind), kind.__name__
    advice = ADVICE.get(name, {})
    text = [
        "---",
        "search:",
        "  boost: 10",
        "---",
        "",
        f"# {name}",
        "",
        f"*{FAMILIES.get(family(kind), family(kind))}.* {facts['paper']}.",
        "",
    ]
    text += ["## Idea", "", parts["text"], ""]
    code = _code(kind)
    text += ["## A round, as it runs", "", "```python", code, "```", ""]
    verbs = [f"`{verb}` {does}." for verb, does in VERBS.items() if f"{verb}(" in code]
    text += ["No loop over clients, steps or batches: the engine has it.", *verbs, ""]
    text += ["## Hyperparameters", "", *_hyperparameters(facts, parts.get("Args", "")), ""]
    text += ["## Traffic, memory, gradients", "", *_costs(facts), ""]
    if facts["reductions"]:
        text += [
            "## Special cases",
            "",
            "Identities, each held by a test:",
            "",
            *map(_reduction, facts["reductions"]),
            "",
        ]
    if "tune" in advice:
        text += ["## Tuning", "", advice["tune"].strip(), ""]
    if "fails" in advice:
        text += ["## When it disappoints", "", advice["fails"].strip(), ""]
    text += ["## Example", "", *_example(name), ""]
    if appearances:
        links = ", ".join(f"[{title}](../reproduction/{page}.md)" for page, title in appearances)
        text += [
            "## Results here",
            "",
            f"Runs of this method beside a paper's numbers: {links}.",
            "",
        ]
    text += ["## Source", "", parts.get("Source", facts["paper"]), ""]
    return "\n".join([*text, f"Read for it: {', '.join(facts['read'])}.", ""])


def sections(kind: Any) -> dict[str, str]:
    """The parts of a docstring by heading; `text` is what stands before the first."""
    found, name = {"text": ""}, "text"
    for line in (inspect.getdoc(kind) or "").splitlines():
        if match := re.match(
            r"(Args|Attributes|Example|Hyperparameter|Raises|Source|Note)s?:\s*(.*)", line
        ):
            name, line = match[1], match[2]
        found[name] = found.get(name, "") + line + "\n"
    return {name: _spaced(textwrap.dedent(text).strip("\n")) for name, text in found.items()}


def _spaced(text: str) -> str:
    """With displayed formulas as paragraphs of their own."""
    text = re.sub(
        r"[ ]*\$\$(.+?)\$\$[ ]*",
        lambda m: f"\n\n$$ {' '.join(m[1].split())} $$\n\n",
        text,
        flags=re.DOTALL,
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n")


def _code(kind: type[Algorithm[Any]]) -> str:
    """`init`, `round` and the work functions, without annotations of what everybody knows; those of
    its parents that it keeps."""
    shown, blocks = {"check"}, list[str]()
    for place in kind.__mro__[
        : 1 + next(i for i, parent in enumerate(kind.__mro__) if "round" in vars(parent))
    ]:
        own = [
            n
            for n, value in vars(place).items()
            if inspect.isfunction(value) and n[:2] != "__" and n not in shown
        ]
        source = textwrap.dedent("\n".join(inspect.getsource(vars(place)[name]) for name in own))
        shown |= set(own)
        if own:
            blocks.append(f"# of {place.__name__}\n\n{source}" if place is not kind else source)
    code = re.sub(r"\) -> [^:\n]+:\n", "):\n", "\n".join(blocks).rstrip())
    code = re.sub(r"  # type: ignore.*", "", code)
    code = re.sub(r"\(\n +(self, [^\n]*?),?\n\):\n", r"(\1):\n", code)
    return re.sub(r"(\w): (?:[A-Z]\w*(?:\[[^\n=]*?\])?)(?=[,)])", r"\1", code)


def _hyperparameters(facts: dict[str, Any], args: str) -> list[str]:
    known = facts["hyperparameters"]
    if not known:
        return ["None."]
    lines = ["| name | default | allowed | |", "| --- | --- | --- | --- |"]
    lines += [
        f"| `{each['name']}` | `{each['default']}` | {each['allowed']} | {each['doc']} |"
        for each in known
    ]
    return [*lines, "", *definitions(args)]


def definitions(args: str) -> list[str]:
    """`name: text` lines with their continuations, as a list."""
    lines: list[str] = []
    for line in args.splitlines():
        if match := re.match(r"(\w[\w, ]*): (.*)", line):
            lines.append(f"- `{match[1]}`: {match[2]}")
        elif line.strip():
            lines.append("  " + re.sub(r"\$\$ (.*) \$\$", r"$\1$", line.strip()))
    return lines


def _costs(facts: dict[str, Any]) -> list[str]:
    lines = ["| setting | phase | down | up | gradients |", "| --- | --- | --- | --- | --- |"]
    forms = [
        ("defaults", facts["phases"]),
        *((_pairs(form["setting"]), form["phases"]) for form in facts["forms"]),
    ]
    for setting, phases in forms:
        for phase in phases:
            where = " to every neighbour" * phase["to_every_neighbour"] + ", coded" * phase["coded"]
            down, up = _amount(phase["down"]), _amount(phase["up"]) + where
            lines.append(f"| {setting} | `{phase['work']}` | {down} | {up} | {_gradients(phase)} |")
    return [*lines, "", f"Each client keeps from round to round: {_amount(facts['memory'])}."]


def _traffic(phase: dict[str, Any]) -> str:
    if phase["to_every_neighbour"]:
        return f"{_amount(phase['up'])} to every neighbour"
    return f"{_amount(phase['down'])} down, {_amount(phase['up'])} up"


def _gradients(phase: dict[str, Any]) -> str:
    each, full = phase["gradients"]["each_step"], phase["gradients"]["full"]
    parts = [f"{each} in every step"] * (each > 0) + [f"{full} over all examples"] * (full > 0)
    return ", ".join(parts) or "none"


def _reduction(reduction: dict[str, Any]) -> str:
    to = algorithm_classes()[reduction["to"]].__name__
    other = f" with {_pairs(reduction['other'])}" if reduction["other"] else ""
    sizes = ", if all clients have equally many examples" if reduction["equal_sizes"] else ""
    return (
        f"- With {_pairs(reduction['setting'])} it is [{to}]({reduction['to']}.md){other}{sizes}."
    )


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"`{key}={value!r}`" for key, value in values.items())


EXAMPLE = """\
import fedax

task = fedax.task("synthetic", alpha=1.0, beta=1.0, clients=6)
schedule = fedax.Schedule(steps=5, batch_size=10)
solver = fedax.SGD(0.01)
history = fedax.run(
    fedax.{name}(), task, solver=solver, schedule=schedule, rounds=4
)
assert history.outcome.ok
"""


def _example(name: str) -> list[str]:
    other = "fedprox" if name == "FedAvg" else "fedavg"
    command = (
        f"fedax compare {name.lower()} {other} \\\n  --task synthetic:alpha=1,beta=1 --rounds 50"
    )
    code = EXAMPLE.format(name=name).strip()
    return [
        "```python",
        code,
        "```",
        "",
        "On the command line, beside a baseline:",
        "",
        "```sh",
        command,
        "```",
    ]


def _appearances(folder: Path) -> dict[str, list[tuple[str, str]]]:
    """The papers in whose runs a method takes part: page and title by its lower-case name."""
    found: dict[str, dict[str, str]] = {}
    titles = {
        page.stem: page.read_text().partition("\n")[0].removeprefix("# ")
        for page in folder.glob("[!R]*.md")
    }
    for file in sorted(folder.glob("*/recipe.toml")):
        recipe = tomllib.loads(file.read_text())
        page = next(name for name in titles if file.parent.name.startswith(f"{name}-"))
        for section in recipe.get("experiment", recipe).get("algorithm", []):
            found.setdefault(section["name"].lower(), {})[page] = titles[page]
    return {name: list(pages.items()) for name, pages in found.items()}


def _amount(counts: dict[str, int]) -> str:
    """Returns models and numbers in words."""
    parts = [
        f"{count} {noun}{'s' * (count != 1)}"
        for count, noun in zip(counts.values(), ("model", "number"), strict=True)
        if count
    ]
    return " + ".join(parts) or "nothing"
