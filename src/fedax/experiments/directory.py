"""The run directory: everything about a comparison on disk, valid after every run."""

import dataclasses
import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from fedax.core import InvalidInput, RunExists
from fedax.core.files import write
from fedax.experiments.versions import versions
from fedax.report import Page, Record, render
from fedax.report.record import by_task, to_csv
from fedax.report.summary import Row, counted, summarize


def refuse_if_taken(path: Path) -> None:
    """Raises `RunExists` if a path is anything but a new or an empty folder."""
    if path.is_dir() and any(path.iterdir()):
        what = "already holds a run" if (path / "summary.json").exists() else "is not empty"
        raise RunExists(f"{path} {what}; nothing was overwritten. Choose another folder, or remove this one.")
    if path.exists() and not path.is_dir():
        raise RunExists(f"{path} is a file, not a folder; nothing was overwritten. Choose another folder.")


def make_folder(path: Path) -> None:
    """Makes a folder with `runs/` and `versions.json`.

    Raises:
        RunExists: it exists and is not empty.
        InvalidInput: it cannot be written.
    """
    refuse_if_taken(path)
    try:
        (path / "runs").mkdir(parents=True)
    except OSError as error:
        reason = error.strerror or ""
        raise InvalidInput.of("output folder", str(path), "folders that can be written", reason) from error
    write(path / "versions.json", json.dumps(versions(), indent=2) + "\n")


@dataclasses.dataclass
class RunDirectory:
    """A folder with the results of one or more experiments.

    Files: `config.toml` (`config-<n>.toml` if several), `versions.json`, `runs/<n>.npz` (all observations of a run, with
    those of the single clients), `metrics.csv` (all scalars as one long table), `summary.json`, `report.html`.

    Attributes:
        path: the folder.
        title: heading of the report.
        notes: one line about a task, by the task's title.
        status: `"running"`, `"finished"` or `"interrupted"`.
        records: the runs so far.
    """

    path: Path
    title: str
    notes: dict[str, str] = dataclasses.field(default_factory=dict[str, str])
    status: Literal["running", "finished", "interrupted"] = "running"
    records: list[Record] = dataclasses.field(default_factory=list[Record])

    @classmethod
    def create(cls, path: Path, title: str) -> "RunDirectory":
        """A new directory.

        Raises:
            RunExists: the folder exists and is not empty.
            InvalidInput: it cannot be written.
        """
        make_folder(path)
        directory = cls(path, title)
        directory.flush()
        return directory

    @classmethod
    def load(cls, path: Path) -> "RunDirectory":
        """Reads an existing directory.

        Raises:
            InvalidInput: no run directory, or one whose files are damaged.
        """
        try:
            kept = json.loads((path / "summary.json").read_text(encoding="utf-8"))
            records = [Record.from_bytes(file.read_bytes()) for file in sorted((path / "runs").glob("*.npz"))]
            return cls(path, kept["title"], kept["notes"], kept["status"], records)
        except OSError as error:
            hint = f"{error.filename}: {error.strerror}."
            raise InvalidInput.of(
                "run directory", str(path), "folders made by `fedax run`, `compare` or `demo`", hint
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidInput.of("run directory", str(path), "folders with undamaged files", str(error)) from error

    def configure(self, configurations: Sequence[str]) -> None:
        """Writes the resolved configurations, TOML texts."""
        for number, text in enumerate(configurations):
            write(self.path / (f"config-{number}.toml" if len(configurations) > 1 else "config.toml"), text)

    def add(self, record: Record) -> None:
        """Keeps a run, and brings all files up to date."""
        write(self.path / "runs" / f"{len(self.records):04d}.npz", record.to_bytes())
        self.records.append(record)
        self.flush()

    def close(self, status: Literal["finished", "interrupted"]) -> None:
        """Marks the directory as complete or not."""
        self.status = status
        self.flush()

    def flush(self) -> None:
        """Rewrites the table, the summary and the report from the records."""
        write(self.path / "metrics.csv", to_csv(self.records))
        write(self.path / "summary.json", json.dumps(self._summary(), indent=2, allow_nan=False) + "\n")
        write(self.path / "report.html", render(self.page()))

    def page(self) -> Page:
        """The content of the report."""
        settings = {file.name: file.read_text(encoding="utf-8") for file in sorted(self.path.glob("config*.toml"))}
        kept = json.loads((self.path / "versions.json").read_text(encoding="utf-8"))
        return Page(self.title, self.line(), self.records, self.notes, settings, kept)

    def line(self) -> str:
        """The results in one line: how many runs, and how they ended."""
        tasks = by_task(self.records)
        counts = [
            counted(len({record.label for record in self.records}), "algorithm"),
            counted(len(tasks), "task"),
            counted(len(self.records), "run"),
        ]
        ended = [
            (kind, sum(r.outcome.kind == kind for r in self.records)) for kind in ("diverged", "non-finite", "interrupted")
        ]
        troubles = [f"{count} {kind}" for kind, count in ended if count]
        status = {"running": " Still running.", "interrupted": " Interrupted before all runs were done.", "finished": ""}
        return f"{', '.join(counts)}; {', '.join(troubles) or 'all ended well'}.{status[self.status]}"

    def _summary(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "status": self.status,
            "notes": self.notes,
            "tasks": {title: [_plain(row) for row in summarize(runs)] for title, runs in by_task(self.records).items()},
            "runs": [
                {"file": f"runs/{i:04d}.npz", "task": r.task, "algorithm": r.label, "seed": r.seed, "draw": r.draw}
                | {"rounds": int(r.rounds[-1]), "outcome": str(r.outcome), "seconds": round(float(r.seconds[-1]), 3)}
                for i, r in enumerate(self.records)
            ],
        }


def _plain(row: Row) -> dict[str, Any]:
    values = {
        metric: {"mean": mean if math.isfinite(mean) else None, "deviation": deviation if math.isfinite(deviation) else None}
        for metric, (mean, deviation) in row.values.items()
    }
    return {"algorithm": row.label, "runs": row.runs, "rounds": row.rounds, "outcome": row.outcome, "final": values}


def slug(text: str) -> str:
    """A folder name from a title.

    >>> slug("Synthetic (1, 1)")
    'synthetic-1-1'
    """
    return "-".join("".join(c if c.isalnum() else " " for c in text.lower()).split()) or "run"


def fresh(parent: Path, name: str) -> Path:
    """A folder below `parent` that does not exist yet: `name`, `name-2`, `name-3`, ..."""
    return next(path for i in itertools.count(1) if not (path := parent / (name if i == 1 else f"{name}-{i}")).exists())
