"""Runs that another directory already has: Table 1 and Figure 3 of a paper are often the same
runs.
"""

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedax.core import InvalidInput
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.config.run_ids import RunId, data_seed
from fedax.experiments.results.models import models_in
from fedax.experiments.results.provenance import versions
from fedax.experiments.results.settings import (
    data_differences,
    jax_differences,
    run_configurations,
)
from fedax.experiments.results.store import RunDirectory
from fedax.results import Record
from fedax.results.tables.summary import counted


class _Candidate(NamedTuple):
    """A finished run of another directory.

    Attributes:
        record: the run.
        folder: of the directory.
        number: of the run in the directory.
        versions: with which it was made.
        same_versions: whether these are the present ones.
        observers: names of its observers; None for all that fit its task.
    """

    record: Record
    folder: Path
    number: int
    versions: Mapping[str, Any]
    same_versions: bool
    observers: Sequence[str] | None


def import_runs(
    experiments: Sequence[Experiment],
    folders: Sequence[Path],
    elsewhere: bool = False,
    hashes_of: Callable[[Experiment], Mapping[str, str]] | None = None,
    say: Callable[[str], None] = lambda message: None,
) -> dict[int, Record]:
    """Imports the runs of some experiments that are finished in other run directories, by number.

    A run is the same if its data, model, method, solver, schedule, seed, rounds and observations
    are; names do not count. It may have more observers, whose metrics stay. Runs are passed over
    that were made with other random settings of JAX or from other data, or that lack an observer or
    a metric that the experiment needs. What a run of an earlier version does not say counts as the
    same.

    Args:
        experiments: of the new directory, in order.
        folders: run directories, or what `fedax report --keep` copied of them; the first that has a
            run counts.
        elsewhere: also imports runs made with other versions, on another machine, or with other
            settings of JAX; they then say with which.
        hashes_of: returns the hashes of an experiment's data (see `Plan.data_hashes`); called only
            where runs say with which data they were made. Without it data are not compared.
        say: called with a sentence about runs that were passed over.

    Raises:
        InvalidInput: no run directory, or, unless `elsewhere`, one made with other versions or on
            another machine, whose numbers may differ.
    """
    candidates: dict[str, list[_Candidate]] = {}
    for folder in folders:
        for run, candidate in _find_runs(folder, elsewhere):
            candidates.setdefault(run, []).append(candidate)
    imported: dict[int, Record] = {}
    reasons = Counter[str]()
    for run_id, run, observers in _identify_with_observers(experiments):
        experiment, refusals = experiments[run_id.experiment], list[str]()
        # the first folder that has a run counts
        for candidate in candidates.get(run, []):
            data = candidate.record.settings and candidate.record.settings.get("data")
            # `hashes_of` may make the data, which takes time
            hashes = hashes_of(experiment) if data and hashes_of else {}
            refusal = _lacks(candidate, observers)
            refusal = refusal or _refusal(candidate, experiment, hashes, elsewhere)
            if refusal is not None:
                refusals.append(refusal)
                continue
            # the same run may have another number, title or label here
            imported[run_id.number] = dataclasses.replace(
                candidate.record,
                settings=candidate.record.settings
                and {**candidate.record.settings, "observe": observers},
                models=models_in(candidate.folder, candidate.number),
                versions=_other_versions(candidate, hashes),
                task=experiment.name,
                label=run_id.member.label,
                draw=data_seed(experiment),
            )
            break
        else:
            reasons.update(refusals[:1])
    for reason, count in reasons.items():
        say(f"{counted(count, 'run')} {reason}")
    return imported


def _find_runs(folder: Path, elsewhere: bool) -> Iterator[tuple[str, _Candidate]]:
    """Yields the finished runs of a directory, each with the text that identifies it."""
    directory = RunDirectory.load(folder, repair=True)
    current_versions = versions()
    for run_id, run, observers in _identify_with_observers(directory.experiments):
        record = directory.runs.get(run_id.number)
        # the files may have been edited since: label and seed must be those of the number
        if record is None or not run_id.is_of(record) or record.outcome.kind == "interrupted":
            continue
        # a run that was imported itself says with which versions it was made
        run_versions = record.versions or directory.versions
        differing = [
            name for name, value in current_versions.items() if run_versions.get(name) != value
        ]
        if differing and not elsewhere:
            differences = ", ".join(
                f"{name} {run_versions.get(name)} there and {current_versions[name]} here"
                for name in differing
            )
            hint = "--elsewhere takes them all the same, and the tables say so."
            reason = f"made with other versions, so its runs cannot be reused: {differences}"
            raise InvalidInput.because(str(folder), reason, hint)
        yield (
            run,
            _Candidate(record, folder, run_id.number, run_versions, not differing, observers),
        )


def _lacks(candidate: _Candidate, observers: Sequence[str] | None) -> str | None:
    """Returns the sentence after "2 runs" that says which observers a run lacks, None if it has
    all.
    """
    beginning = f"of {candidate.folder} cannot be reused: "
    if candidate.observers is None or observers is None:
        is_same = candidate.observers is observers
        return None if is_same else beginning + "made with another `observe`."
    names = [name for name in observers if name not in candidate.observers]
    return f"{beginning}they lack {', '.join(names)} of `observe`." if names else None


def _refusal(
    candidate: _Candidate, experiment: Experiment, hashes: Mapping[str, str], elsewhere: bool
) -> str | None:
    """Returns the sentence after "2 runs" that says why a run cannot be reused, None if it can."""
    record, folder = candidate.record, candidate.folder
    for section, metric in experiment.required_metrics().items():
        if metric not in record.scalars:
            return f"of {folder} cannot be reused: they lack {metric}, which [{section}] needs."
    differing_jax = jax_differences(record)
    if differing_jax and not elsewhere:
        settings = ", ".join(f"{name} = {value}" for name, value in differing_jax.items())
        return (
            f"of {folder} cannot be reused: made with {settings}. --elsewhere takes them all the "
            "same, and the tables say so."
        )
    # other versions, or other types of numbers, may round the same data in another way
    is_comparable = candidate.same_versions and not differing_jax
    if is_comparable and (changed := data_differences(record, hashes)):
        return (
            f"of {folder} cannot be reused: made with other {' and '.join(changed)} of task "
            f"{experiment.task.name!r}."
        )
    return None


def _other_versions(candidate: _Candidate, hashes: Mapping[str, str]) -> dict[str, Any] | None:
    """Returns with what a run was made, None if that is all as it is here."""
    differing_jax = jax_differences(candidate.record)
    if candidate.same_versions and not differing_jax:
        return None
    changed = [] if differing_jax else data_differences(candidate.record, hashes)
    words = dict.fromkeys(changed, "of other content than here")
    return {**candidate.versions, **differing_jax, **words}


def _identify_with_observers(
    experiments: Sequence[Experiment],
) -> Iterator[tuple[RunId, str, Sequence[str] | None]]:
    """Yields every run with a text of all that determines it, and the names of its observers."""
    for run_id, run in run_configurations(experiments):
        observers = run.pop("observe")
        yield run_id, json.dumps(run, sort_keys=True), observers


def identify_runs(experiments: Sequence[Experiment]) -> Iterator[tuple[RunId, str]]:
    """Yields every run with a text of all that determines it, as a key for look-ups."""
    return (
        (run_id, json.dumps(run, sort_keys=True)) for run_id, run in run_configurations(experiments)
    )
