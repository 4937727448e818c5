"""Experiment files and settings that are refused: by `SpecError`, with the line and the field, and
soon."""

import time

import pytest

from fedax.core import InvalidInput, SpecError
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.config.shorthand import parse_options, parse_section
from fedax.experiments.config.toml import Source
from samples import TINY

AXES = "\n".join(f"{key} = {list(range(1, 2000))}" for key in ("steps", "cohort", "epochs"))
CODED = '[channel]\nup = {name = "ef21", codec = {name = "topk", fraction = 0.2}}\n'
EVAL = "[early_stopping]\nmetric = "
ROUNDS = "rounds = 2"
SEEDS = "seeds = [0, 1]"

REFUSED = [
    # (in TINY, in its place, line, field in the message)
    # pydantic: types, ranges, choices, keys
    ('name = "Tiny', 'nme = "x"\nname = "Tiny', 1, "Did you mean 'name'"),
    (ROUNDS, "rounds = -2", 2, "rounds"),
    (ROUNDS, "minimum = nan", 2, "minimum"),
    (ROUNDS, 'read = "rounds_to_3"', 2, "read"),
    (SEEDS, "seeds = [0, 0]", 3, "seeds"),
    ("[solver]", "[[solver]]", 11, "solver"),
    ("mu = 1", "mu = 1\n[clock]\nspeed = [[1, 2], [3]]", 25, "clock.speed"),
    ("[[algorithm]]", "", 19, "schedule: got 'name'"),
    ("mu = 1", "mu = 1\n[audit]\nhidden = 99999999999", 25, "audit.hidden"),
    ("mu = 1", "mu = 1\n[cluster]\ntimeout_min = 0", 25, "cluster.timeout_min"),
    ("mu = 1", "mu = 1\n[budget]\nhours = 1.0", 24, "budget"),
    ("mu = 1", "mu = 1\n[clock]\n[budget]", 25, "Budget"),
    # what names stand for: tasks, observers, solvers, schedules, methods
    ('"synthetic"', '"synthtic"', 5, "Did you mean 'synthetic'"),
    ("clients = 4", "clients = 99999999999", 9, "clients"),
    ('"synthetic"\nalpha = 1.0', '"synthetic"\nunseen = 2', 7, "unseen"),
    (SEEDS, 'observe = ["train_loss", "test_acuracy"]', 3, "Did you mean 'test_accuracy'"),
    (SEEDS, 'observe = ["validation_loss"]', 3, "validation"),
    (SEEDS, 'observe = ["test_loss"]\nstop = {}', 4, "which `stop` needs"),
    ("learning_rate = 0.05", "learning_rate = 0", 12, "SGD(learning_rate=...)"),
    ("learning_rate = 0.05", "rate = 1", 12, "option of solver 'sgd': got 'rate'"),
    ("learning_rate = 0.05", 'name = "adams"', 11, "solver: got 'adams'"),
    ("cohort = 2", "cohort = 5", 15, "the number of clients"),
    ("steps = 3", "steps = 3\ndeadline = 1.0", 17, "Conditions(deadline=...)"),
    ('"fedavg"', '"fedvg"', 18, "Did you mean 'fedavg'"),
    ("mu = 1", "mu = -1", 23, "FedProx(mu=...)"),
    ("mu = 1", "solver = {learning_rate = -1.0}", 23, "SGD(learning_rate=...)"),
    ('name = "fedprox"\nmu = 1', 'name = "fedavg"', 18, "'FedAvg' stands for two"),
    ("mu = 1", f"mu = 1\n{EVAL}'validation_loss'", 24, "without validation examples"),
    ("mu = 1", "mu = 1\n[clock]\nspeed = 0.0", 25, "Clock(speed=...)"),
    # messages
    ("mu = 1\n", CODED.replace("0.2", "2"), 24, "TopK(fraction=...)"),
    ("mu = 1\n", CODED.replace('"topk", fraction = 0.2', '"ef21"'), 24, "codec 'ef21'"),
    ("mu = 1\n", CODED.replace("{name = \"topk\", fraction = 0.2}", "3"), 24, "channel.up.codec"),
    # grids
    ("mu = 1", "mu = 1\n[grid]\nfedprx.mu = [1.0]", 25, "Did you mean 'fedprox'"),
    ("mu = 1", "mu = 1\n[grid]\nfedprox.mu = [-1.0]", None, "FedProx(mu=...)"),
    ("mu = 1", "mu = 1\n[grid]\nfedprox.mu = 1.0", 25, "grid.fedprox.mu"),
    ("mu = 1", "mu = 1\n[grid]\nfedprox.mu = [1.0, 1.0]", 25, "grid.fedprox.mu"),
    ("mu = 1", "mu = 1\n[grid]\nfedprox.mu = [{}]", 25, "grid.fedprox.mu"),
    ("mu = 1", "mu = 1\n[grid]\nschedule.cohort = [9]", 24, "the number of clients"),
    ("mu = 1", "mu = 1\n[grid]\nsolver.rate = [1]", 25, "option of solver 'sgd': got 'rate'"),
    ("mu = 1", "mu = 1\n[grid]\nseeds = [0, 5]\nfedprox.mu = [1.0]", 25, "grid.seeds"),
    ("mu = 1", 'mu = 1\n[grid]\nselect = "validation_loss"', 25, "grid.select"),
    ("mu = 1", f"mu = 1\n[grid.schedule]\n{AXES}\n", 24, "algorithms"),
    # the text
    (ROUNDS, "rounds = = 2", None, "line 2, column 10"),
    (SEEDS, "seeds = " + "[" * 20_000 + "]" * 20_000, None, "recursion"),
    (ROUNDS, '"a\\u001b[2J" = 2', None, r"'a\x1b[2J'"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "line", "field"), REFUSED, ids=[f"{new:.50}" for _, new, _, _ in REFUSED]
)
def test_a_file_is_refused_with_line_and_field(old, new, line, field):
    assert old in TINY
    begin = time.process_time()
    with pytest.raises(SpecError) as refused:
        Experiment.parse(TINY.replace(old, new, 1), "a.toml").plan()
    message = str(refused.value)
    assert message.startswith("a.toml" if line is None else f"a.toml, line {line}: "), message
    assert field in message, message
    assert message.isprintable()
    assert len(message) < 1_500
    assert time.process_time() - begin < 5


