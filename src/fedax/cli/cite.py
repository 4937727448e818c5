"""`fedax cite`: BibTeX for what runs used."""

import re
from collections.abc import Iterable, Sequence
from importlib.metadata import metadata
from importlib.resources import files
from pathlib import Path
from typing import Annotated, NamedTuple

from typer import Argument, echo

import fedax
from fedax.cli.command import next_step
from fedax.utils.plugins import is_user_code, title_of

AUTHORS = "The fedax contributors"


def cite(
    runs: Annotated[
        list[Path], Argument(help="Run directories or experiment files.", metavar="RUN...")
    ],
) -> None:
    """Print BibTeX for what runs used.

    Entries are papers of the methods, data sets, the recipe's paper, and fedax.

    Example: `fedax cite runs/demo`
    """
    # of each run, its algorithms, its tasks and the paper of its recipe
    methods, tasks, papers = zip(*map(list_sources, runs), strict=True)
    unique_methods = _unique(name for names in methods for name in names)
    unique_tasks = _unique(name for names in tasks for name in names)
    echo(bibtex(unique_methods, unique_tasks, " ".join(papers)))
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
    bibliography = []
    # an entry ends with a brace at the beginning of a line
    for match in re.finditer(r"^@\w+\{(\w+),\n(.*?)^\}", text, flags=re.DOTALL | re.MULTILINE):
        # the keywords are names of algorithms and tasks; they are not printed
        line = re.search(r"  keywords = \{(.*)\},\n", match[2])
        names = frozenset(line[1].split(", ")) if line else frozenset()
        bibliography.append(
            Entry(match[1], match[0].replace(line[0], "") if line else match[0], names)
        )
    return bibliography


def list_sources(path: Path) -> tuple[list[str], list[str], str]:
    """Returns the names of a run's algorithms and tasks, and the paper of its recipe, if any.

    Args:
        path: a run directory or an experiment file.
    """
    from fedax.experiments.config.experiment import Experiment
    from fedax.experiments.results.store import RunDirectory

    if path.is_file():
        experiments, paper = [Experiment.read(path)], ""
    else:
        directory = RunDirectory.load(path)
        experiments, paper = directory.experiments, directory.study.paper if directory.study else ""
    names = [section.name for experiment in experiments for section in experiment.algorithm]
    methods = [name if is_user_code("algorithm", name) else name.lower() for name in names]
    return _unique(methods), _unique(experiment.task.name for experiment in experiments), paper


def bibtex(methods: Sequence[str], tasks: Sequence[str] = (), paper: str = "") -> str:
    r"""Returns the entries of algorithms, tasks, a recipe's paper and this library, each with its
    reason.

    An algorithm that the bibliography lacks gets an entry from its card; a task of the user's data
    gets none.

    >>> print(bibtex(["fedprox"]).splitlines()[0])
    % FedProx
    """
    from fedax.algorithms import algorithm_classes

    # by entry, what it is cited for: several methods may share a paper
    bibliography, blocks, reasons = entries(), [], {}
    for name in (*methods, *tasks):
        if is_user_code("algorithm" if name in methods else "task", name):
            blocks.append(f"% {title_of(name)}: your own code ({name}), which has no entry here")
            continue
        title = algorithm_classes()[name].__name__ if name in methods else f"data: {name}"
        cited = [entry for entry in bibliography if name in entry.names]
        # a method without an entry has at least its card
        if not cited and name in methods:
            cited = [
                Entry(
                    name,
                    f"@misc{{{name},\n  note = {{{algorithm_classes()[name].card.paper}}}\n}}",
                    frozenset(),
                )
            ]
        for entry in cited:
            reasons.setdefault(entry, []).append(title)
    # the number of an arXiv paper, by which its entry is found
    number = re.search(r"\d{4}\.\d{5}", paper)
    for entry in bibliography if number else ():
        if number and number[0] in entry.text:
            reasons.setdefault(entry, []).append("the recipe")
    for entry, titles in reasons.items():
        blocks.append(f"% {', '.join(titles)}\n{entry.text}")
    return "\n\n".join([*blocks, _fedax_entry()])


def _fedax_entry() -> str:
    fields = {
        "author": f"{{{AUTHORS}}}",
        "title": "fedax: federated optimization in {JAX}",
        "version": fedax.__version__,
    }
    if address := _repository_url():
        fields["url"] = address
    lines = ",\n".join(f"  {name} = {{{value}}}" for name, value in fields.items())
    return f"% the library\n@software{{fedax,\n{lines}\n}}"


def _repository_url() -> str | None:
    """Returns the address of the repository that the installed package names, if it names one."""
    urls = metadata("fedax").get_all("Project-URL") or []
    return dict(entry.split(", ", 1) for entry in urls).get("Repository")


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
