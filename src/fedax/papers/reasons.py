"""The hand-written part of the reproduction's status: groups of recipes, and causes of misses."""

import dataclasses
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from fedax.core import InvalidInput, UnknownName
from fedax.experiments.config.sections import explain_error
from fedax.experiments.config.toml import Source
from fedax.papers.recipe import Recipe

NAME = "reasons.toml"
UNEXPLAINED = "unexplained"


class _GroupSection(BaseModel):
    """A row of the overview: `recipes` are names, or patterns such as `feddane-*`; a recipe belongs
    to the first that matches.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    title: str
    recipes: list[str]
    reason: str = ""


class _CauseSection(BaseModel):
    """The cause of misses in a recipe, of some tasks or algorithms or of all."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    recipe: str
    text: str
    tasks: list[str] | None = None
    algorithms: list[str] | None = None


class _ReasonsFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    group: list[_GroupSection] = []
    cause: list[_CauseSection] = []


@dataclasses.dataclass(frozen=True)
class Group:
    """A row of the overview.

    Attributes:
        title: of the row.
        recipes: names.
        reason: the main reason for its misses, in a few words.
    """

    title: str
    recipes: frozenset[str]
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Reasons:
    """The groups of the overview, and the causes of misses."""

    groups: tuple[Group, ...] = ()
    causes: tuple[_CauseSection, ...] = ()

    @classmethod
    def read(cls, folder: Path, catalogue: Mapping[str, Recipe]) -> "Reasons":
        """Reads `reasons.toml` in a folder of run directories. Recipes that no group names are
        grouped by paper.

        Raises:
            SpecError: malformed, an unknown key.
            InvalidInput: a recipe, task or algorithm that does not exist.
        """
        path = folder / NAME
        source = Source.read(path) if path.exists() else Source("", NAME)
        try:
            file = _ReasonsFile.model_validate(source.document)
        except ValidationError as error:
            raise source.error(*explain_error(error, _ReasonsFile)) from error
        _check_names(file, catalogue)
        # recipes that no group has taken yet: each belongs to one row
        ungrouped, groups = dict(catalogue), []
        for section in file.group:
            names = frozenset(
                name
                for name in ungrouped
                if any(fnmatchcase(name, pattern) for pattern in section.recipes)
            )
            groups.append(Group(section.title, names, section.reason))
            ungrouped = {name: recipe for name, recipe in ungrouped.items() if name not in names}
        # recipes that no group names get a row for each paper
        for paper in dict.fromkeys(recipe.paper for recipe in ungrouped.values()):
            groups.append(
                Group(
                    paper,
                    frozenset(name for name, recipe in ungrouped.items() if recipe.paper == paper),
                )
            )
        return cls(tuple(groups), tuple(file.cause))

    def cause(self, recipe: str, task: str, algorithm: str) -> str:
        """Returns why a cell is missed, or `unexplained`."""
        for cause in self.causes:
            matches = (cause.tasks is None or task in cause.tasks) and (
                cause.algorithms is None or algorithm in cause.algorithms
            )
            if cause.recipe == recipe and matches:
                return cause.text
        return UNEXPLAINED


def _check_names(file: _ReasonsFile, catalogue: Mapping[str, Recipe]) -> None:
    """Refuses names that no recipe has."""
    # patterns may match several recipes, but must match one
    for group in file.group:
        for pattern in group.recipes:
            if not any(fnmatchcase(name, pattern) for name in catalogue):
                raise UnknownName.among(f"{NAME}: recipes of {group.title!r}", pattern, catalogue)
    for cause in file.cause:
        if cause.recipe not in catalogue:
            raise UnknownName.among(f"{NAME}: recipe of a cause", cause.recipe, catalogue)
        if not cause.text.strip():
            raise InvalidInput.of(f"{NAME}: text of a cause", cause.text, "a sentence")
        recipe = catalogue[cause.recipe]
        for known_names, names in (
            (recipe.titles, cause.tasks),
            (recipe.algorithms, cause.algorithms),
        ):
            for name in names or ():
                if name not in known_names:
                    raise UnknownName.among(f"{NAME}: cause of {cause.recipe}", name, known_names)
