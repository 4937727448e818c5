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
from fedax.experiments.results.reuse import identify_runs
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
    folders_by_recipe: dict[str, list[_Folder]] = {name: [] for name in catalogue}
    # folders are named by a recipe, or by one and a suffix: the longest name that fits
    for run_folder in sorted(path.parent for path in folder.glob("*/results.csv")):
        names = [
            name
            for name in catalogue
            if run_folder.name == name or run_folder.name.startswith(f"{name}-")
        ]
        if names:
            name = max(names, key=len)
            folders_by_recipe[name].append(_Folder(run_folder, catalogue[name]))
    entries = [
        entry
        for name, recipe in catalogue.items()
        for entry in _make_entries(name, recipe, folders_by_recipe[name])
    ]
    # (paper, table) pairs of the recipes that count
    tables = {(recipe.paper, recipe.shows) for recipe in catalogue.values() if recipe.counted}
    claims = [
        judged
        for name, recipe in catalogue.items()
        for judged in _judge_claims(
            name, recipe, folders_by_recipe[name], folder, _repeats_table(recipe, tables)
        )
    ]
    return Status(entries, claims, Reasons.read(folder, catalogue))


def _repeats_table(recipe: Recipe, tables: Set[tuple[str, str]]) -> bool:
    """Returns whether another recipe, which counts, has the table of the paper that this one begins
    with.
    """
    return not recipe.counted and any(
        recipe.paper == paper and re.match(rf"{re.escape(shows)}\b", recipe.shows)
        for paper, shows in tables
    )


def _judge_claims(
    name: str, recipe: Recipe, folders: Sequence["_Folder"], folder: Path, second: bool
) -> list[Judged]:
    """Returns the claims of a recipe.

    Those that have not run give way to those of the folders of recipes that are part of it now.

    The `second` recipe of a table repeats the claims about its numbers, but not those about other
    metrics.
    """
    # of several folders the first one in order has the last word
    verdicts = {
        text: verdict for own in reversed(folders) for text, verdict in own.verdicts.items()
    }
    own = [
        claim for claim in recipe.claim if not second or claim.metric not in (None, *recipe.cells)
    ]
    # folders of recipes that this one has replaced
    former_folders = [
        _Folder.from_own_recipe(folder / former)
        for former in recipe.formerly
        if (folder / former / "results.csv").exists()
    ]
    earlier = [
        Judged(name, text, verdict)
        for former_folder in former_folders
        for text, verdict in former_folder.verdicts.items()
    ]
    judged_claims = [Judged(name, claim.text, verdicts.get(claim.text, "not run")) for claim in own]
    return [judged for judged in judged_claims if not earlier or judged.verdict != "not run"] + (
        earlier if any(judged.verdict == "not run" for judged in judged_claims) else []
    )


def _make_entries(name: str, recipe: Recipe, folders: Sequence["_Folder"]) -> list[Entry]:
    """Returns all numbers of a recipe."""
    entries = []
    for metric, tasks in recipe.cells.items():
        for task, numbers in tasks.items():
            for algorithm, target in numbers.items():
                deviation = float(target[1]) if len(target) > 1 else math.nan
                paper = Number(float(target[0]), deviation, recipe.paper_runs or 0)
                blank = Cell(task, algorithm, metric, paper, Number(math.nan), 0)
                # another form of a method repeats cells, which count once
                counted = recipe.counted and algorithm not in recipe.repeats
                scale, folder_name, cell = (
                    ("data not obtainable", "", blank)
                    if recipe.not_obtainable
                    else _best_comparison(folders, blank)
                )
                entries.append(Entry(name, recipe.shows, counted, scale, folder_name, cell))
    return entries


