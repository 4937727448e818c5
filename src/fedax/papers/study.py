"""A recipe beside the runs of a directory: its tables, figures and files."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fedax.core import InvalidInput
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.results.figures import Drawer
from fedax.experiments.results.store import STUDY, RunDirectory
from fedax.experiments.results.study import Study
from fedax.experiments.running.progress import Display
from fedax.experiments.running.runner import run_experiments
from fedax.papers.comparison import Comparison, format_number, metric_heading
from fedax.papers.recipe import Recipe
from fedax.results import Record, Sheet
from fedax.results.captions import describe_source
from fedax.results.drawing import Picture, beside_paper, caption_of
from fedax.results.tables.summary import column_of
from fedax.results.versions import describe_other_versions
from fedax.utils.files import read_text
from fedax.utils.plugins import forbidden

CONCLUSION = "conclusion.md"
"""Written by hand beside the results, two sentences, which come on top of the folder's
`README.md`."""


@dataclasses.dataclass(frozen=True)
class PaperStudy(Study):
    """A recipe as the study of a run directory.

    Attributes:
        recipe: with the scale that ran.
    """

    recipe: Recipe

    @classmethod
    def parse(cls, text: str) -> "PaperStudy":
        return cls(Recipe.parse(text))

    @property
    def text(self) -> str:  # type: ignore[override]
        return self.recipe.text

    @property
    def paper(self) -> str:  # type: ignore[override]
        return self.recipe.paper

    @property
    def replaces_curves(self) -> bool:
        return bool(self.recipe.figure)

    def comparison(
        self, records: Sequence[Record], experiments: Sequence[Experiment]
    ) -> Comparison:
        """Compares the paper's numbers and claims with runs."""
        return Comparison(self.recipe, records, experiments)

    def pictures(
        self, records: Sequence[Record], experiments: Sequence[Experiment]
    ) -> list[Picture]:
        return self.drawer(records, experiments).draw_all(self.recipe.figure)

    def drawer(self, records: Sequence[Record], experiments: Sequence[Experiment]) -> Drawer:
        """Returns the material of its figures."""
        recipe = self.recipe
        source = describe_source(recipe.paper, recipe.shows)
        return Drawer(records, experiments, recipe.metric, recipe.table_read, recipe.cells, source)

    def sheets(self, records: Sequence[Record], experiments: Sequence[Experiment]) -> list[Sheet]:
        return self.comparison(records, experiments).sheets()

    def files(
        self,
        folder: Path,
        records: Sequence[Record],
        experiments: Sequence[Experiment],
        versions: Mapping[str, Any],
        made: Sequence[Record],
    ) -> dict[str, str]:
        seconds = sum(float(record.seconds[-1]) for record in made)
        comparison = self.comparison(records, experiments)
        others = describe_other_versions(made, versions)
        top = top_of(folder, self.recipe)
        return {
            "README.md": comparison.readme(versions, [STUDY], seconds, others, top),
            "results.csv": comparison.csv(),
            "claims.csv": comparison.claims_csv(),
        }

    def side_by_side(
        self, named: Mapping[str, tuple[Study, Sequence[Record], Sequence[Experiment]]]
    ) -> tuple[list[Sheet], list[Picture]]:
        """Returns a table, and a picture for each metric, of the papers' numbers beside ours of
        every folder.

        Both are empty if at most one folder is of a recipe.
        """
        frames = {
            name: study.comparison(records, experiments).cells.assign(folder=name)
            for name, (study, records, experiments) in named.items()
            if isinstance(study, PaperStudy)
        }
        cells = pd.concat(frames) if len(frames) > 1 else pd.DataFrame()
        if cells.empty:
            return [], []
        texts = [
            {
                "Task": cell["task"],
                "Algorithm": cell["algorithm"],
                "Metric": metric_heading(cell["metric"]),
                "Paper": format_number(cell, "paper"),
                cell["folder"]: f"{format_number(cell, 'ours')} ({cell['difference']:+.2f})",
            }
            for cell in cells.to_dict("records")
        ]
        # one row for each cell, in the order of their first appearance
        heads = ["Task", "Algorithm", "Metric", "Paper"]
        table = pd.DataFrame(texts).groupby(heads, sort=False).first().fillna("-").reset_index()
        if len(set(table["Metric"])) == 1:
            del table["Metric"]
        note = "Means ± standard deviations; in brackets the difference to the paper."
        title = "The papers' numbers beside those of every folder"
        pictures = [
            _draw_cells(str(metric), rows, named) for metric, rows in cells.groupby("metric")
        ]
        return [Sheet(title, list(table), table.values.tolist(), note, lead=True)], pictures


