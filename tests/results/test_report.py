import dataclasses
import html.parser
import json
import re
import sys

import numpy as np
import pytest

from fedax.core import FedaxError, InvalidInput, Outcome
from fedax.experiments.results.figures import curves
from fedax.results import Page, Record, Sheet, render
from fedax.results.compare import compare_runs
from fedax.results.drawing.figures import save_charts, save_weights
from fedax.results.forms import format_tables
from fedax.results.page import clients_sheets
from fedax.results.record import clients_csv, to_csv
from fedax.results.tables.means import band
from fedax.results.tables.summary import (
    COLUMNS,
    best,
    columns_of,
    format_row_value,
    shown,
    summarize,
)
from samples import record

EVIL = '</script><script>boom("&\\u2028")</script><img src=x onerror=boom()>{{data}}'


class Reader(html.parser.HTMLParser):
    """Collects tags with their attributes, and the data element."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.inside, self.parts = [], None, {}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside = dict(attrs).get("id") if tag == "script" else tag

    def handle_data(self, data):
        self.parts[self.inside] = self.parts.get(self.inside, "") + data

    @property
    def data(self):
        return json.loads(self.parts["data"])


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
        record(EVIL, EVIL, 0, **weighed((0.25, 0.5), (0.5, 0.75))),
    ]


def weighed(*at_end):
    """Two clients with a fifth and four fifths of the examples; their weights in the last
    observations, equal before."""
    weights = [(0.5, 0.5)] * (3 - len(at_end)) + list(at_end)
    return {"client_weight": np.array(weights), "client_share": np.array([(0.2, 0.8)] * 3)}


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


def test_all_series_are_there(page):
    first, second = Reader(page).data["tasks"]
    assert [a["label"] for a in first["algorithms"]] == ["FedAvg", "Bad"]
    good, bad = first["algorithms"]
    assert good["x"]["rounds"] == [0, 1, 2]
    assert good["x"]["bits"] == [0, 640, 1280]
    assert good["series"]["train_loss"]["mean"] == [2.0, 1.1, 0.6]
    ends = [good["series"]["train_loss"][end][2] for end in ("low", "high")]
    assert ends == [0.5, 0.7], "the deviation of two runs is more than half their distance"
    assert good["clients"] == [0.2, 0.5, 0.9]
    assert bad["x"]["rounds"] == [0, 1, 2], "a mean goes on until the end of the longest run"
    # the run that is not finite counts as the worst loss of the task, 8, from there on
    assert bad["series"]["train_loss"]["mean"] == [2.0, (4 + 8) / 2, 8.0]
    assert (
        "Bad: 1 of 2 diverged (after 1 round) and counts as the worst from there."
        in first["caption"]
    )
    assert [chart["metric"] for chart in first["charts"]] == [
        "train_loss",
        "test_accuracy",
        "dissimilarity",
        "clients",
    ]
    assert [chart["metric"] for chart in second["charts"]] == [
        "train_loss",
        "test_accuracy",
        "clients",
        "weights",
    ]
    assert "low" not in second["algorithms"][0]["series"]["train_loss"], "no band for a single run"


def test_the_table_has_means_deviations_and_outcomes(page):
    table = Reader(page).data["tasks"][0]["table"]
    cells = {row["label"]: [cell["text"] for cell in row["cells"]] for row in table["rows"]}
    assert table["head"] == [
        "Algorithm",
        "Runs",
        "Rounds",
        "Train loss",
        "Test accuracy",
        "Dissimilarity B",
        "Outcome",
    ]
    assert cells["FedAvg"] == ["2", "2", "0.60 ± 0.14", "80.0 ± 0.0 %", "-", "ok"]
    assert cells["Bad"][2] == "8.00 ± 0.00 (1 of 2 as the worst)"
    assert cells["Bad"][-1] == "2 diverged"
    assert [row["cells"][-1]["mark"] for row in table["rows"]] == ["", "bad"]


def test_text_from_users_stays_text(page):
    reader = Reader(page)
    tags = [tag for tag, _ in reader.tags]
    assert tags.count("script") == 3
    assert "img" not in tags
    assert reader.data["tasks"][1]["title"] == EVIL
    assert reader.data["settings"]["config.toml"] == EVIL
    assert reader.parts["h1"].strip() == EVIL
    assert "innerHTML" not in reader.parts[None].split("fedax-theme")[-1]


def test_the_page_loads_nothing(page):
    reader = Reader(page)
    policy = next(
        attrs["content"]
        for tag, attrs in reader.tags
        if attrs.get("http-equiv") == "Content-Security-Policy"
    )
    assert "default-src 'none'" in policy
    assert "http" not in policy
    for tag, attrs in reader.tags:
        assert tag not in ("link", "iframe", "object", "img")
        assert not {"src", "srcset"} & attrs.keys()
    assert not re.search(r"@import|url\(", reader.parts["style"])


def test_long_curves_are_thinned_but_keep_their_ends():
    long = record(losses=np.linspace(3.0, 1.0, 5001))
    x = Reader(render(Page("", "", [long]))).data["tasks"][0]["algorithms"][0]["x"]["rounds"]
    assert len(x) == 500
    assert (x[0], x[-1]) == (0, 5000)


def test_an_empty_page_can_be_rendered():
    assert Reader(render(Page("t", "", []))).data["tasks"] == []


def test_records_survive_storage():
    kept = record("a/b", outcome=Outcome("diverged", 2), extra=np.arange(3))
    again = Record.from_bytes(kept.to_bytes())
    assert (again.label, again.outcome) == (kept.label, kept.outcome)
    assert again.metrics.keys() == kept.metrics.keys()
    for name, values in kept.metrics.items():
        np.testing.assert_array_equal(again.metrics[name], values)


def test_bands_are_deviations_within_the_range_of_the_values():
    mean, low, high = band(
        np.array([[1.0, 1.0, -1.0], [2.0, 1.0, -1.0], [3.0, 10.0, -10.0], [2.0, 4.0, -4.0]])
    )
    deviation = np.sqrt(2 / 3), np.sqrt((9 + 9 + 36) / 3)
    np.testing.assert_allclose(mean, [2, 4, -4])
    np.testing.assert_allclose(low, [2 - deviation[0], 1, -4 - deviation[1]])
    np.testing.assert_allclose(high, [2 + deviation[0], 4 + deviation[1], -1])
    assert [float(end[0]) for end in band(np.array([[3.0]]))] == [3, 3, 3]


def test_csv_has_a_row_per_observation_and_quotes_labels():
    lines = to_csv([record('a,"b"', extra=np.array([1.0, np.nan, 3.0])), record("c")]).splitlines()
    assert lines[0] == (
        "task,algorithm,seed,draw,round,seconds,bits,train_loss,test_accuracy (fraction),extra"
    )
    assert lines[1] == 'T,"a,""b""",0,0,0,0.0000,0,2,0.1,1'
    assert lines[2].endswith(",nan")
    assert lines[4].endswith(",")
    assert len(lines) == 7


