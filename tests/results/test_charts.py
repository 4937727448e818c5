"""Charts as data: positions of points, intervals and marks, axes, and legends."""

import dataclasses
import io

import numpy as np
import pytest
from scipy import stats

from fedax import papers
from fedax.core import InvalidInput, Outcome, UnknownName
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.config.sections import CostSection
from fedax.experiments.results.figures import Figure, PaperMark, charts_of, curves, drawer
from fedax.results import Page, render
from fedax.results.drawing.charts import along, staggered
from fedax.results.drawing.figures import save_charts
from samples import record


def run(label, task="T", seed=0, draw=0, end=0.8, **changes):
    """An accuracy that rises from 0.1 to its end in the first of ten rounds, and stays there."""
    made = record(
        label,
        task,
        seed,
        draw,
        losses=np.linspace(2.0, 1.0, 11),
        test_accuracy=np.array([0.1] + [end] * 10),
    )
    return dataclasses.replace(made, **changes)


def experiment(name, **sections):
    algorithms = [{"name": "fedavg", "label": "A"}, {"name": "fedprox", "label": "B", "mu": 1.0}]
    return Experiment.of(
        **{"name": name, "seeds": [0, 1], "task": {"name": "synthetic"}, "algorithm": algorithms}
        | sections
    )


def by_kind(panel):
    return {series.kind: series for series in panel.series}


def test_the_papers_numbers_stand_beside_ours():
    ends = {"A": (0.80, 0.82, 0.87), "B": (0.70, 0.70, 0.76)}
    runs = [
        run(label, seed=seed, end=end)
        for label, values in ends.items()
        for seed, end in enumerate(values)
    ]
    targets = {"test_accuracy": {"T": {"A": [83.6, 0.4], "B": [71.0]}}}
    (chart,) = charts_of([], drawer(runs, targets=targets))
    (panel,) = chart.panels
    assert (panel.title, panel.x.title) == ("T", "Test accuracy (%)")
    assert [name for _, name in panel.y.ticks] == ["A", "B"]
    rows = [place for place, _ in panel.y.ticks]
    assert rows[0] > rows[1], "the first algorithm is on top"
    drawn = by_kind(panel)
    np.testing.assert_allclose(drawn["paper"].x, [83.6, 71.0])
    np.testing.assert_allclose(drawn["paper"].low, [83.2, 71.0])
    np.testing.assert_allclose(drawn["paper"].high, [84.0, 71.0])
    for place, values in enumerate(ends.values()):
        sample = 100 * np.array(values)
        low, high = stats.t.interval(0.95, 2, loc=sample.mean(), scale=stats.sem(sample))
        np.testing.assert_allclose(
            (drawn["ours"].x[place], drawn["ours"].low[place], drawn["ours"].high[place]),
            (sample.mean(), low, high),
        )
    np.testing.assert_allclose(
        sorted(drawn["runs"].x), sorted(100 * value for values in ends.values() for value in values)
    )
    for kind in ("paper", "ours"):
        assert (np.abs(drawn[kind].y - rows) < 0.3).all(), "in the row of its algorithm"
    assert (drawn["paper"].y > drawn["ours"].y).all()


def test_draws_of_the_data_are_the_units_where_there_are_several():
    runs = [
        run("A", seed=seed, draw=draw, end=0.5 + 0.1 * draw + 0.02 * seed)
        for draw in range(3)
        for seed in range(2)
    ]
    (chart,) = charts_of(
        [], drawer([*runs, run("B")], targets={"test_accuracy": {"T": {"A": [60.0], "B": [70.0]}}})
    )
    drawn = by_kind(chart.panels[0])
    means = np.array([51.0, 61.0, 71.0])
    np.testing.assert_allclose(np.sort(drawn["runs"].x[:3]), means)
    low, _ = stats.t.interval(0.95, 2, loc=61.0, scale=stats.sem(means))
    np.testing.assert_allclose((drawn["ours"].x[0], drawn["ours"].low[0]), (61.0, low))


