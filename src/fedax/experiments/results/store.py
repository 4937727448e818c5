"""The run directory: everything about a study on disk, valid after every run."""

import dataclasses
import itertools
import json
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from fedax.core import InvalidInput, RunExists
from fedax.errors import printable
from fedax.experiments.results.models import keep_models
from fedax.experiments.results.runs import Name, Pairs, Run
from fedax.results import Record
from fedax.results.doubts import find_doubts
from fedax.results.record import finished
from fedax.results.store import pack, read_run, unpack, write_run
from fedax.results.tables.summary import counted
from fedax.results.versions import versions
from fedax.utils.files import portable, read, write
from fedax.utils.lock import LOCK, held, is_held

if TYPE_CHECKING:
    # tables and pictures take a second to import, which most processes of a study need not
    import pandas

    import fedax.results.drawing
    import fedax.results.page

SUMMARY = "summary.json"
STUDY = "study.toml"
PACKED = "runs.tar.xz"
"""The runs of an archive in one file."""
Status = Literal["running", "finished", "interrupted", "failed"]


_SAVED = ("title", "notes", "status", "reason", "versions", "reads", "selects")
"""Fields in `summary.json`, beside the planned runs."""


@dataclass
class RunDirectory:
    """A folder with the results of one or more experiments.

    Files: `summary.json` (its runs, whether they are there or not),
    `study.toml` (the experiments with every default, from which it can be continued), and
    `runs/<id>/` (of each run `run.json` with its settings and versions, `curves.npz` with all
    observations, and its models). When the runs have ended also `metrics.csv` (all scalars as one
    long table) and `report.html`.

    Attributes:
        path: the folder.
        title: heading of the report.
        notes: one line about a task, by the task's title.
        status: `"running"`, `"finished"`, `"interrupted"` or `"failed"`.
        runs: the runs so far by id.
        planned: the runs that its study may need, in its order.
        reads: how curves become numbers, by task.
        selects: the metric by which grids select, by task.
        study: the experiments as a file.
        versions: of the libraries that the runs were made with, and the machine.
        reason: why a run failed or was interrupted, where that is known.
    """

    path: Path
    title: Name
    notes: dict[Name, Name] = Field(default_factory=dict)
    status: Status = "running"
    runs: dict[str, Any] = Field(default_factory=dict)
    planned: list[Run] = Field(default_factory=list, repr=False)
    reads: dict[Name, Name] = Field(default_factory=dict)
    selects: dict[Name, Name] = Field(default_factory=dict)
    study: str = Field(default="", repr=False)
    versions: dict[Name, Name | bool | int | float | None] = Field(default_factory=versions)
    reason: Name = ""

    @classmethod
    def read_more(cls, path: Path) -> dict[str, Any]:
        """Reads what a class of directories has besides."""
        return {}

    @classmethod
    def load(cls, path: Path, repair: bool = False) -> "RunDirectory":
        """Reads a run directory, or what `keep` has copied of one; with `repair`, without the runs
        whose files are damaged. Nothing is run: it may come from somebody else.

        Raises:
            InvalidInput: no run directory, or one whose files are damaged.
        """
        try:
            summary = json.loads(read(path / SUMMARY))
            planned = summary.pop("runs")
            if is_archive(path):
                runs = unpack(read(path / PACKED))
            else:
                runs = _read_runs(path / "runs", repair)
            study = read(path / STUDY).decode() if planned else ""
            more = summary | cls.read_more(path)
            return cls(path, runs=runs, planned=planned, study=study, **more)
        except OSError as error:
            reason = f"not a run directory: {error.filename}: {error.strerror}"
            raise InvalidInput.because(str(path), reason) from error
        except Exception as error:
            # every kind of damage ends in one error that names the directory
            reason = f"a run directory with damaged files: {error or type(error).__name__}"
            raise InvalidInput.because(str(path), reason) from error

    def begin(self) -> None:
        """Makes the folder with the study."""
        write(self.path / STUDY, self.study)
        self.save()

    def take(self, runs: Mapping[str, Record]) -> None:
        """Keeps runs by their ids."""
        for name, record in runs.items():
            keep_models(self.path / "runs" / name, record)
            write_run(self.path / "runs" / name, record)
            # on disk now; in memory the models of all runs would add up
            self.runs[name] = dataclasses.replace(record, models={})
        self.save()

    def close(self, status: Status, reason: str = "") -> None:
        """Marks the directory as complete or not, and writes its tables and its report."""
        self.status = status
        self.reason = printable(reason)
        if status != "running":
            self.write_outputs()
        self.save()

    def renew(self) -> None:
        """Writes tables and report again, while no other process writes.

        Raises:
            RunExists: another process does.
            WriteFailed: a full disk, for example.
        """
        with held(self.path):
            self.write_outputs()
            self.save()

    def keep(self, target: Path) -> None:
        """Copies what version control should have into another folder, over an earlier copy:
        settings, tables, and the curves of all runs without those of single clients.

        Raises:
            InvalidInput: a run directory, or a copy with runs that this one does not have; nothing
                was overwritten.
            WriteFailed: a full disk, for example.
        """
        # neither runs that only the earlier copy has, nor a directory that can be continued
        if (target / SUMMARY).exists() and (
            RunDirectory.load(target).runs.keys() - self.runs.keys() or not is_archive(target)
        ):
            reason = f"is no copy, or one with runs that {self.path} lacks; nothing was overwritten"
            hint = f"Unpack its {PACKED} into `{self.path}/runs`, or choose another folder."
            raise InvalidInput.because(str(target), reason, hint)
        for name in (STUDY, "recipe.toml"):
            if (self.path / name).exists():
                write(target / name, read(self.path / name))
        write(target / PACKED, pack(self.runs))
        kept = dataclasses.replace(self, path=target, planned=[run for run, _ in self.pairs()])
        kept.save()
        kept.write_tables()

    def save(self) -> None:
        """Writes `summary.json`."""
        summary = {name: getattr(self, name) for name in _SAVED}
        summary["runs"] = [run.model_dump(exclude_defaults=True) for run in self.planned]
        write(self.path / SUMMARY, json.dumps(summary, indent=1, allow_nan=False) + "\n")

    def write_outputs(self) -> None:
        """Writes tables and report."""
        from fedax.results.page import render

        self.write_tables()
        write(self.path / "report.html", render(self.page()))

    def write_tables(self) -> None:
        """Writes tables, and what belongs to them; an archive has no long ones."""
        import pandas as pd

        from fedax.results.frame import curves_csv

        if grids := self.grids():
            judged = pd.concat(grids.values()).infer_objects().astype({"selected": int})
            write(self.path / "grid.csv", judged.to_csv(index=False, float_format="%.9g"))
        if not is_archive(self.path):
            write(self.path / "metrics.csv", curves_csv(self.shown()))

    def sheets(self) -> "list[fedax.results.page.Sheet]":
        """Returns the further tables of the report: its grids."""
        from fedax.experiments.results.grid import grid_sheet

        return [grid_sheet(judged, self.reads[task]) for task, judged in self.grids().items()]

    def figures(self) -> "list[fedax.results.drawing.Picture]":
        """Returns the figures of its recipe, none here."""
        return []

    def page(self) -> "fedax.results.page.Page":
        """Returns the content of the report."""
        from fedax.results.page import Page

        return Page(
            self.title,
            " ".join([self.line(), *self.doubts()]),
            self.shown(),
            self.notes,
            {STUDY: self.study} if self.study else {},
            self.versions,
            self.sheets(),
            self.figures(),
            self.reads,
            self.selections(),
        )

    def pictures(
        self, against: str | None = None, metrics: Sequence[str] | None = None
    ) -> "list[fedax.results.drawing.Picture]":
        """Returns the curves of some metrics, by default of those that reports draw."""
        from fedax.results.figures import draw_curves

        return draw_curves(self.shown(), against or "rounds", metrics)

    def pairs(self, planned: Sequence[Run] | None = None) -> Pairs:
        """Returns the runs that are there, by default of all, with the names that the study gives
        them.
        """
        return [
            (run, dataclasses.replace(self.runs[run.id], **run.about))
            for run in (self.planned if planned is None else planned)
            if run.id in self.runs
        ]

    @property
    def records(self) -> list[Record]:
        """All runs, in the order of the experiments."""
        return [record for _, record in self.pairs()]

    def reported(self) -> list[Run]:
        """Returns the runs that reports show.

        Of a grid these are the runs of the members that its rule selects, without those that
        selected them. Such a member has the title of its algorithm, so that one row of a table
        holds what was selected on several tasks.
        """
        chosen = self.selections()
        return [
            run.model_copy(update={"label": run.method})
            if run.method in chosen.get(run.task, {})
            else run
            for run in self.planned
            if run.is_reported(chosen)
        ]

    def shown(self) -> list[Record]:
        """Returns the records of `reported` that are there."""
        return [record for _, record in self.pairs(self.reported())]

    def compare(self, metrics: Sequence[str] | None = None) -> "pandas.DataFrame":
        """Compares the runs that reports show, see `compare_runs`."""
        from fedax.results.compare import compare_runs

        return compare_runs(self.shown(), self.reads, metrics, self.selections())

    def grids(self) -> "dict[str, pandas.DataFrame]":
        """Returns by task the judged members of a grid, see `judge_members`."""
        grids = {}
        for task in dict.fromkeys(run.task for run in self.planned if run.selects):
            # not where no study has a grid
            from fedax.experiments.results.grid import judge_members

            if pairs := [
                pair for pair in self.pairs() if pair[0].task == task and finished([pair[1]])
            ]:
                grids[task] = judge_members(pairs, self.selects[task], self.reads[task])
        return grids

    def selections(self) -> dict[str, dict[str, str]]:
        """Returns by task and algorithm the label of the member that a grid's rule selects among
        those that have finished runs.
        """
        return {
            task: judged[judged["selected"]].set_index("algorithm")["label"].to_dict()
            for task, judged in self.grids().items()
        }

    def warnings(self) -> list[str]:
        """Returns a sentence for each selected value at an edge of its grid."""
        from fedax.experiments.results.grid import edges

        return [sentence for judged in self.grids().values() for sentence in edges(judged)]

    def doubts(self) -> list[str]:
        """Returns a sentence for each task whose numbers cannot mean anything."""
        return find_doubts(self.shown())

    def line(self) -> str:
        """Returns the results in one line: how many runs, and how they ended."""
        records = self.records
        fields = {"algorithm": "method", "setting": "label", "task": "task"}
        if not any(run.selects for run in self.planned):
            del fields["setting"]
        counts = [
            counted(len({getattr(run, field) for run, _ in self.pairs()}), noun)
            for noun, field in fields.items()
        ]
        counts.append(counted(len(records), "run"))
        ended = {
            "diverged": sum(record.diverged for record in records),
            "interrupted": len(records) - len(finished(records)),
        }
        troubles = [f"{count} {kind}" for kind, count in ended.items() if count]
        status = {
            "running": " Still running.",
            "failed": f" Failed: {self.reason}",
            "interrupted": " Interrupted: `fedax resume` continues it.",
            "finished": "",
        }
        ends = ", ".join(troubles) or "all ended well"
        return f"{', '.join(counts)}; {ends}.{status[self.status]}"


