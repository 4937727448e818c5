"""Status of the reproduction: every number of the papers, whether it was compared, at which scale,
and how near ours came.
"""

import contextlib
import csv
import dataclasses
import io
import math
import re
from collections.abc import Sequence, Set
from pathlib import Path

from fedax import papers
from fedax.core import FedaxError, InvalidInput
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.results.archive import kept_experiments
from fedax.experiments.results.reuse import identified
from fedax.papers.cells import Cell, Number
from fedax.papers.claims import Claim
from fedax.papers.reasons import Group, Reasons
from fedax.papers.recipe import Recipe
from fedax.utils.files import read_text, write

OVERVIEW = "<!-- overview: begin -->", "<!-- overview: end -->"
CELLS = "<!-- cells: begin -->", "<!-- cells: end -->"
"""In `README.md`, around what is generated: the papers, and below what is written by hand the
recipes and the missed cells."""
COMPARED = ("paper", "small")
ELSE = ("older settings", "data not obtainable", "not run")


@dataclasses.dataclass(frozen=True)
class Entry:
    """A number of a paper.

    Attributes:
        recipe: the name of its recipe.
        shows: the table of the paper.
        counted: whether it is one of the papers' cells, and not one of them again, for another form
            of a method or in a figure.
        found: `paper` or `small`, the scale at which it was compared; `data not obtainable`;
            `older settings` if only a folder has it whose recipe has changed since; `not run`.
        folder: that has it, or empty.
        cell: with ours, if there are any.
    """

    recipe: str
    shows: str
    counted: bool
    found: str
    folder: str
    cell: Cell


@dataclasses.dataclass(frozen=True)
class Judged:
    """A claim of a paper with the verdict of the runs at the paper's length: `holds`,
    `does not hold`, `undecided` or `not run`.
    """

    recipe: str
    text: str
    verdict: str


@dataclasses.dataclass(frozen=True)
class Status:
    """Progress on the papers' numbers and claims in a folder of run directories."""

    entries: Sequence[Entry]
    claims: Sequence[Judged]
    reasons: Reasons


def status_of(folder: Path) -> Status:
    """Looks up all numbers and claims of the package's recipes in the run directories below a
    folder.
    """
    catalogue = {name: papers.load(name) for name in papers.recipe_files()}
    kept: dict[str, list[_Folder]] = {name: [] for name in catalogue}
    # folders are named by a recipe, or by one and a suffix: the longest name that fits
    for below in sorted(path.parent for path in folder.glob("*/results.csv")):
        names = [
            name for name in catalogue if below.name == name or below.name.startswith(f"{name}-")
        ]
        if names:
            name = max(names, key=len)
            kept[name].append(_Folder(below, catalogue[name]))
    made = [
        entry for name, recipe in catalogue.items() for entry in _entries(name, recipe, kept[name])
    ]
    # (paper, table) pairs of the recipes that count
    tables = {(recipe.paper, recipe.shows) for recipe in catalogue.values() if recipe.counted}
    claims = [
        judged
        for name, recipe in catalogue.items()
        for judged in _judged(name, recipe, kept[name], folder, _is_second(recipe, tables))
    ]
    return Status(made, claims, Reasons.read(folder, catalogue))


def _is_second(recipe: Recipe, tables: Set[tuple[str, str]]) -> bool:
    """Returns whether another recipe, which counts, has the table of the paper that this one begins
    with.
    """
    return not recipe.counted and any(
        recipe.paper == paper and re.match(rf"{re.escape(shows)}\b", recipe.shows)
        for paper, shows in tables
    )


