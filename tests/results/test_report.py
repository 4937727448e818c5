import dataclasses
import html.parser
import re

import numpy as np
import pandas as pd
import pytest

from fedax.core import InvalidInput, Outcome
from fedax.results.drawing import save
from fedax.results.figures import draw_curves
from fedax.results.frame import curves_csv
from fedax.results.page import Page, Sheet, render
from fedax.results.tables.summary import columns_of
from samples import record

EVIL = '</script><script>boom("&\\u2028")</script><img src=x onerror=boom()>{{data}}'


class Reader(html.parser.HTMLParser):
    """Collects tags with their attributes, and the texts of each kind of element."""

    def __init__(self, text):
        super().__init__()
        self.tags = []
        self.inside = []
        self.texts = {}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside.append(tag)
        self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag):
        while self.inside and self.inside.pop() != tag:
            pass

    def handle_data(self, data):
        for tag in {*self.inside}:
            self.texts[tag][-1] += data

    def cells(self, tag="td"):
        return [text.strip() for text in self.texts.get(tag, [])]

    def charts(self):
        """How many drawings each chart has, by its title, in all tasks."""
        titles = [attrs["aria-label"] for tag, attrs in self.tags if "data-axis" in attrs]
        return {title: titles.count(title) for title in titles}


def runs():
    """Two tasks; one has two algorithms with two seeds, one of which diverges early."""
    return [
        record("FedAvg", "A", 0, losses=(2.0, 1.0, 0.5)),
        record("FedAvg", "A", 1, losses=(2.0, 1.2, 0.7)),
        record("Bad", "A", 0, losses=(2.0, 4.0, 8.0), dissimilarity=np.ones(3)),
        record(
            "Bad",
            "A",
            1,
            losses=(2.0, np.nan),
            outcome=Outcome("non-finite", 0, 3),
            dissimilarity=np.ones(2),
        ),
        record(EVIL, EVIL, 0),
    ]


@pytest.fixture(scope="module")
def page():
    return render(
        Page(
            EVIL,
            EVIL,
            runs(),
            notes={"A": EVIL},
            settings={"config.toml": EVIL},
            versions={"fedax": "1"},
        )
    )


def test_all_charts_are_there(page):
    reader = Reader(page)
    charts = {title.partition("; ")[0]: count for title, count in reader.charts().items()}
    assert charts == {
        "Train loss, A": 2,
        "Test accuracy, A": 2,
        "Dissimilarity B, A": 2,
        f"Train loss, {EVIL}": 2,
        f"Test accuracy, {EVIL}": 2,
    }
    assert "the 1 that diverged count" in page
    texts = reader.cells("text")
    assert texts.count("communication rounds") == 5
    assert texts.count("bits sent, both directions") == 5
    assert "hours on the virtual clock" not in texts


def test_runs_with_a_clock_have_a_third_axis():
    clock = {"time": np.array([0.0, 3600.0, 7200.0]), "energy": np.zeros(3)}
    run = dataclasses.replace(record(), **clock)
    assert (
        Reader(render(Page("", "", [run]))).cells("text").count("hours on the virtual clock") == 2
    )
    both = Reader(render(Page("", "", [run, record("B")])))
    assert "hours on the virtual clock" not in both.cells("text")


def test_the_table_has_means_deviations_and_outcomes(page):
    reader = Reader(page)
    heads = reader.cells("th")
    assert heads[:7] == [
        "Algorithm",
        "Runs",
        "Rounds",
        "Train loss",
        "Test accuracy (%)",
        "Dissimilarity B",
        "Outcome",
    ]
    assert heads[7:9] == ["FedAvg", "Bad"]
    cells = reader.cells()
    assert cells[:6] == ["2", "2", "0.60 ± 0.14", "80.0 ± 0.0", "-", "ok"]
    assert cells[8] == "8.00 ± 0.00 (1 of 2 diverged)"
    assert (
        cells[11]
        == "1 diverged: above its initial loss, 1 diverged: non-finite in round 1 from client 3"
    )
    assert ("td", {"class": "outcome bad"}) in reader.tags


def test_text_from_users_stays_text(page):
    reader = Reader(page)
    assert reader.cells("h1") == [EVIL]
    assert reader.cells("h2") == ["A", EVIL]
    assert reader.cells("pre") == [EVIL]
    assert reader.cells("th").count(EVIL) == 1


def test_the_page_loads_nothing(page):
    reader = Reader(page)
    policies = [attrs["content"] for _, attrs in reader.tags if "http-equiv" in attrs]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]
    for tag, attrs in reader.tags:
        assert tag not in ("link", "iframe", "object", "img", "script")
        assert not {"src", "srcset"} & attrs.keys()
        assert attrs.get("xlink:href", "#").startswith("#")
    assert not re.search(r"@import|url\((?!#)", page)


def test_long_curves_are_thinned_but_keep_their_ends():
    long = record(losses=np.linspace(3.0, 1.0, 5001))
    (picture,) = draw_curves([long], metrics=["train_loss"])
    x = picture.figure.axes[0].lines[0].get_xdata()
    assert len(x) == 500
    assert (x[0], x[-1]) == (0, 5000)
    assert len(render(Page("", "", [long]))) < 100_000


