"""Run directories that somebody else made: read, or refused in a sentence; nothing hangs, and no
control character gets out."""

import dataclasses
import json
import os

import numpy as np
import pytest

from commands import call
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.running.progress import Display
from fedax.experiments.running.runner import run_experiment
from fedax.results.store import write_run
from samples import TINY, record

ESCAPE = "\x1b]0;owned\x07\x1b[2J"
FORGED = "fine\nWARNING forged line \u202egnp.exe"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("strangers") / "a"
    run_experiment(Experiment.parse(TINY.replace("rounds = 2", "rounds = 0")), path, Display())
    return path


@pytest.fixture
def folder(made, tmp_path):
    import shutil

    return shutil.copytree(made, tmp_path / "copy")


def report(folder):
    return call("report", str(folder))


def changed(folder, name, **values):
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def run_of(folder):
    return min(path.name for path in (folder / "runs").iterdir())


NO_TEXT = [5, 1.5, True, None, [], ["a"], {}, {"a": 1}]


@pytest.mark.parametrize("name", ["title", "status", "notes"])
@pytest.mark.parametrize("value", [*NO_TEXT, "paused"], ids=str)
def test_malformed_summaries_are_refused_in_words(folder, name, value):
    if (name, value) in [("title", "paused"), ("notes", {})]:
        return  # fine as they are
    changed(folder, "summary.json", **{name: value})
    shown = report(folder)
    assert shown.exit_code == 2, shown.output
    assert "a run directory with damaged files" in " ".join(shown.output.split())
    assert "Traceback" not in shown.output


@pytest.mark.parametrize(
    "content",
    ["[]", "5", "null", '{"a": [1]}', '{"a": {"b": 1}}', "[" * 200_000, '{"a":' * 200_000],
)
@pytest.mark.parametrize("name", ["summary.json", "runs/{run}/run.json"])
def test_files_of_another_form_are_refused_in_words(folder, name, content):
    (folder / name.format(run=run_of(folder))).write_text(content)
    shown = report(folder)
    assert shown.exit_code == 2, shown.output
    assert not isinstance(shown.exception, RecursionError | TypeError | KeyError)


@pytest.mark.parametrize(
    "name", ["summary.json", "study.toml", "runs/{run}/run.json", "runs/{run}/curves.npz"]
)
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_special_files_do_not_block(folder, name, kind):
    path = folder / name.format(run=run_of(folder))
    path.unlink()
    {"pipe": os.mkfifo, "device": lambda path: path.symlink_to("/dev/zero"), "folder": os.mkdir}[
        kind
    ](path)
    shown = report(folder)
    assert shown.exit_code == 2, shown.output
    assert not shown.exception or isinstance(shown.exception, SystemExit)


@pytest.mark.parametrize("text", [ESCAPE, FORGED])
def test_control_characters_of_a_folder_never_come_out(folder, text):
    changed(folder, "summary.json", title=text, notes={text: text})
    changed(folder, "summary.json", versions={text: text})
    run = record(label=f"lab {text}", task=f"task {text}", **{f"metric {text}": np.zeros(3)})
    run = dataclasses.replace(run, versions={text: text}, clients=[text, "b", "c", "d"])
    write_run(folder / "runs" / run_of(folder), run)
    shown = report(folder)
    written = [
        shown.output,
        *(path.read_text() for path in folder.glob("*.csv")),
        (folder / "report.html").read_text(),
    ]
    for output in written:
        assert not {"\x1b", "\x07", "\u202e"} & set(output)
        assert "\nWARNING forged" not in output
