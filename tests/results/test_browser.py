"""The report in a browser: everything is drawn, the legend and the theme can be switched."""

import html
import json
import re
import shutil
import subprocess

import numpy as np
import pytest

from fedax import papers
from fedax.experiments.running.progress import Display
from fedax.papers.study import reproduce
from fedax.results import Page, render
from samples import OWN, record

pytestmark = pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
FLAGS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
    --disable-component-update --disable-sync --enable-logging=stderr --virtual-time-budget=20000 --dump-dom"""

PROBE = """<script>
(async () => {
  const root = document.documentElement, found = {}, pause = () => new Promise((go) => setTimeout(go, 400));
  while (!root.dataset.ready) await pause();
  const [plot] = document.querySelectorAll("#tasks .plot"), [chip] = document.querySelectorAll(".chip");
  const look = () => ({
    names: plot.data.map((trace) => trace.name).filter(Boolean), pressed: chip.getAttribute("aria-pressed"),
    theme: root.dataset.theme, ground: getComputedStyle(document.body).backgroundColor,
    ink: plot.layout.font.color, x: plot.layout.xaxis.title.text,
  });
  found.start = look();
  found.figures = [...document.querySelectorAll("#figures .plot")].map((each) => each.data.map((trace) => trace.name));
  chip.click(); await pause(); found.hidden = look();
  chip.click(); await pause(); found.shown = look();
  document.getElementById("theme").click(); await pause(); found.other = look();
  document.getElementById("theme").click(); await pause(); found.back = look();
  document.querySelector(".controls input[value=bits]").click(); await pause(); found.bits = look();
  root.dataset.found = JSON.stringify(found);
})();
</script>"""


def opened(page, folder):
    """The page after a browser has run it, without any message on its console."""
    folder.mkdir(exist_ok=True)
    (folder / "report.html").write_text(page)
    command = [
        "chromium",
        *FLAGS.split(),
        f"--user-data-dir={folder / 'profile'}",
        (folder / "report.html").as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert "CONSOLE" not in done.stderr, [
        line for line in done.stderr.splitlines() if "CONSOLE" in line
    ]
    return done.stdout


@pytest.mark.slow
def test_all_kinds_of_charts_are_drawn(tmp_path):
    weighed = {"client_weight": np.full((3, 2), 0.5), "client_share": np.array([(0.2, 0.8)] * 3)}
    runs = [
        record("A", dissimilarity=np.ones(3)),
        record("B", losses=(2.0, np.nan)),
        record("C", "Other", **weighed),
    ]
    drawn = opened(render(Page("T", "", runs)), tmp_path)
    assert 'data-ready="8"' in drawn
    assert drawn.count('class="main-svg"') >= 8


AXES = """<script>
(async () => {
  const root = document.documentElement, pause = () => new Promise((go) => setTimeout(go, 400));
  while (!root.dataset.ready) await pause();
  const texts = (plot, axis) => [...plot.querySelectorAll(`.${axis}tick text`)].map((each) => each.textContent);
  const found = [...document.querySelectorAll("#tasks .plot")].map((plot) => ({
    type: plot.layout.yaxis.type, x: texts(plot, "x"), y: texts(plot, "y"),
    values: plot.data.map((trace) => [...trace.y]),
  }));
  const scale = getComputedStyle(document.querySelector("[data-control=scale]")).display;
  root.dataset.found = JSON.stringify({ scale, found });
})();
</script>"""


def axes_of(runs, folder):
    """What the charts of a page show, and whether its scale of losses can be switched."""
    page = render(Page("T", "", runs)).replace("</body>", AXES + "</body>")
    found = json.loads(html.unescape(re.search(r'data-found="([^"]*)"', opened(page, folder))[1]))
    return found["found"], found["scale"] != "none"


@pytest.mark.slow
def test_axes_of_losses_below_zero_and_of_accuracies_that_are_close(tmp_path):
    runs = [
        record(seed=seed, losses=(1.0, low), test_accuracy=np.array([0.9512, 0.9548]))
        for seed, low in enumerate((0.5, -0.7))
    ]
    (loss, accuracy, _), has_switch = axes_of(runs, tmp_path / "browser")
    assert loss["type"] == "linear"
    assert not has_switch
    assert loss["x"] == ["0", "1"], "there is no half round"
    assert len(set(accuracy["y"])) == len(accuracy["y"]) > 2


@pytest.mark.slow
def test_a_gap_of_the_size_of_rounding_is_drawn_on_a_logarithmic_axis(tmp_path):
    gap = np.array([0.5, 1e-6, -1e-8])
    run = record(losses=(1.0, 0.5, 0.4), objective_gap=gap)
    charts, has_switch = axes_of([run], tmp_path / "browser")
    assert charts[1]["type"] == "log"
    assert charts[1]["values"][0] == [0.5, 1e-6, None]
    assert has_switch


@pytest.mark.slow
def test_a_single_loss_has_few_ticks(tmp_path):
    (loss, *_), _ = axes_of([record(losses=(1.11,))], tmp_path / "browser")
    assert 2 < len(loss["y"]) < 9


@pytest.mark.slow
def test_the_report_of_a_recipe_can_be_switched(tmp_path):
    directory = reproduce(papers.Recipe.parse(OWN), "smoke", tmp_path / "run", Display())
    page = (directory.path / "report.html").read_text()
    drawn = opened(page.replace("</body>", PROBE + "</body>"), tmp_path / "browser")
    assert "Plain is as good as Prox with mu = 0" in drawn
    found = json.loads(html.unescape(re.search(r'data-found="([^"]*)"', drawn)[1]))
    assert found["figures"] == [
        ["paper, ± standard deviation", "ours, 95 % interval of the mean", "single runs"]
    ]
    assert found["start"]["names"] == ["Plain", "Prox, mu=0.0"]
    assert found["hidden"]["names"] == ["Prox, mu=0.0"]
    assert (found["start"]["pressed"], found["hidden"]["pressed"]) == ("true", "false")
    assert found["shown"] == found["start"]
    assert {found["start"]["theme"], found["other"]["theme"]} == {"light", "dark"}
    assert found["other"]["ground"] != found["start"]["ground"]
    assert found["other"]["ink"] != found["start"]["ink"]
    assert found["back"] == found["start"]
    assert (found["start"]["x"], found["bits"]["x"]) == (
        "communication rounds",
        "bits sent, both directions",
    )
