"""Agreement of public CI, citation, templates and checks before a commit with the package."""

import re
import subprocess
import tomllib
import types
from pathlib import Path

import pytest
import yaml

import conftest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def read(name):
    return yaml.safe_load((ROOT / name).read_text())


def test_the_citation_is_of_this_package(project):
    citation = read("CITATION.cff")
    known = {"title": "name", "version": "version", "license": "license", "abstract": "description", "keywords": "keywords"}
    assert {field: citation[field] for field in known} == {field: project[name] for field, name in known.items()}
    assert citation["repository-code"] == project["urls"]["Source"]


def test_the_public_ci_runs_the_one_job_on_the_oldest_python(project):
    job = read(".github/workflows/ci.yml")["jobs"]["everything"]
    assert f">={job['strategy']['matrix']['python'][0]}" == project["requires-python"]
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    parts = read(".github/workflows/ci.yml")["jobs"]["part"]
    assert parts["strategy"]["matrix"]["part"] == list(range(1, 15))
    assert [step["run"] for step in parts["steps"] if "run" in step] == ["make part PART=${{ matrix.part }}"]


def test_the_parts_are_all_of_it():
    """Laws in twelve parts, every recipe, the deployments."""
    run = [
        subprocess.run(["make", "-n", "part", f"PART={n}"], cwd=ROOT, text=True, capture_output=True).stdout
        for n in range(1, 15)
    ]
    assert ["laws OF=" in text for text in run] == [True] * 12 + [False] * 2
    assert "tests/recipes" in run[12]
    assert "tests/flower/test_deploy.py" in run[13]
    nodes = [f"tests/laws/test_laws.py::test_it[{name}]" for name in ("FedAvg", "FedBC", "GD")] + ["tests/a.py::test_b"]
    found = []
    for part in range(1, 13):
        left = [types.SimpleNamespace(nodeid=node) for node in nodes]
        conftest.leave_part(f"{part}/12", left)
        found += [item.nodeid for item in left]
    assert sorted(found) == sorted(nodes)


def test_ci_runs_targets_that_there_are():
    """And `make help` lists every target."""
    makefile = (ROOT / "Makefile").read_text()
    described = set(re.findall(r"^([a-z-]+):.*## ", makefile, flags=re.MULTILINE))
    assert described == set(re.search(r"\.PHONY: (.*)", makefile)[1].split())
    assert set(re.findall(r"^make ([a-z-]+)", (ROOT / ".ci" / "run").read_text(), flags=re.MULTILINE)) <= described


def test_checks_before_a_commit_are_those_of_make_check():
    """The same programs from the same environment, so that their versions are the pinned ones."""
    makefile = (ROOT / "Makefile").read_text()
    (repository,) = read(".pre-commit-config.yaml")["repos"]
    programs = [hook["entry"].split()[0] for hook in repository["hooks"]]
    assert repository["repo"] == "local"
    assert programs == [".venv/bin/ruff", ".venv/bin/ruff", ".venv/bin/lint-imports", ".venv/bin/pyright"]
    for program in programs:
        assert f"\t$(BIN)/{Path(program).name}" in makefile


def test_templates_have_what_the_host_asks_for():
    templates = [path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml"]
    assert len(templates) == 2
    for path in templates:
        form = read(path.relative_to(ROOT))
        assert form["name"]
        assert form["description"]
        assert all(field["attributes"]["label"] for field in form["body"])


def test_one_address(project):
    home = project["urls"]["Source"]
    for name in ("SECURITY.md", ".github/ISSUE_TEMPLATE/config.yml", "CITATION.cff"):
        for address in re.findall(r"https://github\.com/[\w/.-]+", (ROOT / name).read_text()):
            assert address.startswith(home)
