"""The table `[grid]` of an experiment file."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from fedax.core import InvalidInput, UnknownName
from fedax.errors import shown
from fedax.experiments.config.plan import Member, merge_settings
from fedax.experiments.config.sections import (
    SEEDS,
    TEXT,
    AlgorithmSection,
    SolverSection,
    are_seeds,
    owners_of,
)

SELECT = (
    "train_loss",
    "validation_loss",
    "validation_accuracy",
    "validation_auc",
    "validation_f1",
    "test_loss",
    "test_accuracy",
)
"""Metrics by which a member of a grid can be selected."""


class GridSection(BaseModel):
    """`[grid]`: lists of values by the name or label of an algorithm, by `solver` or by `schedule`;
    all combinations run.

    `select` says which member stands for its algorithm: the one with the best value of a metric in
    the mean over the runs. It is by default the lowest validation loss if the task keeps examples
    for validation, else the lowest training loss, as in the papers; test examples select only if
    they are named. The experiment's `read` says how a curve becomes a number. A member that
    diverged in any run counts as worst. What is selected on the same runs that are reported looks
    better than it is, so the members run with separate `seeds`, none of which is among the
    experiment's; only the selected member then runs with those of the experiment. By default there
    are as many as the experiment has, from the first number after its largest on. `selects = false`
    is for experiments that stand beside others with the same title, on other draws of the data: no
    member runs to select there, and the one that is selected on the others is reported.

    >>> grid = GridSection(**{"fedprox": {"mu": [0.1, 1.0]}, "solver": {"learning_rate": [0.01]}})
    >>> [point["fedprox"] for point in grid.points(["fedprox"])]
    [{'mu': 0.1}, {'mu': 1.0}]
    """

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    select: str | None = None
    seeds: list[int] | None = None
    selects: bool = True

    def metric(self, validation: bool) -> str:
        """Returns the metric that selects, for a task with or without validation examples.

        >>> (
        ...     GridSection().metric(True),
        ...     GridSection().metric(False),
        ...     GridSection(select="test_loss").metric(True),
        ... )
        ('validation_loss', 'train_loss', 'test_loss')
        """
        return self.select or ("validation_loss" if validation else "train_loss")

    @property
    def lists(self) -> dict[str, Any]:
        return dict(self.model_extra or {})

    def selecting(self, reported: Sequence[int]) -> list[int]:
        """Returns the seeds of the runs that select, for an experiment with some seeds.

        >>> GridSection().selecting([0, 1, 4])
        [5, 6, 7]
        """
        if not self.selects:
            return []
        first = max(reported) + 1
        # the range begins after the largest reported seed, so the two sets cannot overlap
        return list(range(first, first + len(reported))) if self.seeds is None else self.seeds

    def check(self, owners: Sequence[str], reported: Sequence[int], validation: bool) -> None:
        """Refuses owners that are not in the experiment, anything but lists with values, and seeds
        that are reported.

        Also a metric that does not select, or whose examples the task does not have.
        """
        if self.select is not None and self.select not in SELECT:
            raise UnknownName.among("grid.select", self.select, SELECT)
        # `select` names a validation metric, but the task keeps no validation examples
        if self.metric(validation).startswith("validation") and not validation:
            hint = "Keep some: [task] validation = 0.2."
            raise InvalidInput.found(
                "grid.select", f"{self.select!r} without validation examples", "train_loss", hint
            )
        seeds = self.selecting(reported)
        if self.selects and (not are_seeds(seeds) or set(seeds) & set(reported)):
            allowed = f"{SEEDS}, none of the experiment's seeds {shown(list(reported))}"
            raise InvalidInput.of("grid.seeds", seeds, allowed)
        for owner, values in self.lists.items():
            if owner not in owners:
                raise UnknownName.among("grid", owner, owners)
            if not isinstance(values, dict) or not values:
                raise InvalidInput.of(f"grid.{owner}", values, "a table of lists of values")
            for key, choices in values.items():
                field, listed = f"grid.{owner}.{key}", choices if isinstance(choices, list) else []
                if not listed:
                    raise InvalidInput.of(field, choices, "a list of at least one value")
                if any(isinstance(c, dict) for c in listed):
                    hint = "Write an [[algorithm]] with its label for each."
                    raise InvalidInput.of(field, choices, "values that are no tables", hint)
                # as texts: labels of members are made of them, and lists have no hash
                if len(set(map(str, choices))) < len(choices):
                    raise InvalidInput.of(f"grid.{owner}.{key}", choices, "values that differ")

    def size(self, owners: Sequence[str]) -> int:
        """Returns the number of `points`, without making any."""
        return math.prod(
            len(choices) for owner in owners for choices in self.lists.get(owner, {}).values()
        )

    def only(self, owners: Sequence[str]) -> "GridSection | None":
        """Returns the grid without the lists of other owners, or None if no list is left."""
        lists = {owner: values for owner, values in self.lists.items() if owner in owners}
        return (
            GridSection(select=self.select, seeds=self.seeds, selects=self.selects, **lists)
            if lists
            else None
        )

    def points(self, owners: Sequence[str]) -> Iterator[dict[str, dict[str, Any]]]:
        """Yields all combinations of the values of some owners: by owner and key."""
        axes = [
            (owner, key, choices)
            for owner in owners
            for key, choices in self.lists.get(owner, {}).items()
        ]
        # the last axis varies fastest, as in nested loops
        for values in itertools.product(*(choices for _, _, choices in axes)):
            # by owner, then by key
            point: dict[str, dict[str, Any]] = {}
            for (owner, key, _), value in zip(axes, values, strict=True):
                point.setdefault(owner, {})[key] = value
            yield point

    def owner_of(self, member: Member, key: str) -> str:
        """Returns whose value a key of a member's settings is: `algorithm`, `solver` or
        `schedule`.
        """
        owner = key.rpartition(".")[0]
        if owner in ("solver", "schedule"):
            return owner
        # a key that is not qualified belongs to the first of those that list it
        owners = {member.algorithm.name: "algorithm", member.method: "algorithm"}
        owners |= {"solver": "solver", "schedule": "schedule"}
        return next((owners[name] for name in owners if key in self.lists.get(name, {})), owner)


def expand_members(
    sections: Sequence[AlgorithmSection],
    grid: GridSection | None,
    solver_of: Callable[..., SolverSection],
    schedule: dict[str, Any],
) -> list[Member]:
    """Returns the algorithms of a file with all values that a grid gives them, in order.

    Args:
        sections: of the file.
        grid: of the file, if it has one.
        solver_of: the solver of a section, with some options replaced.
        schedule: the options of the common schedule.

    Raises:
        InvalidInput: a label that is too long.
    """
    members = []
    for section in sections:
        method = section.shown()
        for point in grid.points(owners_of(section)) if grid else [{}]:
            algorithm_values = point.get(section.name, {}) | point.get(method, {})
            solver_values, schedule_values = point.get("solver", {}), point.get("schedule", {})
            settings = merge_settings(algorithm_values, solver_values, schedule_values)
            label = ", ".join([method, *(f"{key}={value}" for key, value in settings.items())])
            if len(label) > TEXT:
                raise InvalidInput.because(
                    "grid",
                    f"the label of a member has {len(label)} characters, at most {TEXT} are "
                    f"allowed: {label}",
                    "Give the algorithm a shorter `label`, or list fewer keys in the grid.",
                )
            algorithm = AlgorithmSection.model_validate(
                {"name": section.name, "label": label} | section.options | algorithm_values
            )
            solver = solver_of(section, **solver_values)
            paces = schedule | section.schedule | schedule_values
            members.append(Member(label, method, algorithm, solver, paces, settings))
    return members


def check_labels(members: Sequence[Member]) -> None:
    """Refuses members with equal labels, of whose runs only one would be kept.

    Raises:
        InvalidInput: two members with one label.
    """
    labels = set[str]()
    for member in members:
        if member.label in labels:
            raise InvalidInput.because(
                "grid",
                f"{member.label!r} is the label of two members",
                "List each key of an algorithm once, under its name or its label, and give "
                "algorithms labels that differ.",
            )
        labels.add(member.label)
