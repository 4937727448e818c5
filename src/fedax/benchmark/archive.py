"""The archive: one compressed file for each method and task."""

import dataclasses
import json
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedax.benchmark.task import BenchTask
from fedax.results import Record
from fedax.results.store import pack, unpack
from fedax.utils.files import portable, read, write, writing

SHIPPED = Path(__file__).parent / "archive"
"""The archive of the standing benchmark."""
ENDING = ".tar.xz"

Keys = Mapping[tuple[str, str], str]
"""Fingerprints of current results, by task and title of the method."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """All about one method on one task.

    Attributes:
        task: name of the task.
        method: title of the method.
        key: fingerprint of all that the runs depend on.
        judged: fingerprint of the task and its target, see `judged_by`.
        space: the ranges of the first draw, with their source.
        settings: all that were tried, in the order of the draws.
        scores: of each, smaller is better from the first number on, see `trials.standing_score`.
            Those of the better half are over all selection seeds, the others over the first.
        selected: place of the reported one.
        edges: values of the selected setting at an edge, such as `mu: high`.
        refused: why the method does not run on the task; then it has no records.
        records: the reported runs, one for each seed.
        seconds: that all runs took, of one core.
        search: the sequence that the settings were drawn from.
        versions: of the libraries and the machine.
    """

    task: str
    method: str
    key: str
    judged: str
    space: Mapping[str, Any]
    settings: Sequence[Mapping[str, float]] = ()
    scores: Sequence[Sequence[float]] = ()
    selected: int = 0
    edges: Sequence[str] = ()
    refused: str = ""
    records: Sequence[Record] = ()
    seconds: float = 0.0
    search: str = "halton"
    versions: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])

    def to_bytes(self) -> bytes:
        """Returns the entry as an archive: `entry.json`, and the files of each run."""
        about = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != "records"
        }
        runs = {str(place): run for place, run in enumerate(self.records)}
        return pack(runs, {"entry.json": json.dumps(about).encode()})

    @classmethod
    def from_bytes(cls, data: bytes) -> "Entry":
        """Reads what `to_bytes` returns.

        Raises:
            ValueError: damaged data.
        """
        runs, others = unpack(data)
        try:
            return cls(**json.loads(others["entry.json"]), records=tuple(runs.values()))
        except (KeyError, TypeError) as error:  # other fields than those of an entry
            raise ValueError(f"not a file of the benchmark ({error})") from error


def trimmed(run: Record, task: BenchTask) -> Record:
    """Returns a run with what the archive keeps: without wall times, which differ between equal
    runs, and without metrics that are not used.
    """
    metrics = {name: run.metrics[name] for name in task.kept if name in run.metrics}
    return dataclasses.replace(
        run, seconds=np.zeros(len(run.rounds)), compiling=None, metrics=metrics, settings=None
    )


@dataclasses.dataclass(frozen=True)
class Archive:
    """Folders with results; new ones go into the first."""

    folders: Sequence[Path]

    def find(self, task: str, method: str, key: str) -> Entry | None:
        """Returns the result of a method on a task if it was made as it would be now."""
        for folder in self.folders:
            file = folder / task / f"{portable(method)}{ENDING}"
            # two titles may give one file name, so the title is compared too
            if file.exists() and (entry := _read(file)).key == key and entry.method == method:
                return entry
        return None

    def add(self, entry: Entry) -> Path:
        """Writes a result, and returns its file."""
        file = self.folders[0] / entry.task / f"{portable(entry.method)}{ENDING}"
        with writing(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            write(file, entry.to_bytes())
        return file

    def entries(
        self, task: str, judged: Container[str] | None = None, keys: Keys | None = None
    ) -> Iterator[Entry]:
        """Yields the results on a task with some targets and budgets, in the order of the titles;
        without `judged` with all.

        Of a method that several folders have, the first counts. Results of the titles in `keys`
        count only with the key that these have.
        """
        found: dict[str, Entry] = {}
        for folder in self.folders:
            for file in sorted((folder / task).glob(f"*{ENDING}")):
                entry = _read(file)
                is_current = (keys or {}).get((task, entry.method), entry.key) == entry.key
                if is_current and (judged is None or entry.judged in judged):
                    found.setdefault(entry.method, entry)
        yield from (found[method] for method in sorted(found, key=str.lower))


def _read(file: Path) -> Entry:
    try:
        return Entry.from_bytes(read(file))
    except ValueError as error:
        raise ValueError(f"{file} is damaged ({error}); remove it, and run again") from error