class Joint(RunDirectory):
    """What several directories report, in memory.

    Attributes:
        parts: the directories by their names.
    """

    parts: dict[str, Any]

    def sheets(self) -> "list[fedax.results.page.Sheet]":
        """Returns the grids of all, each with the name of its directory."""
        return [
            sheet._replace(title=f"{sheet.title}, {name}")
            for name, part in self.parts.items()
            for sheet in part.sheets()
        ]

    def line(self) -> str:
        """Returns the results of all, and the lines of those that are not finished."""
        return super().line() + "".join(
            f" {name}: {part.line()}"
            for name, part in self.parts.items()
            if part.status != "finished"
        )

    def warnings(self) -> list[str]:
        return [f"{name}: {text}" for name, part in self.parts.items() for text in part.warnings()]


def open_folder(
    path: Path, load: Callable[[Path, bool], RunDirectory] = RunDirectory.load
) -> RunDirectory:
    """Returns the run directory at a path, to run into it, without damaged runs; of a new or an
    empty folder, and of one with nothing but copies of runs, one that plans nothing.

    Raises:
        RunExists: a folder of something else, or one that another process works in.
        InvalidInput: an archive, or a damaged directory.
    """
    advice = "nothing was overwritten. Choose another folder"
    if is_held(path):
        raise RunExists(f"{path} is in use by another process; {advice}.")
    if path.exists() and not path.is_dir():
        raise RunExists(f"{path} is a file, not a folder; {advice}.")
    if is_archive(path):
        raise RunExists(
            f"{path} is a copy made by `fedax report --keep`, which cannot be continued in place. "
            f"Unpack its {PACKED} into `runs/` of a new folder, and run into that one."
        )
    names = {file.name for file in path.iterdir()} if path.is_dir() else set()
    if SUMMARY in names:
        return load(path, True)
    if names - {"runs", LOCK}:
        raise RunExists(f"{path} is not empty; {advice}, or remove this one.")
    return RunDirectory(path, "", runs=_read_runs(path / "runs", repair=True))


