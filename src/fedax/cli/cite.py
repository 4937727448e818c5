"""`fedax cite`: BibTeX for what runs used."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from typer import Argument, echo

import fedax
from fedax.cli.command import next_step
from fedax.utils.plugins import is_user_code

FEDAX = f"""% the library
@software{{fedax,
  author = {{The fedax contributors}},
  title = {{fedax: federated optimization in {{JAX}}}},
  version = {{{fedax.__version__}}}
}}"""


def cite(
    runs: Annotated[
        list[Path], Argument(help="Run directories or experiment files.", metavar="RUN...")
    ],
) -> None:
    """Print BibTeX for what runs used.

    Entries are papers of the methods, data sets, the recipe's paper, and fedax.

    Example: `fedax cite runs/demo`
    """
    methods: dict[str, None] = {}
    tasks: dict[str, None] = {}
    papers = []
    # in the order of the files, each once
    for path in runs:
        experiments, paper = read_run(path)
        papers.append(paper)
        for experiment in experiments:
            tasks[experiment["task"]["name"]] = None
            methods |= dict.fromkeys(section["name"] for section in experiment["algorithm"])
    echo(bibtex([*methods], [*tasks], " ".join(papers)))
    if runs[0].is_dir():
        next_step("prints their table.", "report", *runs, "--table", "latex")
    else:
        next_step("runs the experiment.", "run", runs[0])


class Entry(NamedTuple):
    """A BibTeX entry with the algorithms and tasks that it belongs to."""

    key: str
    text: str
    names: frozenset[str]


def entries() -> list[Entry]:
    """Returns the bibliography of the methods and data sets."""
    text = files("fedax.cli").joinpath("references.bib").read_text(encoding="utf-8")
    # keywords are names of algorithms and tasks, which are not printed; an entry ends with a brace
    # at the beginning of a line
    form = r"^(@\w+\{(\w+),\n)  keywords = \{(.*?)\},\n(.*?^\})"
    return [
        Entry(match[2], match[1] + match[4], frozenset(match[3].split(", ")))
        for match in re.finditer(form, text, flags=re.DOTALL | re.MULTILINE)
    ]


def read_run(path: Path) -> tuple[list[dict[str, Any]], str]:
    """Returns the experiments of a run directory or an experiment file as plain values, and the
    paper of its recipe, if any.
    """
    from fedax.experiments.config.experiment import Experiment
    from fedax.experiments.config.toml import parse_toml
    from fedax.papers.study import PaperDirectory, open_directory

    if path.is_file():
        return [Experiment.read(path).resolved()], ""
    directory = open_directory(path)
    study = parse_toml(directory.study, str(path))
    paper = directory.recipe.paper if isinstance(directory, PaperDirectory) else ""
    return study.get("experiment", [study]), paper


def bibtex(methods: Sequence[str], tasks: Sequence[str] = (), paper: str = "") -> str:
    r"""Returns the entries of algorithms, tasks, a recipe's paper and this library, each with its
    reason.

    An algorithm that the bibliography lacks gets an entry from its citation; a task of the
    user's data gets none.

    >>> print(bibtex(["fedprox"]).splitlines()[0])
    % FedProx
    """
    from fedax.algorithms import algorithm_class

    bibliography = entries()
    blocks = []
    # by entry, what it is cited for: several methods may share a paper
    reasons: dict[Entry, list[str]] = {}
    for kind, names in (("algorithm", methods), ("task", tasks)):
        for name in names:
            if is_user_code(kind, name):
                blocks.append(
                    f"% {name.rpartition(':')[2]}: your own code ({name}), which has no entry here"
                )
                continue
            cited = [entry for entry in bibliography if name.lower() in entry.names]
            title = f"data: {name}"
            if kind == "algorithm":
                method = algorithm_class(name)
                title = method.__name__
                # a method without an entry has at least this one
                text = f"@misc{{{name},\n  note = {{{method.citation.paper}}}\n}}"
                cited = cited or [Entry(name, text, frozenset())]
            for entry in cited:
                reasons.setdefault(entry, []).append(title)
    # the number of an arXiv paper, by which its entry is found
    if number := re.search(r"\d{4}\.\d{5}", paper):
        for entry in bibliography:
            if number[0] in entry.text:
                reasons.setdefault(entry, []).append("the recipe")
    for entry, titles in reasons.items():
        blocks.append(f"% {', '.join(titles)}\n{entry.text}")
    return "\n\n".join([*blocks, FEDAX])
