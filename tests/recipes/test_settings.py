"""Settings of recipes that a paper's text fixes."""

import pytest

from fedax.experiments import recipes

FEDAWARE = [name for name in recipes.recipe_files() if name.startswith("fedaware")]
IMAGES = {"crop": 4, "flip": True, "frozen": True, "normalize": "published"}


def parts(name):
    """Every experiment at paper scale with its methods' options by label, those of the local solver among them."""
    for experiment in recipes.load(name).experiments("paper"):
        rate = experiment.solver.options["learning_rate"]
        members = {s.shown(): {"learning_rate": rate} | s.options | s.solver for s in experiment.algorithm}
        yield experiment, members


@pytest.mark.parametrize("name", FEDAWARE)
def test_fedaware_has_the_settings_of_its_appendix(name):
    """App. C.1: alpha 0.5, local rate 0.01 for all clients, grids for the rest; App. C.2: the same on (Fashion)MNIST."""
    for experiment, members in parts(name):
        others = {label: options for label, options in members.items() if "local rate" not in label}
        assert {options["learning_rate"] for options in others.values()} == {0.01}
        assert (experiment.rounds, experiment.seeds) == (500, [37, 73, 1998])
        for label, options in members.items():
            if label.startswith("FedAWARE"):
                assert options["alpha"] == (0.7 if "0.7" in label else 0.5), label
            if label == "FedAWARE":
                assert (options["normalize"], options["startup"], options["feedback"]) == ("unit", "all", True)
        if "FedAvgM" in members:
            assert members["FedAvgM"]["momentum"] in (0.7, 0.9, 0.97, 0.997)
            assert members["FedNova as released"]["form"] == "as_released"
            assert members["FedDyn"]["alpha"] in (0.1, 0.01, 0.001)
            small = experiment.task.name == "cifar10" or experiment.name == "Statistical only"
            assert members["FedProx"]["mu"] == (0.01 if small else 0.1)
        given = {key: experiment.task.options.get(key) for key in IMAGES}
        assert given == (IMAGES if experiment.task.name == "cifar10" else dict.fromkeys(IMAGES))


@pytest.mark.parametrize("name", [name for name in recipes.recipe_files() if name.startswith("fedbc")])
def test_images_of_fedbc_are_those_of_its_code(name):
    """Random crops at every step and no flips on CIFAR-10, normalised by constants, as MNIST."""
    for experiment, _ in parts(name):
        options, kind = experiment.task.options, experiment.task.name
        assert options.get("normalize") == ("published" if kind in ("cifar10", "mnist") else None)
        assert options.get("crop") == (4 if kind == "cifar10" else None)
        assert not {"flip", "frozen"} & set(options)