def test_csv_has_a_row_per_observation_and_quotes_labels():
    lines = curves_csv(
        [record('a,"b"', extra=np.array([1.0, np.nan, 3.0])), record("c")]
    ).splitlines()
    assert lines[0] == (
        "task,algorithm,seed,draw,round,seconds,bits,train_loss,test_accuracy (fraction),extra"
    )
    assert lines[1] == 'T,"a,""b""",0,0,0,0,0,2,0.1,1'
    assert lines[2].endswith(",0.45,")
    assert lines[4].endswith(",")
    assert len(lines) == 7


@pytest.mark.parametrize(
    ("first", "last", "is_log"),
    [
        ((3.0, 2.0), (1.0, 0.5), True),
        ((3.0, 2.0), (0.5, -0.5), False),
        ((0.0, 0.0), (0.0, 0.0), False),
    ],
)
def test_losses_have_a_logarithmic_axis_only_where_all_are_positive(first, last, is_log):
    """In the second case the mean is positive, but the lower end of the band is not."""
    made = [
        record(seed=seed, losses=ends) for seed, ends in enumerate(zip(first, last, strict=True))
    ]
    (picture,) = draw_curves(made, metrics=["train_loss"])
    assert (picture.figure.axes[0].get_yscale() == "log") is is_log


def test_a_gap_below_the_precision_leaves_its_axis_logarithmic():
    made = [
        record(losses=(1.0, 0.5, 0.5), objective_gap=np.array([0.5, 1e-6, -1e-8])),
        record("B", losses=(1.0, 0.5, 0.5), objective_gap=np.array([0.5, 1e-3, 1e-5])),
    ]
    (picture,) = draw_curves(made, metrics=["objective_gap"])
    (axes,) = picture.figure.axes
    assert axes.get_yscale() == "log"
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [0.5, 1e-6, np.nan])
    below = [record(losses=(1.0, 0.5), objective_gap=np.array([-0.1, -0.2]))]
    (picture,) = draw_curves(below, metrics=["objective_gap"])
    assert picture.figure.axes[0].get_yscale() == "linear"


def test_epsilon_and_own_scores_with_a_direction_have_columns():
    made = [
        dataclasses.replace(
            record(
                seed=seed,
                epsilon=np.array([0.0, 0.5, 0.75]),
                test_mae=np.array([3.0, 1.0, 2.0 + seed]),
                other=np.ones(3),
            ),
            modes={"test_mae": "min"},
        )
        for seed in range(2)
    ]
    reader = Reader(render(Page("", "", made, reads={"T": "best"})))
    assert reader.cells("th")[3:8] == [
        "Train loss",
        "Test accuracy (%)",
        "Epsilon",
        "Test mae",
        "Outcome",
    ]
    assert reader.cells()[4:6] == ["0.750 ± 0.000", "1.00 ± 0.00"], (
        "the last epsilon, the best score"
    )
    assert {"Epsilon", "Test mae"} <= {title.partition(", ")[0] for title in reader.charts()}
    assert {"epsilon", "test_mae"} <= {picture.name for picture in draw_curves(made)}
    # where runs contradict each other the metric has no column, and the report is still made
    other = dataclasses.replace(made[0], label="B", modes={"test_mae": "max"})
    assert "test_mae" not in [column.metric for column in columns_of([*made, other])]


def test_statistics_by_client_leave_the_columns_of_own_scores():
    names = "local_mae_pooled", "local_validation_mae_mean", "local_mae_mean", "test_mae"
    scores = dict.fromkeys(names, np.ones(3))
    made = dataclasses.replace(record(**scores), modes=dict.fromkeys(scores, "min"))
    assert [column.metric for column in columns_of([made])][2:] == ["local_mae_mean", "test_mae"]


def test_further_tables_are_on_the_page():
    table = pd.DataFrame({"Claim": [EVIL], "Verdict": ["holds"]})
    sheets = [Sheet("Claims", table, EVIL, lead=True)]
    reader = Reader(render(Page("t", "", [record()], sheets=sheets)))
    assert reader.cells("h2") == ["Claims", "T"], "this one leads"
    assert reader.cells()[:2] == [EVIL, "holds"]
    assert ("td", {"class": "good"}) in reader.tags


@pytest.mark.slow
def test_figures_as_files(tmp_path):
    drawn = draw_curves([*runs()[:2], record("B", "Second", 0)])
    files = save(drawn, tmp_path / "f", ["pdf", "png"])
    assert [file.name for file in files] == [
        f"{m}.{f}" for m in ("train_loss", "test_accuracy") for f in ("pdf", "png")
    ]
    assert files[0].read_bytes().startswith(b"%PDF")
    assert files[1].read_bytes().startswith(b"\x89PNG")
    first = files[0].read_bytes()
    assert save(drawn, tmp_path / "f", ["pdf"])[0].read_bytes() == first
    with pytest.raises(InvalidInput, match="format: got 'bmp'"):
        save(drawn, tmp_path, ["bmp"])
    with pytest.raises(InvalidInput, match="against: got 'days'"):
        draw_curves(runs(), against="days")
    unknown = [dataclasses.replace(run, gradients=None) for run in runs()]
    with pytest.raises(InvalidInput, match="against: got 'gradients'"):
        draw_curves(unknown, against="gradients")
