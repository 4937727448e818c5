"""The runs that experiments need, each with the settings that determine it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedax.experiments.config.experiment import Experiment, Member
from fedax.experiments.config.user_code import fingerprint_sources
from fedax.results.store import run_id

_NO_SETTINGS = (
    "name",
    "seeds",
    "read",
    "grid",
    "sources",
    "trackers",
    "checkpoint_every",
    "seeds_together",
    "simulation",
    "cluster",
    "keep_models",
)
"""Keys of an experiment that determine no run, or not in this form."""


class PlannedRun(NamedTuple):
    """A run that experiments may need.

    Attributes:
        id: the name of its folder, see `fedax.results.store.run_id`.
        experiment: index of the experiment.
        member: the algorithm with its settings.
        seed: of the run.
        selecting: whether it only selects among the members of a grid, and is not reported.
        settings: all that determines it, as plain values.
    """

    id: str
    experiment: int
    member: Member
    seed: int
    selecting: bool
    settings: dict[str, Any]


def planned_runs(experiments: Sequence[Experiment]) -> list[PlannedRun]:
    """Returns all runs, in the order of experiments, members and seeds.

    Runs that select in a grid come before those to report: which of these are needed is known only
    when the selecting ones have run. Runs of equal settings have one id.
    """
    runs: list[PlannedRun] = []
    for position, experiment in enumerate(experiments):
        members = experiment.members()
        methods = [member.method for member in members]
        resolved = experiment.resolved()
        common = {name: value for name, value in resolved.items() if name not in _NO_SETTINGS}
        if experiment.observe is None:
            # by default those that fit the task, and those that are needed
            common["observe"] = ["default", *sorted(experiment.required_metrics().values())]
        for member in members:
            settings = _settings_of(experiment, member, common)
            # an algorithm with a single member has nothing to select
            seeds = [(seed, False) for seed in experiment.seeds]
            if experiment.grid is not None and methods.count(member.method) > 1:
                seeds = [(s, True) for s in experiment.grid.selecting(experiment.seeds)] + seeds
            for seed, selecting in seeds:
                full = settings | {"seed": seed}
                runs.append(PlannedRun(run_id(full), position, member, seed, selecting, full))
    return runs


def _settings_of(
    experiment: Experiment, member: Member, common: Mapping[str, Any]
) -> dict[str, Any]:
    settings = dict(common) | {
        "algorithm": experiment.hyperparameters_of(member.algorithm),
        "solver": experiment.hyperparameters_of(member.solver),
        # the member's options come over the common ones
        "schedule": common["schedule"] | member.schedule,
    }
    settings = fingerprint_sources(experiment, member, settings)
    # through JSON, so that it is what a file holds
    return json.loads(json.dumps(settings, sort_keys=True, default=_to_plain))


def _to_plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else repr(value)


def data_seed(experiment: Experiment) -> int:
    """Returns the seed of the data."""
    return int(experiment.task.options.get("seed", 0))


def is_reported(
    run: PlannedRun, experiments: Sequence[Experiment], chosen: Mapping[str, Mapping[str, str]]
) -> bool:
    """Returns whether reports show a run.

    Args:
        run: of the experiments.
        experiments: all of them.
        chosen: by task and algorithm, the label of the member that a grid selected.
    """
    label, labels = run.member.label, chosen.get(experiments[run.experiment].name, {})
    return not run.selecting and labels.get(run.member.method, label) == label


def other_data(others: Sequence[Mapping[str, Any]], planned: Sequence[PlannedRun]) -> int:
    """Returns how many settings of other runs are those of planned ones but for the data."""
    expected = {_without_data(run.settings) for run in planned}
    return sum(_without_data(settings) in expected for settings in others)


def _without_data(settings: Mapping[str, Any]) -> str:
    # what the data are, and what is told of them
    left_out = ("data", "encoding", "majority")
    return run_id({name: value for name, value in settings.items() if name not in left_out})
