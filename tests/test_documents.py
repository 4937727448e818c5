"""README, CONTRIBUTING and guides: their examples work, and their prose follows the house style."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sources import own_files

ROOT = Path(__file__).parent.parent


def python_blocks(name):
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("number", range(len(python_blocks("README.md"))))
def test_readme_examples_run(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(
        compile(python_blocks("README.md")[number], f"README.md block {number}", "exec"),
        {"__name__": "readme"},
    )


GUIDES = sorted(
    str(path.relative_to(ROOT))
    for path in own_files("docs", suffix=".md")
    if path.parent.relative_to(ROOT / "docs").as_posix() in (".", "guides", "project")
)
TUTORIALS = [str(path.relative_to(ROOT)) for path in own_files("docs/tutorials")]
"""Notebooks, which run when the site is built (tests/site)."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("guide", "number"), [(g, i) for g in GUIDES for i in range(len(python_blocks(g)))]
)
def test_examples_of_guides_run(guide, number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(
        compile(python_blocks(guide)[number], f"{guide} block {number}", "exec"),
        {"__name__": "guide"},
    )


def test_guides_name_what_exists():
    """Every `fedax.Name` in a document is there."""
    import fedax

    for guide in ("README.md", "CONTRIBUTING.md", *GUIDES, *TUTORIALS):
        for name in re.findall(r"fedax\.([A-Z]\w+)", (ROOT / guide).read_text()):
            assert hasattr(fedax, name) or name == "FedHalf", f"{guide}: fedax.{name}"


def test_contributing_example_is_an_algorithm(tmp_path):
    import fedax
    from fedax.algorithms import make_algorithm
    from problems import regression, vector

    text = python_blocks("CONTRIBUTING.md")[0]
    space = {}
    exec(text, space)
    options = {
        "rounds": 2,
        "schedule": fedax.Schedule(steps=2, batch_size="full"),
        "observe_every": 2,
    }
    half = fedax.run(space["FedHalf"](lr=1.0), regression(), **options)
    assert (
        abs(
            vector(half) - vector(fedax.run(make_algorithm("fedavg"), regression(), **options))
        ).max()
        < 1e-14
    )
    path = tmp_path / "fedhalf.py"
    path.write_text(text)
    for check in (["check"], ["format", "--check"]):
        subprocess.run(
            [
                sys.executable,
                "-m",
                "ruff",
                *check,
                "--config",
                str(ROOT / "pyproject.toml"),
                str(path),
            ],
            check=True,
        )


def test_contributing_example_is_a_sampling_rule():
    import fedax
    from fedax.core.scheduling.sampling import SAMPLING
    from problems import regression, vector

    space = {}
    try:
        exec(python_blocks("CONTRIBUTING.md")[1], space)
        schedule = fedax.Schedule(cohort=2, sampling="first_clients")
    finally:
        SAMPLING.pop("first_clients", None)
    options = {"rounds": 1, "solver": fedax.SGD(0.1)}
    half = fedax.run(fedax.FedAvg(), regression(), schedule=schedule, **options)
    whole = fedax.run(fedax.FedAvg(), regression(), schedule=fedax.Schedule(), **options)
    assert abs(vector(half) - vector(whole)).max() > 1e-6


def test_readme_names_the_two_commands():
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    assert pictures
    assert all((ROOT / path).exists() for path in pictures)


def helped():
    import fedax
    import fedax.graphs
    import fedax.models
    import fedax.observe
    import fedax.tasks

    return [fedax, fedax.tasks, fedax.observe, fedax.models, fedax.codecs, fedax.graphs]


@pytest.mark.parametrize("module", helped(), ids=lambda module: module.__name__)
def test_help_lists_every_public_name(module):
    """Without a name that is not there; submodules of a package count where they are imported by
    name."""
    exported = re.findall(
        r"^from .* import (\w+) as \1$", inspect.getsource(module), flags=re.MULTILINE
    )
    own = [
        name
        for name, value in vars(module).items()
        if getattr(value, "__module__", "") == module.__name__
    ]
    constants = re.findall(
        r"^([A-Z][A-Z_]+)(?:: .*)? = ", inspect.getsource(module), flags=re.MULTILINE
    )
    listed = set(re.findall(r"`(?:Graph\.)?(\w+)`", module.__doc__))
    assert {
        name for name in (*exported, *own, *constants) if not name.startswith("_")
    } - listed == set()
    assert {
        name
        for name in listed
        if not hasattr(module, name) and not hasattr(getattr(module, "Graph", None), name)
    } == set()


def test_guarantees_name_tests_that_exist():
    """Every `path::test` of docs/guarantees.md is a test."""
    named = re.findall(
        r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs" / "guarantees.md").read_text()
    )
    assert len(named) > 20
    missing = [
        f"{path}::{test}" for path, test in named if f"def {test}(" not in (ROOT / path).read_text()
    ]
    assert missing == []
