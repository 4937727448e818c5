"""`progress=True` shows a bar, and engines print as their constructor's call."""

import io

import pytest
from rich.console import Console

import fedax
from fedax.engine.driver import progress_bar
from problems import regression


@pytest.mark.slow
def test_true_shows_a_bar(monkeypatch):
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    original = progress_bar.make_bars
    monkeypatch.setattr(progress_bar, "make_bars", lambda: original(console))
    with_bar = fedax.run(fedax.FedAvg(), regression(), rounds=3, progress=True)
    said = console.file.getvalue()
    assert "FedAvg" in said
    assert "3/3" in said
    assert "loss" in said
    plain = fedax.run(fedax.FedAvg(), regression(), rounds=3, progress=False)
    assert with_bar.metrics["train_loss"].tolist() == plain.metrics["train_loss"].tolist()


def test_plot_draws_the_curve_again(monkeypatch):
    display = pytest.importorskip("IPython.display")
    drawn = []

    class Place:
        def update(self, html):
            drawn.append(html.data)

    monkeypatch.setattr(display, "display", lambda html, display_id: Place())
    fedax.run(fedax.FedAvg(), regression(), rounds=4, observe_every=2, progress="plot")
    assert len(drawn) == 3
    assert all(svg.lstrip().startswith("<?xml") for svg in drawn)
    assert len(set(drawn)) == 3
