"""The runs that experiments need, each with the settings that determine it."""

import json
from collections.abc import Sequence
from typing import Any

import tomli_w

from fedax.experiments.config.experiment import Experiment
from fedax.experiments.config.plan import Member
from fedax.experiments.config.sections import settings_of
from fedax.experiments.config.toml import parse_toml
from fedax.experiments.config.user_code import fingerprint_sources
from fedax.experiments.results.runs import Run
from fedax.experiments.results.store import STUDY, RunDirectory
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


def planned_runs(experiments: Sequence[Experiment]) -> list[Run]:
    """Returns all runs, in the order of experiments, members and seeds.

    Runs that select in a grid come before those to report: which of these are needed is known only
    when the selecting ones have run. Runs of equal settings have one id.
    """
    runs: list[Run] = []
    for experiment in experiments:
        members = experiment.members()
        methods = [member.method for member in members]
        resolved = experiment.resolved()
        common = {name: value for name, value in resolved.items() if name not in _NO_SETTINGS}
        # by default those that fit the task and the methods
        default = ["default", "local_accuracy"] if experiment.is_personal else ["default"]
        observed = default if experiment.observe is None else experiment.observe
        # those that are needed, and by which the best model is kept where that is not the default
        best = experiment.best_by
        common["observe"] = observed + [
            metric
            for metric in sorted(experiment.required_metrics())
            if metric not in observed or metric == best != "validation_loss"
        ]
        for member in members:
            settings = _settings_of(experiment, member, common)
            about = {
                "task": experiment.name,
                "method": member.method,
                "label": member.label,
                "draw": data_seed(experiment),
                "settings": member.settings,
                "experiment": experiment,
                "member": member,
            }
            # an algorithm with a single member has nothing to select
            seeds = [(seed, False) for seed in experiment.seeds]
            if experiment.grid and methods.count(member.method) > 1:
                seeds = [(s, True) for s in experiment.grid.selecting(experiment.seeds)] + seeds
            for seed, selects in seeds:
                full = settings | {"seed": seed}
                run = Run(**about, id=run_id(full), seed=seed, selects=selects, made_with=full)
                runs.append(run)
    return runs


def study_of(experiments: Sequence[Experiment]) -> dict[str, Any]:
    """Returns what the run directory of experiments knows of them, as its fields."""
    documents = [experiment.resolved() for experiment in experiments]
    study = documents[0] if len(documents) == 1 else {"experiment": documents}
    return {
        "study": tomli_w.dumps(study),
        "planned": planned_runs(experiments),
        "reads": {experiment.name: experiment.reads for experiment in experiments},
        "selects": {experiment.name: experiment.select for experiment in experiments},
    }


def read_study(directory: RunDirectory, trust: bool = False) -> list[Experiment]:
    """Returns the experiments of a run directory, so that they can be run.

    Args:
        directory: that may come from somebody else.
        trust: whether the user code that it names may be loaded.

    Raises:
        InvalidInput: no experiments, or code that is not trusted, is not there, or has changed.
    """
    name = str(directory.path / STUDY)
    documents = parse_toml(directory.study, name).get("experiment")
    texts = [directory.study] if documents is None else map(tomli_w.dumps, documents)
    return [Experiment.parse(text, name, trust) for text in texts]


def _settings_of(experiment: Experiment, member: Member, common: dict[str, Any]) -> dict[str, Any]:
    settings = common | {
        "algorithm": settings_of(member.algorithm),
        "solver": settings_of(member.solver),
        # the member's options come over the common ones
        "schedule": common["schedule"] | member.schedule,
    }
    settings = fingerprint_sources(settings, experiment.sources)
    # through JSON, so that it is what a file holds
    return json.loads(json.dumps(settings, sort_keys=True, default=_to_plain))


def _to_plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else repr(value)


def data_seed(experiment: Experiment) -> int:
    """Returns the seed of the data."""
    return int(experiment.task.options.get("seed", 0))