def _read_runs(folder: Path, repair: bool) -> dict[str, Record]:
    runs = dict[str, Record]()
    for path in sorted(folder.glob("*/run.json")):
        try:
            runs[path.parent.name] = read_run(path.parent)
        except Exception as error:
            if repair:
                # left out, and made again
                continue
            resume = f"fedax resume {shlex.quote(str(folder.parent))}"
            raise ValueError(
                f"run {path.parent.name} is damaged ({error}); `{resume}` makes this run again"
            ) from error
    return runs


def is_archive(path: Path) -> bool:
    """Returns whether a folder is what `RunDirectory.keep` makes."""
    return (path / PACKED).exists()


def slug(text: str) -> str:
    """Makes a folder name from a title.

    >>> slug("Synthetic (1, 1)"), slug("?")
    ('synthetic-1-1', 'run')
    """
    return portable(text.lower().replace("_", " "), "run")


def fresh(parent: Path, name: str) -> Path:
    """Returns a folder below `parent` that does not exist yet: `name`, `name-2`, `name-3`, ..."""
    return next(
        path
        for i in itertools.count(1)
        if not (path := parent / (name if i == 1 else f"{name}-{i}")).exists()
    )


def merge(directories: Sequence[RunDirectory]) -> RunDirectory:
    """Returns what several directories report as one, in memory; a single one as it is.

    Runs of an algorithm on several draws of the data belong together, each with the settings that
    its own directory selected; one that several directories have for the same draw gets its
    folder's name. Runs of one seed of the data on different examples are no pairs. The curves of a
    task are read as in the first directory that has it. A directory that is given twice, maybe
    spelled in another way, counts once.
    """
    by_path = {directory.path.resolve(): directory for directory in directories}
    if len(by_path) == 1:
        return directories[0]
    names = [path.name for path in by_path]
    parts = {
        str(directory.path) if names.count(path.name) > 1 else path.name: directory
        for path, directory in by_path.items()
    }
    reported = {name: directory.pairs(directory.reported()) for name, directory in parts.items()}
    owners = Counter(
        key
        for pairs in reported.values()
        for key in {(run.task, run.method, run.draw) for run, _ in pairs}
    )
    draws = dict[tuple[int, str], int]()
    merged = Joint(Path(), "Comparison", status="finished", versions=directories[0].versions)
    merged.parts = parts
    for name, directory in parts.items():
        for run, record in reported[name]:
            end = f" ({name})" if owners[run.task, run.method, run.draw] > 1 else ""
            # one seed draws other data where other options of the task differ
            data = run.draw, (record.settings or {}).get("data", {}).get("examples", "")
            about = {
                # ids leave versions and the machine out
                "id": f"{name}/{run.id}",
                "method": run.method + end,
                "label": run.label + end,
                "draw": draws.setdefault(data, len(draws)),
            }
            merged.planned.append(run.model_copy(update=about))
            merged.runs[about["id"]] = record
        merged.study += f"# {name}\n{directory.study}\n"
        # a description of other data would be wrong
        merged.notes |= {
            task: note if merged.notes.get(task, note) == note else ""
            for task, note in directory.notes.items()
        }
        merged.reads = directory.reads | merged.reads
    return merged
