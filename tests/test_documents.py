"""What README and CONTRIBUTING say works."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def python_blocks(name):
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("number", range(len(python_blocks("README.md"))))
def test_readme_examples_run(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(python_blocks("README.md")[number], f"README.md block {number}", "exec"), {"__name__": "readme"})


def test_contributing_example_is_an_algorithm():
    import fedax
    from fedax.algorithms import make
    from problems import regression, vector

    head = (
        "from typing import ClassVar\n"
        "from fedax.core import Algorithm, Card, Client, Federation, Phase, Reduction, Scalar, Upload, Vector, hyper\n"
    )
    space = {}
    exec(head + python_blocks("CONTRIBUTING.md")[0], space)
    options = {"rounds": 2, "schedule": fedax.Schedule(steps=2, batch_size="full"), "observe_every": 2}
    half = fedax.run(space["FedHalf"](lr=1.0), regression(), **options)
    assert abs(vector(half) - vector(fedax.run(make("fedavg"), regression(), **options))).max() < 1e-14


def test_readme_names_the_two_commands():
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    assert pictures
    assert all((ROOT / path).exists() for path in pictures)
