"""The run directory: everything about a comparison on disk, valid after every run."""

import contextlib
import dataclasses
import itertools
import json
import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, TypeAdapter, ValidationError

from fedax.core import InvalidInput, RunExists
from fedax.errors import printable
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.config.user_code import copy_sources
from fedax.experiments.results import provenance
from fedax.experiments.results.archive import (
    copy_archive_files,
    draw_pictures,
    kept_experiments,
    list_config_files,
    runs_csv,
)
from fedax.experiments.results.curves import NAME as CURVES
from fedax.experiments.results.curves import packed, unpacked
from fedax.experiments.results.figures import draw_curves
from fedax.experiments.results.grid import edges, grid_csv, grid_sheet, grids_of, selections
from fedax.experiments.results.models import keep_models
from fedax.experiments.results.settings import (
    check_configurations,
    record_fingerprint,
    stored_settings,
)
from fedax.experiments.results.study import Study, parse_study
from fedax.results import Page, Record, render
from fedax.results.differences import differences_sheet
from fedax.results.doubts import find_doubts
from fedax.results.drawing import Picture
from fedax.results.page import clients_sheets
from fedax.results.record import by_task, clients_csv, to_csv, with_named_clients
from fedax.results.tables.membership import membership_csv, select_audits
from fedax.results.tables.summary import Row, counted, summarize
from fedax.utils.files import portable, read, read_text, write, writing
from fedax.utils.lock import held, holder
from fedax.utils.plugins import forbidden


def refuse_if_taken(path: Path) -> None:
    """Raises `RunExists` if a path is anything but a new or an empty folder."""
    if owner := holder(path):
        raise RunExists(
            f"{path} is in use by {owner}; nothing was overwritten. Choose another folder."
        )
    if path.is_dir() and any(path.iterdir()):
        # `create` writes this file before anything runs
        has_run = (path / "summary.json").exists()
        state = "already holds a run" if has_run else "is not empty"
        advice = (
            f"continue it with `fedax resume {shlex.quote(str(path))}`"
            if has_run
            else "remove this one"
        )
        raise RunExists(
            f"{path} {state}; nothing was overwritten. Choose another folder, or {advice}."
        )
    if path.exists() and not path.is_dir():
        raise RunExists(
            f"{path} is a file, not a folder; nothing was overwritten. Choose another folder."
        )


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
        refuse_if_taken(path)  # another process was quicker
        reason = error.strerror or ""
        raise InvalidInput.because(str(path), f"cannot be written: {reason}") from error
    with writing(path):
        write(path / "versions.json", json.dumps(provenance.versions(), indent=2) + "\n")


_Name = Annotated[str, AfterValidator(printable)]
_VERSIONS = TypeAdapter(dict[_Name, _Name | int | float | None])

Status = Literal["running", "finished", "interrupted", "failed"]


class _About(BaseModel):
    """The part of `summary.json` that is read again."""

    title: _Name
    notes: dict[_Name, _Name]
    status: Status
    reason: _Name = ""
    jobs: int = 1


