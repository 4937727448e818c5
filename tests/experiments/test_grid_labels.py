"""Labels of a grid's members: each stands for one member, also where an algorithm shares keys with
its solver or its schedule."""

import pytest

from fedax.algorithms import algorithm_classes
from fedax.core import Schedule
from fedax.core.hyper import declared
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.config.sections import SOLVERS
from fedax.experiments.running.progress import Display
from fedax.experiments.running.runner import run_experiment

VALUES = (0.25, 0.5, 1, 2)
SCHEDULE_VALUES = {"order": ["shuffled", "given"]}


def sections(**changes):
    return {
        "name": "T",
        "rounds": 2,
        "observe": ["train_loss"],
        "task": {"name": "synthetic", "clients": 3},
    } | changes


def two_values(hyper):
    choices = VALUES if hyper.choices is None else hyper.choices
    return [value for value in choices if hyper.allows(value)][:2]


def shared_keys():
    """Yields the keys that an algorithm shares with a solver or with the schedule."""
    schedule_keys = Schedule().options.keys()
    for name, kind in algorithm_classes().items():
        for solver, solver_kind in SOLVERS.items():
            for key in declared(kind).keys() & declared(solver_kind).keys():
                values = two_values(declared(solver_kind)[key])
                yield name, key, two_values(declared(kind)[key]), "solver", solver, values
        for key in declared(kind).keys() & schedule_keys:
            values = two_values(declared(kind)[key])
            yield name, key, values, "schedule", "sgd", SCHEDULE_VALUES[key]


SHARED = list(shared_keys())


@pytest.mark.parametrize(
    ("name", "key", "values", "owner", "solver", "other_values"),
    SHARED,
    ids=[
        f"{name}-{solver if owner == 'solver' else owner}"
        for name, _, _, owner, solver, _ in SHARED
    ],
)
def test_a_key_of_two_owners_is_qualified(name, key, values, owner, solver, other_values):
    assert len(values) == len(other_values) == 2
    experiment = Experiment.of(
        **sections(algorithm=[{"name": name}], solver={"name": solver}),
        grid={name: {key: values}, owner: {key: other_values}},
    )
    members = experiment.members()
    method = algorithm_classes()[name].__name__
    assert [member.label for member in members] == [
        f"{method}, {key}={value}, {owner}.{key}={other}"
        for value in values
        for other in other_values
    ]
    owners = [
        getattr(member, owner).options if owner == "solver" else member.schedule
        for member in members
    ]
    pairs = [(m.algorithm.options[key], o[key]) for m, o in zip(members, owners, strict=True)]
    assert pairs == [(value, other) for value in values for other in other_values]
    # a stored copy reads as the same members
    assert [m.label for m in Experiment.parse(experiment.toml()).members()] == [
        m.label for m in members
    ]


@pytest.mark.slow
def test_every_member_of_such_a_grid_runs_as_alone(tmp_path):
    grid = Experiment.of(
        **sections(seeds=[0], algorithm=[{"name": "fedavgm"}]),
        grid={"fedavgm": {"momentum": [0.5, 0.9]}, "solver": {"momentum": [0.0, 0.3]}},
    )
    directory = run_experiment(grid, tmp_path / "grid", Display())
    losses = {
        run.label: run.metrics["train_loss"].tolist() for run in directory.records if run.seed == 1
    }
    single = Experiment.of(
        **sections(
            seeds=[1],
            algorithm=[
                {
                    "name": "fedavgm",
                    "momentum": momentum,
                    "label": f"FedAvgM, momentum={momentum}, solver.momentum={local}",
                    "solver": {"momentum": local},
                }
                for momentum in (0.5, 0.9)
                for local in (0.0, 0.3)
            ],
        )
    )
    alone = run_experiment(single, tmp_path / "alone", Display())
    assert losses.keys() == {run.label for run in alone.records}
    assert len({str(curve) for curve in losses.values()}) == 4
    for run in alone.records:
        assert run.metrics["train_loss"].tolist() == pytest.approx(losses[run.label], rel=1e-5)
