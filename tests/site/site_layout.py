"""Opens pages of the built site in a browser and looks for what is wider than its place.

python tests/site/site_layout.py site                 # all pages at 1280 and 390 pixels
python tests/site/site_layout.py site start.html      # some
"""

import html
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

WIDTHS = (1280, 390)
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update --allow-file-access-from-files --disable-web-security --enable-logging=stderr "
    "--virtual-time-budget=900000 --dump-dom"
)
PROBE = """<!doctype html><meta charset="utf-8"><body>FRAMES<script>
window.onload = () => {
  const found = [];
  for (const frame of document.querySelectorAll("iframe")) {
    const inside = frame.contentDocument, root = inside.documentElement, width = frame.clientWidth;
    const note = (what, by, text) =>
      found.push({page: frame.dataset.page, width, what, by: Math.round(by), text});
    if (root.scrollWidth > width) note("page", root.scrollWidth - width, "");
    for (const box of inside.querySelectorAll(".md-typeset__scrollwrap, article pre > code, div.formula")) {
      const over = box.scrollWidth - box.clientWidth;
      const what = box.className.includes("wrap") ? "table" : box.tagName === "CODE" ? "code" : "formula";
      if (over > 1) note(what, over, box.textContent.trim().replace(/\\s+/g, " ").slice(0, 60));
    }
  }
  document.documentElement.dataset.found = JSON.stringify(found);
};
</script>"""
AT_ONCE = 12
"""Pages of one browser."""


def overflowing(site: Path, pages: list[str], widths=WIDTHS) -> list[dict]:
    """Returns what overflows: the page, its width, what it is, by how many pixels, how it begins."""
    found = []
    for width in widths:
        for start in range(0, len(pages), AT_ONCE):
            frames = "".join(
                f'<iframe data-page="{page}" src="{page}" style="width:{width}px;height:900px;border:0"></iframe>'
                for page in pages[start : start + AT_ONCE]
            )
            found += json.loads(opened(site, PROBE.replace("FRAMES", frames)))
    return found


def opened(site: Path, text: str) -> str:
    """Returns what a page of the site has found, after a browser has run it."""
    probe = site / "layout-probe.html"
    probe.write_text(text, encoding="utf-8")
    with tempfile.TemporaryDirectory() as profile:
        command = ["chromium", *FLAGS.split(), f"--user-data-dir={profile}", probe.as_uri()]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
        finally:
            probe.unlink()
    return html.unescape(re.search(r'data-found="([^"]*)"', done.stdout)[1])


def all_pages(site: Path) -> list[str]:
    """Returns the addresses of the pages."""
    pages = [path.relative_to(site).as_posix() for path in sorted(site.rglob("*.html"))]
    return [page for page in pages if page not in ("404.html", "layout-probe.html")]


if __name__ == "__main__":
    if shutil.which("chromium") is None:
        sys.exit("layout.py needs chromium.")
    site = Path(sys.argv[1]).absolute()
    for each in overflowing(site, sys.argv[2:] or all_pages(site)):
        print("{page} at {width}: {what} by {by} {text}".format(**each))
