"""Figures: positions of points, intervals and marks, axes, and legends."""

import dataclasses
import re

import numpy as np
import pytest

from fedax.core import InvalidInput
from fedax.results import drawing
from fedax.results.drawing import save
from fedax.results.figures import Figure, draw_curves
from fedax.results.frame import curves_frame
from fedax.results.looks import choose_looks
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


def clients(count):
    return {"task": {"clients": count}}


def lines(axes):
    """The curves of a panel, shape (2, points) each, by label."""
    return {
        line.get_label(): np.array(line.get_data())
        for line in axes.lines
        if line.get_label()[0] != "_"
    }


def bars(axes, label):
    """The means with a label and their ends, rows of three."""
    found = [bar for bar in axes.containers if bar.get_label() == label]
    return np.array(
        [
            [mean, *np.sort(segment[:, 1])]
            for bar in found
            for mean, segment in zip(bar[0].get_ydata(), bar[2][0].get_segments(), strict=True)
        ]
    )


def across(axes):
    """The heights of horizontal lines."""
    return [line.get_ydata()[0] for line in axes.lines if list(line.get_xdata()) == [0, 1]]


def ticks(axes, name):
    return [text.get_text() for text in getattr(axes, f"get_{name}ticklabels")()]


PAPER = "the paper, ± standard deviation"


def test_accuracies_against_a_value_of_the_variants():
    sizes = {"N = 10": 10, "N = 30": 30, "N = 40": 40}
    runs = [
        run(label, name, seed, end=0.5 + size / 100 + shift + 0.02 * seed, settings=clients(size))
        for name, size in sizes.items()
        for label, shift in (("A", 0.0), ("B", 0.05))
        for seed in (0, 1)
    ]
    figure = Figure(name="f", x="task.clients", x_title="devices N")
    (axes,) = figure.draw(runs).figure.axes
    assert axes.get_xlabel() == "devices N"
    assert ticks(axes, "x") == ["10", "30", "40"]
    deviation = np.sqrt(2)  # of (-1, 1)
    for label, means in (("A", [61.0, 81.0, 91.0]), ("B", [66.0, 86.0, 96.0])):
        expected = [[mean, mean - deviation, mean + deviation] for mean in means]
        np.testing.assert_allclose(bars(axes, label), expected)
    a, b = (
        next(bar[0].get_xdata() for bar in axes.containers if bar.get_label() == label)
        for label in "AB"
    )
    assert (a < b).all(), "beside each other"
    assert (np.abs([a - axes.get_xticks(), b - axes.get_xticks()]) < 0.4).all()


def test_the_papers_numbers_stand_beside_ours_against_a_value():
    """A panel for each method on one axis: its colour for ours, a diamond with the printed
    deviation for the paper's."""
    sizes = {"N = 10": 10, "N = 30": 30}
    shift = {"FedAvg": 0.0, "FedBC": 0.1}
    runs = [
        run(m, n, seed, end=0.5 + c / 100 + s + 0.02 * seed, settings=clients(c))
        for n, c in sizes.items()
        for m, s in shift.items()
        for seed in (0, 1)
    ]
    paper = {
        ("test_accuracy", "N = 10", "FedBC"): [72.5, 0.5],
        ("test_accuracy", "N = 10", "FedAvg"): [61.0],
        ("test_accuracy", "N = 30", "FedBC"): [91.0, 1.5],
    }
    figure = Figure(name="f", title="Table 9: accuracy", x="task.clients", panels=["algorithm"])
    picture = figure.draw(runs, paper=paper, source="Paper, Table 9")
    avg, bc = picture.figure.axes
    assert [avg.get_title(), bc.get_title()] == ["FedAvg", "FedBC"]
    assert avg.get_ylim() == bc.get_ylim()
    np.testing.assert_allclose(bars(bc, PAPER), [[72.5, 72.0, 73.0], [91.0, 89.5, 92.5]])
    np.testing.assert_allclose(bars(avg, PAPER)[:, 0], [61.0])
    ours = [bar for bar in bc.containers if bar.get_label() != PAPER]
    np.testing.assert_allclose(ours[0][0].get_ydata(), [71.0, 91.0])
    colours = choose_looks(["FedAvg", "FedBC"])
    assert ours[0][0].get_color() == colours["FedBC"].colour
    assert picture.note == (
        "Final values, means over the runs, or over the draws of the data if there are several;"
        " bars: standard deviation."
        " Diamonds: the paper, with its standard deviation. Paper, Table 9."
    )


def test_curves_without_bands():
    runs = [run("FedBC", seed=seed, end=end) for seed, end in enumerate((0.5, 0.7))]
    paper = {("test_accuracy", "T", "FedBC"): [61.5, 0.5]}
    figures = [Figure(name="f", band=band) for band in (False, True)]
    bare, full = (figure.draw(runs, paper=paper) for figure in figures)
    for picture, count in ((bare, 0), (full, 1)):
        np.testing.assert_allclose(lines(picture.figure.axes[0])["FedBC"][1], [10, *[60] * 10])
        assert len(picture.figure.axes[0].collections) == count
    assert "band" not in bare.note
    assert "bands: standard deviation" in full.note


