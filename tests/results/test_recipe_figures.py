"""Every recipe's figures have the axes of the paper's; they are drawn from made-up runs at paper
scale."""

import functools
import itertools

import numpy as np
import pytest
import scipy.stats

from fedax import papers
from fedax.core import InvalidInput, Outcome, UnknownName
from fedax.experiments.results.captions import source_of
from fedax.experiments.results.figures import charts_of, drawer
from fedax.results import Record
from fedax.results.drawing.panels import Spot, _Slots
from fedax.results.drawing.styles import colour_of, marker_of, styles

ROUNDS, BITS = "communication rounds", "bits sent, both directions"
EPOCHS, SIZES, EXPONENTS = (1, 5, 10, 25, 50), (30, 70, 100), (1.1, 1.2, 1.3, 1.4, 1.5)
AXES = {
    "fedbc-figure-2/gamma": ("tolerance gamma", (0, 0.05, 0.1, 0.2, 0.5), "Accuracy (%)", 1),
    "fedbc-table-1/train_loss": (ROUNDS, (), "Train loss", 5),
    "fedbc-table-1/variance": (
        "local epochs E",
        EPOCHS,
        "Accuracy variance over clients (points²)",
        1,
    ),
    "fedbc-table-1/accuracy": (ROUNDS, (), "Accuracy on its data (%)", 30),
    "fedbc-table-1/paper": ("local epochs E", EPOCHS, "Test accuracy (%)", 6),
    "fedbc-table-1-searched/paper": ("local epochs E", EPOCHS, "Test accuracy (%)", 6),
    "fedbc-figure-7f/f_accuracy": ("number of devices N", SIZES, "Test accuracy (%)", 1),
    "fedbc-table-1/weights": (ROUNDS, (), "Weight", 5),
    "fedbc-table-2/weights": (ROUNDS, (), "Weight", 3),
    "fedbc-table-2/paper": ("power-law exponent", EXPONENTS, "Test accuracy (%)", 18),
    "fedbc-table-2/paper_local": (
        "power-law exponent",
        EXPONENTS,
        "Mean of the clients' own models (%)",
        15,
    ),
    "fedbc-table-6/paper": ("power-law exponent", EXPONENTS, "Test accuracy (%)", 18),
    "fedbc-table-7/paper": ("power-law exponent", EXPONENTS, "Test accuracy (%)", 21),
    "fedbc-table-8/paper": ("power-law exponent", EXPONENTS, "Test accuracy (%)", 21),
    "fedbc-table-6/variance": (
        "power-law exponent",
        EXPONENTS,
        "Accuracy variance over clients (points²)",
        3,
    ),
    "fedbc-table-2/variance": (
        "power-law exponent",
        EXPONENTS,
        "Accuracy variance over clients (points²)",
        3,
    ),
    "feddane-figure-1/train_loss": (ROUNDS, (), "Train loss", 4),
    "fedaware-figure-5/diversity": (ROUNDS, (), "Gradient diversity", 3),
}


METHODS = (
    "FedAvg",
    "FedProx",
    "SCAFFOLD",
    "FedBC",
    "FedDANE",
    "FedYogi",
    "FedAWARE as released",
    "DFedAvgM",
    "DSGD",
)


@functools.cache
def charts(name):
    """By name, the figures of a recipe, from three observations of every run on its first draw."""
    recipe = papers.load(name)
    recipe = recipe.model_copy(update={"draws": recipe.draws and recipe.draws[:1]})
    made, records = recipe.experiments("paper"), []
    wanted = {
        recipe.metric,
        *recipe.cells,
        *(m for f in recipe.figure for m in ([f.y] if isinstance(f.y, str) else f.y or ())),
    }
    for position, experiment in enumerate(made):
        # of a grid, one member stands for its algorithm
        for member in {member.method: member for member in experiment.members()}.values():
            curves = {metric: np.array([0.1, 0.5, 0.6 + 0.01 * position]) for metric in wanted}
            rounds = np.array([0, 1, 2])
            along = (rounds * 0.1, rounds * 64, curves, Outcome(), rounds * 5.0)
            records.append(
                Record(
                    experiment.name,
                    member.label,
                    0,
                    experiment.task.options.get("seed", 0),
                    rounds,
                    *along,
                )
            )
    draw = drawer(
        records,
        made,
        recipe.metric,
        recipe.read,
        recipe.cells,
        source_of(recipe.paper, recipe.shows),
    )
    return {chart.name: chart for chart in charts_of(recipe.figure, draw)}


