"""README, CONTRIBUTING and guides: their examples work and name what exists."""

import inspect
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib

import pytest
import tomli_w

from blocks import BLOCKS, FENCE, OUTPUT, PAGES, blocks_of
from sources import ROOT, own_files


def python_blocks(name):
    return [b.text for b in BLOCKS if b.page == name and b.language == "python"]


def blocks(*languages, run=True):
    """Returns the blocks of some languages that run."""
    return [b for b in BLOCKS if b.language in languages and not (run and b.reason)]


def execute(block):
    for package in re.findall(
        r"^(?:import|from) (torch|flwr|flax|haiku|datasets|language_model)\b",
        block.text,
        re.MULTILINE,
    ):
        pytest.importorskip(package, reason="a library of other people")
    space = {"__name__": "block"}
    exec(compile(block.text, str(block), "exec"), space)


def write_files(page, folder):
    """Writes the files that a page shows, and those that it takes for granted."""
    for block in BLOCKS:
        if block.page == page and block.file:
            (folder / block.file).write_text(block.text)
    for name, text in GIVEN.get(page, {}).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


WARDS = "ward,age,sex,outcome\n" + "".join(
    f"{'abc'[i % 3]},{20 + i},{'fm'[i % 2]},{('well', 'relapse')[i % 5 < 2]}\n" for i in range(90)
)
GIVEN = {
    "docs/guides/own-code.md": {
        "wards.csv": WARDS,
        "new.csv": "age,sex\n30,f\n60,m\n",
        "data/a.csv": "x1,x2,label\n" + "0.5,1.0,0\n1.5,0.0,1\n" * 10,
        "data/b.csv": "x1,x2,label\n" + "0.4,1.1,0\n1.4,0.1,1\n" * 10,
    },
    "docs/guides/own.md": {"wards.csv": WARDS, "new.csv": "sex,age\nf,30\nm,60\n"},
    "docs/guides/heterogeneity.md": {"phones.csv": "device,from,to\n0,0,900\n1,0,4000\n"},
    "docs/models.md": {
        "digits.toml": """name = "digits"
rounds = 2
seeds = [0, 1, 2, 3]
keep_models = "personal"
task = {name = "digits", clients = 10}
solver = {learning_rate = 0.05}
[[algorithm]]
name = "ditto"
""",
    },
}
"""Files of a reader, by page."""
BEFORE = {"docs/models.md": "fedax run digits.toml --out runs/digits\n"}
"""Commands that a page takes for granted."""


def test_every_block_has_a_language_and_a_reason_names_what_exists():
    assert {b.language for b in BLOCKS} <= {"python", "toml", "sh", *OUTPUT}
    assert len(BLOCKS) > 100
    named = {path for b in BLOCKS if b.reason for path in re.findall(r"tests/[\w/.]+", b.reason)}
    assert [path for path in named if not (ROOT / path.rstrip(".")).exists()] == []


def test_blocks_are_found_in_lists_and_with_reasons():
    page = "1. a\n\n    <!-- not run: needs a\n    GPU -->\n    ```sh\n    make\n    ```\n\n```toml\n# a.toml\nb = 1\n```\n"
    first, second = blocks_of(page)
    assert (first.text, first.reason, first.file) == ("make\n", "needs a GPU", None)
    assert (second.language, second.reason, second.file) == ("toml", None, "a.toml")