def test_curves_against_bits_and_gradients():
    made = dataclasses.replace(run("A"), gradients=3.0 * np.arange(11))
    figure = Figure(name="f", x=["bits", "gradients"], y="train_loss")
    panels = figure.draw([made]).figure.axes
    assert [axes.get_xlabel().replace("\n", " ") for axes in panels] == [
        "bits sent, both directions",
        "minibatch gradients of a client",
    ]
    np.testing.assert_allclose(lines(panels[0])["A"][0], 640 * np.arange(11))
    np.testing.assert_allclose(lines(panels[1])["A"][0], 3 * np.arange(11))


def test_accuracy_axes_start_where_the_data_are():
    pictures = {picture.name: picture for picture in draw_curves([run("A"), run("B", end=0.85)])}
    low, high = pictures["test_accuracy"].figure.axes[0].get_ylim()
    assert 75 < low < 80
    assert 85 < high < 90
    assert pictures["train_loss"].figure.axes[0].get_yscale() == "log"
    slow = draw_curves([run("A", end=0.2), run("B", end=0.4)])[1].figure.axes[0]
    assert slow.get_ylim()[0] < 10, "a rise that takes a third of the axis is on it"
    paper = {("test_accuracy", "T", "A"): [60.0]}
    below = Figure(name="f").draw([run("A")], paper=paper).figure.axes[0]
    assert below.get_ylim()[0] < 60, "a number of the paper is always on the axis"


def test_numbers_of_the_paper_in_curves():
    paper = {("test_accuracy", "T", "A"): [96.81]}
    figure = Figure(name="f", y=["test_accuracy", "train_loss"])
    accuracy, loss = figure.draw([run("A"), run("B")], paper=paper).figure.axes
    assert across(accuracy) == [96.81]
    assert across(loss) == []


def test_panels_and_lines():
    runs = [run(label, task) for task in ("One", "Two") for label in ("A", "B")]
    figure = Figure(
        name="f", y=["test_accuracy", "train_loss"], panels=["variant", "algorithm"], y_title="both"
    )
    drawn = figure.draw(runs).figure
    assert [axes.get_title() for axes in drawn.axes] == ["One, A", "One, B", "Two, A", "Two, B"]
    assert drawn.axes[0].get_gridspec().ncols == 2
    texts = [text.get_text() for text in drawn.legends[0].get_texts()]
    assert texts == ["Test accuracy", "Train loss"]
    assert drawn.axes[0].get_ylabel() == "both"
    assert Figure(name="f", y="weight_gap").draw(runs) is None, "no run has it"


def test_metrics_without_values_are_not_drawn():
    """Nobody worked, or in the first tenth of the rounds alone."""
    curve = np.full(31, np.nan)
    made = [record(losses=np.linspace(2, 1, 31), drawn_accuracy_gap=curve)]
    assert [picture.name for picture in draw_curves(made)] == ["train_loss", "test_accuracy"]
    with pytest.raises(InvalidInput, match="no values of"):
        draw_curves(made, metrics=["drawn_accuracy_gap"])
    curve[1] = 0.1
    assert draw_curves(made, metrics=["drawn_accuracy_gap"])


def test_audits_stand_beside_the_variant_that_they_attack():
    audits = [
        record(
            "A",
            "T, membership inference",
            auc=np.array([0.5, 0.6, 0.7]),
            auc_calibrated=np.full(3, 0.5),
        )
    ]
    drawn = Figure(name="f", y=["train_loss", "auc"]).draw([run("A"), *audits]).figure
    loss, auc = drawn.axes
    assert [loss.get_ylabel(), auc.get_ylabel()] == ["Train loss", "AUC, shadow attack"]
    expected = np.linspace(2, 1, 11)
    np.testing.assert_allclose(
        lines(loss)["A"][1], expected, err_msg="of the variant, not of its audit"
    )
    np.testing.assert_allclose(lines(auc)["A"][1], [0.5, 0.6, 0.7])


@pytest.mark.parametrize("name", ["$lr_{$ x & 50%"])
def test_names_with_dollars_stay_text(name, tmp_path):
    """Between two dollar signs Matplotlib would read a formula, and refuse most of them."""
    runs = [run(label, name, seed) for seed in range(2) for label in (name, "FedAvg")]
    pictures = [Figure(name="f").draw(runs)]
    assert len(save(pictures, tmp_path, ["png"])) == 1
    assert name in drawing.to_svg(pictures[0].figure).replace("&amp;", "&")


def test_drawings_of_a_page_keep_the_texts_of_users_and_take_its_colours():
    label = "rate 0.0015, #0072b2"
    svg = drawing.to_svg(drawing.curves(curves_frame([run(label), run("FedBC")])))
    assert f">{label}<" in svg
    assert svg.count("#0072b2") == 1
    assert "var(--c0)" in svg
    assert not re.search(r'[ "]-?\d+\.\d\d', svg.replace(label, ""))
