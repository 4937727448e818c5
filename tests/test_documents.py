"""README and docs: their examples run, their links lead somewhere, and their commands exist."""

import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib

import pytest
import tomli_w

from blocks import BLOCKS, FENCE, OUTPUT, PAGES
from marks import slow
from sources import ROOT


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
    "docs/guides/experiments.md": {
        "wards.csv": WARDS,
        "new.csv": "age,sex\n30,f\n60,m\n",
        "data/a.csv": "x1,x2,label\n" + "0.5,1.0,0\n1.5,0.0,1\n" * 10,
        "data/b.csv": "x1,x2,label\n" + "0.4,1.1,0\n1.4,0.1,1\n" * 10,
    },
    "docs/guides/table.md": {"wards.csv": WARDS},
    "docs/guides/data.md": {
        "wards.csv": WARDS,
        "new.csv": "sex,age\nf,30\nm,60\n",
        "equinox_net.py": next(b.text for b in BLOCKS if b.file == "equinox_net.py"),
    },
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


def test_blocks_have_a_known_language():
    assert {b.language for b in BLOCKS} <= {"python", "toml", "sh", *OUTPUT}


def test_links_of_a_checkout_lead_somewhere():
    """Those to sources become links to the pages that are made of them on the site."""
    dead = [
        f"{path.relative_to(ROOT)}: {target}"
        for path in PAGES
        for target in re.findall(r"\]\(([^()\s#]+)", FENCE.sub("", path.read_text()))
        if not re.match(r"\w+:", target) and not (path.parent / target).exists()
    ]
    assert dead == []


README = [b for b in blocks("python") if b.page == "README.md"]
GUIDES = [b for b in blocks("python") if b.text not in {same.text for same in README}]


# what tests ask of the compiler makes long runs slow
READERS = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_ENABLE_X64")}


@pytest.mark.parametrize("block", [slow(README[0]), *README[1:]], ids=str)
def test_readme_examples_run(block, tmp_path):
    """In a process of their own, as a reader runs them: optimized, in single precision."""
    command = [sys.executable, "-c", block.text.replace("rounds=100", "rounds=10")]
    subprocess.run(command, cwd=tmp_path, env=READERS, check=True)


@pytest.mark.slow
@pytest.mark.parametrize("block", GUIDES, ids=str)
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

    command = typer.main.get_command(app)
    names = []
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "page"),
    [("findings/robust/table.py", "robust.md"), ("paper/fill.py", "paper/paper.md")],
)
def test_numbers_of_pages_are_those_of_their_runs(script, page):
    docs = ROOT / "docs"
    assert runpy.run_path(str(docs / script))["page"]() == (docs / page).read_text()


@pytest.mark.slow
@pytest.mark.parametrize("block", {b.text: b for b in blocks("sh")}.values(), ids=str)
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
        env=READERS | {"PATH": path, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
