"""The configuration of a single run, by which its record is tied to the experiment it stands
under.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedax.core import InvalidInput, Schedule
from fedax.core.hyper import is_new
from fedax.engine.compilation.fingerprint import first_difference, random_settings
from fedax.examples.encoding import Encoding
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.config.run_ids import RunId, list_run_ids
from fedax.experiments.config.user_code import fingerprint_sources
from fedax.results import Record

SURROUNDINGS = ("jax", "data", "encoding", "majority")
"""Entries of a record's settings that are no part of its configuration: JAX's random settings,
hashes of the data (see `Plan.data_hashes`), the encoding of tables as JSON, and the share of the
most frequent class (see `majority_of`)."""
_SHARED = (
    "rounds",
    "observe_every",
    "observe",
    "minimum",
    "task",
    "stop",
    "channel",
    "engine",
    "schedule",
    "audit",
    "early_stopping",
    "unseen_steps",
)


def run_configurations(
    experiments: Sequence[Experiment], numbers: Sequence[int] | None = None
) -> Iterator[tuple[RunId, dict[str, Any]]]:
    """Yields all runs, or those of some numbers, with the configuration that determines them as
    plain values.
    """
    # by experiment, what all of its runs have in common
    shared: dict[int, dict[str, Any]] = {}
    wanted_numbers = None if numbers is None else set(numbers)
    for run_id in list_run_ids(experiments):
        if wanted_numbers is not None and run_id.number not in wanted_numbers:
            continue
        if run_id.experiment not in shared:
            resolved = experiments[run_id.experiment].resolved()
            clocked = {name: resolved[name] for name in ("devices", "budget") if name in resolved}
            shared[run_id.experiment] = {
                name: resolved.get(name) for name in (*_SHARED, "on_bad_client")
            } | clocked
        common, experiment = shared[run_id.experiment], experiments[run_id.experiment]
        hyperparameters = [
            experiment.hyperparameters_of(section)
            for section in (run_id.member.algorithm, run_id.member.solver)
        ]
        run = (
            common
            | dict(zip(("algorithm", "solver"), hyperparameters, strict=True))
            | {"seed": run_id.seed}
        )
        # the member's options come over the common ones
        run["schedule"] = _drop_new_options(common["schedule"] | run_id.member.schedule)
        run = fingerprint_sources(experiment, run_id.member, run)
        # through JSON, so that it compares equal with what a record has stored
        yield run_id, json.loads(json.dumps(run, sort_keys=True, default=_to_plain))


def check_configurations(
    experiments: Sequence[Experiment], runs: Mapping[int, Record], going_on: bool = False
) -> None:
    """Refuses runs that were made with another configuration than they stand under.

    Runs of a version that kept none are passed over.

    Args:
        experiments: of a directory.
        runs: its runs by number.
        going_on: whether further runs will be made here; then JAX's random settings have to be the
            same too.

    Raises:
        InvalidInput: names the file of the run, the field, and both values.
    """
    recorded = {number: record for number, record in runs.items() if record.settings is not None}
    expected = {
        run_id.number: (run_id, run)
        for run_id, run in run_configurations(experiments, list(recorded))
    }
    for number, record in recorded.items():
        file = f"runs/{number:04d}.npz"
        if number not in expected:
            raise InvalidInput.because(file, "the configuration beside it has no such run", _HINT)
        run_id, run = expected[number]
        # a record that is filed under another task or label is refused as well
        current = {"name": experiments[run_id.experiment].name, "label": run_id.member.label} | run
        stored = {"name": record.task, "label": record.label} | (record.settings or {})
        stored = {name: value for name, value in stored.items() if name not in SURROUNDINGS}
        # runs that were imported from elsewhere say themselves with what they were made
        if going_on and record.versions is None and (differing := jax_differences(record)):
            name, then = next(iter(differing.items()))
            now = random_settings()[name]
            raise InvalidInput.because(
                f"{file}, jax.{name}", f"made with {then!r}, but here {now!r}", _HINT
            )
        if difference := first_difference(current, stored):
            field, now, then = difference
            raise InvalidInput.because(
                f"{file}, {field}",
                f"made with {then!r}, but the configuration beside it has {now!r}",
                _HINT,
            )


_HINT = "Put it back as it was, or run in another folder."


def check_data(
    experiment: Experiment, runs: Mapping[int, Record], hashes: Mapping[str, str]
) -> None:
    """Refuses to continue runs that were made with other data than the experiment's are now.

    Runs without hashes, of older versions, and those that were imported from elsewhere are passed
    over.

    Args:
        experiment: of the runs.
        runs: by number.
        hashes: of the data now, see `Plan.data_hashes`.

    Raises:
        InvalidInput: names the task and the first run that was made with other data.
    """
    for number, record in runs.items():
        if record.versions is None and (changed := data_differences(record, hashes)):
            reason = (
                f"its {' and '.join(changed)} have changed since runs/{number:04d}.npz was made"
            )
            hint = "Put the files back as they were, or run in another folder."
            raise InvalidInput.because(f"task {experiment.task.name!r}", reason, hint)


def jax_differences(record: Record) -> dict[str, Any]:
    """Returns JAX's random settings of a run that differ from those of this process; none where
    the run does not say them.
    """
    stored = (record.settings or {}).get("jax") or {}
    return {
        name: stored[name]
        for name, value in random_settings().items()
        if name in stored and stored[name] != value
    }


def data_differences(record: Record, hashes: Mapping[str, str]) -> list[str]:
    """Returns in words which data of a run differ from those with some hashes; none where the run
    does not say them.
    """
    stored: dict[str, str] = (record.settings or {}).get("data") or {}
    words = {"start": "starting parameters"}
    return [
        words.get(name, name) for name in stored if name in hashes and stored[name] != hashes[name]
    ]


def encoding_of(record: Record) -> Encoding | None:
    """Returns the encoding of the tables that a run was made with, None if there were none."""
    text = (record.settings or {}).get("encoding")
    return None if text is None else Encoding.from_json(text)


def stored_settings(
    experiments: Sequence[Experiment], number: int, record: Record, imported: bool = False
) -> dict[str, Any] | None:
    """Returns the settings to store with a run: its configuration, JAX's random settings, the
    hashes of its data, the encoding of its tables and the share of the most frequent class.

    Args:
        experiments: of the directory.
        number: of the run.
        record: the run, which has the hashes of its data.
        imported: whether it was made by another process, whose settings of JAX it keeps.

    Returns:
        None for a number that the experiments do not have.
    """
    recorded = record.settings or {}
    surroundings = {
        "jax": recorded.get("jax") if imported else random_settings(),
        "data": recorded.get("data"),
        "encoding": recorded.get("encoding"),
        "majority": recorded.get("majority"),
    }
    for _, run in run_configurations(experiments, [number]):
        return run | {name: value for name, value in surroundings.items() if value is not None}
    return None


def record_fingerprint(record: Record) -> str | None:
    """Returns the configuration that a run was made with as one text; None if it kept none.

    Equal for runs that differ in nothing but names and observers.
    """
    if record.settings is None:
        return None
    left_out = (*SURROUNDINGS, "observe")
    return json.dumps(
        {name: value for name, value in record.settings.items() if name not in left_out},
        sort_keys=True,
    )


def _drop_new_options(schedule: dict[str, Any]) -> dict[str, Any]:
    """Leaves out the options of a schedule that older runs do not know, at their defaults."""
    new_options = [
        field.name
        for field in dataclasses.fields(Schedule)
        if field.name in schedule and is_new(field, schedule[field.name])
    ]
    return {name: value for name, value in schedule.items() if name not in new_options}


def _to_plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else repr(value)
