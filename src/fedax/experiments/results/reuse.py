"""Runs that another directory already has: Table 1 and Figure 3 of a paper are often the same
runs.
"""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedax.core import InvalidInput
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.config.run_ids import RunId, draw_of
from fedax.experiments.results.models import models_in
from fedax.experiments.results.provenance import versions
from fedax.experiments.results.settings import configured
from fedax.experiments.results.store import RunDirectory
from fedax.report import Record


def import_runs(
    experiments: Sequence[Experiment], folders: Sequence[Path], elsewhere: bool = False
) -> dict[int, Record]:
    """Imports the runs of some experiments that are finished in other run directories, by number.

    A run is the same if its data, model, method, solver, schedule, seed, rounds and observations
    are; names do not count.

    Args:
        experiments: of the new directory, in order.
        folders: run directories, or what `fedax report --keep` copied of them; the first that has a
            run counts.
        elsewhere: also imports runs made with other versions or on another machine; they then say
            with which.

    Raises:
        InvalidInput: no run directory, or, unless `elsewhere`, one made with other versions or on
            another machine, whose numbers may differ.
    """
    known: dict[str, Record] = {}
    for folder in folders:
        directory = RunDirectory.load(folder, repair=True)
        now = versions()
        for slot, run in identified(directory.experiments):
            record = directory.runs.get(slot.number)
            # the files may have been edited since: label and seed must be those of the number
            if record is None or not slot.is_of(record) or record.outcome.kind == "interrupted":
                continue
            # a run that was imported itself says with which versions it was made
            made = record.versions or directory.versions
            if (
                other := [name for name, value in now.items() if made.get(name) != value]
            ) and not elsewhere:
                listed = ", ".join(
                    f"{name} {made.get(name)} there and {now[name]} here" for name in other
                )
                hint = "--elsewhere takes them all the same, and the tables say so."
                reason = f"made with other versions, so its runs cannot be reused: {listed}"
                raise InvalidInput.because(str(folder), reason, hint)
            models = models_in(folder, slot.number)
            # the first folder that has a run counts
            known.setdefault(
                run, dataclasses.replace(record, models=models, versions=made if other else None)
            )
    # the same run may have another number, title or label here
    return {
        slot.number: dataclasses.replace(
            known[run],
            task=experiments[slot.experiment].name,
            label=slot.member.label,
            draw=draw_of(experiments[slot.experiment]),
        )
        for slot, run in identified(experiments)
        if run in known
    }


def identified(experiments: Sequence[Experiment]) -> Iterator[tuple[RunId, str]]:
    """Yields every run with a text of all that determines it, as a key for look-ups."""
    return ((slot, json.dumps(run, sort_keys=True)) for slot, run in configured(experiments))