def _judged(
    name: str, recipe: Recipe, kept: Sequence["_Folder"], folder: Path, second: bool
) -> list[Judged]:
    """Returns the claims of a recipe.

    Those that have not run give way to those of the folders of recipes that are part of it now.

    The `second` recipe of a table repeats the claims about its numbers, but not those about other
    metrics.
    """
    # of several folders the first one in order has the last word
    found = {text: verdict for own in reversed(kept) for text, verdict in own.verdicts.items()}
    own = [
        claim for claim in recipe.claim if not second or claim.metric not in (None, *recipe.cells)
    ]
    # folders of recipes that this one has replaced
    before = [
        _Folder.alone(folder / former)
        for former in recipe.formerly
        if (folder / former / "results.csv").exists()
    ]
    earlier = [
        Judged(name, text, verdict) for old in before for text, verdict in old.verdicts.items()
    ]
    made = [Judged(name, claim.text, found.get(claim.text, "not run")) for claim in own]
    return [judged for judged in made if not earlier or judged.verdict != "not run"] + (
        earlier if any(judged.verdict == "not run" for judged in made) else []
    )


def _entries(name: str, recipe: Recipe, kept: Sequence["_Folder"]) -> list[Entry]:
    """Returns all numbers of a recipe."""
    made = []
    for metric, tasks in recipe.cells.items():
        for task, numbers in tasks.items():
            for algorithm, target in numbers.items():
                deviation = float(target[1]) if len(target) > 1 else math.nan
                paper = Number(float(target[0]), deviation, recipe.paper_runs or 0)
                blank = Cell(task, algorithm, metric, paper, Number(math.nan), 0)
                # another form of a method repeats cells, which count once
                counted = recipe.counted and algorithm not in recipe.repeats
                found, below, cell = (
                    ("data not obtainable", "", blank)
                    if recipe.not_obtainable
                    else _best(kept, blank)
                )
                made.append(Entry(name, recipe.shows, counted, found, below, cell))
    return made


def _best(folders: Sequence["_Folder"], blank: Cell) -> tuple[str, str, Cell]:
    """Returns the comparison at the largest scale, of settings that the recipe still has if there
    are any.
    """
    # (scale, folder, cell) of every folder that has the number
    found = [
        (at, folder.path.name, cell)
        for folder in folders
        if (cell := folder.cell(blank))
        for at in [folder.scale(blank)]
    ]
    # the first folder wins among those of one scale
    order = [*COMPARED, "older settings"]
    return min(found, key=lambda entry: order.index(entry[0])) if found else ("not run", "", blank)


class _Folder:
    """The archive of a recipe's run directory, beside the present recipe."""

    def __init__(self, path: Path, recipe: Recipe) -> None:
        self.path, self.now = path, recipe
        with (path / "results.csv").open(encoding="utf-8") as stream:
            self.rows = list(csv.DictReader(stream))
        self.own: Recipe | None = None
        self.ran = ""
        # by "task\nalgorithm", the identities of the runs that the folder was made for
        self.runs: dict[str, set[str]] = {}
        # by task, seeds over all draws: fewer runs than these are not yet a comparison
        self.planned: dict[str, int] = {}
        # a recipe or settings that are no longer valid count as older settings
        with contextlib.suppress(FedaxError):
            self.own = Recipe.parse(read_text(path / "recipe.toml"))
            self.ran = self.own.ran or ""
            settings = kept_experiments(path)
            self.runs = _runs(settings)
            for experiment in settings:
                self.planned[experiment.name] = self.planned.get(experiment.name, 0) + len(
                    experiment.seeds
                )
        # by the same keys, what the recipe asks for now
        self.expected = _runs(recipe.experiments(self.ran)) if self.ran else {}
        self.comparable = not self.ran or recipe.scale[self.ran].comparable

    @classmethod
    def alone(cls, path: Path) -> "_Folder":
        """Returns a folder of a recipe that the package no longer has, beside its own copy of
        it.
        """
        return cls(path, Recipe.parse(read_text(path / "recipe.toml")))

    @property
    def verdicts(self) -> dict[str, str]:
        """The verdict of each claim that ran at the paper's length, if the recipe still has the
        claim with the same rivals.
        """
        table = self.path / "claims.csv"
        if self.ran != "paper" or self.own is None or not table.exists():
            return {}
        # a claim that has changed since was not judged by this folder
        same = {
            text
            for text, about in _claims_of(self.own).items()
            if about == _claims_of(self.now).get(text)
        }
        found: dict[str, str] = {}
        with table.open(encoding="utf-8") as stream:
            for row in csv.DictReader(stream):
                if row["claim"] not in same:
                    continue
                # a claim has a line for each comparison; one of them with runs makes it undecided
                decided, ran = row["verdict"] in ("holds", "does not hold"), int(row["units"]) > 0
                if decided or ran:
                    found[row["claim"]] = row["verdict"] if decided else "undecided"
        return found

    def cell(self, blank: Cell) -> Cell | None:
        """Returns a number of the paper with ours, if the folder has all runs of it and they are of
        the paper's model.
        """
        for row in self.rows if self.comparable else ():
            # files of earlier versions have no column of metrics, units or divergence
            which = (row["task"], row["algorithm"], row.get("metric", self.now.metric))
            if which == blank[:3] and int(row["runs"]) >= self.planned.get(blank.task, 0):
                count, deviation = int(row.get("units", row["runs"])), float(row["ours_deviation"])
                ours = Number(float(row["ours_mean"]), deviation, count)
                return blank._replace(
                    ours=ours, runs=int(row["runs"]), diverged=int(row.get("diverged", 0))
                )
        return None

    def scale(self, cell: Cell) -> str:
        """Returns the scale of a comparison, or that it has other settings than the recipe now."""
        which = f"{cell.task}\n{cell.algorithm}"
        runs, expected = self.runs.get(which, set()), self.expected.get(which)
        # further seeds do not make the settings differ
        return (
            self.ran if self.ran in COMPARED and expected and expected <= runs else "older settings"
        )


