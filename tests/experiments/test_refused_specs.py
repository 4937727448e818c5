"""Experiment files that no run could follow, and values that no program can hold: refused in words,
with the line, and soon."""

import re
import time

import pytest

from fedax.core import InvalidInput, SpecError
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.config.toml import Source
from samples import TINY

DIGITS = 'name = "digits"'
SYNTHETIC = 'name = "synthetic"\nalpha = 1.0\nbeta = 1.0\nclients = 4'
MEGABYTE = "a" * 1_000_000
AXES = "\n".join(
    f"{key} = {list(range(1, 2000))}" for key in ("steps", "batch_size", "cohort", "epochs")
)


def changed(before, after):
    assert before in TINY
    return TINY.replace(before, after)


REFUSED = {
    "rounds beyond 32 bits": (changed("rounds = 2", f"rounds = {2**40}"), "line 2: rounds: .* 0 "
        "to 2147483647"),
    "cadence": (changed("rounds = 2", f"rounds = 2\nobserve_every = {2**40}"), "observe_every"),
    "batches beyond 32 bits": (changed("steps = 3", f"batch_size = {2**40}"), r"batch_size.* "
        r"from 1 to 2147483647"),
    "number of 5,000 digits": (changed("rounds = 2", "rounds = 1" + "0" * 5_000), "not a file "
        "that is read: Exceeds"),
    "hexadecimal of 5,000 digits": (changed("rounds = 2", "rounds = 0x" + "f" * 5_000), "a int with too many digits"),
    "real of 400 digits": (changed("mu = 1", "mu = 1" + "0" * 400), r"mu=.*allowed: numbers in "
        r"\[0, infinity\)"),
    "seed of 400 digits": (changed("clients = 4", "seed = 1" + "0" * 400), r"seed=\.\.\.\): got 1000"),
    "nested arrays": (changed("seeds = [0, 1]", "seeds = " + "[" * 20_000 + "]" * 20_000), "nested too deep"),
    "deep key": (changed("rounds = 2", "a" + ".a" * 20_000 + " = 2"), "line 2: .*a key of more "
        "than 64 parts"),
    "uneven array": (changed("mu = 1", "mu = [[1.0, 2.0], [3.0]]"), "FedProx.mu=.*one or one "
        "per client"),
    "infinite hyperparameter": (changed("mu = 1", "mu = inf"), r"got inf; allowed: numbers in "
        r"\[0, infinity\)"),
    "too many clients": (changed("clients = 4", "clients = 99999999999"), "clients=.*10000000"),
    "too many examples": (changed("clients = 4", "clients = 10000000"), "at most 8947848 examples"),
    "spread": (changed("alpha = 1.0", "alpha = 1e300"), "alpha=.*less than 1000000"),
    "number for a folder": (changed(SYNTHETIC, 'name = "mnist"\nfolder = 3'), "folder="),
    "number for a table": (changed(SYNTHETIC, 'name = "table"\ntable = 3'), "table=.*a path, a frame"),
    "long folder": (changed(SYNTHETIC, f'name = "mnist"\nfolder = "{"a" * 5_000}"'), "no file at aaa"),
    "crop": (changed(SYNTHETIC, f"{DIGITS}\ncrop = 99999999999"), "crop="),
    "long title": (changed('"Tiny <run>"', f'"{MEGABYTE}"'), "line 1: name: .*at most 200 "
        "characters"),
    "long label": (changed("mu = 1", f'mu = 1\nlabel = "{MEGABYTE}"'), "label: .*at most 200 "
        "characters"),
    "long name of a method": (changed('"fedprox"', f'"{MEGABYTE}"'), "line 22: algorithm: "),
    "long read": (changed("rounds = 2", f'read = "mean_last_{"9" * 5_000}"'), "read: "),
    "window below zero": (TINY + "[stop]\nwindow = -1\n", r"line 25: stop.window: got -1; "
        r".*\[1, 2147483647\]"),
    "rise that is no number": (TINY + "[stop]\nrise = nan\n", "stop.rise: got nan"),
    "price that is no number": (TINY + "[cost]\nround = nan\n", r"line 25: cost.round: got nan; "
        r".*\[0, infinity\)"),
    "infinite price": (TINY + "[cost]\nstep = inf\n", "cost.step: got inf"),
    "attack": (TINY + "[audit]\nhidden = 99999999999\n", r"audit.hidden: .*\[1, 100000\]"),
    "astronomic grid": (TINY + f"[grid.schedule]\n{AXES}\n", "algorithms with those of the "
        "grid; .*1000"),
    "value of a grid twice": (TINY + "[grid.fedprox]\nmu = [1.0, 1.0]\n", "values that differ"),
    "many algorithms": (TINY + '[[algorithm]]\nname = "fedavg"\n' * 2_000, "at most 1000 items"),
    "many runs": (changed("seeds = [0, 1]", f"seeds = {list(range(60_000))}"), "at most 100000 "
        "runs"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED)
def test_files_that_no_run_could_follow_are_refused(text, message):
    begin = time.perf_counter()
    with pytest.raises(SpecError, match=message) as refused:
        Experiment.parse(text, "a.toml").plan()
    assert str(refused.value).startswith("a.toml")
    assert len(str(refused.value)) < 1_500
    assert time.perf_counter() - begin < 5


def test_the_line_of_a_key_is_found_in_a_long_file():
    begin = time.perf_counter()
    with pytest.raises(SpecError, match="line 5023: FedProx"):
        Experiment.parse("# a comment\n" * 5_000 + changed("mu = 1", "mu = -1"), "a.toml")
    assert time.perf_counter() - begin < 2  # 13 s when it was quadratic


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('a = """\n[b]\n# "\n"""  # ]\n[b]\nc = 1', 6),
        ("a = [\n  1, # ]\n  2,\n]\nb.c = 1\n", 5),
        ("a = '''\n''''\nb = {c = 1}", 3),
        ("a = 1 # \u2028\u0085\n\n[b]\r\nc = [\n1]", 4),
        ('[b]\nd = "a\\"]"\nc = 1\n[d]\nc = 2', 3),
        ("[[b]]\n[[x]]\nc = 1", 3),
    ],
    ids=[
        "text of lines",
        "array of lines",
        "literal",
        "odd ends of lines",
        "escaped",
        "arrays of tables",
    ],
)
def test_lines_are_those_of_editors(text, line):
    place = ("x", 0, "c") if "[[x]]" in text else ("b", "c")
    assert Source(text, "a.toml").line_of(place) == line


