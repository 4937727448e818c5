"""Every number of the papers: whether it was compared, at which scale, and how near ours came."""

import contextlib
import csv
import dataclasses
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from fedax.core import FedaxError, InvalidInput
from fedax.experiments import recipes
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.recipes.cells import Cell, Number, Status
from fedax.experiments.recipes.recipe import Recipe
from fedax.experiments.results.archive import kept_experiments
from fedax.experiments.results.reuse import identified
from fedax.files import read_text, write

BEGIN, END = "<!-- cells: begin -->", "<!-- cells: end -->"
"""In `README.md`, around what is generated."""
COMPARED = ("paper", "small")
STATUSES: tuple[Status, ...] = get_args(Status)


@dataclasses.dataclass(frozen=True)
class Entry:
    """A number of a paper.

    Attributes:
        recipe: the name of its recipe.
        shows: the table of the paper.
        counted: whether it is one of the papers' cells, and not one of them again, for another form of a method or in a figure.
        found: `paper` or `small`, the scale at which it was compared; `older settings` if only a folder has it whose recipe has
            changed since; `not run`.
        folder: that has it, or empty.
        cell: with ours, if there are any.
    """

    recipe: str
    shows: str
    counted: bool
    found: str
    folder: str
    cell: Cell


def entries(folder: Path) -> list[Entry]:
    """All numbers that the recipes of the package have, looked up in the run directories below a folder."""
    catalogue, made = {name: recipes.load(name) for name in recipes.recipe_files()}, []
    kept: dict[str, list[_Folder]] = {}
    for below in sorted(path.parent for path in folder.glob("*/results.csv")):
        names = [name for name in catalogue if below.name == name or below.name.startswith(f"{name}-")]
        if names:
            name = max(names, key=len)
            kept.setdefault(name, []).append(_Folder(below, catalogue[name]))
    for name, recipe in catalogue.items():
        for metric, tasks in recipe.cells.items():
            for task, numbers in tasks.items():
                for algorithm, target in numbers.items():
                    deviation = float(target[1]) if len(target) > 1 else math.nan
                    paper = Number(float(target[0]), deviation, recipe.paper_runs or 0)
                    blank = Cell(task, algorithm, metric, paper, Number(math.nan), 0)
                    found, below, cell = _best(kept.get(name, []), blank)
                    counted = recipe.counted and algorithm not in recipe.repeats
                    made.append(Entry(name, recipe.shows, counted, found, below, cell))
    return made


def _best(folders: Sequence["_Folder"], blank: Cell) -> tuple[str, str, Cell]:
    """The comparison at the largest scale, of settings that the recipe still has if there are any."""
    found = [
        (at, folder.path.name, cell) for folder in folders if (cell := folder.cell(blank)) for at in [folder.scale(blank)]
    ]
    order = [*COMPARED, "older settings"]
    return min(found, key=lambda entry: order.index(entry[0])) if found else ("not run", "", blank)


class _Folder:
    """The archive of a recipe's run directory, beside the recipe as it is now."""

    def __init__(self, path: Path, recipe: Recipe) -> None:
        self.path, self.now = path, recipe
        with (path / "results.csv").open(encoding="utf-8") as stream:
            self.rows = list(csv.DictReader(stream))
        self.ran = ""
        self.runs: dict[str, set[str]] = {}
        self.planned: dict[str, int] = {}
        # a recipe or settings of an older version that are no longer valid are older settings
        with contextlib.suppress(FedaxError):
            self.ran = Recipe.parse(read_text(path / "recipe.toml")).ran or ""
            settings = kept_experiments(path)
            self.runs = _runs(settings)
            for experiment in settings:
                self.planned[experiment.name] = self.planned.get(experiment.name, 0) + len(experiment.seeds)
        self.expected = _runs(recipe.experiments(self.ran)) if self.ran else {}

    def cell(self, blank: Cell) -> Cell | None:
        """A number of the paper with ours, if the folder has all runs of it."""
        for row in self.rows:
            which = (row["task"], row["algorithm"], row.get("metric", self.now.metric))
            if which == blank[:3] and int(row["runs"]) >= self.planned.get(blank.task, 0):
                count, deviation = int(row.get("units", row["runs"])), float(row["ours_deviation"])
                ours = Number(float(row["ours_mean"]), deviation, count)
                return blank._replace(ours=ours, runs=int(row["runs"]), diverged=int(row.get("diverged", 0)))
        return None

    def scale(self, cell: Cell) -> str:
        """The scale of a comparison, or that it has other settings than the recipe now."""
        which = f"{cell.task}\n{cell.algorithm}"
        same = self.ran in COMPARED and which in self.runs and self.runs[which] == self.expected.get(which)
        return self.ran if same else "older settings"