def _runs(experiments: Sequence[Experiment]) -> dict[str, set[str]]:
    """Returns the identities of the runs of each task and algorithm; observers do not count."""
    made: dict[str, set[str]] = {}
    for slot, run in identified(
        [experiment.model_copy(update={"observe": None}) for experiment in experiments]
    ):
        # the identity is a text of the whole configuration, without what is observed
        made.setdefault(f"{experiments[slot.experiment].name}\n{slot.member.method}", set()).add(
            run
        )
    return made


def _claims_of(recipe: Recipe) -> dict[str, tuple[Claim, str, str, Sequence[str]]]:
    """Returns the claims by text, with what they take from their recipe: metric, reading, and the
    rivals of a `best` without a list.
    """
    made = {}
    for claim in recipe.claim:
        # only `best` without a list depends on the recipe's other algorithms
        rivals = recipe.rivals(claim.a) if claim.check == "best" and claim.among is None else []
        made[claim.text] = (
            claim,
            claim.metric or recipe.metric,
            claim.read or recipe.table_read,
            rivals,
        )
    return made


def cells_csv(found: Sequence[Entry]) -> str:
    """Returns all numbers as a table; verdicts are 1 or 0, or empty where there is none."""
    buffer = io.StringIO()
    table = csv.writer(buffer, lineterminator="\n")
    paper, ours = (
        ["paper", "paper_deviation"],
        ["ours", "ours_deviation", "runs", "diverged", "difference"],
    )
    verdicts = ["welch_p", "within_2_points", "within_two_errors", "status"]
    head = [
        "recipe",
        "shows",
        "task",
        "algorithm",
        "metric",
        "counted",
        *paper,
        "compared",
        *ours,
        *verdicts,
        "folder",
    ]
    table.writerow(head)
    for e in found:
        which = [e.recipe, e.shows, e.cell.task, e.cell.algorithm, e.cell.metric, int(e.counted)]
        numbers = [f"{e.cell.paper.mean:.6g}", f"{e.cell.paper.deviation:.6g}", e.found]
        # columns of a number without runs stay, but are empty
        blank: list[str] = [""] * (len(ours) + len(verdicts) + 1)
        table.writerow([*which, *numbers, *(_ours(e) if e.folder else blank)])
    return buffer.getvalue()