def test_devices_and_large_files_are_not_read_as_experiments(tmp_path):
    (tmp_path / "link.toml").symlink_to("/dev/zero")
    (tmp_path / "large.toml").write_text("# much\n" * 200_000)
    for name, message in (("link", "not a plain file"), ("large", "more than 1048576 bytes")):
        with pytest.raises(SpecError, match=message):
            Experiment.read(tmp_path / f"{name}.toml")


def test_settings_that_are_no_paths_are_refused(tmp_path):
    (tmp_path / "a.toml").write_text(TINY)
    for setting in (
        "a" + ".a" * 100 + "=1",
        "algorithm.²=1",
        f"algorithm.{'9' * 5_000}.mu=1",
        f"rounds={'9' * 5_000}",
    ):
        with pytest.raises(InvalidInput):
            Experiment.read(tmp_path / "a.toml", [setting])


UNFIT = """
name = "unfit"
rounds = 2
[task]
name = "digits"
clients = 5
[schedule]
cohort = 2
{more}
[[algorithm]]
name = "fedavg"
[[algorithm]]
name = "{method}"
"""
CLOCK = "[devices]\nspeed = 100.0\n"
LATE = "asynchronous = {concurrency = 3}\n"


@pytest.mark.parametrize(
    ("method", "more", "words"),
    [
        ("feddane", LATE + CLOCK, "Schedule(asynchronous=...), FedDANE: phase solve follows"),
        ("dsgd", LATE + CLOCK, "Schedule(asynchronous=...), DSGD: a method without a server"),
        ("gd", "deadline = 1.0\n" + CLOCK, "Schedule(deadline=...), GD: phase"),
        ("fedbn", "", "FedBN"),
        ("fedavg2", LATE + CLOCK + "[channel.privacy]\nnoise = 1.0\n", "account of privacy"),
        ("fedavg2", CLOCK + "[solver]\nname = 'exact'\n", "Declare its cost"),
    ],
    ids=["phases", "graph", "everyone", "model", "privacy", "solver"],
)
def test_what_a_run_refuses_is_refused_before_any_run(method, more, words):
    """Also of the second algorithm: its turn may come hours after the first."""
    text = UNFIT.format(method=method.strip("2"), more=more)
    if method == "fedavg2":
        text = text.replace('"fedavg"\n[[', '"fedprox"\n[[')
    experiment = Experiment.parse(text)
    with pytest.raises(SpecError, match=re.escape(words)):
        experiment.plan()
