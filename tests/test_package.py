"""The wheel, and declared dependencies."""

import ast
import contextlib
import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib

import pytest

from sources import ROOT, own_files


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize(("native", "extensions"), [("0", 0), ("", 1)])
def test_a_pure_wheel_has_no_extension(native, extensions):
    """In a process, because setuptools replaces modules that others have imported."""
    program = (
        "import runpy, setuptools; found = {}; "
        "setuptools.setup = lambda **options: found.update(options); "
        "runpy.run_path('setup.py'); print(len(found['ext_modules']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=os.environ | {"FEDAX_NATIVE": native},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) == extensions


def imports(path):
    """The packages that a file imports, at any place in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield str(node.module).partition(".")[0]


def distribution(requirement):
    return re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-").replace(".", "-")


def test_what_is_imported_is_declared_and_the_other_way_round(project):
    """A package that only others need may go with their next version, as `click` went with Typer's.

    Those of a requirement whose version is fixed may be used too: what Flower's server is made of.
    """
    needed = {distribution(each) for each in project["dependencies"]}
    extras = [
        each
        for name in project["optional-dependencies"]
        for each in project["optional-dependencies"][name]
    ]
    fixed = [distribution(each) for each in extras if "==" in each]
    known = needed | {distribution(each) for each in extras}
    for name in fixed:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            known |= {distribution(each) for each in importlib.metadata.requires(name) or ()}
    owners, imported = importlib.metadata.packages_distributions(), set()
    for path in own_files("src"):
        for name in set(imports(path)) - sys.stdlib_module_names - {"fedax"}:
            own = {distribution(owner) for owner in owners.get(name, [name])}
            assert own & known, f"{path}: {name} is imported and not declared"
            imported |= own
    assert needed <= imported, f"declared and not imported: {needed - imported}"
