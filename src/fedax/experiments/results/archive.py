"""Archives of run directories for version control: the numbers, from which the tables can be made
again.
"""

import csv
import io
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedax.experiments.config.experiment import Experiment
from fedax.observe.modes import mode_of
from fedax.results import Record
from fedax.results.drawing import Picture, save, weight_pictures
from fedax.results.tables.numbers import Line, number_of, stated_modes
from fedax.results.tables.reductions import is_value_reduction
from fedax.results.tables.summary import unit_of

KEPT = (
    "README.md",
    "results.csv",
    "claims.csv",
    "runs.csv",
    "recipe.toml",
    "versions.json",
    "grid.csv",
    "audit.csv",
)
"""Files of a run directory that are small, beside its settings."""
READS = ("first", "last", "best", "mean_last_10_rounds")
_HEAD = (
    "task",
    "algorithm",
    "draw",
    "seed",
    "purpose",
    "rounds",
    "seconds",
    "outcome",
    "diverged",
    "metric",
)


def runs_csv(
    records: Sequence[Record],
    reported: Sequence[Record],
    wanted: Mapping[str, set[str]] | None = None,
    units: bool = False,
) -> str:
    """Returns the numbers of every run: a line for each of its metrics, accuracies in percent.

    Args:
        records: all runs.
        reported: those that reports show; the others have selected among the members of a grid.
        wanted: further readings with their metrics, which get columns. Those that are no values of
            a metric, such as rounds until something, are filled for these metrics only.
        units: whether there is a column of units, which tables that are kept among earlier ones do
            not have.
    """
    wanted = wanted or {}
    further = sorted(set(wanted) - set(READS))
    # by identity: `reported` holds objects of `records`
    reported_ids, buffer = {id(record) for record in reported}, io.StringIO()
    table = csv.writer(buffer, lineterminator="\n")
    table.writerow([*_HEAD, *["unit"] * units, *READS, *further])
    for run in records:
        purpose = "report" if id(run) in reported_ids else "selection"
        run_cells = [
            run.task,
            run.label,
            run.draw,
            run.seed,
            purpose,
            int(run.rounds[-1]),
            f"{run.seconds[-1]:.1f}",
        ]
        for metric in run.scalars:
            # a reading for each column; None leaves the cell empty
            readings = [
                read
                if is_value_reduction(read) or read in READS or metric in wanted[read]
                else None
                for read in (*READS, *further)
            ]
            # a metric without a direction has no best value
            if mode_of(metric, stated_modes(records)) is None:
                readings = [None if read == "best" else read for read in readings]
            numbers = [
                "" if read is None else f"{number_of(run, metric, read, records):.9g}"
                for read in readings
            ]
            unit = [unit_of(metric)] * units
            table.writerow([*run_cells, run.ending, int(run.diverged), metric, *unit, *numbers])
    return buffer.getvalue()


def parse_runs_csv(text: str) -> tuple[list[Line], float]:
    """Returns the runs to report in a `runs.csv`, without interrupted ones, and the seconds that
    all took.
    """
    # by run, then by (metric, reading)
    runs: dict[tuple[str, ...], dict[tuple[str, str], float]] = {}
    seconds: dict[tuple[str, ...], float] = {}
    for row in csv.DictReader(io.StringIO(text)):
        run = tuple(
            row[name]
            for name in ("task", "algorithm", "seed", "draw", "diverged", "rounds", "purpose")
        )
        # assigned, not added up: each run has a line for every metric
        seconds[run] = float(row["seconds"])
        if row["outcome"].startswith("interrupted"):  # it may be far from its end
            # its seconds count, its numbers do not
            continue
        numbers = {
            name: float(value)
            for name, value in row.items()
            if name not in (*_HEAD, "unit") and value != ""
        }
        runs.setdefault(run, {}).update(
            {(row["metric"], read): value for read, value in numbers.items()}
        )
    lines = [
        Line(task, label, int(seed), int(draw), diverged == "1", int(rounds), numbers)
        for (task, label, seed, draw, diverged, rounds, purpose), numbers in runs.items()
        if purpose == "report"
    ]
    return lines, math.fsum(seconds.values())


def draw_pictures(
    pictures: Sequence[Picture], records: Sequence[Record], folder: Path
) -> list[Path]:
    """Writes pictures, and that of the clients' weights if the records have them, as PNG files."""
    return save([*pictures, *weight_pictures(records)], folder, ["png"])


def list_config_files(folder: Path) -> list[Path]:
    """Returns the files `config.toml` or `config-<n>.toml`, in their order."""
    return sorted(
        folder.glob("config*.toml"),
        key=lambda path: int("".join(filter(str.isdigit, path.stem)) or 0),
    )


def kept_experiments(folder: Path) -> list[Experiment]:
    """Returns the experiments of a run directory."""
    return [Experiment.read(file, kept=True) for file in list_config_files(folder)]


def copy_archive_files(folder: Path, target: Path) -> None:
    """Copies the small files of a run directory into another folder, over files of the same name.
    Settings of an earlier copy are removed.
    """
    target.mkdir(parents=True, exist_ok=True)
    for file in list_config_files(target):
        file.unlink()
    for file in [folder / name for name in KEPT] + list_config_files(folder):
        if file.exists():
            shutil.copy(file, target / file.name)
    if (folder / "sources").is_dir():
        shutil.copytree(folder / "sources", target / "sources", dirs_exist_ok=True)
