"""Names of files that every system can hold, whatever titles, labels and metrics
are called."""

import re
import unicodedata

import pytest

from fedax.experiments.config.experiment import Experiment
from fedax.experiments.results.store import RunDirectory, slug
from fedax.experiments.running.progress import Display
from fedax.experiments.running.runner import run_experiment
from fedax.results.drawing import Picture, curves, save
from fedax.results.frame import curves_frame
from fedax.utils.files import portable
from fedax.utils.lock import LOCK
from samples import TINY, record

# of Microsoft's "Naming Files, Paths, and Namespaces"
FORBIDDEN = re.compile(r'[<>:"/\\|?*\x00-\x1f]|[. ]$')
NAMES = [
    "a/b",
    "..",
    "C:\\x",
    "x.",
    "x ",
    "a\nb",
    "a\0b",
    "",
    "*",
    "é" * 200,
    "e\u0301",
    "<b>|",
    "~",
    "-rf",
]


def fits(name):
    return (
        not (FORBIDDEN.search(name) or name.startswith((".", "-")))
        and 0 < len(name.encode()) <= 255
    )


@pytest.mark.parametrize("make", [portable, slug])
def test_any_name_becomes_one_that_every_system_holds(make):
    for name in NAMES:
        found = make(name)
        assert fits(found), name
        assert unicodedata.is_normalized("NFC", found)
        assert make(found) == found


@pytest.mark.slow
def test_the_files_of_a_run_with_an_evil_title(tmp_path):
    text = (
        TINY.replace("Tiny <run>", "CON: ../<a|b*?>.")
        .replace("[0, 1]", "[0]")
        .replace("rounds = 2", "rounds = 1")
    )
    experiment = Experiment.parse(text)
    made = run_experiment(experiment, tmp_path / slug(experiment.name), Display()).path
    assert made.parent == tmp_path
    assert RunDirectory.load(made).status == "finished"
    names = [path.name for path in tmp_path.rglob("*") if path.name != LOCK]
    assert len(names) > 5
    assert all(fits(name) for name in names), names


def test_figures_beside_each_other(tmp_path):
    """One for each, also where a file system holds `A` and `a` for one name."""
    figure = curves(curves_frame([record()]))
    pictures = [Picture(name, figure) for name in ("aux", "a/b", "A/B", "a:b", "../up")]
    files = save(pictures, tmp_path / "figures", ["svg"])
    assert [file.name for file in files] == [
        "aux.svg",
        "a-b.svg",
        "A-B-2.svg",
        "a-b-3.svg",
        "up.svg",
    ]
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {file.name for file in files}