def test_diverged_runs_are_counted_and_count_as_the_worst():
    lost = run("A", seed=1, outcome=Outcome("diverged", 3))
    rose = run("B", seed=1, metrics=run("B").metrics | {"train_loss": np.linspace(2.0, 3.0, 11)})
    targets = {"test_accuracy": {"T": {"A": [80.0], "B": [80.0]}}}
    (chart,) = charts_of([], drawer([run("A"), lost, run("B"), rose], targets=targets))
    panel = chart.panels[0]
    assert [name for _, name in panel.y.ticks] == ["A\n1 of 2 diverged", "B\n1 of 2 diverged"]
    drawn = by_kind(panel)
    # A: its whole run ends at 80 %, the lost one counts as the worst of the task, the accuracy at
    # the start
    start, end = (100 * run("A").metrics["test_accuracy"][i] for i in (0, -1))
    np.testing.assert_allclose(drawn["ours"].x, [(start + end) / 2, end])
    assert len(drawn["runs"].x) == 4


def test_a_mean_far_from_the_papers_numbers_does_not_press_them_together():
    targets = {"test_accuracy": {"T": {"A": [83.0, 0.4], "B": [87.0]}}}
    runs = [run("A", end=0.82), run("B", end=0.13)]
    panel = charts_of([], drawer(runs, targets=targets))[0].panels[0]
    assert 70 < panel.x.low < 82
    assert 87 < panel.x.high < 95
    (arrow,) = (series for series in panel.series if series.kind == "beyond")
    assert arrow.texts == ("13",)
    assert panel.x.low < arrow.x[0] < panel.x.low + 0.1 * (panel.x.high - panel.x.low)
    near = charts_of([], drawer([run("A", end=0.82), run("B", end=0.86)], targets=targets))[
        0
    ].panels[0]
    assert near.x.low is None
    assert "beyond" not in by_kind(near)
    apart = [run("A", end=0.82), run("B", end=0.70), run("B", end=0.78, seed=1), run("C", end=0.13)]
    wide = charts_of([], drawer(apart, targets=targets))[0].panels[0]
    assert by_kind(wide)["beyond"].texts == ("13",), "the mean of B, 74, is in sight"
    assert 65 < wide.x.low < 73
    assert wide.x.high < 93, "whatever the interval of two runs"


def test_a_table_is_drawn_where_only_methods_without_a_number_of_the_papers_ran():
    targets = {"test_accuracy": {"T": {"A": [83.0, 0.4], "B": [87.0]}}}
    charts = charts_of([], drawer([run("C", end=0.5)], targets=targets))
    assert all(panel.x.low is None for chart in charts for panel in chart.panels)


def test_accuracies_against_a_value_of_the_variants():
    sizes = {"N = 10": 10, "N = 30": 30, "N = 40": 40}
    made = [
        experiment(name, task={"name": "synthetic", "clients": size})
        for name, size in sizes.items()
    ]
    runs = [
        run(label, name, seed, end=0.5 + size / 100 + shift + 0.02 * seed)
        for name, size in sizes.items()
        for label, shift in (("A", 0.0), ("B", 0.05))
        for seed in (0, 1)
    ]
    figure = Figure(name="f", x="task.clients", x_title="devices N")
    (panel,) = drawer(runs, made).chart(figure).panels
    assert panel.x.title == "devices N"
    assert panel.x.ticks == ((10.0, "10"), (30.0, "30"), (40.0, "40"))
    a, b = panel.series
    assert (a.label, b.label) == ("A", "B")
    np.testing.assert_allclose(a.y, [61.0, 81.0, 91.0])
    np.testing.assert_allclose(b.y, [66.0, 86.0, 96.0])
    np.testing.assert_allclose(
        a.y - a.low, np.full(3, np.sqrt(2)), err_msg="one sample standard deviation of (-1, 1)"
    )
    np.testing.assert_allclose(
        (a.x + b.x) / 2, [10, 30, 40], err_msg="beside each other, around the value"
    )
    assert (b.x - a.x > 0).all()
    assert (b.x - a.x < 5).all(), "nearer to their value than to the next"


