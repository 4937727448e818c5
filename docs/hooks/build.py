"""Hooks of mkdocs: pages that are made when the site is built, its navigation, links, formulas."""

import importlib.util
import os
import posixpath
import re
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import algorithms
import figures
import notebooks
import reference
from formulas import as_mathml
from mkdocs.structure.files import File

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
NAMED = {
    "mpi.md": "MPI peers",
    "flower.md": "Deploying with Flower",
    "privacy.md": "Differential privacy",
    "theory.md": "Theory that runs",
}
"""Guides directly below `docs` by their titles; others that are put there come after them under
their own."""

_execute = True


def on_startup(command: str, dirty: bool) -> None:
    global _execute
    _execute = command != "serve" and "FEDAX_DOCS_QUICK" not in os.environ


def on_config(config: Any) -> Any:
    """The navigation, with a page for each algorithm and each module."""
    families = [
        {
            algorithms.FAMILIES.get(name, name.capitalize()): [
                {kind.__name__: algorithms.address(kind)} for kind in kinds
            ]
        }
        for name, kinds in algorithms.by_family().items()
    ]
    own = {path.name for path in DOCS.glob("*.md")} - {
        "index.md",
        "start.md",
        "choose.md",
        "report.md",
        "guarantees.md",
    }
    others = [{title: name} for name, title in NAMED.items() if name in own] + sorted(
        own - set(NAMED)
    )
    config.nav = [
        {
            "Start": [
                {"fedax": "index.md"},
                {"First steps": "start.md"},
                {"Reading a report": "report.md"},
                *_tutorials(),
            ]
        },
        {"Choose": "choose.md"},
        {"Algorithms": ["algorithms/index.md", "algorithms/verbs.md", *families]},
        {"Guides": [f"guides/{name}.md" for name in GUIDES] + others},
        {
            "Reference": [
                {"Experiment files": "reference/files.md"},
                {"Command line": "reference/command-line.md"},
                {"Python": [{name: reference.address(name)} for name in reference.MODULES]},
            ]
        },
        {
            "Results": [
                {"Reproduction": [{"Status": "reproduction/README.md"}, *_folders("reproduction")]},
                {"FedDANE, an older record": "feddane/README.md"},
                {"DFedAvgM on MNIST": "decentralized/README.md"},
                {
                    "Findings": [
                        f"findings/{path.name}" for path in sorted((DOCS / "findings").glob("*.md"))
                    ]
                },
            ]
        },
        {
            "Project": [
                {"Guarantees": "guarantees.md"},
                {"Performance": "project/performance.md"},
                {"Architecture": "project/architecture.md"},
                {"Contributing": "project/contributing.md"},
                {"Glossary": "project/glossary.md"},
                {"Questions": "project/faq.md"},
                {"Changelog": "project/changelog.md"},
                {"Releasing": "project/releasing.md"},
                {"Security": "project/security.md"},
            ]
        },
    ]
    return config


GUIDES = (
    "own-code",
    "heterogeneity",
    "personalization",
    "decentralized",
    "asynchronous",
    "compression",
    "privacy",
    "sweeps",
    "hosts",
    "large",
    "clock",
    "resuming",
    "trackers",
)


TUTORIALS = ("start", "own-model", "own-data", "own-method", "from-pytorch", "from-flower")

NEEDED = {"from-pytorch": "torch"}
"""Packages without which a tutorial is shown, but not run."""


def _tutorials() -> list[str]:
    """The first ones in this order, then others."""
    names = {path.stem for path in (DOCS / "tutorials").glob("*.py")}
    return [f"tutorials/{name}.md" for name in [*TUTORIALS, *sorted(names - set(TUTORIALS))]]


def _folders(name: str) -> list[dict[str, str]]:
    return [
        {path.parent.name: f"{name}/{path.parent.name}/README.md"}
        for path in sorted((DOCS / name).glob("*/README.md"))
    ]


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages that are made."""
    made = algorithms.pages(ROOT) | reference.pages() | {"assets/layers.svg": figures.layers(ROOT)}
    made |= {page: (ROOT / source).read_text() for source, page in COPIED.items()}
    for path in sorted((DOCS / "tutorials").glob("*.py")):
        runs = _execute and importlib.util.find_spec(NEEDED.get(path.stem, "fedax")) is not None
        made[f"tutorials/{path.stem}.md"] = notebooks.page(path, runs)
        made[f"tutorials/{path.stem}.ipynb"] = notebooks.notebook(path)
    for address, content in made.items():
        files.append(File.generated(config, address, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Points links to files outside of the site to the pages that show them, or to the repository
    if it has an address."""
    address = page.file.src_uri
    origin = {page_: source for source, page_ in COPIED.items()}.get(address, f"docs/{address}")

    def moved(match: re.Match[str]) -> str:
        target, _, anchor = match[2].partition("#")
        place = posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))
        if place in COPIED:
            here = posixpath.relpath(COPIED[place], posixpath.dirname(address) or ".")
        elif place.startswith("docs/") and not place.startswith("docs/hooks"):
            inside = place.removeprefix("docs/")
            if (ROOT / place).is_dir():
                inside += "/README.md"
            here = posixpath.relpath(inside, posixpath.dirname(address) or ".")
        elif (ROOT / place).exists() and config.repo_url:
            here = f"{config.repo_url}/{'tree' if (ROOT / place).is_dir() else 'blob'}/main/{place}"
        elif (ROOT / place).exists():  # a file of the sources, whose repository has no address yet
            return match[1]
        else:
            return match[0]
        return f"[{match[1]}]({here}{'#' + anchor if anchor else ''})"

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
        r"<table>.*?</table>",
        lambda match: f'<div class="wide" tabindex="0">{match[0]}</div>',
        html,
        flags=re.DOTALL,
    )
