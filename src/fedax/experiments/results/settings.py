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
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.config.run_ids import RunId, list_run_ids
from fedax.experiments.config.user_code import fingerprint_sources
from fedax.report import Record

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
    "held_back_steps",
)


def configured(
    experiments: Sequence[Experiment], numbers: Sequence[int] | None = None
) -> Iterator[tuple[RunId, dict[str, Any]]]:
    """Yields all runs, or those of some numbers, with the configuration that determines them as
    plain values.
    """
    # by experiment, what all of its runs have in common
    shared: dict[int, dict[str, Any]] = {}
    wanted = None if numbers is None else set(numbers)
    for slot in list_run_ids(experiments):
        if wanted is not None and slot.number not in wanted:
            continue
        if slot.experiment not in shared:
            resolved = experiments[slot.experiment].resolved()
            clocked = {name: resolved[name] for name in ("devices", "budget") if name in resolved}
            shared[slot.experiment] = {
                name: resolved.get(name) for name in (*_SHARED, "on_bad_client")
            } | clocked
        common, experiment = shared[slot.experiment], experiments[slot.experiment]
        own = [
            experiment.hyperparameters_of(section)
            for section in (slot.member.algorithm, slot.member.solver)
        ]
        run = common | dict(zip(("algorithm", "solver"), own, strict=True)) | {"seed": slot.seed}
        # the member's options come over the common ones
        run["schedule"] = _without_new(common["schedule"] | slot.member.schedule)
        run = fingerprint_sources(experiment, slot.member, run)
        # through JSON, so that it compares equal with what a record has stored
        yield slot, json.loads(json.dumps(run, sort_keys=True, default=_plain))


def check_made(
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
    told = {number: record for number, record in runs.items() if record.settings is not None}
    expected = {slot.number: (slot, run) for slot, run in configured(experiments, list(told))}
    for number, record in told.items():
        file = f"runs/{number:04d}.npz"
        if number not in expected:
            raise InvalidInput.because(file, "the configuration beside it has no such run", _HINT)
        slot, run = expected[number]
        # a record that is filed under another task or label is refused as well
        mine = {"name": experiments[slot.experiment].name, "label": slot.member.label} | run
        kept = {"name": record.task, "label": record.label} | (record.settings or {})
        # taken out first: JAX's settings are compared only if further runs are made
        jax_then = kept.pop("jax", None)
        if going_on:
            mine, kept = {"jax": random_settings()} | mine, {"jax": jax_then} | kept
        if found := first_difference(mine, kept):
            field, now, then = found
            here = "here" if field.startswith("jax") else "the configuration beside it has"
            raise InvalidInput.because(
                f"{file}, {field}", f"made with {then!r}, but {here} {now!r}", _HINT
            )


_HINT = "Put it back as it was, or run in another folder."


def made_with(experiments: Sequence[Experiment], number: int) -> dict[str, Any] | None:
    """Returns the configuration of a run that is made now, None for a number that the experiments
    do not have.
    """
    for _, run in configured(experiments, [number]):
        return run | {"jax": random_settings()}
    return None


def identity(record: Record) -> str | None:
    """Returns the configuration that a run was made with as one text; None if it kept none.

    Equal for runs that differ in nothing but names.
    """
    if record.settings is None:
        return None
    return json.dumps(
        {name: value for name, value in record.settings.items() if name != "jax"}, sort_keys=True
    )


def _without_new(schedule: dict[str, Any]) -> dict[str, Any]:
    """Leaves out the options of a schedule that older runs do not know, at their defaults."""
    new = [
        field.name
        for field in dataclasses.fields(Schedule)
        if field.name in schedule and is_new(field, schedule[field.name])
    ]
    return {name: value for name, value in schedule.items() if name not in new}


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else repr(value)
