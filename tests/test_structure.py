"""The laws of the layout: known names, documented public names, imports."""

import ast
import builtins
import inspect
import re
import subprocess
import sys
from typing import get_args

import pytest

from fedax.core.algorithm import Reading
from problems import all_algorithms, named
from sources import own_files


def unknown_names(source):
    """Names that are read but bound nowhere in a module; texts are not looked at, where the shapes
    of arrays stand."""
    bound = {*vars(builtins), "__file__", "__doc__", "__path__"}
    read = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                read.add(name)
            case ast.Name(id=name) | ast.arg(arg=name) | ast.ClassDef(name=name):
                bound.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                bound.add(name)
            case ast.alias(name=name, asname=other):
                bound.add(other or name.split(".")[0])
            case ast.ExceptHandler(name=name) | ast.MatchAs(name=name) | ast.MatchStar(name=name):
                bound.add(name)
            case ast.MatchMapping(rest=name):
                bound.add(name)
    return sorted(read - bound)


def test_all_names_are_known():
    """Linters cannot tell: they would take the shapes in texts, such as `Float[Array, "clients"]`,
    for names."""
    files = own_files("src", "tests", "benchmarks", "docs")
    assert len(files) > 400
    assert {str(path): names for path in files if (names := unknown_names(path.read_text()))} == {}


@pytest.mark.parametrize("kind", all_algorithms(), ids=named)
def test_algorithms_say_where_they_come_from(kind):
    text = inspect.getdoc(kind)
    assert "Source: " in text
    assert kind.citation.paper
    assert set(kind.citation.read) <= set(get_args(Reading))


def public_objects():
    import fedax.core
    import fedax.data
    import fedax.graphs
    import fedax.models
    import fedax.observe
    import fedax.tasks
    import fedax.theory

    theory = [
        module
        for name, module in vars(fedax.theory).items()
        if inspect.ismodule(module) and name[0] != "_"
    ]
    named = (
        fedax.attacks,
        fedax.codecs,
        fedax.graphs,
        fedax.models,
        fedax.observe,
        fedax.privacy,
        fedax.tasks,
    )
    places = (fedax, fedax.core, fedax.data, *named, *theory)
    for module in places:
        for name in getattr(module, "__all__", dir(module)):
            member = getattr(module, name)
            home = getattr(member, "__module__", None) or ""
            ours = home.startswith("fedax.") and "._" not in home
            if (
                not name.startswith("_")
                and ours
                and (inspect.isclass(member) or inspect.isfunction(member))
            ):
                yield f"{module.__name__}.{name}", member


def test_every_public_name_is_documented():
    missing = set()
    for name, member in public_objects():
        if not inspect.getdoc(member):
            missing.add(name)
        # the class says what their work functions do
        if inspect.isclass(member) and member not in all_algorithms():
            missing |= {
                f"{name}.{attribute}"
                for attribute, value in vars(member).items()
                if inspect.isfunction(value)
                and not attribute.startswith("_")
                and not inspect.getdoc(getattr(member, attribute))
            }
    assert missing == set()


def parameters_of(member):
    """The names of its arguments, but for those that are not public or collect others."""
    try:
        found = inspect.signature(member).parameters.values()
    except (TypeError, ValueError):
        return []
    collecting = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
    return [
        one.name for one in found if one.kind not in collecting and not one.name.startswith("_")
    ]


def test_every_parameter_is_in_its_docstring():
    """So that `pydoc` of a public name says all; a name in a formula or a heading counts."""
    missing = [
        f"{name}({parameter})"
        for name, member in public_objects()
        for parameter in parameters_of(member)
        if not re.search(rf"(?<!\w){parameter}(?!\w)", inspect.getdoc(member))
    ]
    assert missing == []


def imports_of(path):
    """The names that a file imports, also within functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_one_module_imports_what_jax_does_not_promise():
    private = ("jax._src", "jax.extend", "jax.interpreters")
    found = {
        path.name
        for path in own_files("src")
        for name in imports_of(path)
        if any(f"{name}.".startswith(f"{room}.") for room in private)
    }
    assert found == {"jax_internals.py"}


def test_nothing_is_imported_that_flower_does_not_promise():
    """Flower's public modules, and its version."""
    names = {
        name
        for path in own_files("src")
        for name in imports_of(path)
        if f"{name}.".startswith("flwr.")
    }
    public = ("flwr.app", "flwr.clientapp", "flwr.serverapp")
    assert {name for name in names if not name.startswith(public)} == {"flwr"}


def test_slow_imports_are_made_on_demand():
    """The command line starts without what only some commands need."""
    slow = ["scipy.stats", "scipy.optimize", "sklearn", "optimistix", "matplotlib", "jinja2"]
    code = f"import sys, fedax.cli; print([name for name in {slow} if name in sys.modules])"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )


def test_help_and_complaints_of_the_command_line_come_without_jax():
    code = (
        "import sys; from typer.testing import CliRunner; from fedax.cli import app\n"
        "for words in (['--help'], ['--version'], ['run', '--hlep'], ['resume'], ['rnu'], "
        "['data', '--help'], ['deploy', '-x']):\n"
        "    print(CliRunner().invoke(app, words).exit_code, 'jax' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert done == "0 False\n" * 2 + "2 False\n" * 3 + "0 False\n" + "2 False\n"