def test_values_from_python_are_refused_without_a_line():
    sections = {"name": "a", "task": {"name": "digits"}, "algorithm": [{"name": "fedavg"}]}
    for changes, field in (
        ({"name": ""}, "name"),
        ({"rounds": -1}, "rounds"),
        ({"algorithm": [{"name": "fedavgg"}]}, "algorithm"),
        ({"algorithm": []}, "algorithm"),
        ({"grid": {"fedavg": {}}}, "grid.fedavg"),
    ):
        with pytest.raises(InvalidInput, match=f"^{field}: got"):
            Experiment.of(**sections | changes)


def test_lines_of_keys():
    text = (
        'a = [\n 1,\n 2]\n# remark\n[b]\nc = { d = 1 }\n"e.f" = 1\n[[g]]\nh = 1\n[[g]]\n'
        "h.i = 2\n[g.j]\nk = 1\n"
    )
    source = Source(text, "t")
    places = {
        ("a",): 1,
        ("a", 1): 1,
        ("b",): 5,
        ("b", "c", "d"): 6,
        ("b", "e.f"): 7,
        ("g", 0, "h"): 9,
        ("g", 1, "h", "i"): 11,
        ("g", 1, "x"): 10,
        ("g", 1, "j", "k"): 13,
        ("z",): None,
    }
    assert {place: source.line_of(place) for place in places} == places


@pytest.mark.parametrize(
    "setting",
    [
        "rounds",
        "a" + ".a" * 100 + "=1",
        "algorithm.²=1",
        "algorithm.2.mu=1",
        f"algorithm.{'9' * 5_000}.mu=1",
        "rounds.x=1",
        f"rounds={'9' * 5_000}",
        "rounds=-1",
        "seeds=0,0",
        "algorithm.1.mu=-1",
    ],
)
def test_settings_are_refused_with_their_text(setting, tmp_path):
    (tmp_path / "a.toml").write_text(TINY)
    with pytest.raises(SpecError, match=r"^--set|: key: got 'a'"):
        Experiment.read(tmp_path / "a.toml", [setting])


def test_shorthand():
    assert parse_section("FedDANE:mu=0.01,cohorts=shared,pipelined=true") == {
        "name": "feddane",
        "mu": 0.01,
        "cohorts": "shared",
        "pipelined": True,
    }
    assert parse_options("a=[1, 2],b=x") == {"a": [1, 2], "b": "x"}
    assert parse_options("") == {}


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
name = "{first}"
[[algorithm]]
name = "{method}"
"""
CLOCK = "[clock]\nspeed = 100.0\n"
LATE = "asynchronous = {concurrency = 3}\n"


@pytest.mark.parametrize(
    ("method", "more", "field"),
    [
        ("feddane", LATE + CLOCK, "Schedule(asynchronous=...), FedDANE"),
        ("dsgd", LATE + CLOCK, "Schedule(asynchronous=...), DSGD"),
        ("gd", "deadline = 1.0\n" + CLOCK, "Conditions(deadline=...), GD"),
        ("fedbn", "", "FedBN"),
        ("fedavg", LATE + CLOCK + "[channel.privacy]\nnoise = 1.0\n", "privacy"),
        ("fedavg", CLOCK + "[solver]\nname = 'exact'\n", "cost"),
    ],
    ids=["phases", "graph", "everyone", "model", "privacy", "solver"],
)
def test_what_a_run_refuses_is_refused_before_any_run(method, more, field):
    """Also of the second algorithm: its turn may come hours after the first."""
    first = "fedprox" if method == "fedavg" else "fedavg"
    experiment = Experiment.parse(UNFIT.format(more=more, method=method, first=first))
    with pytest.raises(SpecError) as refused:
        experiment.plan()
    assert field in str(refused.value)