def test_how_numbers_are_shown():
    loss, accuracy = COLUMNS[0], next(column for column in COLUMNS if column.percent)
    texts = [
        shown(loss, value)
        for value in ((0.5, np.nan), (0.5, 0.01), (123456.0, 2.0), (np.nan, np.nan), None)
    ]
    assert texts == ["0.500", "0.500 ± 0.010", "123456 ± 2", "not finite", "-"]
    assert shown(accuracy, (0.8125, 0.01)) == "81.2 ± 1.0 %"
    assert shown(accuracy, (0.919, 0.0002)) == "91.900 ± 0.020 %"
    assert [shown(loss, (mean, np.nan)) for mean in (0.0, 2.62e-5, -0.0031)] == [
        "0.00",
        "2.62e-05",
        "-0.00310",
    ]


def test_close_large_means_are_told_apart_as_in_the_table_of_methods():
    """1234.65 and 1231.25 would both be 1.23e+03."""
    made = [
        record(label, seed=seed, losses=(1e6, end + 0.1 * seed))
        for label, end in (("A", 1234.6), ("B", 1231.2))
        for seed in range(2)
    ]
    column, rows = COLUMNS[0], summarize(made)
    assert [format_row_value(row, column) for row in rows] == ["1234.65 ± 0.07", "1231.25 ± 0.07"]
    assert best(column, rows) == {"B"}
    lines = format_tables(compare_runs(made, metrics=["train_loss"]), "text").splitlines()
    assert [line.split(maxsplit=1)[1] for line in lines[2:4]] == [
        "1234.65 ± 0.07",
        "1231.25 ± 0.07 *",
    ]