@pytest.mark.parametrize("place", AXES)
def test_axes_are_those_of_the_paper(place):
    name, _, figure = place.partition("/")
    x, ticks, y, panels = AXES[place]
    chart = charts(name)[figure]
    assert {panel.x.title for panel in chart.panels} == {x}
    # narrow panels have room for every second value
    shown = ticks[::2] if ticks is EXPONENTS and chart.columns > 4 else ticks
    assert {tuple(value for value, _ in panel.x.ticks) for panel in chart.panels} == {
        tuple(map(float, shown))
    }
    if ticks:
        assert len({(panel.x.low, panel.x.high) for panel in chart.panels}) == 1
    assert {panel.y.title for panel in chart.panels} == {y}
    assert len(chart.panels) == panels


def test_dfedavgm_figure_6_has_rounds_beside_bits():
    made = charts("dfedavgm-figure-6")
    panels = made["rounds_and_bits"].panels
    assert [(p.y.title, p.x.title) for p in panels] == [
        (y, x) for y in ("Test loss", "Test accuracy (%)") for x in (ROUNDS, BITS)
    ]
    marks = [(mark.value, mark.style) for mark in made["two_shards"].panels[0].marks]
    assert marks == [(85.0, None), (96.81, styles(["FedAvg"])["FedAvg"])]


@pytest.mark.parametrize("name", ["local-gd-figure-1", "local-gd-figure-2"])
def test_local_gd_has_panels_of_cost(name):
    chart = charts(name)["gap"]
    assert chart.columns == 3
    assert [p.x.title for p in chart.panels[:3]] == [
        ROUNDS,
        "time: a round 1, a local step 1",
        "time: a round 100, a local step 1",
    ]
    assert all(panel.y.log for panel in chart.panels)


def test_differences_have_a_point_for_every_draw():
    """Runs are paired by draw and seed, means have Student's interval, and diverged runs are
    counted in place of a mean."""
    experiment = (
        papers.load("feddane-figure-3-grid").only("paper", ["Synthetic IID"]).experiments("paper")
    )
    figure = next(f for f in papers.load("feddane-figure-3-grid").figure if f.name == "exact")
    gaps = {
        "FedDANE, mu = 0": [0.1, 0.3, -0.1],
        "FedDANE, mu = 1": [0.5, 0.5, 0.8],
        "FedAvg": [0.0, 0.0, 0.0],
    }
    records = []
    for label, own in gaps.items():
        for draw in (2, 0, 1) if label == "FedAvg" else (0, 1, 2):
            lost = label.endswith("1") and draw == 2
            curves = {"train_loss": np.array([3.0, 1.0 + draw + own[draw]])}
            outcome = Outcome("diverged", 1) if lost else Outcome()
            records.append(
                Record(
                    "Synthetic IID",
                    label,
                    0,
                    draw,
                    np.array([0, 1]),
                    np.zeros(2),
                    np.zeros(2),
                    curves,
                    outcome,
                )
            )
    (chart,) = charts_of([figure], drawer(records, experiment, "train_loss", "last"))
    (panel,) = chart.panels
    dots, means = panel.series
    np.testing.assert_allclose(sorted(dots.y), [-0.1, 0.1, 0.3, 0.5, 0.5], atol=1e-12)
    reach = scipy.stats.t.ppf(0.975, 2) * np.std([0.1, 0.3, -0.1], ddof=1) / np.sqrt(3)
    np.testing.assert_allclose(
        [means.y[0], means.low[0], means.high[0]], [0.1, 0.1 - reach, 0.1 + reach], atol=1e-12
    )
    assert len(means.y) == 1
    assert "minus that of FedAvg" in chart.note
    assert "95 % confidence interval" in chart.note
    assert [text for _, text in panel.x.ticks] == ["0", "1\n1 diverged"]
    assert (panel.y.title, [mark.value for mark in panel.marks]) == (
        "Train loss minus FedAvg's",
        [0.0],
    )
    with pytest.raises(
        InvalidInput, match="minus: got 'FedAvg'; allowed: only where x is the path of a value"
    ):
        figure.model_copy(update={"x": "rounds"}).check(experiment)
    with pytest.raises(UnknownName, match="FedAvgM"):
        figure.model_copy(update={"minus": "FedAvgM"}).check(experiment)


@pytest.mark.parametrize("name", list(papers.recipe_files()))
def test_recipes_are_drawn(name):
    recipe, made = papers.load(name), charts(name)
    assert set(made) >= {figure.name for figure in recipe.figure}
    left_out = set(recipe.algorithms).difference(
        *(f.algorithms or recipe.algorithms for f in recipe.figure if f.name == "paper")
    )
    for metric, targets in recipe.cells.items():
        chart = made.get("paper" if metric == recipe.metric else f"paper_{metric}") or made.get(
            "paper_local"
        )
        for task, numbers in targets.items():
            shown = printed(chart, task, recipe) if chart else {}
            for algorithm, number in numbers.items():
                if len(numbers) > 1 and not (metric == recipe.metric and algorithm in left_out):
                    assert number[0] in shown[algorithm]


