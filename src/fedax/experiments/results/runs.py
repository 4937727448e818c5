"""The runs of a study, as its folder lists them."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field

from fedax.errors import printable
from fedax.results import Record

Name = Annotated[str, AfterValidator(printable)]


class Run(BaseModel):
    """A run that a study may need.

    Attributes:
        id: the name of its folder, see `fedax.results.store.run_id`.
        task: title of the task.
        method: title of the algorithm.
        label: the same with the settings that the grid varies.
        seed: of the run.
        draw: seed of the data.
        selects: whether it only selects among the members of a grid, and is not reported.
        settings: what the grid varies.
        experiment, member: that make it, and `made_with`, all that determines it as plain values;
            None in a directory that is read.
    """

    id: Name
    task: Name
    method: Name
    label: Name
    seed: int
    draw: int
    selects: bool = False
    settings: dict[Name, Any] = {}
    experiment: Any = Field(None, exclude=True)
    member: Any = Field(None, exclude=True)
    made_with: Any = Field(None, exclude=True)

    @property
    def about(self) -> dict[str, Any]:
        """The names and numbers of its record."""
        return self.model_dump(include={"task", "label", "seed", "draw"})

    @property
    def title(self) -> str:
        return f"{self.task}, {self.label}, seed {self.seed}"

    def is_reported(self, chosen: Mapping[str, Mapping[str, str]]) -> bool:
        """Returns whether reports show it.

        Args:
            chosen: by task and algorithm, the label of the member that a grid selected.
        """
        selected = chosen.get(self.task, {}).get(self.method, self.label)
        return not self.selects and selected == self.label


Pairs = Sequence[tuple[Run, Record]]
"""Runs that are there, with their records."""
