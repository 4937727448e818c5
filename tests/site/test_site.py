"""The documentation as a site: it is built without a warning, its links lead somewhere, it loads
nothing, its search finds."""

import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import fedax
from fedax.algorithms import algorithm_classes

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
HOOKS = ROOT / "docs" / "hooks"
LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}
PAGES = (
    "index",
    "choose",
    "algorithms/feddane",
    "tutorials/own-model",
    "reference/fedax",
    "reference/files",
)


@pytest.fixture(scope="module")
def hooks():
    """The modules that make the pages."""
    sys.path.insert(0, str(HOOKS))
    yield lambda name: __import__(name)
    sys.path.remove(str(HOOKS))


def test_every_public_name_has_an_entry_with_its_text(hooks):
    """By the reader of the site, which leaves out what has no docstring."""
    griffe = pytest.importorskip("griffe")
    style = hooks("docstrings").HouseStyle()
    package = griffe.load(
        "fedax", search_paths=[str(ROOT / "src")], extensions=griffe.load_extensions(style)
    )
    modules = {path.stem for path in (ROOT / "docs" / "reference").glob("fedax*.md")}
    theory = {value.__name__ for value in vars(fedax.theory).values() if inspect.ismodule(value)}
    assert {
        "fedax",
        *(name for name in theory if name.startswith("fedax.theory") and "._" not in name),
    } <= modules
    for name in modules:
        module = importlib.import_module(name)
        shown = package if name == "fedax" else package[name.removeprefix("fedax.")]
        for each in getattr(module, "__all__", ()):
            kind = getattr(module, each)
            if name != "fedax" or each.lower() not in algorithm_classes():
                assert shown[each].is_public, f"{name}.{each}"
                assert shown[each].has_docstring or inspect.ismodule(kind), f"{name}.{each}"


def test_every_algorithm_has_a_page_with_its_ranges_and_traffic(hooks):
    from fedax.core.hyper import declared

    made = hooks("algorithms").pages()
    for name, kind in algorithm_classes().items():
        text = made[f"algorithms/{name}.md"]
        for limits in declared(kind).values():
            assert f"| `{limits.name}` | `{limits.default}` | {limits.allowed} |" in text
        assert made["algorithms/index.md"].count(f"({name}.md)") == 1


class Page(HTMLParser):
    """Links, anchors and loaded files of a page."""

    def __init__(self, text):
        super().__init__()
        self.links = []
        self.anchors = set()
        self.loaded = []
        self.text = []
        self._silent = 0
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.anchors |= {values.get("id"), values.get("name")}
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        if (
            tag in LOADED
            and values.get(LOADED[tag])
            and values.get("rel") not in ("canonical", "prev", "next", "edit")
        ):
            self.loaded.append(values[LOADED[tag]])
        self._silent += tag in ("script", "style", "code", "pre")

    def handle_endtag(self, tag):
        self._silent -= tag in ("script", "style", "code", "pre")

    def handle_data(self, data):
        if not self._silent:
            self.text.append(data)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder named by FEDAX_SITE, or the site built anew."""
    if "FEDAX_SITE" in os.environ:
        return Path(os.environ["FEDAX_SITE"]).absolute()
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    return folder


@pytest.fixture(scope="module")
def pages(site):
    return {
        path.relative_to(site): Page(path.read_text())
        for path in sorted(site.rglob("*.html"))
        if path.name != "404.html"
    }


def test_links_lead_somewhere(site, pages):
    dead = []
    for path, page in pages.items():
        for link in [*page.links, *page.loaded]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (
                (site / path.parent / unquote(parts.path)).resolve()
                if parts.path
                else (site / path).resolve()
            )
            known = (
                pages.get(target.relative_to(site.resolve())) if target.suffix == ".html" else None
            )
            anchored = (
                not parts.fragment or known is None or unquote(parts.fragment) in known.anchors
            )
            if not target.exists() or not anchored:
                dead.append(f"{path}: {link}")
    assert len(pages) > 80
    assert dead == []


def test_pages_load_nothing_from_elsewhere(site, pages):
    assert [
        f"{path}: {link}"
        for path, page in pages.items()
        for link in page.loaded
        if urlsplit(link).scheme
    ] == []
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?https?:", sheet.read_text()), sheet


def test_no_parameter_list_is_preformatted(site):
    """A list of arguments in a grey box would show its backticks."""
    for path in sorted(site.glob("reference/*.html")):
        boxes = re.findall(r"<pre>.*?</pre>", path.read_text(), flags=re.DOTALL)
        assert [box for box in boxes if re.search(r"`\w+`|:::", box)] == [], path
    run = (site / "reference" / "run.html").read_text()
    assert re.search(r"<td[^>]*>\s*<code>on_bad_client</code>", run)


def test_formulas_are_set(pages):
    left = [
        f"{path}: {text.strip()[:60]}"
        for path, page in pages.items()
        for text in page.text
        if re.search(r"\$\$|\\[a-z]{3,}", text)
    ]
    assert left == []


def opened(site, page, text):
    """The page after a browser has run it from a file, without any message on its console."""
    from results.test_browser import FLAGS

    (site / page).write_text(text)
    command = [
        "chromium",
        *FLAGS.split(),
        f"--user-data-dir={site / '.profile'}",
        (site / page).as_uri(),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    finally:
        (site / page).unlink()
        shutil.rmtree(site / ".profile", ignore_errors=True)
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    return done.stdout


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_pages_open_in_a_browser_without_a_message(site):
    frames = "".join(
        f'<iframe src="{page}.html" width="900" height="600"></iframe>' for page in PAGES
    )
    assert opened(site, "all-of-them.html", f"<!doctype html><title>all</title>{frames}").count(
        "<iframe"
    ) == len(PAGES)


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_pages_fit_the_screen(site):
    """No page scrolls sideways, at a desk or on a phone; at a desk all tables and formulas fit."""
    from site_layout import all_pages, overflowing

    kinds = {name.partition("/")[0]: name for name in all_pages(site)}  # a page of each folder
    long = {"algorithms/fedadam.html", "reference/fedax.theory.fedaware.html"}  # formulas in a line
    found = overflowing(site, sorted({*kinds.values(), *long, *(f"{page}.html" for page in PAGES)}))
    assert [each for each in found if each["what"] == "page"] == []
    assert [each for each in found if each["width"] == 1280 and each["what"] != "code"] == []
