"""`fedax new`: skeletons of an algorithm with its test, and of an experiment file."""

import keyword
import re
import shlex
import sys
from importlib.metadata import packages_distributions
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from typer import Argument, Option, Typer, echo

from fedax.cli.command import Command, Commands, next_step, shell
from fedax.errors import InvalidInput, RunExists
from fedax.utils.files import write

FAMILIES = ("server", "personalized", "decentralized")
"""Skeletons of algorithms, by family."""

app = Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Write the skeleton of an algorithm or an experiment.",
)


@app.command(cls=Command)
def algorithm(
    name: Annotated[str, Argument(help="Of the class, such as FedHalf.", metavar="NAME")],
    family: Annotated[str, Option(help="server, personalized or decentralized.")] = "server",
    folder: Annotated[
        Path | None,
        Option(help="For both files.", show_default="the checkout here, or this folder"),
    ] = None,
) -> None:
    """Write an algorithm of 30 lines that runs, and its test.

    In a checkout of fedax both go to where algorithms and tests are found.

    Example: `fedax new algorithm FedHalf`
    """
    _check_name(name)
    if family not in FAMILIES:
        raise InvalidInput.of("--family", family, f"one of {', '.join(FAMILIES)}")
    module = name.lower()
    source = tests = folder or Path()
    checkout = Path("src", "fedax", "algorithms", family)
    if folder is None and checkout.is_dir():
        module = f"fedax.algorithms.{family}.{module}"
        source = checkout
        tests = Path("tests", "closed_forms")
    file = source / f"{name.lower()}.py"
    test = tests / f"test_{name.lower()}.py"
    _write_new(
        {
            path: _skeleton(f"{kind}.py").replace("MODULE", module).replace("NAME", name)
            for path, kind in ((file, family), (test, f"test_{family}"))
        }
    )
    echo(f"Algorithm: {file}\nTest: {test}")
    echo(f"Run it (needs pytest): {shlex.join([sys.executable, '-m', 'pytest', str(test)])}")
    if source == checkout:
        echo("Found and listed from now on; CONTRIBUTING.md says what else belongs to it.")
    next_step("checks it against the laws.", "check", f"{file.as_posix()}:{name}")


@app.command(cls=Command)
def experiment(
    file: Annotated[Path, Argument(help="File to write.", metavar="FILE.toml")] = Path(
        "experiment.toml"
    ),
) -> None:
    """Write an experiment file with comments.

    Example: `fedax new experiment mine.toml`
    """
    import tomli_w

    if file.suffix != ".toml":
        raise InvalidInput.of("FILE.toml", str(file), "names that end in .toml")
    # quotes and backslashes of a file's name have to be escaped
    line = tomli_w.dumps({"name": file.stem}).rstrip("\n")
    _write_new({file: _skeleton("experiment.toml").replace('name = "NAME"', line, 1)})
    echo(f"Experiment: {file}\nCheck it: {shell('validate', file)}")
    next_step("runs it.", "run", file)


def _check_name(name: str) -> None:
    """Refuses a class whose file, import or body would not work.

    Raises:
        InvalidInput: no name of a class, a keyword, a module that is installed, or a name that
            fedax has.
    """
    import fedax

    module = name.lower()
    if not re.fullmatch(r"[A-Z][A-Za-z0-9]*", name):
        raise InvalidInput.of("NAME", name, "letters and digits, a capital first, such as FedHalf")
    taken = {*keyword.kwlist, *sys.stdlib_module_names, *packages_distributions(), *dir(fedax)}
    if module in map(str.lower, taken):
        allowed = "a name that neither Python nor fedax nor an installed module has"
        raise InvalidInput.found("NAME", f"{name}, whose file is {module}.py", allowed)


def _skeleton(name: str) -> str:
    return files("fedax.cli").joinpath("skeletons", f"{name}.txt").read_text(encoding="utf-8")


def _write_new(texts: dict[Path, str]) -> None:
    # all files are checked before one is written
    for file in texts:
        if file.exists():
            raise RunExists(f"{file} is there already; nothing was overwritten.")
    for file, text in texts.items():
        write(file, text)
