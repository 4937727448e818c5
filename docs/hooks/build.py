"""Hooks of mkdocs: pages that are made when the site is built, its navigation, links, formulas."""

import importlib.util
import os
import posixpath
import re
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import algorithms
import gallery
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
NAMED = {
    "mpi": "MPI processes",
    "flower": "Deploying with Flower",
    "privacy": "Differential privacy",
    "models": "Predict and export",
    "libraries": "Flax, Haiku, Equinox, PyTorch, pandas",
}
"""Pages with a title in the navigation that differs from their heading."""

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
    config.nav = [
        {"Get started": [{"fedax": "index.md"}, "start.md", "tutorials/start.md", "choose.md"]},
        {
            "Examples": [
                "gallery/index.md",
                *(page for page in gallery.pages() if "index" not in page),
            ]
        },
        {"How to": [{title: [_page(name) for name in names]} for title, names in HOW_TO.items()]},
        {"Algorithms": ["algorithms/index.md", "algorithms/verbs.md", *families]},
        {"Benchmark": "benchmark/protocol.md"},
        {
            "Reproduction": [
                {"Status": "reproduction/README.md"},
                {
                    "Findings": [
                        f"findings/{path.name}" for path in sorted((DOCS / "findings").glob("*.md"))
                    ]
                },
                {"Tables and figures": _folders("reproduction")},
                {"FedDANE, an older record": "feddane/README.md"},
                {"DFedAvgM on MNIST": "decentralized/README.md"},
            ]
        },
        {
            "Reference": [
                {"Python": [{name: reference.address(name)} for name in reference.MODULES]},
                {"Command line": "reference/command-line.md"},
                {"Experiment files": "reference/files.md"},
            ]
        },
        {"Understanding": [_page(name) for name in UNDERSTANDING] + _other_pages()},
        {
            "Project": [
                {"Compared with other libraries": "project/comparison.md"},
                {"Questions": "project/faq.md"},
                {"Versions and stability": "project/stability.md"},
                {"Benchmarks": "project/performance.md"},
                {"Architecture": "project/architecture.md"},
                {"Contributing": "project/contributing.md"},
                {"Changelog": "project/changelog.md"},
                {"Releasing": "project/releasing.md"},
                {"Security": "project/security.md"},
            ]
        },
    ]
    return config


def on_nav(nav: Any, config: Any, files: Any) -> Any:
    """Keeps the folders of recipes apart from the heading above them.

    The theme takes the first index of a section out of its list, and links the section's title to it.
    """
    for page in nav.pages:
        if re.fullmatch(r"reproduction/.+/README\.md", page.file.src_uri):
            assert page.file.dest_uri  # which follows from the name, and is computed once
            page.file.name = "README"
    return nav


HOW_TO = {
    "Your model, data and method": (
        "tutorials/own-data",
        "tutorials/own-model",
        "tutorials/own-method",
        "guides/own",
        "guides/own-code",
        "libraries",
        "text",
        "fine-tuning",
    ),
    "Moving to fedax": ("tutorials/from-pytorch", "tutorials/from-flower"),
    "Comparisons": ("guides/sweeps", "report", "evaluation", "guides/trackers"),
    "Clients and messages": (
        "guides/heterogeneity",
        "guides/personalization",
        "guides/decentralized",
        "guides/asynchronous",
        "guides/clock",
        "guides/compression",
        "robust",
    ),
    "Privacy": ("guides/privacy", "privacy"),
    "Machines": ("guides/hosts", "guides/large", "guides/resuming", "mpi"),
    "Deployment": ("flower", "operations", "models"),
}
"""Pages by what a reader wants to do, without their endings."""
UNDERSTANDING = ("guarantees", "theory", "performance", "project/glossary")


NEEDED = {"from-pytorch": "torch"}
"""Packages without which a tutorial is shown, but not run."""


def _page(name: str) -> Any:
    """Returns the entry of a page in the navigation."""
    return {NAMED[name]: f"{name}.md"} if name in NAMED else f"{name}.md"


def _other_pages() -> list[str]:
    """Returns the pages that no list names, so that a new one is not lost."""
    listed = {name for names in HOW_TO.values() for name in names} | {*UNDERSTANDING}
    listed |= {"index", "start", "choose", "tutorials/start"}
    found = {path.stem for path in DOCS.glob("*.md")}
    found |= {f"guides/{path.stem}" for path in DOCS.glob("guides/*.md")}
    found |= {f"tutorials/{path.stem}" for path in DOCS.glob("tutorials/*.py")}
    return [f"{name}.md" for name in sorted(found - listed)]


def _folders(name: str) -> list[dict[str, str]]:
    return [
        {path.parent.name: f"{name}/{path.parent.name}/README.md"}
        for path in sorted((DOCS / name).glob("*/README.md"))
    ]


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages that are made."""
    made = algorithms.pages(ROOT) | reference.pages() | gallery.pages()
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
    if it has an address. Lowers the pages of recipes in the search."""
    address = page.file.src_uri
    # many long pages with the same words, which would come before the guides; a match in a title
    # counts 1,000 times one in the text, so that half would change little
    if re.fullmatch(r"reproduction/.+/README\.md", address):
        page.meta["search"] = {"boost": 0.05}
    origin = {page_: source for source, page_ in COPIED.items()}.get(address, f"docs/{address}")

    def moved(match: re.Match[str]) -> str:
        target, _, anchor = match[2].partition("#")
        place = posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))
        if place in COPIED:
            here = posixpath.relpath(COPIED[place], posixpath.dirname(address) or ".")
        elif place.startswith("docs/") and not place.startswith("docs/hooks"):
            inside = place.removeprefix("docs/")
            if re.fullmatch(r"tutorials/[\w-]+\.py", inside):  # the page that is made of it
                inside = inside.removesuffix(".py") + ".md"
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