def _best_comparison(folders: Sequence["_Folder"], blank: Cell) -> tuple[str, str, Cell]:
    """Returns the comparison at the largest scale, of settings that the recipe still has if there
    are any.
    """
    # (scale, folder, cell) of every folder that has the number
    comparisons = [
        (scale, folder.path.name, cell)
        for folder in folders
        if (cell := folder.cell(blank))
        for scale in [folder.scale(blank)]
    ]
    # the first folder wins among those of one scale
    order = [*COMPARED, "older settings"]
    return (
        min(comparisons, key=lambda entry: order.index(entry[0]))
        if comparisons
        else ("not run", "", blank)
    )


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
            self.runs = _identify_runs(settings)
            for experiment in settings:
                self.planned[experiment.name] = self.planned.get(experiment.name, 0) + len(
                    experiment.seeds
                )
        # by the same keys, what the recipe asks for now
        self.expected = _identify_runs(recipe.experiments(self.ran)) if self.ran else {}
        self.comparable = not self.ran or recipe.scale[self.ran].comparable

    @classmethod
    def from_own_recipe(cls, path: Path) -> "_Folder":
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
        unchanged = {
            text
            for text, about in _claims_of(self.own).items()
            if about == _claims_of(self.now).get(text)
        }
        verdicts: dict[str, str] = {}
        with table.open(encoding="utf-8") as stream:
            for row in csv.DictReader(stream):
                if row["claim"] not in unchanged:
                    continue
                # a claim has a line for each comparison; one of them with runs makes it undecided
                decided, has_runs = (
                    row["verdict"] in ("holds", "does not hold"),
                    int(row["units"]) > 0,
                )
                if decided or has_runs:
                    verdicts[row["claim"]] = row["verdict"] if decided else "undecided"
        return verdicts

    def cell(self, blank: Cell) -> Cell | None:
        """Returns a number of the paper with ours, if the folder has all runs of it and they are of
        the paper's model.
        """
        for row in self.rows if self.comparable else ():
            # files of earlier versions have no column of metrics, units or divergence
            key = (row["task"], row["algorithm"], row.get("metric", self.now.metric))
            if key == blank[:3] and int(row["runs"]) >= self.planned.get(blank.task, 0):
                count, deviation = int(row.get("units", row["runs"])), float(row["ours_deviation"])
                ours = Number(float(row["ours_mean"]), deviation, count)
                return blank._replace(
                    ours=ours, runs=int(row["runs"]), diverged=int(row.get("diverged", 0))
                )
        return None

    def scale(self, cell: Cell) -> str:
        """Returns the scale of a comparison, or that it has other settings than the recipe now."""
        key = f"{cell.task}\n{cell.algorithm}"
        runs, expected = self.runs.get(key, set()), self.expected.get(key)
        # further seeds do not make the settings differ
        return (
            self.ran if self.ran in COMPARED and expected and expected <= runs else "older settings"
        )


def _identify_runs(experiments: Sequence[Experiment]) -> dict[str, set[str]]:
    """Returns the identities of the runs of each task and algorithm; observers do not count."""
    identities: dict[str, set[str]] = {}
    for run_id, run in identify_runs(
        [experiment.model_copy(update={"observe": None}) for experiment in experiments]
    ):
        # the identity is a text of the whole configuration, without what is observed
        identities.setdefault(
            f"{experiments[run_id.experiment].name}\n{run_id.member.method}", set()
        ).add(run)
    return identities


def _claims_of(recipe: Recipe) -> dict[str, tuple[Claim, str, str, Sequence[str]]]:
    """Returns the claims by text, with what they take from their recipe: metric, reading, and the
    rivals of a `best` without a list.
    """
    claims = {}
    for claim in recipe.claim:
        # only `best` without a list depends on the recipe's other algorithms
        rivals = recipe.rivals(claim.a) if claim.check == "best" and claim.among is None else []
        claims[claim.text] = (
            claim,
            claim.metric or recipe.metric,
            claim.read or recipe.table_read,
            rivals,
        )
    return claims


def cells_csv(entries: Sequence[Entry]) -> str:
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
    for entry in entries:
        entry_cells = [
            entry.recipe,
            entry.shows,
            entry.cell.task,
            entry.cell.algorithm,
            entry.cell.metric,
            int(entry.counted),
        ]
        numbers = [f"{entry.cell.paper.mean:.6g}", f"{entry.cell.paper.deviation:.6g}", entry.found]
        # columns of a number without runs stay, but are empty
        blank: list[str] = [""] * (len(ours) + len(verdicts) + 1)
        table.writerow([*entry_cells, *numbers, *(_our_cells(entry) if entry.folder else blank)])
    return buffer.getvalue()


def _our_cells(entry: Entry) -> list[str]:
    cell = entry.cell
    numbers = [f"{x:.6g}" for x in (*cell.ours[:2], cell.runs, cell.diverged, cell.difference)]
    within = [
        "" if verdict is None else str(int(verdict))
        for verdict in (cell.within_points, cell.within_errors)
    ]
    verdicts = [f"{cell.welch:.6g}", *within, cell.status] if entry.found in COMPARED else [""] * 4
    return [*numbers, *verdicts, entry.folder]


def overview(status: Status) -> str:
    """Returns the papers with their claims and numbers, as Markdown."""
    cells = [entry for entry in status.entries if entry.counted]
    compared = [entry for entry in cells if entry.found == "paper"]
    unobtainable = sum(entry.found == "data not obtainable" for entry in cells)
    text = (
        f"The papers' tables and texts have {len(cells)} numbers, {len(cells) - unobtainable} of "
        "them on data that can be had."
        f" {len(compared)} are compared at paper scale: {_count_within(compared, 'points')} are "
        "within 2 points,"
        f" {_count_within(compared, 'errors')} within two standard errors, "
        f"{_count_missed(compared)} missed (neither). Cell by cell:"
        " [cells.csv](cells.csv)."
    )
    return "\n\n".join([text, _overview_table(status), _ABOUT])


