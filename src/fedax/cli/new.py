"""`fedax new`: skeletons of an algorithm with its test, and of an experiment file."""

import ast
import importlib.metadata
import importlib.util
import keyword
import re
import shlex
import sys
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from fedax.cli.command import Command, next_step, shell
from fedax.errors import InvalidInput, RunExists
from fedax.utils.files import write, writing

FAMILIES = ("server", "personalized", "decentralized")
"""Skeletons of algorithms, by family."""

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Write the skeleton of an algorithm or an experiment.",
)


@app.command(cls=Command)
def algorithm(
    name: Annotated[str, typer.Argument(help="Of the class, such as FedHalf.", metavar="NAME")],
    family: Annotated[str, typer.Option(help="server, personalized or decentralized.")] = "server",
    folder: Annotated[
        Path | None,
        typer.Option(help="For both files.", show_default="the checkout here, or this folder"),
    ] = None,
) -> None:
    """Write an algorithm of 30 lines that runs, and its test.

    Example: `fedax new algorithm FedHalf`
    """
    source, test = new_algorithm(name, family, folder)
    typer.echo(f"Algorithm: {source}\nTest: {test}")
    reference = f"{source.as_posix()}:{name}"
    if importlib.util.find_spec("pytest") is None:
        install = shlex.join([sys.executable, "-m", "pip", "install", "pytest"])
        typer.echo(f"Install pytest: {install}")
    typer.echo(f"Run it: {shlex.join([sys.executable, '-m', 'pytest', str(test)])}")
    typer.echo(f"Compare it: {shell('compare', 'fedavg', reference)}")
    if "src" in source.parts:
        typer.echo("Found and listed from now on; CONTRIBUTING.md says what else belongs to it.")
    next_step("checks it against the laws.", "check", reference)


@app.command(cls=Command)
def experiment(
    file: Annotated[Path, typer.Argument(help="File to write.", metavar="FILE.toml")] = Path(
        "experiment.toml"
    ),
) -> None:
    """Write an experiment file with comments.

    Example: `fedax new experiment mine.toml`
    """
    (written,) = new_experiment(file)
    typer.echo(f"Experiment: {written}\nCheck it: {shell('validate', written)}")
    next_step("runs it.", "run", written)


def new_algorithm(name: str, family: str, folder: Path | None) -> list[Path]:
    """Writes an algorithm and its test; below a checkout into its family, where it is found, else
    into `folder`.

    Args:
        name: of the class: letters and digits, a capital first, such as `FedHalf`. In lower case it
            names the module, so that keywords and modules that there are already cannot be.
        family: one of `FAMILIES`.
        folder: for both files; by default the checkout in the working directory, or the working
            directory itself.

    Raises:
        InvalidInput: a name or family that cannot be.
        RunExists: a file is there already; nothing is written.
    """
    from fedax.algorithms import algorithm_classes

    if not re.fullmatch(r"[A-Z][A-Za-z0-9]*", name):
        raise InvalidInput.of("NAME", name, "letters and digits, a capital first, such as FedHalf")
    if name.lower() in algorithm_classes():
        raise InvalidInput.of("NAME", name, "a name that no algorithm has")
    if family not in FAMILIES:
        raise InvalidInput.of("--family", family, "one of " + ", ".join(FAMILIES))
    _check_free(name, [f"{family}.py.txt", f"test_{family}.py.txt"])
    checkout = Path("src", "fedax", "algorithms", family)
    # in a checkout the files go where algorithms are found by themselves
    in_checkout = folder is None and checkout.is_dir()
    source, tests = (
        (checkout, Path("tests", "closed_forms"))
        if in_checkout
        else (folder or Path(), folder or Path())
    )
    module = f"fedax.algorithms.{family}.{name.lower()}" if in_checkout else name.lower()
    return _write_new(
        {
            source / f"{name.lower()}.py": _fill_skeleton(f"{family}.py.txt", name, module),
            tests / f"test_{name.lower()}.py": _fill_skeleton(
                f"test_{family}.py.txt", name, module
            ),
        }
    )


def new_experiment(file: Path) -> list[Path]:
    """Writes an experiment file with comments; `.toml` is added to a name without it.

    Raises:
        InvalidInput: a path without a name, such as `.`.
        RunExists: it is there already.
    """
    import tomli_w

    if file.name in ("", ".."):
        raise InvalidInput.of("FILE.toml", str(file), "the path of a file, such as mine.toml")
    file = file if file.suffix == ".toml" else file.with_name(f"{file.name}.toml")
    # quotes and backslashes of a file's name have to be escaped
    line = tomli_w.dumps({"name": file.stem}).rstrip("\n")
    return _write_new(
        {file: _read_skeleton("experiment.toml.txt").replace('name = "NAME"', line, 1)}
    )


def _check_free(name: str, skeletons: list[str]) -> None:
    """Refuses a class whose file, import or body would not work.

    Raises:
        InvalidInput: a keyword, a module that is installed, or a name that the skeletons use.
    """
    module = name.lower()
    if keyword.iskeyword(name) or keyword.iskeyword(module):
        raise InvalidInput.of("NAME", name, "a name that is no keyword of Python")
    installed = {"fedax", *sys.stdlib_module_names, *importlib.metadata.packages_distributions()}
    if module in installed:
        got = f"{name}, whose file {module}.py would hide the module {module!r}"
        raise InvalidInput.found("NAME", got, "a name that no installed module has")
    used = {
        node.id
        for skeleton in skeletons
        for node in ast.walk(ast.parse(_read_skeleton(skeleton)))
        if isinstance(node, ast.Name)
    }
    if name in used - {"NAME"}:
        raise InvalidInput.of("NAME", name, "a name that fedax's own classes do not have")


def _read_skeleton(skeleton: str) -> str:
    return files("fedax.cli").joinpath("skeletons", skeleton).read_text(encoding="utf-8")


def _fill_skeleton(skeleton: str, name: str, module: str) -> str:
    return _read_skeleton(skeleton).replace("MODULE", module).replace("NAME", name)


def _write_new(texts: dict[Path, str]) -> list[Path]:
    # all files are checked before one is written
    for file in texts:
        if file.exists():
            raise RunExists(f"{file} is there already; nothing was overwritten.")
    for file, text in texts.items():
        with writing(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            write(file, text)
    return list(texts)