@pytest.mark.parametrize("block", [b for b in blocks("python") if b.page == "README.md"], ids=str)
def test_readme_examples_run(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    execute(block)


GUIDES = sorted({b.page for b in BLOCKS if b.page.startswith("docs/")})
TUTORIALS = [str(path.relative_to(ROOT)) for path in own_files("docs/tutorials")]
"""Notebooks, which run when the site is built (tests/site)."""


@pytest.mark.slow
@pytest.mark.parametrize("block", [b for b in blocks("python") if b.page in GUIDES], ids=str)
def test_examples_of_guides_run(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    write_files(block.page, tmp_path)
    execute(block)


@pytest.mark.parametrize("block", blocks("toml"), ids=str)
def test_tables_of_guides_are_valid(block, tmp_path, monkeypatch):
    """A part of a file is valid together with the tables that it lacks; data are not read."""
    from fedax.benchmark.spaces import read_spaces
    from fedax.experiments.config.experiment import Experiment

    monkeypatch.chdir(tmp_path)
    write_files(block.page, tmp_path)
    if any("import torch" in path.read_text() for path in tmp_path.glob("*.py")):
        pytest.importorskip("torch", reason="a library of other people")
    path = tmp_path / "block.toml"
    path.write_text(block.text)
    if block.page == "docs/benchmark/protocol.md":
        assert read_spaces(path)["mine"]
        return
    given = tomllib.loads(block.text)
    methods = [
        {"name": name}
        for name in given.get("grid", {})
        if name not in ("select", "seeds", "solver", "schedule")
    ]
    defaults = {
        "name": "block",
        "rounds": 1,
        "task": {"name": "synthetic"},
        "algorithm": methods or [{"name": "fedavg"}],
    }
    path.write_text(tomli_w.dumps(defaults | given))
    experiment = Experiment.read(path)
    assert experiment.name == given.get("name", "block")


def test_the_file_of_the_guide_to_sweeps_is_complete():
    from fedax.experiments.config.experiment import Experiment

    text = next(b.text for b in BLOCKS if b.page == "docs/guides/sweeps.md")
    experiment = Experiment.parse(text)
    assert len(experiment.members()) == 6
    assert experiment.validates


def commands(text):
    """Returns the commands of lines of a shell, each as a list of words."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words:
            end = next((i for i, w in enumerate(words) if w in ("&&", ";", "|")), len(words))
            found.append(words[:end])
            words = words[end + 1 :]
    return [words for words in found if words]


def check_fedax(words):
    """Fails unless the options of a command of fedax exist and have their values."""
    import typer

    from fedax.cli.main import app

    command, names = typer.main.get_command(app), []
    words = list(words)
    while hasattr(command, "commands"):
        if not words or words[0].startswith("-"):
            return
        name = words.pop(0)
        assert name in command.commands, f"fedax {' '.join([*names, name])} is no command"
        command = command.commands[name]
        names.append(name)
    context = command.context_class(command, info_name=" ".join(names))
    command.make_parser(context).parse_args(words)


def test_a_command_that_does_not_exist_is_found():
    check_fedax(["compare", "fedavg", "--rounds", "3"])
    for wrong in (["compares"], ["compare", "--turns", "3"], ["deploy", "begin"], ["run", "--out"]):
        with pytest.raises(Exception, match=r"command|option|argument"):
            check_fedax(wrong)


@pytest.mark.parametrize("block", blocks("sh", run=False), ids=str)
def test_commands_of_guides_exist(block):
    """Also those that do not run: commands of fedax and their options, goals of make, extras, and
    files of the repository."""
    subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)
    goals = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for words in commands(block.text):
        for i, word in enumerate(words):
            if word.rpartition("/")[2] == "fedax" and words[i - 1] not in ("--namespace", "--tag"):
                if len(words) > i + 1 and not words[i + 1].startswith("/"):
                    check_fedax(words[i + 1 :])
                break
            if extra := re.fullmatch(r"(?:\.|fedax)\[([\w,]+)\]", word):
                assert set(extra[1].split(",")) <= set(extras)
            if re.match(r"(docs|examples|benchmarks)/", word):
                assert (ROOT / word).exists(), word
        if words[0] == "make":
            assert set(words[1:]) <= goals


def test_commands_in_sentences_exist():
    for path in PAGES:
        text = FENCE.sub("", path.read_text())
        for quoted in re.findall(r"`(fedax [^`]+)`", text):
            command = " ".join(quoted.split())
            if re.search(r"[.…]{2}|\bCOMMAND\b|[<>]", command):
                continue
            try:
                check_fedax(shlex.split(command)[1:])
            except Exception as error:
                raise AssertionError(f"{path.name}: {command}") from error


@pytest.mark.slow
def test_tables_of_robust_rules_are_those_of_their_runs():
    script = runpy.run_path(str(ROOT / "docs" / "hooks" / "robust.py"))
    assert script["page"]() == (ROOT / "docs" / "robust.md").read_text(encoding="utf-8")
    assert script["tables"]().count("\n| ") == 2 * (1 + 1 + 12)


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks("sh"), ids=str)
def test_commands_of_guides_run(block, tmp_path):
    write_files(block.page, tmp_path)
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "fedax"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fedax.cli "$@"\n')
    command.chmod(0o755)
    script = "set -e\n" + BEFORE.get(block.page, "") + block.text
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash"],
        input=script,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PATH": path, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_guides_name_what_exists():
    """Every `fedax.Name` in a document is there."""
    import fedax

    for guide in (*(path.relative_to(ROOT).as_posix() for path in PAGES), *TUTORIALS):
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