def details(status: Status) -> str:
    """Returns the tables recipe by recipe, and the cells that were missed, as Markdown."""
    compared = [entry for entry in status.entries if entry.counted and entry.found == "paper"]
    sections = ["### Recipe by recipe", _recipe_tables(status.entries), _AGAIN]
    return "\n\n".join(
        [*sections, *_list_unobtainable(), *_list_missed(compared, status.reasons), _MADE]
    )


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


def _overview_table(status: Status) -> str:
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
    sections = ["Main reasons:", "\n".join(reasons)] if reasons else []
    return "\n\n".join([_format_table([head, ["---", *["---:"] * 7], *rows]), *sections])


def _overview_row(group: Group, status: Status) -> list[str]:
    claims = [claim.verdict for claim in status.claims if claim.recipe in group.recipes]
    cells = [
        e for e in status.entries if e.recipe in group.recipes and e.counted and e.found == "paper"
    ]
    verdicts = [
        claims.count(verdict) for verdict in ("holds", "does not hold", "undecided", "not run")
    ]
    within = [len(cells), _count_within(cells, "points"), _count_within(cells, "errors")]
    return [group.title, *map(_format_count, (*verdicts, *within))]


def _recipe_tables(all_entries: Sequence[Entry]) -> str:
    """Returns the counts by recipe; those that are again other cells are not in the sum, and are
    listed if compared.
    """
    cells = [entry for entry in all_entries if entry.counted]
    groups: dict[str, list[Entry]] = {}
    for entry in cells:
        groups.setdefault(entry.recipe, []).append(entry)
    for entry in all_entries:
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
    rows = [[name, *_format_counts(group)] for name, group in [*groups.items(), ("**All**", cells)]]
    short = {
        name: group
        for name, entries in groups.items()
        if (group := [e for e in entries if e.found == "small"])
    }
    shorter = [[name, *map(_format_count, _count_compared(group))] for name, group in short.items()]
    sections = [_format_table([head, ["---", *["---:"] * (len(head) - 1)], *rows])]
    if short:
        sections += [
            "Short runs:",
            _format_table([["Recipe", *_COUNTED], ["---", *["---:"] * len(_COUNTED)], *shorter]),
        ]
    return "\n\n".join(sections)


_COUNTED = ("Compared", "Within 2 points", "Within two standard errors", "Missed")
"""Columns that `_count_compared` counts."""


def _count_compared(entries: Sequence[Entry]) -> list[int]:
    return [
        len(entries),
        _count_within(entries, "points"),
        _count_within(entries, "errors"),
        _count_missed(entries),
    ]


def _format_counts(entries: Sequence[Entry]) -> list[str]:
    at_scale = [entry for entry in entries if entry.found == "paper"]
    elsewhere = [sum(entry.found == state for entry in entries) for state in ("small", *ELSE)]
    return list(map(_format_count, (len(entries), *_count_compared(at_scale), *elsewhere)))


def _list_unobtainable() -> list[str]:
    """Returns the recipes whose data cannot be had, with the reason."""
    lines = [
        f"- {name}: {reason}"
        for name in papers.recipe_files()
        if (reason := papers.load(name).not_obtainable)
    ]
    return ["Data not obtainable:", "\n".join(lines)] if lines else []


def _list_missed(compared: Sequence[Entry], reasons: Reasons) -> list[str]:
    """Returns the cells at paper scale that are missed, each with its cause."""
    lines = [
        f"- {e.recipe}, {e.cell.task}, {e.cell.algorithm}: {e.cell.ours.mean:.2f} (paper "
        f"{e.cell.paper.mean:.2f}):"
        f" {reasons.cause(e.recipe, e.cell.task, e.cell.algorithm)}"
        for e in compared
        if e.cell.status == "missed"
    ]
    return ["### Missed at paper scale", "\n".join(lines)] if lines else []


def _count_within(entries: Sequence[Entry], criterion: str) -> int:
    return sum(
        bool(e.cell.within_points if criterion == "points" else e.cell.within_errors)
        for e in entries
    )


def _count_missed(entries: Sequence[Entry]) -> int:
    return sum(entry.cell.status == "missed" for entry in entries)


def _format_count(count: int) -> str:
    return str(count) if count else "-"


def _format_table(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def with_summary(text: str, status: Status) -> str:
    """Returns a page with new generated parts; text that was written by hand stays.

    Raises:
        InvalidInput: a page without the four marks, each once.
    """
    for (begin, end), generated in ((OVERVIEW, overview(status)), (CELLS, details(status))):
        if not text.count(begin) == text.count(end) == 1:
            raise InvalidInput.because("README.md", f"needs the lines {begin} and {end}, once each")
        # what stands between the marks is replaced, the rest of the page stays
        before, after = text.split(begin)
        text = f"{before}{begin}\n\n{generated}\n\n{end}{after.split(end)[1]}"
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