def test_a_run_that_was_stopped_diverged_and_an_ok_one_has_no_finite_score():
    stopped = record("Stopped", losses=(1.0, 0.5, 0.9), outcome=Outcome("diverged", 1))
    undefined = record("Undefined", losses=(1.0, 0.5, 0.4), test_auc=np.full(3, np.nan))
    made = [stopped, undefined]
    columns = {column.metric: column for column in columns_of(made)}
    rows = {row.label: row for row in summarize(made)}
    assert format_row_value(rows["Stopped"], columns["train_loss"]) == "diverged"
    assert format_row_value(rows["Undefined"], columns["test_auc"]) == "not finite"
    assert rows["Stopped"].outcome == "diverged in round 2"
    table = format_tables(
        compare_runs(made, metrics=["train_loss", "test_auc"]), "text"
    ).splitlines()
    assert table[2].split() == ["Stopped", "diverged", "-"]
    assert table[3].split()[-2:] == ["not", "finite"]


def test_ends_are_counted_in_rounds_from_one():
    """A run of six rounds ends in or after its sixth."""
    assert str(Outcome("diverged", 5)) == "diverged in round 6"
    assert str(Outcome("stopped", 5)) == "stopped after round 6"
    assert str(Outcome("interrupted", 6)) == "interrupted after round 6"
    assert (
        str(Outcome("non-finite", 5, 3, name="north")) == "non-finite in round 6 from client north"
    )
    assert (
        str(Outcome("non-finite", 5, part="train_loss")) == "non-finite in round 6, in train_loss"
    )


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
    task = Reader(render(Page("", "", made))).data["tasks"][0]
    assert task["charts"][0]["loss"] is is_log
    loss = next(chart for chart in curves(made) if chart.name == "train_loss")
    assert loss.panels[0].y.log is is_log


def test_a_gap_below_the_precision_leaves_its_axis_logarithmic():
    made = [
        record(losses=(1.0, 0.5, 0.5), objective_gap=np.array([0.5, 1e-6, -1e-8])),
        record("B", losses=(1.0, 0.5, 0.5), objective_gap=np.array([0.5, 1e-3, 1e-5])),
    ]
    task = Reader(render(Page("", "", made))).data["tasks"][0]
    gap = next(chart for chart in task["charts"] if chart["metric"] == "objective_gap")
    assert (gap["loss"], gap["floor"]) == (True, 1e-6)
    (panel,) = next(chart for chart in curves(made) if chart.name == "objective_gap").panels
    assert panel.y.log
    np.testing.assert_allclose(panel.series[0].y, [0.5, 1e-6, np.nan])
    below = [record(losses=(1.0, 0.5), objective_gap=np.array([-0.1, -0.2]))]
    assert not curves(below, metrics=["objective_gap"])[0].panels[0].y.log


def test_weights_of_zero_have_a_linear_axis(tmp_path, monkeypatch):
    figures = pytest.importorskip("matplotlib.figure")
    scales = []

    def savefig(figure, *arguments, **options):
        scales.append({axes.get_yscale() for axes in figure.axes})

    monkeypatch.setattr(figures.Figure, "savefig", savefig)
    whole, none = record(**weighed((0.25, 0.75))), record(**weighed((0.0, 1.0)))
    for run, is_log in ((whole, True), (none, False)):
        charts = Reader(render(Page("", "", [run]))).data["tasks"][0]["charts"]
        assert charts[-1]["loss"] is is_log
        save_weights([run], tmp_path, ["png"])
    assert scales == [{"log"}, {"linear"}]


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
    task = Reader(render(Page("", "", made, reads={"T": "best"}))).data["tasks"][0]
    assert task["table"]["head"][3:] == [
        "Train loss",
        "Test accuracy",
        "Epsilon",
        "Test mae",
        "Outcome",
    ]
    cells = [cell["text"] for cell in task["table"]["rows"][0]["cells"]]
    assert cells[4:6] == ["0.750 ± 0.000", "1.00 ± 0.00"], "the last epsilon, the best score"
    assert {"epsilon", "test_mae"} <= {chart["metric"] for chart in task["charts"]}
    assert {"epsilon", "test_mae"} <= {chart.name for chart in curves(made)}
    titles = compare_runs(made, {"T": "best"})["column"].unique()
    assert list(titles)[-2:] == ["Epsilon", "Test mae"]
    # where runs contradict each other the metric has no column, and the report is still made
    other = dataclasses.replace(made[0], label="B", modes={"test_mae": "max"})
    assert "test_mae" not in [column.metric for column in columns_of([*made, other])]