def _ours(entry: Entry) -> list[str]:
    cell = entry.cell
    own = [f"{x:.6g}" for x in (*cell.ours[:2], cell.runs, cell.diverged, cell.difference)]
    within = [
        "" if verdict is None else str(int(verdict))
        for verdict in (cell.within_points, cell.within_errors)
    ]
    verdicts = [f"{cell.welch:.6g}", *within, cell.status] if entry.found in COMPARED else [""] * 4
    return [*own, *verdicts, entry.folder]


def overview(status: Status) -> str:
    """Returns the papers with their claims and numbers, as Markdown."""
    cells = [entry for entry in status.entries if entry.counted]
    compared = [entry for entry in cells if entry.found == "paper"]
    lost = sum(entry.found == "data not obtainable" for entry in cells)
    text = (
        f"The papers' tables and texts have {len(cells)} numbers, {len(cells) - lost} of them "
        "on data that can be had."
        f" {len(compared)} are compared at paper scale: {_within(compared, 'points')} are "
        "within 2 points,"
        f" {_within(compared, 'errors')} within two standard errors, {_missed(compared)} missed "
        "(neither). Cell by cell:"
        " [cells.csv](cells.csv)."
    )
    return "\n\n".join([text, _overview(status), _ABOUT])


def details(status: Status) -> str:
    """Returns the tables recipe by recipe, and the cells that were missed, as Markdown."""
    compared = [entry for entry in status.entries if entry.counted and entry.found == "paper"]
    parts = ["### Recipe by recipe", _by_recipe(status.entries), _AGAIN]
    return "\n\n".join([*parts, *_obtainable(), *_missed_list(compared, status.reasons), _MADE])


_ABOUT = (
    "Claims are judged by paired differences at p < 0.05, at the paper's length only; short "
    "runs decide none and count as not run."
    " Within 2 points: of accuracy, by the means. Within two standard errors: of both means "
    "together, with the paper's deviation;"
    " cells count in both columns. Welch's p is in cells.csv."
)
_AGAIN = (
    "Compared: at the paper's scale. Short runs are shorter than the paper's; those of another "
    "model than the paper's are no"
    " comparison and count as not run. Older: the folder was made before its recipe changed, "
    "and is no comparison. No data: they"
    " could not be obtained. Again: another form of the method, or a second recipe, beside the "
    "same cells; not in the sum."
)
_MADE = "Made by `fedax recipes --status docs/reproduction`."


def _overview(status: Status) -> str:
    """Returns a row for each paper with its claims and cells, and below the main reasons for the
    misses.
    """
    head = ["Paper", "Claims that hold", "do not hold", "undecided", "not run"]
    head += ["Cells compared", "within 2 points", "within two standard errors"]
    rows = [_overview_row(group, status) for group in status.reasons.groups]
    # sentences in a column would make every row half a page tall
    reasons = [
        f"- {group.title}: {group.reason}" for group in status.reasons.groups if group.reason
    ]
    parts = ["Main reasons:", "\n".join(reasons)] if reasons else []
    return "\n\n".join([_table([head, ["---", *["---:"] * 7], *rows]), *parts])


def _overview_row(group: Group, status: Status) -> list[str]:
    claims = [claim.verdict for claim in status.claims if claim.recipe in group.recipes]
    cells = [
        e for e in status.entries if e.recipe in group.recipes and e.counted and e.found == "paper"
    ]
    verdicts = [
        claims.count(verdict) for verdict in ("holds", "does not hold", "undecided", "not run")
    ]
    within = [len(cells), _within(cells, "points"), _within(cells, "errors")]
    return [group.title, *map(_number, (*verdicts, *within))]


