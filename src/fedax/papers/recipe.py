"""Recipes: one table or figure of a paper as a file, with the paper's numbers and claims."""

import copy
import functools
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import Field

from fedax.core import InvalidInput, UnknownName
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.config.sections import AuditSection, Table
from fedax.experiments.config.toml import Source, key_path_of, place_value
from fedax.papers.claims import Claim
from fedax.results.figures import Figure
from fedax.results.record import AUDITED
from fedax.results.tables.reductions import Reduction, ValueReduction, is_value_reduction

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
        ran: the scale, in the copy that a run directory keeps.
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
    scale: dict[str, Scale]
    targets: dict[str, dict[str, list[float]]] = {}
    more_targets: dict[str, dict[str, dict[str, list[float]]]] = {}
    paper_runs: int | None = None
    repeats: dict[str, str] = {}
    formerly: list[str] = []
    counted: bool = True
    not_obtainable: str = ""
    claim: list[Claim] = []
    figure: list[Figure] = []
    ran: str | None = None

    @classmethod
    def parse(cls, text: str, name: str = "recipe") -> "Recipe":
        """Reads and checks TOML text.

        Raises:
            SpecError: malformed, an unknown key, a value out of range, a name that is not in it;
                with the line.
        """
        source = Source(text, name)
        recipe = source.validate(cls)
        try:
            recipe.check()
        except InvalidInput as error:
            raise source.error((), error) from error
        return recipe

    def check(self) -> None:
        """Refuses names of variants, algorithms and scales that are not there."""
        # the scales come first, because everything below runs through them
        if set(self.scale) != set(SCALES):
            raise InvalidInput.of("scale", sorted(self.scale), "exactly smoke, small and paper")
        variants = self.titles
        algorithms = self.algorithms
        named: list[tuple[str, Iterable[str | None] | None, Sequence[str]]] = [
            ("repeats", [*self.repeats, *self.repeats.values()], algorithms)
        ]
        for size in self.scale.values():
            named.append(("scale.variants", size.variants, variants))
            named.append(("scale.algorithms", size.algorithms, algorithms))
        for targets in self.cells.values():
            named.append(("targets", targets, variants))
            named += [(f"targets.{task}", numbers, algorithms) for task, numbers in targets.items()]
        for claim in self.claim:
            field = f"claim {claim.text!r}"
            named.append((f"tasks of the {field}", claim.tasks, variants))
            named.append((field, [claim.a, claim.b, *(claim.among or ())], algorithms))
        for figure in self.figure:
            named.append((f"figure {figure.name!r}", figure.variants, variants))
            named.append((f"figure {figure.name!r}", figure.algorithms, algorithms))
        for field, names, options in named:
            for name in names or ():
                if name is not None:
                    _check_name(field, name, options)
        for scale in SCALES:
            # made only to be checked: errors of a scale show when the recipe is read
            self.experiments(scale)

    @property
    def table_read(self) -> str:
        """The reading of the tables' numbers, at the scale that ran."""
        return (self.scale[self.ran].read if self.ran else None) or self.read

    @property
    def cells(self) -> dict[str, dict[str, dict[str, list[float]]]]:
        """All targets by metric."""
        return ({self.metric: self.targets} if self.targets else {}) | self.more_targets

    @property
    def algorithms(self) -> list[str]:
        """The labels of all algorithms."""
        return [section.shown() for section in self._make_experiment(self.variant[0], {}).algorithm]

    def rivals(self, label: str | None) -> list[str]:
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
        _check_name("scale", scale, SCALES)
        known = {"variants": self.titles, "algorithms": self.algorithms}
        fewer = {"variants": list(variants), "algorithms": list(algorithms)}
        for field, names in fewer.items():
            for name in names:
                _check_name(field, name, known[field])
        changes = {field: names for field, names in fewer.items() if names}
        size = self.scale[scale].model_copy(update=changes)
        return self.model_copy(update={"scale": self.scale | {scale: size}})

    def experiments(self, scale: str) -> list[Experiment]:
        """Returns the experiments of a scale: every variant on every draw of the data."""
        _check_name("scale", scale, SCALES)
        size = self.scale[scale]
        draws = self.draws if size.draws is None else size.draws
        experiments = []
        for variant in (*self.variant, *self._audit_variants()):
            # an audit is run where its variant is
            names = {variant.name, variant.name.removesuffix(AUDITED)}
            if size.variants is not None and not names & set(size.variants):
                continue
            # None stands for the task's own seed
            for draw in draws or [None]:
                changes = size.set | ({} if draw is None else {"task.seed": draw})
                read = size.read or self.read
                # other readings are no choice of an experiment file
                if is_value_reduction(read):
                    changes = {"read": read} | changes
                selecting = draws if self.select_draws is None else self.select_draws
                # on other draws no member runs to be selected: the one from these is reported
                if draw is not None and draw not in (selecting or ()) and "grid" in self.experiment:
                    changes = changes | {"grid.selects": False}
                experiment = self._make_experiment(variant, changes)
                algorithms = [
                    s
                    for s in experiment.algorithm
                    if size.algorithms is None or s.shown() in size.algorithms
                ]
                experiments.append(experiment.only(algorithms))
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

    def _audit_variants(self) -> list[Variant]:
        if self.audit is None:
            return []
        return [
            Variant(name=v.name + AUDITED, set=v.set | {"audit": self.audit.model_dump()})
            for v in self.variant
        ]

    @property
    def titles(self) -> list[str]:
        """The tasks' titles: the variants, then their audits."""
        return [variant.name for variant in (*self.variant, *self._audit_variants())]

    @property
    def text(self) -> str:
        """The recipe as TOML text."""
        return tomli_w.dumps(self.model_dump(exclude_none=True))


def _check_name(field: str, name: str, options: Any) -> None:
    if name not in options:
        raise UnknownName.among(field, name, options)


def recipe_files() -> dict[str, Any]:
    """Returns the recipes of the package: files by name.

    >>> "fedbc-table-1" in recipe_files()
    True
    """
    folder = files("fedax.papers").joinpath("recipes")
    return {
        f.name.removesuffix(".toml"): f
        for f in sorted(folder.iterdir(), key=str)
        if f.name.endswith(".toml")
    }


def load(name: str) -> Recipe:
    """Loads a recipe by its name or from a file.

    Raises:
        UnknownName: no such recipe; the message holds the nearest name.
        SpecError: a file that is no recipe.
    """
    if name.endswith(".toml"):
        return Recipe.parse(Source.read(Path(name)).text, name)
    if name not in recipe_files():
        raise UnknownName.among("recipe", name, recipe_files())
    return _load_from_package(name)


@functools.cache
def _load_from_package(name: str) -> Recipe:
    return Recipe.parse(recipe_files()[name].read_text(encoding="utf-8"), f"{name}.toml")