def test_values_in_panels_by_another_value():
    cells = [(1, 1.1), (1, 1.3), (2, 1.1), (2, 1.3)]
    options = {"name": "mnist", "clients": 20}
    made = [
        experiment(
            f"C{c}, {r}",
            task=options | {"partition": "powerlaw", "classes_per_client": c, "ratio": r},
        )
        for c, r in cells
    ]
    runs = [run("A", f"C{c}, {r}", end=0.1 * c + 0.2 * r) for c, r in cells]
    figure = Figure(name="f", x="task.ratio", panels=["task.classes_per_client"])
    chart = drawer(runs, made).chart(figure)
    assert [panel.title for panel in chart.panels] == [
        "classes per client 1",
        "classes per client 2",
    ]
    np.testing.assert_allclose([panel.series[0].x for panel in chart.panels], [[1.1, 1.3]] * 2)
    np.testing.assert_allclose([panel.series[0].y for panel in chart.panels], [[32, 36], [42, 46]])
    with pytest.raises(InvalidInput, match="keeps the points of 'A' apart"):
        drawer(runs, made).chart(figure.model_copy(update={"panels": []}))


def test_the_papers_numbers_stand_beside_ours_against_a_value(tmp_path):
    """A panel for each method on one axis: its colour for ours, a diamond with the printed
    deviation for the paper's."""
    sizes, shift = {"N = 10": 10, "N = 30": 30}, {"FedAvg": 0.0, "FedBC": 0.1}
    algorithms = [
        {"name": "fedavg", "label": "FedAvg"},
        {"name": "fedprox", "label": "FedBC", "mu": 1.0},
    ]
    made = [
        experiment(n, task={"name": "synthetic", "clients": c}, algorithm=algorithms)
        for n, c in sizes.items()
    ]
    ends = {
        (m, n): (0.5 + c / 100 + s, 0.52 + c / 100 + s)
        for n, c in sizes.items()
        for m, s in shift.items()
    }
    runs = [
        run(m, n, seed, end=end) for (m, n), both in ends.items() for seed, end in enumerate(both)
    ]
    targets = {
        "test_accuracy": {
            "N = 10": {"FedBC": [72.5, 0.5], "FedAvg": [61.0]},
            "N = 30": {"FedBC": [91.0, 1.5]},
        }
    }
    figure = Figure(name="f", title="Table 9: accuracy", x="task.clients", panels=["algorithm"])
    (chart,) = charts_of([figure], drawer(runs, made, targets=targets, source="Paper, Table 9"))
    avg, bc = chart.panels
    assert [panel.title for panel in chart.panels] == ["FedAvg", "FedBC"]
    assert (avg.y.low, avg.y.high) == (bc.y.low, bc.y.high)
    assert avg.y.low > 55
    assert avg.y.high > 92.5
    paper, ours = by_kind(bc)["published"], by_kind(bc)["points"]
    np.testing.assert_allclose(
        (paper.y, paper.low, paper.high), ([72.5, 91.0], [72.0, 89.5], [73.0, 92.5])
    )
    np.testing.assert_allclose(ours.y, [71.0, 91.0])
    np.testing.assert_allclose(
        ours.y - ours.low, np.full(2, np.sqrt(2)), err_msg="the sample deviation of (-1, 1)"
    )
    assert (paper.x < ours.x).all()
    np.testing.assert_allclose(by_kind(avg)["published"].y, [61.0])
    assert chart.caption == (
        "Table 9: accuracy. Final values, mean over 2 seeds; bars: standard deviation."
        " Diamonds: the paper, with its standard deviation. Paper, Table 9."
    )
    (file,) = save_charts([chart], tmp_path, ["svg"])
    text = file.read_text()
    assert chart.caption in text
    for words in (
        "ours, ± standard deviation",
        "the paper, ± standard deviation",
        "FedAvg",
        "FedBC",
    ):
        assert f"<!-- {words} -->" in text


def test_points_and_curves_without_bands():
    runs = [run("FedBC", seed=seed, end=end) for seed, end in enumerate((0.5, 0.7))]
    draw = drawer(runs, targets={"test_accuracy": {"T": {"FedBC": [61.5, 0.5]}}})
    chart = draw.chart(Figure(name="f", points=True))
    (dots,) = chart.panels[0].series
    assert dots.kind == "dots"
    np.testing.assert_allclose(
        dots.y, 100 * runs[0].metrics["test_accuracy"], err_msg="the first run alone"
    )
    assert [mark.value for mark in chart.panels[0].marks] == [61.5]
    assert (
        "Every point is one observation of one run. Dotted lines: the paper's values."
        in chart.caption
    )
    bare, full = (draw.chart(Figure(name="f", band=band)) for band in (False, True))
    np.testing.assert_allclose(bare.panels[0].series[0].y, full.panels[0].series[0].y)
    assert not len(bare.panels[0].series[0].low)
    assert len(full.panels[0].series[0].low)
    assert "band" not in bare.caption
    assert "band: standard deviation" in full.caption


