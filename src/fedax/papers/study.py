"""A run directory of a paper's recipe: its tables, figures and files."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w
from pydantic.dataclasses import dataclass

from fedax.experiments.results.store import RunDirectory, is_archive
from fedax.experiments.running.progress import Display
from fedax.experiments.running.runner import run_experiments
from fedax.papers.comparison import Comparison
from fedax.papers.recipe import Recipe, load
from fedax.results.drawing import Picture, save
from fedax.results.page import Sheet
from fedax.utils.files import write

RECIPE = "recipe.toml"


@dataclass(kw_only=True)
class PaperDirectory(RunDirectory):
    """A run directory with what a recipe adds to it.

    Attributes:
        recipe: with the scale that ran.
    """

    recipe: Recipe

    @classmethod
    def read_more(cls, path: Path) -> dict[str, Any]:
        return {"recipe": Recipe.parse((path / RECIPE).read_text("utf-8"), RECIPE)}

    def begin(self) -> None:
        super().begin()
        write(self.path / RECIPE, tomli_w.dumps(self.recipe.model_dump(exclude_none=True)))

    def comparison(self) -> Comparison:
        """Compares the paper's numbers and claims with the runs."""
        return Comparison(self.recipe, self.shown())

    def figures(self) -> list[Picture]:
        recipe = self.recipe
        source = f"{recipe.paper}, {recipe.shows}"
        about = self.shown(), recipe.metric, recipe.table_read, recipe.cells, source
        drawn = [figure.draw(*about) for figure in recipe.figure]
        return [picture for picture in drawn if picture]

    def pictures(
        self, against: str | None = None, metrics: Sequence[str] | None = None
    ) -> list[Picture]:
        """Returns the figures of its recipe; without them, or against an axis or of some metrics,
        the curves.
        """
        figures = [] if against or metrics else self.figures()
        return figures or super().pictures(against, metrics)

    def sheets(self) -> list[Sheet]:
        return [*self.comparison().sheets(), *super().sheets()]

    def write_tables(self) -> None:
        """Writes tables, and the pictures of an archive."""
        super().write_tables()
        comparison = self.comparison()
        tables = {"results.csv": comparison.cells, "claims.csv": comparison.claims()}
        for name, table in tables.items():
            text = table.to_csv(index=False, float_format="%.6g", lineterminator="\n")
            write(self.path / name, text)
        if is_archive(self.path):
            save(self.pictures(), self.path, ["png"])


def open_directory(path: Path, repair: bool = False) -> RunDirectory:
    """Reads a run directory as `RunDirectory.load` does, with the recipe that it has, if any."""
    kind = PaperDirectory if (path / RECIPE).exists() else RunDirectory
    return kind.load(path, repair)


def reproduce(
    recipe: Recipe,
    scale: str,
    out: Path,
    display: Display,
    jobs: int = 1,
) -> PaperDirectory:
    """Runs a recipe at one of its scales.

    The directory also holds `results.csv`, `claims.csv` and `recipe.toml`. Runs that it has already
    are not made again; see `run_experiments`. Variants and algorithms of earlier calls stay in it,
    and those that did not finish are run too.

    Raises:
        RunExists, InvalidInput, WriteFailed: as `run_experiment`.
    """
    if (out / RECIPE).exists():
        # those that the folder has stay in it; None stands for all
        size = recipe.scale[scale]
        earlier = load(str(out / RECIPE)).scale[scale]
        pairs = (
            (size.variants, earlier.variants, recipe.titles),
            (size.algorithms, earlier.algorithms, recipe.algorithms),
        )
        names = (sorted({*now, *(then or every)}) if now else () for now, then, every in pairs)
        recipe = recipe.only(scale, *names)
    return run_experiments(
        recipe.experiments(scale),
        out,
        f"{recipe.title} ({scale})",
        display,
        jobs,
        make=functools.partial(PaperDirectory, recipe=recipe.model_copy(update={"ran": scale})),
    )
