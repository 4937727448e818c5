"""Figures of recipes, drawn from made-up runs at paper scale."""

import functools

import numpy as np
import pytest

from fedax import papers
from fedax.core import Outcome
from fedax.experiments.results.planned import planned_runs
from fedax.results import Record
from fedax.results.looks import choose_looks

ROUNDS = "communication rounds"
BITS = "bits sent, both directions"


@functools.cache
def pictures(name):
    """By name, the figures of a recipe, from three observations of every run on its first draw."""
    recipe = papers.load(name)
    recipe = recipe.model_copy(update={"draws": recipe.draws and recipe.draws[:1]})
    made = recipe.experiments("paper")
    records = []
    wanted = {
        recipe.metric,
        *(metric for metric, _, _ in recipe.cells),
        *(m for f in recipe.figure for m in ([f.y] if isinstance(f.y, str) else f.y or ())),
    }
    for position, experiment in enumerate(made):
        # of a grid, one member stands for its algorithm
        for planned in {run.method: run for run in planned_runs([experiment])}.values():
            curves = {metric: np.array([0.1, 0.5, 0.6 + 0.01 * position]) for metric in wanted}
            rounds = np.array([0, 1, 2])
            along = (rounds * 0.1, rounds * 64, curves, Outcome(), rounds * 5.0, planned.made_with)
            draw = experiment.task.options.get("seed", 0)
            records.append(Record(experiment.name, planned.method, 0, draw, rounds, *along))
    source = f"{recipe.paper}, {recipe.shows}"
    about = recipe.metric, recipe.read, recipe.cells, source
    drawn = [figure.draw(records, *about) for figure in recipe.figure]
    return {picture.name: picture for picture in drawn if picture}


def test_dfedavgm_figure_6_has_rounds_beside_bits():
    made = pictures("dfedavgm-figure-6")
    panels = made["rounds_and_bits"].figure.axes
    assert [(axes.get_ylabel(), axes.get_xlabel()) for axes in panels] == [
        (y, x) for y in ("Test loss", "Test accuracy (%)") for x in (ROUNDS, BITS)
    ]
    across = {
        line.get_ydata()[0]: line.get_color()
        for line in made["two_shards"].figure.axes[0].lines
        if list(line.get_xdata()) == [0, 1]
    }
    assert set(across) == {96.81}
    looks = choose_looks(papers.load("dfedavgm-figure-6").algorithms)
    assert across[96.81] == looks["FedAvg"].colour


@pytest.mark.slow
@pytest.mark.parametrize("name", list(papers.recipe_files()))
def test_recipes_are_drawn(name):
    """With at most six lines in a panel, and all numbers of the paper that belong to a figure."""
    recipe = papers.load(name)
    made = pictures(name)
    assert set(made) == {figure.name for figure in recipe.figure}
    for picture in made.values():
        assert recipe.shows in picture.note
        for axes in picture.figure.axes:
            labels = {line.get_label() for line in axes.lines if line.get_label()[0] != "_"}
            assert len(labels) <= 6
            assert "others" not in labels
    left_out = set(recipe.algorithms).difference(
        *(f.algorithms or recipe.algorithms for f in recipe.figure if f.name == "paper")
    )
    for (metric, task, algorithm), number in recipe.cells.items():
        is_first = metric == recipe.metric
        picture = made.get("paper" if is_first else f"paper_{metric}") or made.get("paper_local")
        bars = [bar for axes in picture.figure.axes for bar in axes.containers] if picture else []
        shown = [bar[0].get_ydata()[0] for bar in bars if bar.get_label().startswith("the paper")]
        has_several = sum(key[:2] == (metric, task) for key in recipe.cells) > 1
        if picture and has_several and not (is_first and algorithm in left_out):
            assert np.isclose(shown, number[0]).any()
