"""Agreement of public CI, citation, templates and checks before a commit with the package."""

import ast
import contextlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest
import yaml

from sources import own_files

ROOT = Path(__file__).parent.parent
COMMAND = re.compile(r"(?:taskset -c 0 )?(?:\S*/)?python \S+\.py")


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


def test_the_public_ci_runs_the_one_job_on_the_oldest_python(project):
    job = read(".github/workflows/ci.yml")["jobs"]["everything"]
    assert f">={job['strategy']['matrix']['python'][0]}" == project["requires-python"]
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    parts = read(".github/workflows/ci.yml")["jobs"]["part"]
    assert parts["strategy"]["matrix"]["part"] == list(range(1, 25))
    assert [step["run"] for step in parts["steps"] if "run" in step] == [
        "make slow OF=${{ matrix.part }}/24"
    ]


def test_the_parts_are_all_of_it(pytestconfig):
    """Every slow test is in one of the 24 parts."""
    conftest = pytestconfig.pluginmanager.get_plugin(str(ROOT / "tests" / "conftest.py"))
    nodes = [f"tests/laws/test_laws.py::test_it[{name}]" for name in ("FedAvg", "FedBC", "GD")] + [
        "tests/a.py::test_b"
    ]
    found = []
    for part in range(1, 25):
        left = [types.SimpleNamespace(nodeid=node) for node in nodes]
        conftest.leave_part(f"{part}/24", left)
        found += [item.nodeid for item in left]
    assert sorted(found) == sorted(nodes)


def test_ci_runs_targets_that_there_are():
    """And `make help` lists every target."""
    makefile = (ROOT / "Makefile").read_text()
    described = set(re.findall(r"^([a-z-]+):.*## ", makefile, flags=re.MULTILINE))
    assert described == set(re.search(r"\.PHONY: (.*)", makefile)[1].split())
    assert {"lint", "wheel", "test", "pages", "check"} <= targets_of_ci() <= described


def targets_of_ci():
    """Returns the targets of make that `.ci/run` makes."""
    lines = re.findall(
        r"\bmake ([^;\n]+)", (ROOT / ".ci" / "run").read_text().partition("set -e")[2]
    )
    words = {word for line in lines for word in line.split()}
    return {word for word in words if re.fullmatch("[a-z-]+", word) and word[0] != "-"}


def test_checks_before_a_commit_are_those_of_make_check():
    """The same programs from the same environment, so that their versions are the pinned ones."""
    makefile = (ROOT / "Makefile").read_text()
    (repository,) = read(".pre-commit-config.yaml")["repos"]
    programs = [hook["entry"].split()[0] for hook in repository["hooks"]]
    assert repository["repo"] == "local"
    assert programs == [
        ".venv/bin/ruff",
        ".venv/bin/ruff",
        ".venv/bin/lint-imports",
        ".venv/bin/pyright",
    ]
    for program in programs:
        assert f"\t$(BIN)/{Path(program).name}" in makefile


def test_templates_have_what_the_host_asks_for():
    templates = [
        path
        for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")
        if path.name != "config.yml"
    ]
    assert len(templates) == 2
    for path in templates:
        form = read(path.relative_to(ROOT))
        assert form["name"]
        assert form["description"]
        assert all(field["attributes"]["label"] for field in form["body"])


NAMED = ("pyproject.toml", "CITATION.cff", "mkdocs.yml", "README.md")


def test_no_file_names_an_address_of_the_project(project):
    """None is known to belong to it. Links to others are to packages and papers."""
    assert "urls" not in project
    for name in (*NAMED, "SECURITY.md", "CONTRIBUTING.md", ".github/ISSUE_TEMPLATE/config.yml"):
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


STUB = """#!/bin/sh
echo "$(basename "$0") $*" >> "{log}"
case "$1 $2" in
  --version*) echo "Python {version}" ;;
  *version_info*) exit {too_old} ;;
  *ensurepip*) exit {no_venv} ;;
  "-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  "venv "*) mkdir -p "{venv}/bin" && cp "$0" "{venv}/bin/python" ;;
esac
"""


