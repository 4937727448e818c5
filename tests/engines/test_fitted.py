"""Hyperparameters by word: the numbers of the theory on quadratics whose constants are known."""

import numpy as np
import pytest

import fedax
from fedax.core import InvalidInput
from fedax.core.hyper import declared
from fedax.engine.driver.options import RunOptions
from fedax.engine.driver.resolve import resolve
from fedax.engine.driver.run import program_key
from fedax.experiments.config.experiment import Experiment
from fedax.theory import fedbc, local_gd
from marks import slow
from problems import quadratic, random_quadratic, vector

A, B = random_quadratic(clients=3, dim=3, high=3.0)
OWN = np.linalg.eigvalsh(A)[:, -1]
TASK = quadratic(A, B, sizes=[2, 5, 7])
GD = {"batch_size": "full", "weights": "equal"}


def go(method, task=TASK, rounds=2, schedule=None, **options):
    return fedax.run(
        method, task, rounds=rounds, schedule=schedule or fedax.Schedule(steps=2, **GD), **options
    )


@pytest.mark.parametrize(
    ("schedule", "most"),
    [
        (fedax.Schedule(steps=4, **GD), 4),
        (fedax.Schedule(times=(1, 4, 6), **GD), 3),
        (fedax.Schedule(epochs=(1, 3), batch_size=2), 12),
        (fedax.Schedule(epochs=2, batch_size=(3, "all")), 6),
    ],
)
def test_the_step_size_of_theorem_1(schedule, most):
    _, options, (found,) = resolve(
        [fedax.FedAvg()], TASK, RunOptions(fedax.SGD("theory"), schedule, rounds=1)
    )
    assert list(found) == ["solver.learning_rate"]
    rate = local_gd.step_size(smoothness=float(OWN.max()), interval=most)
    assert (
        found["solver.learning_rate"] == options.solver.step_size() == pytest.approx(rate, rel=1e-4)
    )


@pytest.mark.slow
@pytest.mark.parametrize("engine", [None, slow(fedax.Eager())], ids=["simulation", "eager"])
def test_the_bounds_of_multipliers(engine):
    """Dual steps large enough to reach both ends; multipliers begin at the lower one."""
    method = fedax.FedBC(dual_lr=100.0, learn_gamma=False, lam_min="theory", lam_max="theory")
    before, history = (
        go(method, rounds=rounds, engine=engine, solver=fedax.SGD(0.05)) for rounds in (0, 1)
    )
    bounds = fedbc.multiplier_bounds(OWN)
    np.testing.assert_allclose(history.fitted["lam_min"], bounds.low, rtol=1e-4)
    np.testing.assert_allclose(history.fitted["lam_max"], bounds.high, rtol=1e-4)
    first, last = (np.asarray(run.state.memory.all().dual.lam) for run in (before, history))
    np.testing.assert_array_equal(first, history.fitted["lam_min"])
    assert np.all((last >= history.fitted["lam_min"]) & (last <= history.fitted["lam_max"]))
    assert np.any(last == history.fitted["lam_max"])


def test_only_what_is_a_word_is_measured(monkeypatch):
    monkeypatch.setattr("fedax.theory.constants.smoothness", None)
    go(fedax.FedBC(lam_min=1.0), rounds=0)
    with pytest.raises(TypeError):
        go(fedax.FedBC(lam_max="theory"), rounds=0)


@pytest.mark.slow
def test_the_numbers_are_part_of_the_identity(tmp_path):
    """A run with the word is the one with its number; with other work, and so another number, it is
    another run."""
    options = {"solver": fedax.SGD("theory"), "checkpoint": tmp_path, "checkpoint_every": 1}
    first = go(fedax.FedAvg(), rounds=1, **options)
    rate = float(first.fitted["solver.learning_rate"])
    straight = go(fedax.FedAvg(), rounds=2, solver=fedax.SGD(rate))
    assert straight.fitted == {}
    for solver in (fedax.SGD("theory"), fedax.SGD(rate)):
        again = go(fedax.FedAvg(), rounds=2, **(options | {"solver": solver}))
        np.testing.assert_array_equal(vector(again), vector(straight))
    with pytest.raises(InvalidInput, match="learning_rate"):
        go(fedax.FedAvg(), rounds=2, schedule=fedax.Schedule(steps=3, **GD), **options)


def test_a_grid_has_numbers_of_its_own():
    methods = [fedax.FedBC(dual_lr=rate, lam_min="theory") for rate in (0.0, 0.1)]
    histories = fedax.run_grid(methods, TASK, rounds=0)
    assert [set(history.fitted) for history in histories] == [{"lam_min"}] * 2
    assert program_key(methods[0]) != program_key(fedax.FedBC(lam_min=0.0))
    with pytest.raises(InvalidInput, match="all alike but for real"):
        fedax.run_grid([methods[0], fedax.FedBC(lam_min=0.0)], TASK, rounds=1)


def test_tasks_and_engines_without_the_constants_are_refused():
    linear = fedax.tasks.from_loss(
        lambda w, x: w * x["x"], np.float64(0.0), [{"x": [1.0]}, {"x": [2.0]}]
    )
    with pytest.raises(InvalidInput, match="client 0 without curvature at the start"):
        go(fedax.FedAvg(), linear, solver=fedax.SGD("theory"))

    class Apart(fedax.Simulation):
        def has_all(self, task):
            return False

    for method, solver in (
        (fedax.FedAvg(), fedax.SGD("theory")),
        (fedax.FedBC(lam_max="theory"), fedax.SGD()),
    ):
        with pytest.raises(
            InvalidInput,
            match=r"\(l\w+=\.\.\.\): got 'theory'; allowed: numbers on an engine "
            r"that has not",
        ):
            go(method, engine=Apart(), solver=solver)


def test_other_words_and_numbers_out_of_range_are_refused():
    for kind, name in ((fedax.SGD, "learning_rate"), (fedax.FedBC, "lam_min")):
        with pytest.raises(InvalidInput, match=r"got 'practice'; .*, or \"theory\""):
            declared(kind)[name].check(kind.__name__, "practice")
    with pytest.raises(InvalidInput, match="got 'theory'"):
        declared(fedax.FedProx)["mu"].check("FedProx", "theory")
    with pytest.raises(InvalidInput, match="got 'theory'; allowed: numbers; a run with"):
        fedax.SGD("theory").step_size()


TEXT = """
name = "a"
task = {name = "synthetic", clients = 3}
solver = {learning_rate = "theory"}
schedule = {steps = 2, batch_size = "full"}
algorithm = [{name = "fedbc", lam_min = "theory"}]
"""


def test_files_have_words():
    experiment = Experiment.parse(TEXT)
    assert experiment.solver.make() == fedax.SGD("theory")
    assert Experiment.parse(experiment.toml()).algorithm[0].make() == fedax.FedBC(lam_min="theory")
    assert fedax.footprint(
        fedax.FedBC(lam_min="theory"), solver=fedax.SGD("theory")
    ) == fedax.footprint(fedax.FedBC())


def test_private_runs_take_numbers_only():
    """A rate fitted to the examples would be published without noise."""
    channel = fedax.Channel(privacy=fedax.Privacy(clip=1.0, noise=1.0))
    with pytest.raises(fedax.InvalidInput, match="numbers in a private run"):
        fedax.run(
            fedax.FedAvg(),
            TASK,
            solver=fedax.SGD("theory"),
            schedule=fedax.Schedule(weights="equal"),
            channel=channel,
            rounds=1,
        )