@forbidden()  # to load user code: the directory may come from somebody else
def open_directory(path: Path, repair: bool = False) -> RunDirectory:
    """Reads a run directory as `RunDirectory.load` does, with the recipe that it has, if any.

    Raises:
        InvalidInput: no run directory, or one whose files are damaged.
    """
    directory, recipe = RunDirectory.load(path, repair), path / "recipe.toml"
    if recipe.exists():
        try:
            directory.study = PaperStudy.parse(read_text(recipe))
        except (OSError, ValueError) as error:
            raise InvalidInput.because(str(recipe), str(error)) from error
    return directory


def reproduce(
    recipe: Recipe,
    scale: str,
    out: Path,
    display: Display,
    jobs: int = 1,
    reuse: Sequence[Path] = (),
    elsewhere: bool = False,
) -> RunDirectory:
    """Runs a recipe at one of its scales.

    The directory also holds `README.md`, `results.csv` and `recipe.toml`. Runs that are finished in
    one of the folders `reuse` are not made again; see `run_experiments`.

    Raises:
        UnknownName: no such scale.
        RunExists, InvalidInput, WriteFailed: as `run_experiment`.
    """
    experiments = recipe.experiments(scale)
    study = PaperStudy(recipe.model_copy(update={"ran": scale}))
    return run_experiments(
        experiments, out, f"{recipe.title} ({scale})", display, jobs, study, reuse, elsewhere
    )


def top_of(folder: Path, recipe: Recipe) -> list[str]:
    """Returns the paragraphs on top of a folder's `README.md`: its conclusion and its pictures,
    where it has them.

    Args:
        folder: with `conclusion.md` and pictures as PNG files, which hold their captions; older
            ones have the figures' titles.
        recipe: whose figures they are.
    """
    conclusion = folder / CONCLUSION
    paragraphs = [conclusion.read_text(encoding="utf-8").strip()] if conclusion.exists() else []
    titles = {"paper": "The paper beside ours"} | {
        figure.name: figure.title for figure in recipe.figure
    }
    # figures of the recipe first, in its order, then other pictures in the folder
    for name in dict.fromkeys((*titles, *(file.stem for file in sorted(folder.glob("*.png"))))):
        if (file := folder / f"{name}.png").exists():
            title = titles.get(name) or column_of(name).title
            caption = caption_of(file) or (
                f"{title}. {describe_source(recipe.paper, recipe.shows)}."
            )
            paragraphs += [f"![{caption}]({file.name})", f"*{caption}*"]
    return paragraphs


def _draw_cells(
    metric: str,
    cells: pd.DataFrame,
    named: Mapping[str, tuple[Study, Sequence[Record], Sequence[Experiment]]],
) -> Picture:
    """Draws a panel for each task and a row for each algorithm: the paper's number, below it ours
    of every folder.
    """
    parts = []
    for name, (study, records, experiments) in named.items():
        if isinstance(study, PaperStudy):
            numbers = study.drawer(records, experiments).read_numbers(metric)
            parts.append(numbers.assign(source=name))
    keys = ["task", "algorithm", "paper_mean", "paper_deviation"]
    printed = {(task, method): numbers for task, method, *numbers in cells[keys].fillna(0.0).values}
    runs = pd.concat(parts, ignore_index=True)
    runs = runs.loc[[row in printed for row in zip(runs["task"], runs["method"], strict=True)]]
    title = f"{metric_heading(metric)}: the papers' numbers beside those of every folder"
    figure = beside_paper(runs, metric, lambda _, task, method: printed[task, method])
    return Picture(f"cells-{metric}", figure, title)
