"""Hooks of mkdocs: pages that are made of the code when the site is built, and their links."""

import contextlib
import os
import posixpath
import re
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import algorithms
import jupytext
import nbclient
import reference
from content import frame_tables, render_formulas
from mkdocs.structure.files import File
from traitlets.config import Config

ROOT = Path(__file__).parents[2]
COPIED = {
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/security.md",
    "benchmarks/README.md": "project/performance.md",
}
"""Documents from outside of `docs`, and the pages that show them."""
PAGES = COPIED | {
    r"src/fedax/algorithms/\w+/\w+\.py#(\w+)": r"algorithms/\1.md",
    r"src/fedax/algorithms/\w+/(\w+)\.py": r"algorithms/\1.md",
    r"src/fedax/algorithms$": "algorithms/index.md",
    r"src/fedax/experiments/.*\.py": "reference/files.md",
    r"src/fedax/(?:theory/)?__init__\.py": "reference/fedax.md",
    r"src/fedax/(\w+)/__init__\.py": r"reference/fedax.\1.md",
    r"docs/(tutorials/[\w-]+)\.py": r"\1.md",
    r"docs/([^#]+)": r"\1",
}
"""Files of a checkout to which pages link, and the pages of the site that show them."""


def on_config(config: Any) -> Any:
    """Adds the pages of algorithms to the navigation."""
    families = [
        {title: [f"algorithms/{kind.__name__.lower()}.md" for kind in kinds]}
        for title, kinds in algorithms.FAMILIES.items()
    ]
    config.nav.insert(3, {"Algorithms": ["algorithms/index.md", *families, "theory.md"]})
    return config


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages that are made."""
    made = algorithms.pages() | reference.pages()
    made |= {page: (ROOT / source).read_text() for source, page in COPIED.items()}
    for path in (ROOT / "docs/tutorials").glob("*.py"):
        notebook = jupytext.read(path)
        made[f"tutorials/{path.stem}.ipynb"] = jupytext.writes(notebook, fmt="ipynb")
        needs_torch = "torch" in path.stem and find_spec("torch") is None
        if not (needs_torch or "FEDAX_DOCS_QUICK" in os.environ):
            # without it the kernel warns of its sockets
            settings = Config(KernelManager={"transport": "ipc"})
            # the pages that a tutorial writes
            with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
                nbclient.execute(notebook, config=settings)
        made[f"tutorials/{path.stem}.md"] = tutorial(notebook, f"{path.stem}.ipynb")
    for address, content in made.items():
        files.append(File.generated(config, address, content=content))
    return files


def tutorial(notebook: Any, name: str) -> str:
    """Returns a notebook as Markdown, each cell with the text that it printed."""
    blocks = []
    for cell in notebook.cells:
        is_code = cell.cell_type == "code"
        blocks.append(f"```python\n{cell.source}\n```" if is_code else cell.source)
        for output in cell.get("outputs", ()):
            text = output.get("text") or output.data["text/plain"]
            blocks.append(f"```{{.text .output}}\n{text.rstrip()}\n```")
    return "\n\n".join(
        [*blocks, f"---\n\n[This page as a notebook]({name}): open it in Jupyter.\n"]
    )


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Points links to files of the checkout to the pages that show them, or to the repository if it
    has an address."""
    address = page.file.src_uri
    origin = {shown: source for source, shown in COPIED.items()}.get(address, f"docs/{address}")

    def move(match: re.Match[str]) -> str:
        text, target = match.groups()
        place = posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))
        for source, shown in PAGES.items():
            if found := re.match(source, place):
                here = posixpath.relpath(found.expand(shown), posixpath.dirname(address) or ".")
                return f"[{text}]({here}{place[found.end() :]})"
        if not (ROOT / place).exists():
            return match[0]
        return f"[{text}]({config.repo_url}/tree/main/{place})" if config.repo_url else text

    # the text of a link may be a picture
    link = r"\[((?:!\[[^\]]*\]\([^)]*\)|[^\[\]])*)\]\((?!\w+:|#)([^)\s]+)\)"
    return re.sub(link, move, markdown)


def on_page_content(content: str, page: Any, config: Any, files: Any) -> str:
    """Sets formulas and frames tables."""
    return frame_tables(render_formulas(content))


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Loads the worker of the search from the site, which the theme loads from elsewhere."""
    own = "../" * page.url.count("/") + "assets/worker.js"
    return output.replace("https://unpkg.com/iframe-worker/shim", own)