@dataclasses.dataclass
class RunDirectory:
    """A folder with the results of one or more experiments.

    Files: `config.toml` (`config-<n>.toml` if several), `versions.json`, `runs/<n>.npz` (all
    observations of a run, with those of the single clients), `models/<n>.safetensors` (its final
    model), `metrics.csv` (all scalars as one long table), `runs.csv` (the numbers of every run),
    `clients.csv` (the clients' own numbers at the end, where clients have names), `summary.json`,
    `report.html`.

    Attributes:
        path: the folder.
        title: heading of the report.
        notes: one line about a task, by the task's title.
        status: `"running"`, `"finished"`, `"interrupted"` or `"failed"`.
        runs: the runs so far by number, which is their place in the order of experiments,
            algorithms and seeds.
        experiments: what the folder is for, in its order.
        study: of the paper whose recipe they come from, if any.
        versions: of the libraries that the runs were made with, and the machine.
        jobs: processes among which the runs were spread.
        reason: why a run failed or was interrupted, where that is known.
    """

    path: Path
    title: str
    notes: dict[str, str] = dataclasses.field(default_factory=dict[str, str])
    status: Status = "running"
    runs: dict[int, Record] = dataclasses.field(default_factory=dict[int, Record])
    experiments: list[Experiment] = dataclasses.field(default_factory=list[Experiment])
    study: Study | None = None
    versions: dict[str, Any] = dataclasses.field(default_factory=provenance.versions)
    jobs: int = 1
    reason: str = ""

    @classmethod
    def create(cls, path: Path, title: str, jobs: int = 1) -> "RunDirectory":
        """Makes a new directory. What `jobs` says is kept from the first moment, so that a killed
        run remembers it.

        Raises:
            RunExists: the folder exists and is not empty.
            InvalidInput: it cannot be written.
        """
        make_folder(path)
        directory = cls(path, printable(title), jobs=jobs)
        directory.flush()
        return directory

    @property
    def records(self) -> list[Record]:
        return [self.runs[number] for number in sorted(self.runs)]

    @property
    def grids(self) -> list[Experiment]:
        """One experiment with a grid for every task; those on other draws of its data select
        together with it.
        """
        return grids_of(self.experiments)

    @classmethod
    @forbidden()  # to load user code: the directory may come from somebody else
    def load(cls, path: Path, repair: bool = False) -> "RunDirectory":
        """Reads a run directory, or what `keep` has copied of one; with `repair`, without the runs
        whose files are damaged.

        Raises:
            InvalidInput: no run directory, or one whose files are damaged, or whose runs were made
                with another configuration.
        """
        try:
            runs: dict[int, Record] = {}
            if is_archive(path):
                about, runs = unpacked(read(path / CURVES))
            else:
                about = json.loads(read_text(path / "summary.json"))
            summary = _About.model_validate(about)
            for file in sorted((path / "runs").glob("*.npz")):
                # with `repair` a damaged run is left out, and made again
                with contextlib.suppress(*([ValueError] if repair else [])):
                    runs[int(file.stem)] = _load_record(file)
            experiments = kept_experiments(path)
            text = path / "recipe.toml"
            study = parse_study(read_text(text)) if text.exists() else None
            versions = _VERSIONS.validate_json(read(path / "versions.json"))
            check_configurations(experiments, runs)
            return cls(
                path,
                summary.title,
                summary.notes,
                summary.status,
                runs,
                experiments,
                study,
                versions,
                summary.jobs,
                summary.reason,
            )
        except OSError as error:
            # every kind of damage ends in one error that names the directory
            reason = f"not a run directory: {error.filename}: {error.strerror}"
            raise InvalidInput.because(str(path), reason) from error
        except InvalidInput as error:
            raise InvalidInput(f"{path}: {error}") from error
        except ValidationError as error:
            problem = error.errors()[0]
            field = ".".join(map(str, problem["loc"])) or "its form"
            raise InvalidInput.because(
                str(path), f"a run directory with damaged files: {field}: {problem['msg']}"
            ) from error
        except RecursionError as error:
            raise InvalidInput.because(
                str(path), "a run directory with damaged files: nested too deep"
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidInput.because(
                str(path), f"a run directory with damaged files: {error}"
            ) from error

    def configure(self, experiments: Sequence[Experiment]) -> None:
        """Writes the resolved configurations, and copies of the files of user code that they
        name.
        """
        self.experiments = list(experiments)
        for number, experiment in enumerate(experiments):
            name = f"config-{number}.toml" if len(experiments) > 1 else "config.toml"
            write(self.path / name, experiment.toml())
            copy_sources(experiment, self.path)

    def add(self, record: Record, number: int | None = None) -> None:
        """Keeps a run, under a number or the next one."""
        self.take({len(self.runs) if number is None else number: record})

    def take(self, runs: dict[int, Record], imported: bool = False) -> None:
        """Keeps runs by their numbers, with their configurations, and brings all files up to date.

        Args:
            runs: by number.
            imported: whether they were made by another process, whose settings of JAX they keep.
        """
        for number, record in runs.items():
            settings = stored_settings(self.experiments, number, record, imported)
            stored_record = dataclasses.replace(record, settings=settings)
            keep_models(self.path, number, stored_record)
            # on disk now; in memory the models of all runs would add up
            stored_record = dataclasses.replace(stored_record, models={})
            write(self.path / "runs" / f"{number:04d}.npz", stored_record.to_bytes())
            self.runs[number] = stored_record
        self.flush()

    def close(self, status: Status, reason: str = "") -> None:
        """Marks the directory as complete or not."""
        self.status, self.reason = status, printable(reason)
        self.flush()
        self.write_report()

    def renew(self) -> None:
        """Rewrites all files while no other process writes.

        Raises:
            RunExists: another process does.
            WriteFailed: a full disk, for example.
        """
        with writing(self.path), held(self.path):
            self.flush()
            self.write_report()

    def keep(self, target: Path) -> None:
        """Copies what version control should have into another folder, over an earlier copy:
        settings, tables, and the curves of all runs without those of single clients.

        Raises:
            InvalidInput: the earlier copy has runs that this directory does not have; nothing was
                overwritten.
            WriteFailed: a full disk, for example.
        """
        # runs that only the earlier copy has must not be lost
        if is_archive(target):
            metrics = dict[str | None, set[str]]()
            for run in self.records:
                metrics.setdefault(record_fingerprint(run), set()).update(run.metrics)
            archived = RunDirectory.load(target).records
            # a run may stand under fewer observers now, but its metrics are to stay
            if lost := sum(
                not metrics.get(record_fingerprint(run), set()).issuperset(run.metrics)
                for run in archived
            ):
                reason = (
                    f"holds {lost} of {len(archived)} runs that {self.path} does not have; "
                    "nothing was overwritten"
                )
                hint = (
                    "Take them over (`fedax reproduce ... --reuse "
                    f"{shlex.quote(str(target))}`), or remove the folder."
                )
                raise InvalidInput.because(str(target), reason, hint)
        header = {
            "title": self.title,
            "status": self.status,
            "jobs": self.jobs,
            "notes": self.notes,
        }
        with writing(target):
            copy_archive_files(self.path, target)
            write(target / CURVES, packed(header, self.runs))
            if self.study is not None:
                draw_pictures(self.pictures(), self.shown(), target)
                # last, because README.md lists the settings and pictures that lie in the folder
                self._write_study_files(target)

    def flush(self) -> None:
        """Rewrites the tables and the summary from the records."""
        write(self.path / "metrics.csv", to_csv(self.records))
        self._write_number_files()
        if with_named_clients(self.records):
            write(self.path / "clients.csv", clients_csv(self.records, self.shown()))
        if select_audits(self.records):
            write(self.path / "audit.csv", membership_csv(self.records))
        self._write_study_files()
        write(
            self.path / "summary.json",
            json.dumps(self._summary(), indent=2, allow_nan=False) + "\n",
        )

    def write_report(self) -> None:
        """Writes the page, which takes a second or more to draw."""
        write(self.path / "report.html", render(self.page()))

    def renew_archive(self) -> list[Path]:
        """Rewrites the tables, the pictures and the report of what `keep` has made, and returns the
        files that it wrote.
        """
        with writing(self.path):
            drawn = self.pictures() if self.study is not None else []
            pictures = draw_pictures(drawn, [], self.path)
            files = [
                *pictures,
                *self._write_number_files(),
                *self._write_study_files(),
                self.path / "report.html",
            ]
            write(files[-1], render(self.page()))
        return files

    def _write_number_files(self) -> list[Path]:
        """Writes the numbers of all runs, which a recipe with further readings extends."""
        readings, units = self.study and self.study.readings, self.study is None
        texts = {"runs.csv": runs_csv(self.records, self.shown(), readings, units)}
        if self.grids:
            texts["grid.csv"] = grid_csv(self.grids, self.records)
        for name, text in texts.items():
            write(self.path / name, text)
        return [self.path / name for name in texts]

    def _write_study_files(self, target: Path | None = None) -> list[Path]:
        """Writes the tables beside the recipe; those of a copy are about its pictures too."""
        if self.study is None:
            return []
        folder = target or self.path
        texts = self.study.files(
            folder, self.shown(), self.experiments, self.versions, self.records
        )
        for name, text in texts.items():
            write(folder / name, text)
        return [folder / name for name in texts]

    def page(self) -> Page:
        """Returns the content of the report."""
        settings = {file.name: read_text(file) for file in self._list_settings()}
        sheets = self.study.sheets(self.shown(), self.experiments) if self.study else []
        sheets += [grid_sheet(experiment, self.records) for experiment in self.grids]
        sheets += [] if self.study else differences_sheet(self.shown(), self.reads)
        sheets += clients_sheets(self.shown())
        reads, runs, other_versions = (
            self.reads,
            self.shown(),
            " ".join(provenance.describe_other_versions(self.records)),
        )
        versions = self.versions | ({"taken over": other_versions} if other_versions else {})
        return Page(
            self.title,
            " ".join([self.line(), *self.doubts()]),
            runs,
            self.notes,
            settings,
            versions,
            sheets,
            self._draw_study(),
            reads,
        )

    def pictures(
        self, against: str | None = None, metrics: Sequence[str] | None = None
    ) -> list[Picture]:
        """Returns the figures of its recipe; without a recipe's figures, or against an axis or of
        some metrics, the curves.
        """
        figures = [] if against or metrics else self._draw_study()
        if figures and self.study and self.study.replaces_curves:
            return figures
        drawn = draw_curves(self.shown(), self.experiments, against or "rounds", metrics)
        return [*figures, *drawn]

    def _draw_study(self) -> list[Picture]:
        return self.study.pictures(self.shown(), self.experiments) if self.study else []

    def _list_settings(self) -> list[Path]:
        return list_config_files(self.path)

    def shown(self) -> list[Record]:
        """Returns the runs that reports show.

        Of a grid these are the runs of the members that its rule selects, without those that
        selected them.
        """
        selected_labels = {task: set(labels.values()) for task, labels in self.selections().items()}
        seeds = {experiment.name: experiment.seeds for experiment in self.grids}
        return [
            record
            for record in self.records
            if record.task not in selected_labels
            or (record.label in selected_labels[record.task] and record.seed in seeds[record.task])
        ]

    @property
    def reads(self) -> dict[str, str]:
        """The reading of curves as numbers, by task."""
        return {experiment.name: experiment.reads for experiment in self.experiments}

    def selections(self) -> dict[str, dict[str, str]]:
        """Returns by task and algorithm the label of the member that a grid's rule selects among
        those that have run.
        """
        return selections(self.experiments, self.records)

    def warnings(self) -> list[str]:
        """Returns a sentence for each selected value at an edge of its grid."""
        return [
            sentence for experiment in self.grids for sentence in edges(experiment, self.records)
        ]

    def doubts(self) -> list[str]:
        """Returns a sentence for each task whose numbers cannot mean anything."""
        return find_doubts(self.shown())

    def line(self) -> str:
        """Returns the results in one line: how many runs, and how they ended."""
        tasks = by_task(self.records)
        labels = {record.label for record in self.records}
        members = [member for experiment in self.grids for member in experiment.members()]
        methods = {member.label: member.method for member in members}
        counts = [
            counted(len({methods.get(label, label) for label in labels}), "algorithm"),
            *([counted(len(labels), "setting")] if members else []),
            counted(len(tasks), "task"),
            counted(len(self.records), "run"),
        ]
        interrupted = sum(record.outcome.kind == "interrupted" for record in self.records)
        ended = {
            "diverged": sum(record.diverged for record in self.records),
            "interrupted": interrupted,
        }
        troubles = [f"{count} {kind}" for kind, count in ended.items() if count]
        status = {
            "running": " Still running.",
            "failed": f" Failed: {self.reason}",
            "interrupted": " Interrupted before all runs were done.",
            "finished": "",
        }
        return (
            f"{', '.join(counts)}; {', '.join(troubles) or 'all ended well'}.{status[self.status]}"
        )

    def _summary(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "status": self.status,
            **({"reason": self.reason} if self.reason else {}),
            "jobs": self.jobs,
            "notes": self.notes,
            "warnings": [*self.warnings(), *self.doubts()],
            "tasks": {
                title: [
                    _summarize_row(row) for row in summarize(runs, self.reads.get(title, "last"))
                ]
                for title, runs in by_task(self.shown()).items()
            },
            "runs": [
                {
                    "number": i,
                    "file": f"runs/{i:04d}.npz",
                    "task": r.task,
                    "algorithm": r.label,
                    "seed": r.seed,
                    "draw": r.draw,
                }
                | {
                    "rounds": int(r.rounds[-1]),
                    "outcome": str(r.outcome),
                    "seconds": round(float(r.seconds[-1]), 3),
                }
                | ({} if r.compiling is None else {"compiling": round(float(r.compiling[-1]), 3)})
                for i, r in sorted(self.runs.items())
            ],
        }


def _summarize_row(row: Row) -> dict[str, Any]:
    values = {
        metric: {
            "mean": mean if math.isfinite(mean) else None,
            "deviation": deviation if math.isfinite(deviation) else None,
        }
        | ({"lost": row.lost[metric]} if row.lost.get(metric) else {})
        for metric, (mean, deviation) in row.values.items()
    }
    return {
        "algorithm": row.label,
        "runs": row.runs,
        "rounds": row.rounds,
        "outcome": row.outcome,
        "final": values,
    }


def _load_record(file: Path) -> Record:
    try:
        return Record.from_bytes(read(file))
    except ValueError as error:
        hint = f"`fedax resume {shlex.quote(str(file.parent.parent))}` makes this run again"
        raise ValueError(f"{file.name} in {file.parent} is damaged ({error}); {hint}") from error


def is_archive(path: Path) -> bool:
    """Returns whether a folder is what `RunDirectory.keep` makes, with the curves of its runs."""
    return (path / CURVES).exists() and not (path / "summary.json").exists()


def slug(text: str) -> str:
    """Makes a folder name from a title.

    >>> slug("Synthetic (1, 1)"), slug("Con"), slug("?")
    ('synthetic-1-1', 'con-', 'run')
    """
    return portable(text.lower().replace("_", " "), "run")


def fresh(parent: Path, name: str) -> Path:
    """Returns a folder below `parent` that does not exist yet: `name`, `name-2`, `name-3`, ..."""
    return next(
        path
        for i in itertools.count(1)
        if not (path := parent / (name if i == 1 else f"{name}-{i}")).exists()
    )
