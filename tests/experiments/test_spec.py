import pytest

from fedax.experiments.config.experiment import Experiment
from fedax.tasks.sources import DATASETS, task_options
from samples import TINY
from sources import own_files

EXAMPLES = own_files("examples", suffix=".toml")


def test_a_plan_has_everything_that_a_run_needs():
    plan = Experiment.parse(TINY).plan()
    assert list(plan.algorithms) == ["FedAvg", "FedProx mu=1"]
    assert plan.algorithms["FedProx mu=1"].mu == 1.0
    assert plan.task.train.clients == 4
    assert plan.arguments_of("FedAvg")["schedule"].cohort == 2
    assert plan.arguments_of("FedAvg")["solver"].learning_rate == 0.05
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
