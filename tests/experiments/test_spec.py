import re

import pytest

from fedax.core import InvalidInput, SpecError, UnknownName
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.config.shorthand import parse_numbers, parse_options, parse_section
from fedax.experiments.config.toml import Source
from fedax.tasks.sources import DATASETS, task_options
from samples import TINY
from sources import own_files

EXAMPLES = own_files("examples", suffix=".toml")


def refused(text):
    with pytest.raises(SpecError) as caught:
        Experiment.parse(text, "a.toml").plan()
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_plan_has_everything_that_a_run_needs():
    plan = Experiment.parse(TINY).plan()
    assert list(plan.algorithms) == ["FedAvg", "FedProx mu=1"]
    assert plan.algorithms["FedProx mu=1"].mu == 1.0
    assert plan.task.train.clients == 4
    assert plan.arguments["schedule"].cohort == 2
    assert plan.arguments["solver"].learning_rate == 0.05
    names = [type(observer).__name__ for observer in plan.arguments["observe"]]
    assert names == ["TrainLoss", "CentralScore", "CentralScore", "ClientAccuracy"]


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_examples_are_valid(file):
    assert Experiment.read(file).resolved()["name"]


@pytest.mark.parametrize(("text", "seeds"), [("0,1", [0, 1]), ("3", [3]), ("[4, 5]", [4, 5])])
def test_seeds_are_set_as_compare_takes_them(tmp_path, text, seeds):
    (tmp_path / "a.toml").write_text(TINY)
    assert Experiment.read(tmp_path / "a.toml", [f"seeds={text}"]).seeds == seeds


def test_an_empty_list_names_no_leaves():
    """FedPer without a head is FedAvg, in a file as in Python."""
    text = 'name = "a"\nrounds = 1\n[task]\nname = "digits"\nclients = 5\n[[algorithm]]\n'
    for name, option in (("fedper", "head"), ("lgfedavg", "head"), ("fedbn", "norms")):
        (section,) = Experiment.parse(f'{text}name = "{name}"\n{option} = []\n').algorithm
        assert getattr(section.make(), option) == ()


def test_the_resolved_experiment_is_the_same_experiment():
    first = Experiment.parse(TINY + 'label = "Prox"\n[stop]\nrise = 2.0\n')
    again = Experiment.parse(first.toml())
    assert again.resolved() == first.resolved()
    assert again.resolved()["schedule"]["epochs"] == 1
    assert again.algorithm[1].shown() == "Prox"


def test_one_value_per_client():
    plan = Experiment.parse(
        TINY.replace("mu = 1", "mu = [0.1, 0.2, 0.3, 0.4]\nlabel = 'own'")
    ).plan()
    assert plan.algorithms["own"].mu.shape == (4,)


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ('name = "Tiny', 'nme = "x"\nname = "Tiny', 1, "got 'nme'; .*Did you mean 'name'"),
        (
            "rounds = 2",
            "rounds = -2",
            2,
            "rounds: got -2; allowed: whole numbers from 0 to 2147483647",
        ),
        ("rounds = 2", "minimum = nan", 2, "minimum: got nan; allowed: finite numbers"),
        ("rounds = 2", 'rounds = "two"', 2, r"rounds: got 'two'; allowed: whole numbers\.$"),
        ("seeds = [0, 1]", "seeds = [0, 0]", 3, "seeds: got .*all different"),
        (
            "seeds = [0, 1]",
            'observe = ["train_loss", "test_acuracy"]',
            3,
            "Did you mean 'test_accuracy'",
        ),
        ('"synthetic"', '"synthtic"', 6, "Did you mean 'synthetic'"),
        ("clients = 4", "clents = 4", 9, "'clents'.*Did you mean 'clients'"),
        ("alpha = 1.0", "alpha = -1.0", 7, "alpha.*got -1.0; allowed"),
        (
            "learning_rate = 0.05",
            "learning_rate = 0",
            12,
            r"SGD\(learning_rate=...\): got 0.0; "
            r"allowed: numbers in \(0,",
        ),
        ("learning_rate = 0.05", "rate = 1", 12, "option of solver 'sgd': got 'rate'"),
        (
            "learning_rate = 0.05",
            'name = "adams"',
            12,
            "solver: got 'adams'; allowed: one of adabelief, ",
        ),
        ("cohort = 2", "cohrt = 2", 15, "Did you mean 'cohort'"),
        ("cohort = 2", "cohort = 5", 15, "got 5; allowed: 1 to 4, the number of clients"),
        ("steps = 3", "steps = 0", 16, r"Schedule\(steps=...\): got 0"),
        ('"fedavg"', '"fedvg"', 19, "algorithm: got 'fedvg'.*Did you mean 'fedavg'"),
        (
            "mu = 1",
            "mu = -1",
            23,
            r"FedProx\(mu=...\): got -1.*allowed: numbers in \[0, "
            r"infinity\)",
        ),
        ("mu = 1", "my = 1", 23, "hyperparameter of FedProx: got 'my'.*Did you mean 'mu'"),
        ('name = "fedprox"\nmu = 1', 'name = "fedavg"', 21, "label: 'FedAvg' is that of another"),
        (
            "mu = 1",
            "mu = 1\n[stop]\nrse = 1.0",
            25,
            r"key of \[stop\]: got 'rse'.*Did you mean "
            r"'rise'",
        ),
    ],
)
def test_bad_input_names_the_line_the_value_and_what_is_allowed(old, new, line, words):
    assert old in TINY
    message = refused(TINY.replace(old, new))
    assert message.startswith(f"a.toml, line {line}: "), message
    assert re.search(words, message), message