@pytest.mark.parametrize("band", [True, False])
def test_captions_count_what_means_are_of(band):
    draws = [run("FedBC", draw=draw, end=0.5) for draw in range(3)]
    assert "Mean over 3 draws of the data" in drawer(draws).chart(Figure(name="f", band=band)).note
    both = [run("FedBC", seed=seed, draw=draw) for draw in range(2) for seed in range(2)]
    assert "Mean over 4 runs" in drawer(both).chart(Figure(name="f", band=band)).note
    uneven = [run("FedBC", seed=seed) for seed in range(5)] + [
        run("FedAvg", seed=seed) for seed in range(2)
    ]
    assert "Mean over 2 to 5 seeds" in drawer(uneven).chart(Figure(name="f", band=band)).note
    assert drawer([run("FedBC")]).chart(Figure(name="f", band=band)).note == "One run."


def test_curves_against_bits_and_under_prices():
    made = dataclasses.replace(run("A"), gradients=3.0 * np.arange(11))
    slow = dataclasses.replace(run("B"), gradients=30.0 * np.arange(11))
    figure = Figure(
        name="f",
        x=["bits", "cost"],
        y="train_loss",
        prices=[CostSection(round=1.0, step=2.0), CostSection(round=50.0, step=1.0)],
    )
    chart = drawer([made, slow]).chart(figure)
    assert [panel.x.title for panel in chart.panels] == [
        "bits sent, both directions",
        "time: a round 1, a local step 2",
        "time: a round 50, a local step 1",
    ]
    np.testing.assert_allclose(chart.panels[0].series[0].x, 640 * np.arange(11))
    np.testing.assert_allclose(chart.panels[1].series[0].x, 7 * np.arange(11))
    np.testing.assert_allclose(
        chart.panels[1].series[1].x, [0, 61], err_msg="until the time at which the first one ends"
    )
    np.testing.assert_allclose(
        along(made, "cost", {"round": 0.0, "step": 0.0, "gigabit": 1e9}), 640 * np.arange(11)
    )
    with pytest.raises(InvalidInput, match="against: got 'cost'"):
        along(run("A"), "cost")


def test_accuracy_axes_start_where_the_data_are():
    (chart,) = (c for c in curves([run("A"), run("B", end=0.85)]) if c.name == "test_accuracy")
    axis = chart.panels[0].y
    assert 75 < axis.low < 80
    assert 85 < axis.high < 90
    loss = next(c for c in curves([run("A")]) if c.name == "train_loss").panels[0].y
    assert loss.log
    assert loss.low is None
    below = (
        drawer([run("A")])
        .chart(Figure(name="f", mark=[PaperMark(text="paper", value=60.0)]))
        .panels[0]
    )
    assert below.y.low < 60, "a number of the paper is always on the axis"


@pytest.mark.parametrize(("length", "count"), [(201, 6), (41, 8), (11, 2), (5, 5)])
def test_markers_of_curves_on_each_other_are_apart(length, count):
    places = [set(staggered(length, position, count)) for position in range(count)]
    assert all(places)
    assert all(0 <= place < length for own in places for place in own)
    for i, own in enumerate(places):
        assert not any(own & other for other in places[:i])
    (chart,) = (c for c in curves([run("A"), run("B")]) if c.name == "train_loss")
    a, b = chart.panels[0].series
    assert not set(a.marked) & set(b.marked)
    assert a.style != b.style