def test_at_most_a_few_own_scores_have_columns():
    names = [f"test_s{k}" for k in range(7)]
    run = dataclasses.replace(
        record(**dict.fromkeys(names, np.ones(3))), modes=dict.fromkeys(names, "max")
    )
    assert [c.metric for c in columns_of([run])][2:] == names[:4]


def test_the_best_is_the_lowest_loss_and_the_highest_accuracy():
    made = [
        record("a", losses=(1.0, 0.2)),
        record("b", losses=(1.0, np.nan)),
        record("c", losses=(1.0, 0.3)),
    ]
    made[2].metrics["test_accuracy"][-1] = 0.9
    columns, table = columns_of(made), summarize(made)
    assert [best(column, table) for column in columns] == [{"a"}, {"c"}]
    assert best(columns[0], table[:1]) == set()
    small = [record("a", losses=(1.0, 2e-4)), record("b", losses=(1.0, 1e-4))]
    assert best(columns_of(small)[0], summarize(small)) == {"b"}
    # two that read alike are both the best, or neither
    alike = [record(name, losses=(1.0, end)) for name, end in (("a", 0.2), ("b", 0.20000001))]
    assert best(columns_of(alike)[0], summarize(alike)) == set()
    alike.append(record("c", losses=(1.0, 0.3)))
    assert best(columns_of(alike)[0], summarize(alike)) == {"a", "b"}


def test_further_tables_and_prices_are_on_the_page():
    sheets = [Sheet("Claims", ["Claim", "Verdict"], [[EVIL, "holds"]], EVIL, lead=True)]
    made = Reader(
        render(Page("t", "", [], sheets=sheets, prices={"round": 2.0, "step": 0.5, "gigabit": 0.0}))
    ).data
    assert made["sheets"] == [
        {
            "title": "Claims",
            "head": ["Claim", "Verdict"],
            "rows": [[EVIL, "holds"]],
            "note": EVIL,
            "lead": True,
            "first": 0,
        }
    ]
    assert made["prices"]["step"] == 0.5


def test_gradients_are_kept_for_the_simulated_time():
    run = dataclasses.replace(record(), gradients=np.array([0.0, 3.0, 6.0]))
    again = Record.from_bytes(run.to_bytes())
    np.testing.assert_array_equal(again.gradients, run.gradients)
    assert Record.from_bytes(record().to_bytes()).gradients is None
    assert Reader(render(Page("", "", [again]))).data["tasks"][0]["algorithms"][0]["x"][
        "gradients"
    ] == [0.0, 3.0, 6.0]


@pytest.mark.slow
def test_figures_as_files(tmp_path):
    pytest.importorskip("matplotlib")
    drawn = curves([*runs()[:2], record("B", "Second", 0)])
    files = save_charts(drawn, tmp_path / "f", ["pdf", "png"])
    assert [file.name for file in files] == [
        f"{m}.{f}" for m in ("train_loss", "test_accuracy") for f in ("pdf", "png")
    ]
    assert files[0].read_bytes().startswith(b"%PDF")
    assert files[1].read_bytes().startswith(b"\x89PNG")
    first = files[0].read_bytes()
    assert save_charts(drawn, tmp_path / "f", ["pdf"])[0].read_bytes() == first
    with pytest.raises(InvalidInput, match="format: got 'bmp'"):
        save_charts(drawn, tmp_path, ["bmp"])
    with pytest.raises(InvalidInput, match="against: got 'days'"):
        curves(runs(), against="days")
    unknown = [dataclasses.replace(run, gradients=None) for run in runs()]
    with pytest.raises(InvalidInput, match="against: got 'gradients'"):
        curves(unknown, against="gradients")