def printed(chart, task, recipe):
    """The paper's numbers in a chart by algorithm, of all tasks where these are on the horizontal
    axis."""
    found = {}
    for panel in chart.panels:
        for series in panel.series:
            if series.kind == "published":
                found.setdefault(panel.title.split(", ", 1)[-1], []).extend(series.y)
            if series.kind == "paper" and (panel.title == task or len(recipe.variant) == 1):
                for (_, text), value in zip(panel.y.ticks, series.x, strict=True):
                    found.setdefault(text.partition("\n")[0], []).append(value)
    return found


@pytest.mark.parametrize("name", list(papers.recipe_files()))
def test_panels_have_at_most_six_lines_and_tell_what_they_show(name):
    for chart in charts(name).values():
        for panel in chart.panels:
            assert (
                len(
                    {
                        series.label
                        for series in panel.series
                        if series.kind in ("curve", "points", "dots")
                    }
                )
                <= 6
            ), panel.title
        assert papers.load(name).shows in chart.caption
        assert any(word in chart.caption.lower() for word in ("mean", "one run", "values"))


@pytest.mark.slow
def test_a_method_looks_the_same_in_all_figures():
    looks = {}
    for name in papers.recipe_files():
        recipe = papers.load(name)
        for chart in charts(name).values():
            for panel in chart.panels:
                for series in panel.series:
                    if series.kind in ("curve", "points") and series.label in recipe.algorithms:
                        looks.setdefault(series.label, set()).add(
                            (colour_of(series.style), marker_of(series.style))
                        )
    for label in METHODS:
        assert len(looks[label]) == 1, label
    assert len({next(iter(looks[label])) for label in METHODS}) == len(METHODS)


def test_an_incomplete_grid_has_at_most_four_panels_in_a_row():
    """Seven columns of a grid that has gaps line up nothing, and leave no room for the type."""
    recipe = papers.load("fedbc-table-7")
    figures = [figure for figure in recipe.figure if figure.name == "paper"]
    assert charts("fedbc-table-7")["paper"].columns == 7
    made = recipe.experiments("paper")
    records = []
    for experiment in made:
        for member in {member.method: member for member in experiment.members()}.values():
            rounds, curves = np.array([0, 1]), {recipe.metric: np.array([0.1, 0.5])}
            along = (rounds * 0.1, rounds * 64, curves, Outcome(), rounds * 5.0)
            if "SCAFFOLD" not in member.label or "C = 1" in experiment.name:
                records.append(Record(experiment.name, member.label, 0, 0, rounds, *along))
    draw = drawer(
        records,
        made,
        recipe.metric,
        recipe.read,
        recipe.cells,
        source_of(recipe.paper, recipe.shows),
    )
    (chart,) = charts_of(figures, draw)
    assert 12 < len(chart.panels) < 18
    assert chart.columns == 4


@pytest.mark.slow
def test_wide_logarithmic_axes_have_ticks_that_do_not_overlap():
    """Curves begin at 0, which a logarithmic axis does not show."""
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="needs the extra paper")
    from fedax.results.drawing.figures import _set_log_ticks

    figure, axes = pyplot.subplots(figsize=(2, 2))
    axes.plot([0.0, 1e-3, 1.5], [1.0, 2.0, 3.0])
    axes.set_xscale("log")
    _set_log_ticks(axes.xaxis)
    figure.canvas.draw()
    boxes = [
        label.get_window_extent()
        for label in axes.get_xticklabels()
        if label.get_text() and 1e-3 <= label.get_position()[0] <= 1.5
    ]
    assert len(boxes) >= 2
    assert all(a.x1 < b.x0 for a, b in itertools.pairwise(boxes))
    pyplot.close(figure)


def test_points_at_a_single_value_stay_near_it():
    """So that a panel of one exponent can stand beside one of five."""
    spot = Spot("T", "FedAvg", 0, "", [], "test_accuracy")
    slots = _Slots([1.1], 2, False)
    left, right = (slots.positions([(1.1, spot)], slot)[0] for slot in (0, 1))
    assert left < 1.1 < right
    assert right - left < 0.05
    assert _Slots([0.0], 2, False).positions([(0.0, spot)], 1)[0] > 0
