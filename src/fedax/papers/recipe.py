"""Recipes: one table or figure of a paper as a file, with the paper's numbers and claims."""

import copy
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from fedax.experiments.config.experiment import Experiment
from fedax.experiments.config.sections import AuditSection, Table, check_names
from fedax.experiments.config.toml import (
    key_path_of,
    parse_toml,
    place_value,
    read_source,
    spec_errors,
    validate,
)
from fedax.papers.claims import Claim
from fedax.results.figures import Figure
from fedax.results.record import AUDITED
from fedax.results.tables.reductions import Reduction, ValueReduction, is_value_reduction

FOLDER = Path(__file__).parent / "recipes"
"""The folder of the package's recipes."""
SCALES = ("smoke", "small", "paper")
"""A few rounds to see that it runs; what a laptop does while one waits; the paper's own size."""


class Variant(Table):
    """One task of a recipe: its title, and what it changes in the experiment, by dotted path."""

    name: str
    set: dict[str, Any] = {}


class Scale(Table):
    """The size at which a recipe is run: changes to the experiment by dotted path, data draws,
    which variants and algorithms (by their labels; all by default), and how curves are read, where
    a shorter run has fewer rounds to average. `comparable` is false where the runs are of another
    model than the paper's: their numbers stand beside the paper's without a comparison.
    """

    set: dict[str, Any] = {}
    variants: list[str] | None = None
    algorithms: list[str] | None = None
    draws: list[int] | None = None
    read: Reduction | None = None
    comparable: bool = True