def test_numbers_of_the_paper_in_curves():
    targets = {"test_accuracy": {"T": {"A": [96.81]}}}
    mark = PaperMark(text='"cannot bypass 85%"', value=85.0, metric="test_accuracy")
    figure = Figure(name="f", y=["test_accuracy", "train_loss"], mark=[mark])
    accuracy, loss = drawer([run("A"), run("B")], targets=targets).chart(figure).panels
    assert [(m.text, m.value, m.style) for m in accuracy.marks] == [
        ('"cannot bypass 85%"', 85.0, None),
        ("A: 96.81", 96.81, 0),
    ]
    assert loss.marks == []


def grid(task, values, winner):
    """An experiment with a grid of mu for B, and the reported runs of the member that was
    selected."""
    made = experiment(task, grid={"B": {"mu": values}})
    return made, [run("A", task), run(f"B, mu={winner}", task)]


def test_legends_say_the_hyperparameters_of_their_own_panel():
    made = [grid("One", [0.0, 0.1, 1.0], 0.1), grid("Two", [0.0, 0.1, 1.0], 1.0)]
    draw = drawer([r for _, runs in made for r in runs], [e for e, _ in made])
    chart = draw.chart(Figure(name="f", y="train_loss"))
    assert list(chart.legend()) == ["A", "B"]
    assert [[text for _, text in chart.panel_settings(panel)] for panel in chart.panels] == [
        ["mu 0.1"],
        ["mu 1"],
    ]
    same = draw.chart(Figure(name="f", y="train_loss", variants=["Two"]))
    assert list(same.legend()) == ["A", "B, mu 1"]
    assert same.panel_settings(same.panels[0]) == []


def test_legends_say_what_a_variant_changes_in_an_algorithm():
    algorithms = [
        {"name": "fedprox", "label": "B", "mu": mu, "solver": {"learning_rate": 0.1}}
        for mu in (1.0, 0.5)
    ]
    made = [
        experiment(name, algorithm=[own])
        for name, own in zip(("One", "Two"), algorithms, strict=True)
    ]
    chart = drawer([run("B", "One"), run("B", "Two")], made).chart(Figure(name="f", y="train_loss"))
    assert [[text for _, text in chart.panel_settings(panel)] for panel in chart.panels] == [
        ["mu 1"],
        ["mu 0.5"],
    ]


def test_panels_and_series():
    runs = [run(label, task) for task in ("One", "Two") for label in ("A", "B")]
    figure = Figure(
        name="f", y=["test_accuracy", "train_loss"], panels=["variant", "algorithm"], y_title="both"
    )
    chart = drawer(runs).chart(figure)
    assert chart.columns == 2
    assert [panel.title for panel in chart.panels] == ["One, A", "One, B", "Two, A", "Two, B"]
    assert list(chart.legend()) == ["Test accuracy", "Train loss"]
    assert chart.panels[0].y.title == "both"
    assert drawer(runs).chart(Figure(name="f", y="weight_gap")) is None, (
        "what no run has is not drawn"
    )


def test_more_algorithms_than_colours_have_looks_of_their_own():
    from fedax.results.drawing.figures import _style_options

    (chart,) = (c for c in curves([run(f"A{i}") for i in range(16)]) if c.name == "train_loss")
    looks = {
        (s["color"], s["linestyle"], s["marker"])
        for s in map(_style_options, chart.panels[0].series)
    }
    assert len(looks) == 16


def test_colours_stay_with_their_algorithms():
    made = [experiment("T")]
    chart = drawer([run("B")], made).chart(Figure(name="f"))
    assert chart.panels[0].series[0].style == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"x": "round"}, "'round'.*Did you mean 'rounds'"),
        ({"x": ["rounds", "task.alpha"]}, "task.alpha"),
        ({"x": "task.colour"}, "task.colour"),
        ({"panels": ["variants"]}, "variants"),
        ({"read": "first"}, "read: got 'first'"),
        ({"prices": [{"round": 2.0}]}, "prices"),
        ({"variants": ["E = 2"]}, "E = 2"),
        ({"algorithms": ["FedBD"]}, "FedBD"),
        ({"names": {"schedule.epochs": "E = {}"}}, "names"),
        ({"panels": ["schedule.epochs"], "names": {"schedule.epochs": "E"}}, "names"),
        ({"mark": [{"text": "a", "value": 1.0, "variants": ["E = 3"]}]}, "E = 3"),
    ],
)
def test_figures_are_checked(fields, message):
    made = papers.load("fedbc-table-1").experiments("paper")
    with pytest.raises((InvalidInput, UnknownName), match=message):
        Figure(**{"name": "f"} | fields).check(made)