@pytest.fixture
def machine(tmp_path):
    """A machine with some interpreters: runs make there, returns its result and what was called."""

    def run(*interpreters, make=(), no_venv=()):
        commands, log, venv = tmp_path / "bin", tmp_path / "log", tmp_path / ".venv"
        commands.mkdir()
        log.touch()
        for name in ("sh", "sed", "awk", "touch", "mkdir", "cp", "basename", "dirname", "cat"):
            (commands / name).symlink_to(shutil.which(name))
        for name, version in interpreters:
            too_old = int(tuple(map(int, version.split(".")[:2])) < (3, 11))
            stub = STUB.format(
                log=log, venv=venv, version=version, too_old=too_old, no_venv=int(name in no_venv)
            )
            (commands / name).write_text(stub)
            (commands / name).chmod(0o755)
        command = [shutil.which("make"), f"VENV={venv}", *make, f"{venv}/.ready"]
        environment = {"PATH": str(commands), "HOME": str(tmp_path)}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        assert (venv / ".ready").exists() is (done.returncode == 0)
        return done, [
            line
            for line in log.read_text().splitlines()
            if " -m " in line or line.startswith("uv ")
        ]

    return run


@pytest.mark.parametrize(
    ("interpreters", "chosen"),
    [
        ([("python3.11", "3.11.9")], "python3.11"),
        ([("python3", "3.12.1")], "python3"),
        ([("python3", "3.10.12"), ("python3.12", "3.12.1")], "python3.12"),
        ([("python3.11", "3.11.9"), ("python3.14", "3.14.0"), ("python3", "3.11.9")], "python3.14"),
        ([("python3.14", "2.7.18"), ("python", "3.13.2")], "python"),
    ],
)
def test_make_finds_an_interpreter(interpreters, chosen, machine, tmp_path):
    done, calls = machine(*interpreters)
    assert done.returncode == 0, done.stderr
    assert calls[0] == f"{chosen} -m venv {tmp_path}/.venv"
    assert calls[1].startswith("python -m pip ")
    assert calls[1].endswith("--constraint constraints.txt --editable .")


@pytest.mark.parametrize(
    ("interpreters", "options", "message"),
    [
        ([], {}, "fedax needs Python 3.11 or newer, and there is none on PATH. Install one, or uv"),
        (
            [("python3", "3.10.12")],
            {},
            "there is none on PATH. python3 is Python 3.10.12. Install one",
        ),
        (
            [("python3", "3.12.1")],
            {"no_venv": ["python3"]},
            "no module venv (on Debian and Ubuntu: apt install python3-venv)",
        ),
        (
            [("mine", "3.9.2")],
            {"make": ["PYTHON=mine"]},
            "mine is Python 3.9.2; fedax needs Python 3.11 or newer.",
        ),
        ([("python3", "3.12.1")], {"make": ["PYTHON=mine"]}, "There is no mine that runs."),
    ],
)
def test_make_says_what_is_missing(interpreters, options, message, machine):
    done, calls = machine(*interpreters, **options)
    assert done.returncode != 0
    assert message in done.stderr
    assert calls == []


@pytest.mark.parametrize("version", ["3.10.12", "3.12.1"])
def test_make_uses_uv_which_downloads_an_interpreter_if_needed(version, machine, tmp_path):
    done, calls = machine(("uv", "0.9.0"), ("python3", version))
    assert done.returncode == 0, done.stderr
    python = "python3" if version == "3.12.1" else ">=3.11"
    assert calls[0] == f"uv venv --quiet --allow-existing --seed --python {python} {tmp_path}/.venv"
    assert (
        calls[1] == f"uv pip install --quiet --python {tmp_path}/.venv/bin/python --constraint "
        "constraints.txt --editable ."
    )


def test_the_wheel_is_tried_without_pinned_versions():
    """With the newest ones in every CI run, with the oldest ones before a release."""
    assert "wheel" in targets_of_ci()
    assert "\t.ci/wheel newest\n" in (ROOT / "Makefile").read_text()
    assert "\n.ci/wheel oldest\n" in (ROOT / ".ci" / "release-check").read_text()
    script = (ROOT / ".ci" / "wheel").read_text()
    assert "--constraint" not in script
    assert all(command in script for command in ("fedax --help", "fedax compare", "fedax report"))


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


@pytest.mark.parametrize("path", own_files("benchmarks"), ids=lambda path: path.stem)
def test_each_command_of_a_benchmark_has_a_line(path):
    """Lines of an indented block in a module's docstring begin with a command."""
    told = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")), clean=False) or ""
    lines = [line.strip() for line in told.splitlines() if line.startswith("    ")]
    assert [line for line in lines if not COMMAND.match(line)] == []
    assert [line for line in lines if len(COMMAND.findall(line)) > 1] == []