class Recipe(Table):
    """A table or figure of a paper, ready to run; files are in the folder `recipes` of the package.

    Args:
        paper: authors, title, where it appeared.
        shows: which table or figure.
        title: of the report.
        metric, read: the numbers compared with the paper, see
            `fedax.papers.numbers.Results.of`.
        also_read: further readings that tables show beside `read`, values of the metric; claims and
            cells are judged by `read`.
        chosen: what the paper leaves open, and what was chosen, a sentence each.
        draws: seeds of the data; every variant runs on each. Not given: the task's own.
        select_draws: those of them on which the members of a grid run to be selected; the selected
            one runs on all. By default all.
        experiment: the common part, as in an experiment file, without `name`.
        variant: the tasks; the claims and targets name them.
        audit: membership inference beside every variant, as separate tasks
            (`<variant>, membership inference`).
        scale: for each of `smoke`, `small` and `paper`, what it changes.
        targets: the paper's numbers, by variant and algorithm, `[mean]` or `[mean, deviation]`;
            accuracies in percent.
        more_targets: the same of other metrics, by metric; variances of accuracies over clients in
            squared points.
        paper_runs: how many runs each of the paper's numbers is of, if it says so.
        repeats: labels whose targets are again the paper's cells of another label, for another form
            of the same method.
        formerly: names of recipes that are now part of this one; their folders count until this one
            has run with all observers.
        counted: whether the targets are numbers that no other recipe has; a figure may show those
            of a table again.
        not_obtainable: the reason, where the paper's data cannot be had; the recipe then runs on a
            user's own copy or a stand-in.
        claim: what the paper says.
        figure: how the results are drawn, as the paper does.
        ran: the scale, in the copy that a run directory keeps; numbers are compared as at this one.
    """

    paper: str
    shows: str
    title: str
    metric: str = "test_accuracy"
    read: Reduction = "last"
    also_read: list[ValueReduction] = []
    chosen: list[str] = []
    draws: list[int] | None = None
    select_draws: list[int] | None = None
    experiment: dict[str, Any]
    variant: list[Variant] = Field(min_length=1)
    audit: AuditSection | None = None
    scale: dict[Annotated[str, Field(pattern="^(smoke|small|paper)$")], Scale] = Field(min_length=3)
    targets: dict[str, dict[str, list[float]]] = {}
    more_targets: dict[str, dict[str, dict[str, list[float]]]] = {}
    paper_runs: int | None = None
    repeats: dict[str, str] = {}
    formerly: list[str] = []
    counted: bool = True
    not_obtainable: str = ""
    claim: list[Claim] = []
    figure: list[Figure] = []
    ran: Literal["smoke", "small", "paper"] = "paper"

    @classmethod
    @functools.cache
    def parse(cls, text: str, name: str = "recipe") -> "Recipe":
        """Reads and checks TOML text.

        Raises:
            SpecError: malformed, an unknown key, a value out of range, a name that is not in it.
        """
        with spec_errors(name):
            return validate(cls, parse_toml(text, name))

    @model_validator(mode="after")
    def check(self) -> "Recipe":
        """Refuses names of variants and algorithms that are not there."""
        variants = self.titles
        algorithms = self.algorithms
        check_names("repeats", [*self.repeats, *self.repeats.values()], algorithms)
        for _, task, algorithm in self.cells:
            check_names("targets", [task], variants)
            check_names(f"targets.{task}", [algorithm], algorithms)
        for claim in self.claim:
            field = f"claim {claim.text!r}"
            check_names(f"tasks of the {field}", claim.tasks or (), variants)
            check_names(field, [claim.a, *claim.b], algorithms)
        parts = {f"scale.{name}": size for name, size in self.scale.items()}
        parts |= {f"figure {figure.name!r}": figure for figure in self.figure}
        for field, part in parts.items():
            check_names(field, part.variants or (), variants)
            check_names(field, part.algorithms or (), algorithms)
        for scale in SCALES:
            # made only to be checked: errors of a scale show when the recipe is read
            self.experiments(scale)
        return self

    @property
    def table_read(self) -> str:
        """The reading of the tables' numbers, at the scale that ran."""
        return self.scale[self.ran].read or self.read

    @property
    def cells(self) -> dict[tuple[str, str, str], list[float]]:
        """All targets by metric, variant and algorithm."""
        targets = {self.metric: self.targets} | self.more_targets
        return {
            (metric, task, algorithm): numbers
            for metric, tasks in targets.items()
            for task, algorithms in tasks.items()
            for algorithm, numbers in algorithms.items()
        }

    @property
    def algorithms(self) -> list[str]:
        """The labels of all algorithms."""
        return [section.shown() for section in self._make_experiment(self.variant[0], {}).algorithm]

    def rivals(self, label: str) -> list[str]:
        """Returns an algorithm and those that a claim about it can be against: the papers' own, not
        their other forms.
        """
        return [name for name in self.algorithms if name == label or name not in self.repeats]

    def only(
        self, scale: str, variants: Sequence[str] = (), algorithms: Sequence[str] = ()
    ) -> "Recipe":
        """Returns the recipe with some variants or algorithms at one scale; those that the scale
        has, if none are named.

        >>> [
        ...     e.name
        ...     for e in load("fedbc-table-1")
        ...     .only("paper", ["E = 1", "E = 5"], ["FedBC"])
        ...     .experiments("paper")
        ... ]
        ['E = 1', 'E = 5']

        Raises:
            UnknownName: no such scale, variant or algorithm.
        """
        check_names("scale", [scale], SCALES)
        check_names("variants", variants, self.titles)
        check_names("algorithms", algorithms, self.algorithms)
        size = self.scale[scale]
        chosen = {
            "variants": list(variants) or size.variants,
            "algorithms": list(algorithms) or size.algorithms,
        }
        size = size.model_copy(update=chosen)
        return self.model_copy(update={"scale": self.scale | {scale: size}})

    def experiments(self, scale: str) -> list[Experiment]:
        """Returns the experiments of a scale: every variant on every draw of the data."""
        size = self.scale[scale]
        draws = self.draws if size.draws is None else size.draws
        experiments = []
        for variant in self._all_variants():
            # an audit is run where its variant is
            names = {variant.name, variant.name.removesuffix(AUDITED)}
            if size.variants is not None and not names & set(size.variants):
                continue
            # None stands for the task's own seed
            for draw in draws or [None]:
                changes = dict(size.set)
                read = size.read or self.read
                # other readings are no choice of an experiment file
                if is_value_reduction(read):
                    changes.setdefault("read", read)
                if draw is not None:
                    changes["task.seed"] = draw
                    # no member runs to be selected there: the one from `select_draws` is reported
                    if self.select_draws and draw not in self.select_draws:
                        changes["grid.selects"] = False
                experiment = self._make_experiment(variant, changes)
                experiments.append(experiment.only(size.algorithms))
        return experiments

    def _make_experiment(self, variant: Variant, changes: dict[str, Any]) -> Experiment:
        sections: dict[str, Any] = {"name": variant.name, **copy.deepcopy(self.experiment)}
        # a scale may shorten audits, which plain variants do not have
        changes = {
            p: v for p, v in changes.items() if "audit" in variant.set or not p.startswith("audit.")
        }
        # a scale's value replaces that of the variant
        for path, value in (variant.set | changes).items():
            place_value(sections, key_path_of(path), value, f"set {path}")
        return Experiment.of(**sections)

    def _all_variants(self) -> list[Variant]:
        audits = [
            Variant(name=v.name + AUDITED, set=v.set | {"audit": self.audit.model_dump()})
            for v in self.variant
            if self.audit
        ]
        return [*self.variant, *audits]

    @property
    def titles(self) -> list[str]:
        """The tasks' titles: the variants, then their audits."""
        return [variant.name for variant in self._all_variants()]


def recipe_files() -> dict[str, Path]:
    """Returns the recipes of the package: files by name.

    >>> "fedbc-table-1" in recipe_files()
    True
    """
    return {file.stem: file for file in sorted(FOLDER.glob("*.toml"))}


def load(name: str) -> Recipe:
    """Loads a recipe by its name or from a file.

    Raises:
        UnknownName: no such recipe; the message holds the nearest name.
        SpecError: a file that is no recipe.
    """
    path = Path(name)
    if path.suffix != ".toml":
        check_names("recipe", [name], recipe_files())
        path = recipe_files()[name]
    return Recipe.parse(read_source(path), str(path))
