"""The report in a browser, without scripts: its axes can be switched, it follows the system's theme,
and it fits a phone."""

import html
import json
import re
import shutil
import subprocess

import numpy as np
import pytest

from fedax.results.page import Page, render
from samples import record

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium"),
]
FLAGS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
    --disable-component-update --disable-sync --enable-logging=stderr --virtual-time-budget=20000 --dump-dom"""
PROBE = """<script>
const found = {}, seen = () => [...document.querySelectorAll("[data-axis]")].filter((each) => each.offsetParent).map((each) => each.dataset.axis);
found.start = seen();
document.querySelector("[for=by-bits]").click();
found.bits = seen();
found.wide = document.documentElement.scrollWidth > innerWidth;
found.ground = getComputedStyle(document.body).backgroundColor;
found.line = getComputedStyle(document.querySelector("figure path[style*='--c']")).stroke;
document.body.dataset.found = JSON.stringify(found);
</script>"""


def opened(page, folder, *flags):
    """What the probe finds, for which the page is allowed to have a script."""
    folder.mkdir(exist_ok=True)
    page = re.sub("<meta http-equiv.*?>", "", page).replace("</body>", f"{PROBE}</body>")
    (folder / "report.html").write_text(page)
    profile = f"--user-data-dir={folder / 'profile'}"
    command = ["chromium", *FLAGS.split(), *flags, profile, (folder / "report.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert "CONSOLE" not in done.stderr
    return json.loads(html.unescape(re.search(r'data-found="([^"]*)"', done.stdout)[1]))


@pytest.mark.parametrize("width", [1280, 500])
def test_the_axes_can_be_switched(width, tmp_path):
    runs = [record("FedAvg"), record("B", losses=(2.0, np.nan)), record("C", "Other")]
    found = opened(render(Page("T", "", runs)), tmp_path, f"--window-size={width},900")
    assert found["start"] == ["round"] * 4
    assert found["bits"] == ["bits"] * 4
    assert not found["wide"]


def test_the_page_and_its_drawings_follow_the_systems_theme(tmp_path):
    page = render(Page("T", "", [record("FedAvg")]))
    light = opened(page, tmp_path / "light")
    dark = opened(page, tmp_path / "dark", "--blink-settings=preferredColorScheme=0")
    assert light["ground"] == "rgb(255, 255, 255)"
    assert dark["ground"] != light["ground"]
    assert dark["line"] != light["line"]
