"""The citation, the address at release, the wheel, and declared dependencies."""

import ast
import contextlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from sources import own_files

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def read(name):
    return yaml.safe_load((ROOT / name).read_text())


def test_the_citation_is_of_this_package(project):
    citation = read("CITATION.cff")
    known = {
        "title": "name",
        "version": "version",
        "license": "license",
        "abstract": "description",
        "keywords": "keywords",
    }
    assert {field: citation[field] for field in known} == {
        field: project[name] for field, name in known.items()
    }


NAMED = ("pyproject.toml", "CITATION.cff", "mkdocs.yml", "README.md")


def test_no_file_names_an_address_of_the_project(project):
    """None is known to belong to it. Links to others are to packages and papers."""
    assert "urls" not in project
    for name in (*NAMED, "SECURITY.md", "CONTRIBUTING.md"):
        text = (ROOT / name).read_text()
        assert re.findall(r"https?://\S*fedax\S*", text) == [], name


def test_the_address_is_written_at_release(tmp_path):
    for name in NAMED:
        shutil.copy(ROOT / name, tmp_path / name)
    command = [sys.executable, ROOT / ".ci" / "address"]
    address = "https://host.example/owner/fedax"
    assert (
        subprocess.run(
            [*command, "host.example"], cwd=tmp_path, check=False, capture_output=True
        ).returncode
        == 1
    )
    for _ in range(2):  # a second time changes nothing
        subprocess.run([*command, address], cwd=tmp_path, check=True, capture_output=True)
        texts = {name: (tmp_path / name).read_text() for name in NAMED}
        assert tomllib.loads(texts["pyproject.toml"])["project"]["urls"]["Repository"] == address
        assert yaml.safe_load(texts["CITATION.cff"])["repository-code"] == address
        assert f"repo_url: {address}\n" in texts["mkdocs.yml"]
        links = re.findall(r"\]\(([^)]+)\)", texts["README.md"])
        assert links
        assert all(link.startswith(("https://", "#")) for link in links)
        assert f"{address}/raw/main/docs/first.png" in links


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
