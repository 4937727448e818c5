"""Settings of recipes that a paper's text fixes."""

import pytest

from fedax import papers

FEDAWARE = [
    name for name in papers.recipe_files() if name.startswith("fedaware") and name != "fedaware-ids"
]
FEDBC = [name for name in papers.recipe_files() if name.startswith("fedbc")]
IMAGES = {"crop": 4, "flip": True, "frozen": True, "normalize": "published"}


def parts(name):
    """Every experiment at paper scale with its methods' options by label, those of the local solver
    among them."""
    for experiment in papers.load(name).experiments("paper"):
        rate = experiment.solver.options["learning_rate"]
        members = {
            s.shown(): {"learning_rate": rate} | s.options | s.solver for s in experiment.algorithm
        }
        yield experiment, members


@pytest.mark.parametrize("name", FEDAWARE)
def test_fedaware_has_the_settings_of_its_appendix(name):
    """App. C.1: alpha 0.5, local rate 0.01 for all clients, grids for the rest; App. C.2: the same
    on (Fashion)MNIST."""
    for experiment, members in parts(name):
        others = {label: options for label, options in members.items() if "local rate" not in label}
        assert {options["learning_rate"] for options in others.values()} == {0.01}
        assert (experiment.rounds, experiment.seeds) == (500, [37, 73, 1998])
        for label, options in members.items():
            if label.startswith("FedAWARE"):
                assert options["alpha"] == (0.7 if "0.7" in label else 0.5), label
            if label.startswith("FedAWARE as released"):
                assert (options["normalize"], options["feedback"]) == ("unit", True), label
                assert options["startup"] == ("explore" if "0.7" in label else "all"), label
            if name.endswith("figure-7"):
                assert options["ids"] == "mixed", label
            elif "released" in label:
                assert options.get("ids", "aligned") == (
                    "aligned" if "aligned" in label else "mixed"
                ), label
            else:
                assert "ids" not in options, label
        if "FedAvgM" in members:
            assert members["FedAvgM"]["momentum"] in (0.7, 0.9, 0.97, 0.997)
            assert members["FedNova as released"]["form"] == "as_released"
            assert members["FedDyn"]["alpha"] in (0.1, 0.01, 0.001)
            small = experiment.task.name == "cifar10" or experiment.name == "Statistical only"
            assert members["FedProx"]["mu"] == (0.01 if small else 0.1)
        given = {key: experiment.task.options.get(key) for key in IMAGES}
        assert given == (IMAGES if experiment.task.name == "cifar10" else dict.fromkeys(IMAGES))


@pytest.mark.parametrize("name", FEDBC)
def test_fedbc_has_the_data_of_its_appendix(name):
    """E.1: Synthetic(0.5, 0.5), 30 devices but in Figure 7(f); E.2: a fifth for testing. Draw 1, as
    the scripts, or all others."""
    made = [experiment.task for experiment, _ in parts(name)]
    assert {task.options["test_fraction"] for task in made} == {0.2}
    assert {task.options["seed"] for task in made} == (
        {0, *range(2, 10)} if name == "fedbc-draws" else {1}
    )
    options = [task.options for task in made if task.name == "synthetic"]
    assert {(given["alpha"], given["beta"]) for given in options} <= {(0.5, 0.5)}
    assert {given["clients"] for given in options} <= (
        {30, 70, 100} if name == "fedbc-figure-7f" else {30}
    )


@pytest.mark.parametrize("name", FEDBC)
def test_images_of_fedbc_are_those_of_its_code(name):
    """Random crops at every step and no flips on CIFAR-10, normalised by constants, as MNIST."""
    for experiment, _ in parts(name):
        options = experiment.task.options
        kind = experiment.task.name
        assert options.get("normalize") == ("published" if kind in ("cifar10", "mnist") else None)
        assert options.get("crop") == (4 if kind == "cifar10" else None)
        assert not {"flip", "frozen"} & set(options)


@pytest.mark.parametrize("figure", [2, 3, 4, 5, 7, 8])
def test_dfedavgm_has_the_panels_of_membership_inference(figure):
    """Sec. 6: an attack beside every task, its areas in both rows of the figure, and claims about
    them."""
    recipe = papers.load(f"dfedavgm-figure-{figure}")
    attacked = [experiment.name for experiment in recipe.experiments("paper") if experiment.audit]
    assert attacked == [f"{variant.name}, membership inference" for variant in recipe.variant]
    assert [panels.name for panels in recipe.figure if "auc" in panels.y] == ["bits", "epochs"]
    assert "auc" in {claim.metric for claim in recipe.claim}


def test_dfedavgm_is_compared_in_bits():
    """Figure 6, second column: with 8 bits, against FedAvg and DSGD. The paper claims nothing of
    the kind with 32."""
    claims = papers.load("dfedavgm-figure-6").claim
    compared = {
        claim.a: claim.b for claim in claims if (claim.read or "").startswith("gigabits_to_")
    }
    assert compared == {"FedAvg": ["DFedAvgM, 8 bits"], "DSGD": ["DFedAvgM, 8 bits"]}


def test_feddane_has_the_forms_of_section_v_c():
    """Decayed and pipelined, beside FedDANE itself and FedProx, with one mu."""
    made = list(parts("feddane-variants"))
    assert len({experiment.name for experiment, _ in made}) == 4
    for _, members in made:
        forms = {
            label: (given.get("decay", 1.0), given.get("pipelined", False))
            for label, given in members.items()
        }
        plain = dict.fromkeys(("FedAvg", "FedProx", "FedDANE"), (1.0, False))
        assert forms == plain | {
            "Decayed, 0.99": (0.99, False),
            "Decayed, 0.9": (0.9, False),
            "Pipelined": (1.0, True),
        }
        assert {given["mu"] for label, given in members.items() if label != "FedAvg"} == {1.0}
