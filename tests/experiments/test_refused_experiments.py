"""Experiment files and settings that are refused: with the field, and soon."""

import pytest

from fedax.core import InvalidInput, SpecError
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.config.shorthand import parse_options, parse_section
from samples import TINY

AXES = "\n".join(f"{key} = {list(range(1, 2000))}" for key in ("steps", "cohort", "epochs"))
CODED = '[channel]\nup = {name = "ef21", codec = {name = "topk", fraction = 0.2}}\n'
EVAL = "[early_stopping]\nmetric = "
ROUNDS = "rounds = 2"
SEEDS = "seeds = [0, 1]"

REFUSED = [
    # (in TINY, in its place, field in the message)
    # pydantic: types, ranges, choices, keys
    ('name = "Tiny', 'nme = "x"\nname = "Tiny', "Did you mean 'name'"),
    ('name = "fedprox"', "", ".name: got nothing"),
    (ROUNDS, 'read = "rounds_to_3"', "read"),
    (SEEDS, "seeds = [0, 0]", "seeds"),
    ("[[algorithm]]", "", "schedule: got 'name'"),
    ("mu = 1", "mu = 1\n[audit]\nevery = 0", "audit.every"),
    ("mu = 1", "mu = 1\n[audit]\n[early_stopping]", "audit: its runs take no rule"),
    ("mu = 1", "mu = 1\n[budget]\nhours = 1.0", "Budget(hours=1.0"),
    # what names stand for: tasks, observers, solvers, schedules, methods
    ('"synthetic"', '"synthtic"', "Did you mean 'synthetic'"),
    ("clients = 4", "clients = 99999999999", "clients"),
    ('"synthetic"\nalpha = 1.0', '"synthetic"\nunseen = 2', "unseen"),
    (SEEDS, 'observe = ["train_loss", "test_acuracy"]', "Did you mean 'test_accuracy'"),
    (SEEDS, 'observe = ["validation_loss"]', "validation"),
    ("learning_rate = 0.05", "rate = 1", "option of solver 'sgd': got 'rate'"),
    ("cohort = 2", "cohort = 5", "the number of clients"),
    ("steps = 3", "steps = 3\ndeadline = 1.0", "Conditions(deadline=...)"),
    ('"fedavg"', '"fedvg"', "Did you mean 'fedavg'"),
    ("mu = 1", "mu = -1", "FedProx(mu=...)"),
    ('name = "fedprox"\nmu = 1', 'name = "fedavg"', "'FedAvg' stands for two"),
    ("mu = 1", f"mu = 1\n{EVAL}'validation_loss'", "without validation examples"),
    ("mu = 1", "mu = 1\n[clock]\nspeed = 0.0", "Clock(speed=...)"),
    # messages
    ("mu = 1\n", CODED.replace("0.2", "2"), "TopK(fraction=...)"),
    ("mu = 1\n", CODED.replace('"topk", fraction = 0.2', '"ef21"'), "codec 'ef21'"),
    ("mu = 1\n", CODED.replace("{name = \"topk\", fraction = 0.2}", "3"), "EF21(codec"),
    # grids
    ("mu = 1", "mu = 1\n[grid]\nfedprx.mu = [1.0]", "fedprox, schedule, solver."),
    ("mu = 1", "mu = 1\n[grid]\nfedprox.mu = [1.0, 1.0]", "grid.fedprox.mu"),
    ("mu = 1", "mu = 1\n[grid]\nseeds = [0, 5]\nfedprox.mu = [1.0]", "grid.seeds"),
    ("mu = 1", 'mu = 1\n[grid]\nselect = "validation_loss"', "validation"),
    ("mu = 1", 'mu = 1\n[grid]\nselect = "client_accuracy"', "pattern"),
    ("mu = 1", f"mu = 1\n[grid.schedule]\n{AXES}\n", "algorithms"),
    # the text
    (ROUNDS, "rounds = = 2", "line 2, column 10"),
    (ROUNDS, '"a\\u001b[2J" = 2', r"'a\x1b[2J'"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "field"), REFUSED, ids=[f"{new:.50}" for _, new, _ in REFUSED]
)
def test_a_file_is_refused_with_its_field(old, new, field):
    assert old in TINY
    with pytest.raises(InvalidInput) as refused:
        Experiment.parse(TINY.replace(old, new, 1), "a.toml").plan()
    message = str(refused.value)
    assert message.startswith("a.toml: ") or not isinstance(refused.value, SpecError)
    assert field in message, message
    assert message.isprintable()
    assert len(message) < 1_500


def test_values_from_python_are_refused_without_a_line():
    sections = {"name": "a", "task": {"name": "digits"}, "algorithm": [{"name": "fedavg"}]}
    for changes, field in (
        ({"rounds": -1}, "rounds"),
        ({"algorithm": [{"name": "fedavgg"}]}, "algorithm"),
        ({"grid": {"fedavg": {}}}, "grid.fedavg"),
    ):
        with pytest.raises(InvalidInput, match=f"^{field}: got"):
            Experiment.of(**sections | changes)


@pytest.mark.parametrize(
    "setting",
    [
        "rounds",
        "a" + ".a" * 100 + "=1",
        "algorithm.²=1",
        "algorithm.2.mu=1",
        f"algorithm.{'9' * 5_000}.mu=1",
        "rounds.x=1",
        "rounds=-1",
        "seeds=0,0",
        "algorithm.1.mu=-1",
    ],
)
def test_settings_are_refused_with_their_text(setting, tmp_path):
    (tmp_path / "a.toml").write_text(TINY)
    with pytest.raises(SpecError, match=r"^--set|a.toml: "):
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
    with pytest.raises(InvalidInput) as refused:
        experiment.plan()
    assert field in str(refused.value)