@pytest.mark.slow
def test_weights_are_averaged_over_the_runs_on_the_same_data(tmp_path):
    same = [
        record(seed=seed, **weighed((first, 1 - first))) for seed, first in ((0, 0.2), (1, 0.4))
    ]
    other = dataclasses.replace(record(seed=0, **weighed((0.9, 0.1))), draw=1)
    task = Reader(render(Page("", "", [*same, other]))).data["tasks"][0]
    assert task["charts"][-1]["metric"] == "weights"
    shares, weights = task["algorithms"][0]["weights"]
    assert shares == [0.2, 0.8, 0.2, 0.8]
    np.testing.assert_allclose(weights, [0.3, 0.7, 0.9, 0.1])
    assert (
        Reader(render(Page("", "", [record()]))).data["tasks"][0]["algorithms"][0]["weights"] == []
    )
    pytest.importorskip("matplotlib")
    (file,) = save_weights([*same, other, record("B", "without")], tmp_path, ["png"])
    assert file.name == "client_weight.png"
    assert file.stat().st_size > 1000


@pytest.mark.slow
def test_figures_of_what_the_first_task_does_not_have(tmp_path):
    """A metric, and weights, of a later task only; clients of equal size."""
    pytest.importorskip("matplotlib")
    equal = {"client_weight": np.full((3, 2), 0.5), "client_share": np.full((3, 2), 0.5)}
    runs = [record("A", "First"), record("B", "Second", dissimilarity=np.ones(3), **equal)]
    files = [*save_charts(curves(runs), tmp_path, ["png"]), *save_weights(runs, tmp_path, ["png"])]
    assert [file.name for file in files] == [
        f"{m}.png" for m in ("train_loss", "test_accuracy", "dissimilarity", "client_weight")
    ]


def test_figures_say_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(FedaxError, match=r'pip install "matplotlib>='):
        save_charts(curves(runs()), tmp_path / "f")


def test_clients_have_a_row_each_and_methods_a_column():
    names = [f"c{k}" for k in range(12)]
    values = np.linspace(0.9, 0.1, 12)

    def of(label, seed, more, **lost):
        curve = np.array([np.zeros(12), np.zeros(12), values + more])
        curve[:, 3] = np.nan  # no test examples
        for client, value in lost.items():
            curve[-1, names.index(client)] = value
        made = record(label, "A", seed, client_accuracy=curve, client_weight=curve)
        return dataclasses.replace(made, clients=names)

    runs = [of("FedAvg", 0, 0.0), of("FedAvg", 1, 0.1), of("FedHalf", 0, 0.05, c0=np.nan)]
    [sheet] = clients_sheets(runs)
    assert sheet.title == "Clients: accuracy (%)"
    assert sheet.head == ["Client", "FedAvg", "FedHalf"]
    assert sheet.rows[0] == ["c0", "95.0", "not finite"]
    assert sheet.rows[1] == ["c11", "15.0", "15.0"]
    assert [row[0] for row in sheet.rows[-2:]] == ["c2", "c1"]
    assert len(sheet.rows) == 11
    assert "mean of the runs" in sheet.note
    assert clients_sheets([record(client_accuracy=np.ones((3, 2)))]) == []


def test_the_csv_of_clients_says_which_runs_are_reported():
    runs = [
        dataclasses.replace(
            record("FedAvg", "A", seed, client_accuracy=np.full((3, 1), 0.5)), clients=["north"]
        )
        for seed in range(2)
    ]
    assert clients_csv(runs, runs[1:]).splitlines() == [
        "task,algorithm,seed,draw,purpose,client,client_accuracy (fraction)",
        "A,FedAvg,0,0,selection,north,0.5",
        "A,FedAvg,1,0,report,north,0.5",
    ]
