"""Hooks of mkdocs: pages that are made when the site is built, its navigation, links, formulas."""

import importlib.util
import os
import posixpath
import re
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import algorithms
import notebooks
import reference
from formulas import as_mathml
from mkdocs.structure.files import File
from tables import framed_table

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
COPIED = {
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "RELEASING.md": "project/releasing.md",
    "SECURITY.md": "project/security.md",
    "benchmarks/README.md": "project/performance.md",
}
"""Documents from outside of `docs`, and the pages that show them."""
SHOWN = {
    "src/fedax/algorithms": "algorithms/index.md",
    "src/fedax/cli/main.py": "reference/command-line.md",
    "src/fedax/theory/__init__.py": "reference/fedax.md",
    "src/fedax/experiments/config/experiment.py": "reference/files.md",
}
"""Sources, to which pages link in a checkout, and the pages that are made of them."""
NEEDED = {"from-pytorch": "torch"}
"""Packages without which a tutorial is shown, but not run."""
TUTORIALS = ("start", "own-data", "own-model", "own-method", "from-pytorch", "from-flower")
PAPERS = ("fedbc", "feddane", "fedaware", "dfedavgm", "local-gd")
GUIDES = [
    {
        "Experiments": [
            "guides/experiments.md",
            "report.md",
            "evaluation.md",
            "guides/data.md",
            "models.md",
            "guides/method.md",
        ]
    },
    {
        "Clients and messages": [
            "guides/heterogeneity.md",
            "guides/personalization.md",
            "guides/decentralized.md",
            "guides/asynchronous.md",
            "guides/compression.md",
            "robust.md",
            "privacy.md",
        ]
    },
    {"Machines": ["guides/scale.md", {"Deploying with Flower": "flower.md"}, "operations.md"]},
]

_execute = True


def on_startup(command: str, dirty: bool) -> None:
    global _execute
    _execute = command != "serve" and "FEDAX_DOCS_QUICK" not in os.environ


def on_config(config: Any) -> Any:
    """The navigation, with a page for each algorithm and each module."""
    families = [
        {algorithms.FAMILIES[name]: [{k.__name__: algorithms.address(k)} for k in kinds]}
        for name, kinds in algorithms.by_family().items()
    ]
    config.nav = [
        {"Get started": ["index.md", *(f"tutorials/{name}.md" for name in TUTORIALS), "choose.md"]},
        {"Examples": ["gallery/index.md"]},
        {"Guides": GUIDES},
        {"Algorithms": ["algorithms/index.md", *families, "theory.md"]},
        {"Benchmark": ["benchmark/protocol.md", "findings/benchmark.md"]},
        {"Reproduction": ["reproduction/README.md", *(f"reproduction/{p}.md" for p in PAPERS)]},
        {
            "Reference": [
                {"Python": [{name: reference.address(name)} for name in reference.MODULES]},
                {"Command line": "reference/command-line.md"},
                {"Experiment files": "reference/files.md"},
            ]
        },
        {"Project": ["project/comparison.md", "project/stability.md", *COPIED.values()]},
    ]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages that are made."""
    made = algorithms.pages(ROOT) | reference.pages()
    made |= {page: (ROOT / source).read_text() for source, page in COPIED.items()}
    for name in TUTORIALS:
        path = DOCS / "tutorials" / f"{name}.py"
        runs = _execute and importlib.util.find_spec(NEEDED.get(name, "fedax")) is not None
        made[f"tutorials/{name}.md"] = notebooks.page(path, runs)
        made[f"tutorials/{name}.ipynb"] = notebooks.notebook(path)
    for address, content in made.items():
        files.append(File.generated(config, address, content=content))
    return files


def page_of(source: str) -> str | None:
    """Returns the page of a file of the checkout, None if it has none."""
    if source in COPIED or source in SHOWN:
        return (COPIED | SHOWN)[source]
    if found := re.fullmatch(r"src/fedax/algorithms/\w+/(\w+)\.py", source):
        return f"algorithms/{found[1].replace('_', '')}.md"
    if found := re.fullmatch(r"src/(fedax[\w/]*?)(?:/__init__)?\.py", source):
        return f"reference/{found[1].replace('/', '.')}.md"
    if found := re.fullmatch(r"docs/tutorials/([\w-]+)\.py", source):
        return f"tutorials/{found[1]}.md"
    if source.startswith("docs/") and not source.startswith("docs/hooks"):
        return source.removeprefix("docs/")
    return None


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Points links to files of the checkout to the pages that show them, or to the repository if it
    has an address."""
    address = page.file.src_uri
    origin = {shown: source for source, shown in COPIED.items()}.get(address, f"docs/{address}")

    def moved(match: re.Match[str]) -> str:
        target, _, anchor = match[2].partition("#")
        place = posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))
        if anchor and place.startswith("src/fedax/algorithms/"):  # one of several in a file
            place, anchor = f"{posixpath.dirname(place)}/{anchor}.py", ""
        if shown := page_of(place):
            here = posixpath.relpath(shown, posixpath.dirname(address) or ".")
        elif (ROOT / place).exists() and config.repo_url:
            here = f"{config.repo_url}/{'tree' if (ROOT / place).is_dir() else 'blob'}/main/{place}"
        elif (ROOT / place).exists():  # a file of the sources, whose repository has no address yet
            return match[1]
        else:
            return match[0]
        return f"[{match[1]}]({here}{'#' + anchor if anchor else ''})"

    # what is said to readers of a checkout is no longer so on the site
    markdown = re.sub(r"^> In a checkout, (?:.+\n)+\n", "", markdown, flags=re.MULTILINE)
    # the text of a link may be a picture
    return re.sub(
        r"\[((?:!\[[^\]]*\]\([^)]*\)|[^\[\]])*)\]\((?!\w+:|#)([^)\s]+)\)", moved, markdown
    )


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Our own worker for the search in place of the theme's, which is loaded from elsewhere."""
    own = posixpath.relpath("assets/worker.js", posixpath.dirname(page.file.dest_uri) or ".")
    return output.replace("https://unpkg.com/iframe-worker/shim", own)


BROAD = 1200
"""Pixels of width from which a picture scrolls on a phone rather than shrinks until its type is
unreadable."""


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Formulas for the browser; tables and wide pictures that scroll on a narrow screen."""
    html = as_mathml(html)

    def framed(match: re.Match[str]) -> str:
        source = (DOCS / posixpath.dirname(page.file.src_uri) / match[2]).resolve()
        if not source.is_file():  # made when the site is built
            return match[0]
        width = int.from_bytes(source.read_bytes()[16:20])  # in the header of a PNG file
        return f'<p class="broad" tabindex="0">{match[1]}</p>' if width >= BROAD else match[0]

    html = re.sub(r'<p>(<img [^>]*src="([^"]*\.png)"[^>]*>)</p>', framed, html)
    return re.sub(
        r"<table>.*?</table>", lambda match: framed_table(match[0]), html, flags=re.DOTALL
    )