def _runs(experiments: Sequence[Experiment]) -> dict[str, set[str]]:
    """The identity of the runs of each task and algorithm, whatever else is observed."""
    made: dict[str, set[str]] = {}
    for slot, run in identified([experiment.model_copy(update={"observe": None}) for experiment in experiments]):
        made.setdefault(f"{experiments[slot.experiment].name}\n{slot.member.method}", set()).add(run)
    return made


def cells_csv(found: Sequence[Entry]) -> str:
    """All numbers as a table."""
    buffer = io.StringIO()
    table = csv.writer(buffer, lineterminator="\n")
    paper, ours = ["paper", "paper_deviation"], ["ours", "ours_deviation", "runs", "diverged", "difference"]
    table.writerow(
        ["recipe", "shows", "task", "algorithm", "metric", "counted", *paper, "compared", *ours, "status", "folder"]
    )
    for e in found:
        which = [e.recipe, e.shows, e.cell.task, e.cell.algorithm, e.cell.metric, int(e.counted)]
        numbers = [f"{e.cell.paper.mean:.6g}", f"{e.cell.paper.deviation:.6g}", e.found]
        if e.folder:
            own = [f"{x:.6g}" for x in (*e.cell.ours[:2], e.cell.runs, e.cell.diverged, e.cell.difference)]
            numbers += [*own, e.cell.status if e.found in COMPARED else "", e.folder]
        else:
            numbers += [""] * 7
        table.writerow([*which, *numbers])
    return buffer.getvalue()


def summary(found: Sequence[Entry]) -> str:
    """The counts by recipe, as Markdown; those that are again other cells are not in the sum, and are listed if compared."""
    cells = [entry for entry in found if entry.counted]
    groups: dict[str, list[Entry]] = {}
    for entry in cells:
        groups.setdefault(entry.recipe, []).append(entry)
    others = [entry for entry in found if not entry.counted and entry.found in COMPARED]
    for entry in others:
        title = f"{entry.recipe}: {entry.cell.algorithm}, again" if entry.recipe in groups else f"{entry.recipe}, again"
        groups.setdefault(title, []).append(entry)
    head = [
        "Recipe",
        "Cells",
        *(f"{scale}: {status}" for scale in COMPARED for status in STATUSES),
        "Older settings",
        "Not run",
    ]
    rows = [[name, *_counts(own)] for name, own in groups.items()]
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows, ["**All**", *_counts(cells)]]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    missed = [entry for entry in cells if entry.found == "paper" and entry.cell.status == "missed"]
    listed = [
        f"- {e.recipe}, {e.cell.task}, {e.cell.algorithm}: {e.cell.ours.mean:.2f} (paper {e.cell.paper.mean:.2f})"
        for e in missed
    ]
    compared = sum(entry.found == "paper" for entry in cells), sum(entry.found == "small" for entry in cells)
    text = (
        f"Of the {len(cells)} numbers in the papers' tables and texts {compared[0]} are compared at paper scale and {compared[1]}"
        " at small scale. Within 2 points: of accuracy, by the means. Within two joint standard errors: of both means, with the"
        " paper's deviation. Older settings: the folder was made before its recipe changed, and is no comparison. Again: another"
        " form of the method, or a second recipe, beside the same cells. Cell by cell: [cells.csv](cells.csv)."
    )
    made = "Made by `fedax recipes --status docs/reproduction`."
    below = ["Missed at paper scale:\n\n" + "\n".join(listed)] if listed else []
    return "\n\n".join([text, table, *below, made])


def _counts(found: Sequence[Entry]) -> list[str]:
    numbers = [len(found)]
    numbers += [sum(e.found == scale and e.cell.status == s for e in found) for scale in COMPARED for s in STATUSES]
    numbers += [sum(e.found == word for e in found) for word in ("older settings", "not run")]
    return [str(number) if number else "-" for number in numbers]


def with_summary(text: str, found: Sequence[Entry]) -> str:
    """A page with its generated part made anew; what is written by hand stays.

    Raises:
        InvalidInput: a page without the two marks, each once.
    """
    if not text.count(BEGIN) == text.count(END) == 1:
        raise InvalidInput.because("README.md", f"needs the lines {BEGIN} and {END}, once each")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{summary(found)}\n\n{END}{rest.split(END)[1]}"


def refresh(folder: Path) -> list[Path]:
    """Writes `cells.csv` and the generated part of `README.md` in a folder of run directories; the files that it wrote."""
    page, table = folder / "README.md", folder / "cells.csv"
    if not page.exists():
        raise InvalidInput.because(str(folder), "has no README.md")
    found = entries(folder)
    write(page, with_summary(page.read_text(encoding="utf-8"), found))
    write(table, cells_csv(found))
    return [page, table]
