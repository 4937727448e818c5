"""Declared dependencies."""

import ast
import contextlib
import importlib.metadata
import re
import sys
import tomllib

from sources import ROOT, own_files


def imports(path):
    """The packages that a file imports, at any place in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield str(node.module).partition(".")[0]


def distribution(requirement):
    return re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-").replace(".", "-")


def test_what_is_imported_is_declared_and_the_other_way_round():
    """A package that only others need may go with their next version, as `click` went with Typer's.

    Those of a requirement whose version is fixed may be used too: what Flower's server is made of.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
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
    owners = importlib.metadata.packages_distributions()
    imported = set()
    for path in own_files("src"):
        for name in set(imports(path)) - sys.stdlib_module_names - {"fedax"}:
            own = {distribution(owner) for owner in owners.get(name, [name])}
            assert own & known, f"{path}: {name} is imported and not declared"
            imported |= own
    assert needed <= imported, f"declared and not imported: {needed - imported}"
