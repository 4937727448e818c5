"""The reproduction of a paper, as far as a run directory knows about it."""

import abc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedax.experiments.config.experiment import Experiment
from fedax.results import Record, Sheet
from fedax.results.drawing import Picture


class Study(abc.ABC):
    """Tables and figures that a paper's recipe adds to the runs of a directory.

    A directory without `recipe.toml` has no study and needs nothing of `fedax.papers`.

    Attributes:
        text: the recipe as TOML, `recipe.toml` of the directory.
        paper: authors, title, where it appeared; empty if unknown.
    """

    text: str
    paper: str

    @property
    @abc.abstractmethod
    def replaces_curves(self) -> bool:
        """Whether its figures stand for the curves of all metrics."""

    @abc.abstractmethod
    def pictures(
        self, records: Sequence[Record], experiments: Sequence[Experiment]
    ) -> list[Picture]:
        """Draws its figures."""

    @abc.abstractmethod
    def sheets(self, records: Sequence[Record], experiments: Sequence[Experiment]) -> list[Sheet]:
        """Returns its tables for a report."""

    @abc.abstractmethod
    def files(
        self,
        folder: Path,
        records: Sequence[Record],
        experiments: Sequence[Experiment],
        versions: Mapping[str, Any],
        made: Sequence[Record],
    ) -> dict[str, str]:
        """Returns the text files that it adds to a folder, by name.

        Args:
            folder: where the files go.
            records: the runs that are reported.
            experiments: of the directory.
            versions: of the libraries that made the runs.
            made: all runs, with those that selected among the members of a grid.
        """

    @abc.abstractmethod
    def side_by_side(
        self, named: Mapping[str, tuple["Study", Sequence[Record], Sequence[Experiment]]]
    ) -> tuple[list[Sheet], list[Picture]]:
        """Compares the paper's numbers with those of several folders.

        Args:
            named: study, runs and experiments of each folder, by its name.
        """
