"""The table `[grid]` of an experiment file."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from fedax.core import InvalidInput
from fedax.experiments.config.sections import (
    TEXT,
    AlgorithmSection,
    OpenTable,
    Seeds,
    check_different,
    check_names,
)


def _check_choices(choices: list[Any]) -> list[Any]:
    if any(isinstance(choice, dict) for choice in choices):
        raise ValueError("values that are no tables; write an [[algorithm]] for each")
    return check_different(choices)


Choices = Annotated[list[Any], Field(min_length=1), AfterValidator(_check_choices)]


class GridSection(OpenTable):
    """`[grid]`: lists of values by the name or label of an algorithm, by `solver` or by `schedule`;
    all combinations run.

    The member with the best value of a metric in the mean over the runs stands for its algorithm.
    The experiment's `read` says how a curve becomes a number. A member that diverged in any run
    counts as worst. What is selected on the same runs that are reported looks better than it is, so
    the members run with separate seeds, and only the selected one runs with those of the
    experiment.

    >>> grid = GridSection(**{"fedprox": {"mu": [0.1, 1.0]}, "solver": {"learning_rate": [0.01]}})
    >>> [point["algorithm"] for point in grid.points(AlgorithmSection(name="fedprox"))]
    [{'mu': 0.1}, {'mu': 1.0}]
    """

    __pydantic_extra__: dict[str, Annotated[dict[str, Choices], Field(min_length=1)]] = Field(
        init=False
    )

    select: (
        Literal[
            "train_loss",
            "validation_loss",
            "validation_accuracy",
            "validation_auc",
            "validation_f1",
            "test_loss",
            "test_accuracy",
        ]
        | None
    ) = None
    """The metric that selects: by default the validation loss if the task keeps examples for
    validation, else the training loss, as in the papers. Test examples select only if they are
    named."""
    seeds: Seeds | None = None
    """Seeds of the runs that select, none of which is among the experiment's; by default as many as
    the experiment has, from the first number after its largest on."""
    selects: bool = True
    """False for experiments that stand beside others with the same title, on other draws of the
    data: no member runs to select there, and the one that is selected on the others is
    reported."""

    def metric(self, validation: bool) -> str:
        """Returns the metric that selects, for a task with or without validation examples.

        >>> GridSection().metric(True), GridSection(select="test_loss").metric(True)
        ('validation_loss', 'test_loss')
        """
        return self.select or ("validation_loss" if validation else "train_loss")

    def selecting(self, reported: Sequence[int]) -> list[int]:
        """Returns the seeds of the runs that select, for an experiment with some seeds.

        >>> GridSection().selecting([0, 1, 4])
        [5, 6, 7]
        """
        if not self.selects:
            return []
        first = max(reported) + 1
        return list(range(first, first + len(reported))) if self.seeds is None else self.seeds

    def check(self, owners: Sequence[str], reported: Sequence[int], validation: bool) -> None:
        """Refuses owners that are not in the experiment, seeds that are reported, and a metric of
        validation examples that the task does not have.
        """
        check_names("grid", self.options, owners)
        if self.metric(validation).startswith("validation") and not validation:
            hint = "Keep some examples: [task] validation = 0.2."
            raise InvalidInput.of("grid.select", self.select, "train_loss", hint)
        seeds = self.selecting(reported)
        if self.selects and (not seeds or set(seeds) & set(reported)):
            allowed = "at least one, and none of the experiment's seeds"
            raise InvalidInput.of("grid.seeds", seeds, allowed)

    def size(self, section: AlgorithmSection) -> int:
        """Returns the number of `points`, without making any."""
        return math.prod(
            len(choices)
            for owner in section.owners
            for choices in self.options.get(owner, {}).values()
        )

    def only(self, owners: Sequence[str]) -> "GridSection | None":
        """Returns the grid without the lists of other owners, or None if no list is left."""
        others = self.options.keys() - owners
        if len(others) == len(self.options):
            return None
        return GridSection(**self.model_dump(exclude=others))

    def points(self, section: AlgorithmSection) -> Iterator[dict[str, dict[str, Any]]]:
        """Yields all combinations of the values for an algorithm: by key, of the algorithm, its
        solver and its schedule.
        """
        axes = [
            [(owner, key, choice) for choice in choices]
            for owner in section.owners
            for key, choices in self.options.get(owner, {}).items()
        ]
        # the last axis varies fastest, as in nested loops
        for values in itertools.product(*axes):
            point: dict[str, dict[str, Any]] = {"algorithm": {}, "solver": {}, "schedule": {}}
            for owner, key, value in values:
                point[owner if owner in point else "algorithm"][key] = value
            yield point


def check_labels(labels: Sequence[str]) -> None:
    """Refuses labels that are equal, of whose runs only one would be kept, or too long."""
    for position, label in enumerate(labels):
        if len(label) > TEXT:
            hint = "Give the algorithm a shorter `label`, or list fewer keys in the grid."
            raise InvalidInput.of("label", label, f"at most {TEXT} characters", hint)
        if label in labels[:position]:
            hint = "List each key once, and give algorithms labels that differ."
            raise InvalidInput.because("label", f"{label!r} stands for two algorithms", hint)