def _by_recipe(found: Sequence[Entry]) -> str:
    """Returns the counts by recipe; those that are again other cells are not in the sum, and are
    listed if compared.
    """
    cells = [entry for entry in found if entry.counted]
    groups: dict[str, list[Entry]] = {}
    for entry in cells:
        groups.setdefault(entry.recipe, []).append(entry)
    for entry in found:
        if entry.counted or entry.found not in COMPARED:
            # repeated cells are listed only where they were compared
            continue
        title = (
            f"{entry.recipe}: {entry.cell.algorithm}, again"
            if entry.recipe in groups
            else (f"{entry.recipe}, again")
        )
        groups.setdefault(title, []).append(entry)
    # the last columns are those of `ELSE`, in shorter words
    head = ["Recipe", "Cells", *_COUNTED, "Short runs", "Older", "No data", "Not run"]
    # the sum has each cell once: repeated ones are in `groups`, not in `cells`
    rows = [[name, *_counts(own)] for name, own in [*groups.items(), ("**All**", cells)]]
    short = {
        name: own
        for name, entries in groups.items()
        if (own := [e for e in entries if e.found == "small"])
    }
    shorter = [[name, *map(_number, _compared(own))] for name, own in short.items()]
    parts = [_table([head, ["---", *["---:"] * (len(head) - 1)], *rows])]
    if short:
        parts += [
            "Short runs:",
            _table([["Recipe", *_COUNTED], ["---", *["---:"] * len(_COUNTED)], *shorter]),
        ]
    return "\n\n".join(parts)


_COUNTED = ("Compared", "Within 2 points", "Within two standard errors", "Missed")
"""Columns that `_compared` counts."""


def _compared(entries: Sequence[Entry]) -> list[int]:
    return [len(entries), _within(entries, "points"), _within(entries, "errors"), _missed(entries)]


def _counts(found: Sequence[Entry]) -> list[str]:
    at_scale = [entry for entry in found if entry.found == "paper"]
    elsewhere = [sum(entry.found == word for entry in found) for word in ("small", *ELSE)]
    return list(map(_number, (len(found), *_compared(at_scale), *elsewhere)))


def _obtainable() -> list[str]:
    """Returns the recipes whose data cannot be had, with the reason."""
    lines = [
        f"- {name}: {reason}"
        for name in papers.recipe_files()
        if (reason := papers.load(name).not_obtainable)
    ]
    return ["Data not obtainable:", "\n".join(lines)] if lines else []


def _missed_list(compared: Sequence[Entry], reasons: Reasons) -> list[str]:
    """Returns the cells at paper scale that are missed, each with its cause."""
    lines = [
        f"- {e.recipe}, {e.cell.task}, {e.cell.algorithm}: {e.cell.ours.mean:.2f} (paper "
        f"{e.cell.paper.mean:.2f}):"
        f" {reasons.cause(e.recipe, e.cell.task, e.cell.algorithm)}"
        for e in compared
        if e.cell.status == "missed"
    ]
    return ["### Missed at paper scale", "\n".join(lines)] if lines else []


def _within(found: Sequence[Entry], what: str) -> int:
    return sum(
        bool(e.cell.within_points if what == "points" else e.cell.within_errors) for e in found
    )


def _missed(found: Sequence[Entry]) -> int:
    return sum(entry.cell.status == "missed" for entry in found)


def _number(count: int) -> str:
    return str(count) if count else "-"


def _table(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def with_summary(text: str, status: Status) -> str:
    """Returns a page with new generated parts; text that was written by hand stays.

    Raises:
        InvalidInput: a page without the four marks, each once.
    """
    for (begin, end), made in ((OVERVIEW, overview(status)), (CELLS, details(status))):
        if not text.count(begin) == text.count(end) == 1:
            raise InvalidInput.because("README.md", f"needs the lines {begin} and {end}, once each")
        # what stands between the marks is replaced, the rest of the page stays
        before, rest = text.split(begin)
        text = f"{before}{begin}\n\n{made}\n\n{end}{rest.split(end)[1]}"
    return text


def refresh(folder: Path) -> list[Path]:
    """Writes `cells.csv` and the generated part of `README.md` in a folder of run directories, and
    returns the two files.
    """
    page, table = folder / "README.md", folder / "cells.csv"
    if not page.exists():
        raise InvalidInput.because(str(folder), "has no README.md")
    status = status_of(folder)
    write(page, with_summary(page.read_text(encoding="utf-8"), status))
    write(table, cells_csv(status.entries))
    return [page, table]