FILE = """name = "a"
rounds = 2
[task]
name = "digits"
[[algorithm]]
name = "fedavg"
"""


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "[[algorithm]]",
            "[algorithm]",
            "line 5: algorithm: got a table; allowed: a list. Write [[algorithm]], with two",
        ),
        (
            "rounds = 2",
            'observe = "test_accuracy"',
            "observe: got 'test_accuracy'; allowed: a list. Write observe = [\"test_accuracy\"].",
        ),
        ("rounds = 2", 'trackers = "wandb"', 'a list. Write trackers = ["wandb"].'),
        ("rounds = 2", "seeds = 3", "seeds: got 3; allowed: a list. Write seeds = [3]."),
        ("rounds = 2", 'rounds = "2"', "whole numbers. Write rounds = 2, without quotes."),
        ("rounds = 2", "rounds = true", "rounds: got true; allowed: whole numbers."),
        ("rounds = 2", 'minimum = "x"', "minimum: got 'x'; allowed: numbers."),
        ("rounds = 2", 'solver = "sgd"', 'allowed: a table. Write solver = {name = "sgd"}.'),
        ("rounds = 2", 'channel.up = "topk"', 'a table. Write up = {name = "topk"}.'),
        ("rounds = 2", "stop = true", "stop: got true; allowed: a table."),
        ("rounds = 2", "schedule = 3", "schedule: got 3; allowed: a table."),
        ("[task]", "[[task]]", "allowed: a table. Write [task], with one bracket."),
        (
            '[[algorithm]]\nname = "fedavg"',
            "",
            "algorithm: missing; it is needed",
        ),
    ],
)
def test_types_are_named_as_in_a_file(old, new, words):
    """With what to write, and without names of Python's or pydantic's types."""
    assert old in FILE
    message = refused(FILE.replace(old, new))
    assert words in message
    assert not re.search(r"valid (list|integer|dict)|instance of|\{'", message)


def test_validation_examples_that_are_missing_are_asked_for():
    with pytest.raises(SpecError) as error:
        Experiment.parse(f"{FILE}[early_stopping]", "a.toml").plan()
    assert str(error.value) == (
        "a.toml, line 7: early_stopping: 'validation_loss' is asked for, but the task has no "
        "validation examples. Keep some: [task] validation = 0.2."
    )


def test_observers_of_validation_examples_say_how_a_file_keeps_some():
    with pytest.raises(SpecError, match=r"line 1: observe: .*\[task\] validation = 0\.2"):
        Experiment.parse(f'observe = ["validation_loss"]\n{FILE}', "a.toml").plan()