def test_the_page_has_the_figures():
    targets = {"test_accuracy": {"T": {"A": [96.0, 0.5], "B": [95.0]}}}
    charts = charts_of(
        [Figure(name="f", title="<F>")], drawer([run("A"), run("B")], targets=targets)
    )
    page = render(Page("t", "", [], charts=charts))
    assert "\\u003cF>" in page
    assert '"text":"A: 96"' in page


def test_audits_stand_beside_the_variant_that_they_attack():
    audits = [
        record(
            "A",
            "T, membership inference",
            auc=np.array([0.5, 0.6, 0.7]),
            auc_calibrated=np.full(3, 0.5),
        )
    ]
    chart = drawer([run("A"), *audits]).chart(Figure(name="f", y=["train_loss", "auc"]))
    assert chart.columns == 2
    assert [panel.y.title for panel in chart.panels] == ["Train loss", "AUC, shadow attack"]
    np.testing.assert_allclose(
        chart.panels[0].series[0].y,
        np.linspace(2, 1, 11),
        err_msg="of the variant, not of its audit",
    )
    np.testing.assert_allclose(chart.panels[1].series[0].y, [0.5, 0.6, 0.7])


NAMES = ["price $5 & 50% off $10", "$\\foo$", "$lr_{$ x", "a \\$5 and $6"]


@pytest.mark.parametrize("name", NAMES)
def test_names_with_dollars_stay_text(name, tmp_path):
    """Between two dollar signs Matplotlib would read a formula, and refuse most of them."""
    figures = pytest.importorskip("matplotlib.figure")
    shown = []
    original = figures.Figure.savefig

    def savefig(figure, *arguments, **options):
        original(figure, *arguments, **options)
        texts = figure.findobj(figures.mpl.text.Text)
        shown.extend(text._preprocess_math(text.get_text()) for text in texts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures.Figure, "savefig", savefig)
        runs = [run(name, f"T {name}", seed=seed) for seed in range(2)]
        save_charts(curves([*runs, run("FedAvg", f"T {name}")]), tmp_path, ["png"])
    assert (name, False) in shown, "in the legend"
    assert any(text.startswith("T ") and not is_formula for text, is_formula in shown)


def test_paper_rows_marks_and_settings_with_dollars_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    targets = {"test_accuracy": {"$T$ $": {"$A_$": [83.6], "B$^$": [71.0]}}}
    runs = [run(label, "$T$ $") for label in ("$A_$", "B$^$")]
    figure = Figure(name="f", mark=[PaperMark(text="$a_$", value=80.0)])
    charts = charts_of([figure], drawer(runs, targets=targets))
    panel = charts[1].panels[0]
    own = [dataclasses.replace(s, settings=f"${i}_$") for i, s in enumerate(panel.series)]
    more = [panel, dataclasses.replace(panel, series=own)]
    charts[1] = dataclasses.replace(charts[1], panels=more, columns=2)
    assert len(save_charts(charts, tmp_path, ["png"])) == 2


@pytest.mark.parametrize("length", [60, 97, 400])
def test_long_labels_are_wrapped_to_the_width_of_the_figure(length, tmp_path):
    figures = pytest.importorskip("matplotlib.figure")
    label = ("FedProx, " + "learning_rate=0.01, " * 25)[:length].strip()
    found, original = {}, figures.Figure.savefig

    def finished(figure, *arguments, **options):
        original(figure, io.BytesIO(), format="png", dpi=figure.dpi)
        boxes = [text.get_window_extent() for text in figure.legends[0].get_texts()]
        axes = figure.axes[0].get_window_extent()
        found.update(boxes=boxes, figure=figure.bbox, axes=axes.height / figure.dpi)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures.Figure, "savefig", finished)
        save_charts(curves([run(label), run("FedAvg")])[:1], tmp_path, ["png"])
    for box in found["boxes"]:
        assert box.x0 >= 0
        assert box.x1 <= found["figure"].x1
        assert box.y0 >= 0
    assert found["axes"] > 1.2, "the panel keeps its height"
