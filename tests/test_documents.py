"""What README and CONTRIBUTING say works."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def python_blocks(name):
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("number", range(len(python_blocks("README.md"))))
def test_readme_examples_run(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(python_blocks("README.md")[number], f"README.md block {number}", "exec"), {"__name__": "readme"})


GUIDES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize(("guide", "number"), [(g, i) for g in GUIDES for i in range(len(python_blocks(g)))])
def test_examples_of_guides_run(guide, number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(python_blocks(guide)[number], f"{guide} block {number}", "exec"), {"__name__": "guide"})


def test_guides_name_what_exists():
    """Every `fedax.Name` in a document is there."""
    import fedax

    for guide in ("README.md", "CONTRIBUTING.md", *GUIDES):
        for name in re.findall(r"fedax\.([A-Z]\w+)", (ROOT / guide).read_text()):
            assert hasattr(fedax, name) or name == "FedHalf", f"{guide}: fedax.{name}"


def test_contributing_example_is_an_algorithm(tmp_path):
    import fedax
    from fedax.algorithms import make
    from problems import regression, vector

    (text,) = python_blocks("CONTRIBUTING.md")
    space = {}
    exec(text, space)
    options = {"rounds": 2, "schedule": fedax.Schedule(steps=2, batch_size="full"), "observe_every": 2}
    half = fedax.run(space["FedHalf"](lr=1.0), regression(), **options)
    assert abs(vector(half) - vector(fedax.run(make("fedavg"), regression(), **options))).max() < 1e-14
    path = tmp_path / "fedhalf.py"
    path.write_text(text)
    for check in (["check"], ["format", "--check"]):
        subprocess.run(
            [sys.executable, "-m", "ruff", *check, "--config", str(ROOT / "pyproject.toml"), str(path)], check=True
        )


def test_readme_names_the_two_commands():
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    assert pictures
    assert all((ROOT / path).exists() for path in pictures)