def test_a_rule_without_its_metric_says_what_the_task_lacks():
    text = FILE.replace('"digits"', '"digits"\ntest_fraction = 0')
    with pytest.raises(SpecError, match=r"TestAccuracy: got .* without test examples"):
        Experiment.parse(f'{text}[early_stopping]\nmetric = "test_accuracy"').plan()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('name = "a"\nrounds = = 2\n', "line 2: not valid TOML: Invalid value"),
        ('name = "a"\nseeds = [1,\n', "line 2: not valid TOML"),
        ('rounds = 2\n[task]\nname = "digits"\n', "name: missing"),
        (
            'name = "a"\n[task]\nalpha = 1\n[[algorithm]]\nname = "fedavg"',
            "line 2: task.name: missing",
        ),
        ('name = "a"\n[task]\nname = "digits"\n', "algorithm: missing"),
        (
            TINY.replace("seeds = [0, 1]", "observe = ['test_loss']") + "[stop]\n",
            "which `stop` needs",
        ),
    ],
)
def test_malformed_or_incomplete(text, words):
    assert words in refused(text)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(SpecError, match=r"missing\.toml: cannot be read: No such file"):
        Experiment.read(tmp_path / "missing.toml")
    with pytest.raises(SpecError, match="cannot be read: Is a directory"):
        Experiment.read(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"')
    with pytest.raises(SpecError, match="not UTF-8"):
        Experiment.read(tmp_path / "latin.toml")


def test_lines_of_values_that_span_several():
    source = Source(
        'a = [\n 1,\n 2]\n# remark\n[b]\nc = { d = 1 }\n\n[[e]]\nf = """\nx\n"""\n[[e]]\nf = 2', "t"
    )
    places = [
        ("a",),
        ("a", 1),
        ("b",),
        ("b", "c", "d"),
        ("e", 0, "f"),
        ("e", 1, "f"),
        ("e", 1, "g"),
        ("z",),
    ]
    assert [source.line_of(place) for place in places] == [1, 1, 5, 6, 9, 13, 12, None]


def test_experiments_from_values():
    experiment = Experiment.of(name="a", task={"name": "digits"}, algorithm=[{"name": "fedavg"}])
    assert experiment.resolved()["task"]["partition"] == "shards"
    with pytest.raises(UnknownName, match="fedavg"):
        Experiment.of(name="a", task={"name": "digits"}, algorithm=[{"name": "fedavgg"}])
    with pytest.raises(InvalidInput, match="name: got ''"):
        Experiment.of(name="", task={"name": "digits"}, algorithm=[{"name": "fedavg"}])


def test_shorthand():
    assert parse_section("FedDANE:mu=0.01,cohorts=shared,pipelined=true") == {
        "name": "feddane",
        "mu": 0.01,
        "cohorts": "shared",
        "pipelined": True,
    }
    assert parse_options("a=[1, 2],b=x") == {"a": [1, 2], "b": "x"}
    assert parse_options("") == {}
    assert parse_numbers("--seeds", "0,2") == [0, 2]
    for text in ("mu=1", ":mu=1", "fedprox:mu", "fedprox:=1"):
        with pytest.raises(InvalidInput, match="not of the form"):
            parse_section(text)
    with pytest.raises(InvalidInput, match="whole numbers separated by commas"):
        parse_numbers("--seeds", "a")


@pytest.mark.parametrize("name", sorted(DATASETS))
def test_every_task_is_written_out_with_its_options(name):
    """Without its data: they are read when the experiment is planned."""
    given = (
        {"name": name, "folder": "somewhere"} if "folder" in task_options(name) else {"name": name}
    )
    written = Experiment.of(name="a", task=given, algorithm=[{"name": "fedavg"}]).resolved()["task"]
    assert written.items() >= given.items()
    assert set(written) - {"name"} <= set(task_options(name))
    again = Experiment.of(name="a", task=written, algorithm=[{"name": "fedavg"}]).resolved()["task"]
    assert again == written


def test_a_task_without_an_option_it_needs_is_refused():
    experiment = Experiment.of(name="a", task={"name": "table"}, algorithm=[{"name": "fedavg"}])
    with pytest.raises(
        InvalidInput,
        match=r"table\(table=...\): got nothing; allowed: "
        r"a value",
    ):
        experiment.plan()


def test_options_of_a_partition_in_a_file(tmp_path):
    (tmp_path / "toy").write_text("1 1:1\n-1 1:2\n1 1:3\n")
    text = f"""
        name = "a"
        [task]
        name = "libsvm"
        file = "toy"
        folder = "{tmp_path}"
        partition = "power_law"
        clients = 2
        classes_per_client = 1
        [[algorithm]]
        name = "fedavg"
    """
    task = Experiment.parse(text).plan().task
    assert sorted(task.train.arrays["y"].tolist()) == [0, 1, 1]
    assert task.train.sizes.tolist() == [1, 2]
    assert task.l2 == 1 / 3


def test_what_becomes_of_bad_clients():
    experiment = Experiment.parse('on_bad_client = "drop"\n' + TINY)
    assert experiment.plan().arguments["on_bad_client"] == "drop"
    assert Experiment.parse(experiment.toml()).on_bad_client == "drop"
    assert Experiment.parse(TINY).plan().arguments["on_bad_client"] == "stop"
    assert "got 'skip'; allowed: one of ('stop', 'drop')" in refused(
        'on_bad_client = "skip"\n' + TINY
    )
