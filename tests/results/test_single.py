"""A history shows itself: table, figure, page."""

import dataclasses
import html
import json
import re

import numpy as np
import pytest

import fedax
from fedax import observe
from fedax.core import InvalidInput


@pytest.fixture(scope="module")
def history():
    task = fedax.Task(
        0.0, lambda w, x: (w - x) ** 2 / 2, fedax.FederatedData.from_arrays([[4.0]], test=[[4.0]])
    )
    half = {"solver": fedax.SGD(0.5), "schedule": fedax.Schedule(batch_size="full"), "rounds": 3}
    return fedax.run(
        fedax.FedAvg(), task, observe=[observe.TrainLoss(), observe.TestLoss()], **half
    )


def test_the_table_has_every_observation(history):
    title, heads, *rows = [line.split() for line in str(history).splitlines()]
    assert title[0] == "FedAvg:"
    assert [(row[0], float(row[heads.index("train_loss")])) for row in rows] == [
        ("0", 8.0),
        ("1", 2.0),
        ("2", 0.5),
        ("3", 0.125),
    ]


def test_notebooks_show_curves_and_tables(history):
    page = history._repr_html_()
    assert "<svg" in page
    assert "<td>0.125" in page
    table = fedax.table({"A & B": history})
    assert table._repr_html_() == f"<pre>{table.replace('&', '&amp;')}</pre>"


def test_the_figure_has_a_curve_for_each_metric(history):
    assert sorted(axes.get_ylabel() for axes in history.plot().axes) == ["Test loss", "Train loss"]
    (axes,) = history.plot("train_loss").axes
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), [8.0, 2.0, 0.5, 0.125])
    with pytest.raises(InvalidInput, match="Did you mean 'train_loss'"):
        history.plot("trainloss")
    with pytest.raises(InvalidInput, match="no values of"):
        fedax.compare({"A": dataclasses.replace(history, metrics={})}, "a.pdf")


def test_draws_of_the_data_are_told_apart_over_all_methods(tmp_path):
    """Of one method twice, once without the second draw; a metric of some runs is drawn of these."""
    runs = []
    for mean in (1.0, 2.0, 4.0):
        data = fedax.FederatedData.from_arrays([[mean]])
        task = fedax.Task(0.0, lambda w, x: (w - x) ** 2 / 2, data)
        metrics = [observe.TrainLoss(), observe.Dissimilarity()][: int(mean)]
        runs.append(fedax.run(fedax.FedAvg(), task, observe=metrics, rounds=1))
    _, *lines = fedax.table({"A": runs, "B": runs[::2]}, "csv").splitlines()
    losses = [line.split(",")[3:7] for line in lines if "Train loss" in line]
    assert losses[0] == losses[1]
    assert fedax.compare({"A": runs[:2]}, tmp_path / "page.html").exists()


def test_the_page_is_one_file(history, tmp_path):
    path = tmp_path / "new" / "run.html"
    page = fedax.compare({"FedAvg": history}, path, title="Four").read_text()
    assert "<title>Four" in page


@pytest.mark.parametrize("given", [{}, {"A": []}])
def test_what_is_no_run_is_refused(tmp_path, given):
    with pytest.raises(InvalidInput, match=r"compare\(histories=\.\.\.\)"):
        fedax.compare(given, tmp_path / "page.html")
    assert not list(tmp_path.iterdir())


def test_pdf_figures_have_fonts_that_publishers_take(history, tmp_path):
    content = fedax.compare({"A": history}, tmp_path / "f.pdf").read_bytes()
    assert b"/Subtype /Type3" not in content
    assert b"/Subtype /Type0" in content
    assert fedax.compare({"A": history}, tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_pages_have_the_settings_and_versions(history, tmp_path):
    """Those of the runs: the numbers a reader needs to repeat them, also where words stood for
    numbers."""
    task = fedax.task("synthetic", clients=3)
    options = {
        "solver": fedax.SGD(0.0625),
        "schedule": fedax.Schedule(cohort=2, batch_size=7),
        "rounds": 1,
    }
    runs = {
        "plain": fedax.run_grid([fedax.FedAvg()], task, seed=[5, 8], **options),
        "proximal": fedax.run(fedax.FedProx(mu=0.375), task, seed=11, **options),
    }
    page = fedax.compare(runs, tmp_path / "page.html", title="Mine & yours").read_text()
    assert "<h1>Mine &amp; yours</h1>" in page
    assert "2 methods, 3 runs." in page
    texts = re.findall(r'<p class="note">(\w+)</p><pre>(.*?)</pre>', page, flags=re.DOTALL)
    found = {name: json.loads(html.unescape(text)) for name, text in texts}
    assert set(found) == {"plain", "proximal"}
    plain = found["plain"]
    proximal = found["proximal"]
    assert [run["origin"]["seed"] for run in (*plain, *proximal)] == [5, 8, 11]
    assert {"type": "FedProx", "mu": 0.375}.items() <= proximal[0]["settings"]["algorithm"].items()
    for run in (*plain, *proximal):
        settings = run["settings"]
        assert settings["solver"]["learning_rate"] == 0.0625
        assert {"cohort": 2, "batch_size": 7, "epochs": 1}.items() <= settings["schedule"].items()
        assert run["origin"]["task.name"] == "Synthetic(1, 1)"
    versions = dict(re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", page))
    assert versions["fedax"] == fedax.__version__
    assert {"jax", "numpy", "python", "platform"} <= set(versions)
    fedax.compare({"default": fedax.run(fedax.FedBC(), task, rounds=1)}, tmp_path / "default.html")
    text = (tmp_path / "default.html").read_text()
    for name in ("learning_rate", "epochs", "batch_size", "dual_lr"):
        assert name in text, f"{name}: a reader does not know defaults"
