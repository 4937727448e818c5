"""Tutorials: jupytext notebooks, run when the site is built, with their output on the page."""

import ast
import contextlib
import io
import tempfile
from pathlib import Path
from typing import Any

import jupytext


def page(path: Path, execute: bool = True) -> str:
    """A notebook as Markdown; each cell is followed by what it prints and by the value of its last
    expression.

    Raises:
        whatever a cell raises: then the site is not built.
    """
    notebook, space, lines = jupytext.read(path), {"__name__": "tutorial"}, []
    # for the files that cells write
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                lines += [cell.source, ""]
                continue
            lines += ["```python", cell.source, "```", ""]
            output = run_cell(cell.source, space, path.name) if execute else ""
            if output:
                lines += [
                    '<div class="output" markdown>',
                    "",
                    "```text",
                    output,
                    "```",
                    "",
                    "</div>",
                    "",
                ]
    link = f"[This page as a notebook]({path.name.removesuffix('.py')}.ipynb): open it in Jupyter."
    return "\n".join([*lines, "---", "", link, ""])


def run_cell(source: str, space: dict[str, Any], name: str) -> str:
    """The output of a cell, as a notebook shows it."""
    tree, printed = ast.parse(source), io.StringIO()
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, name, "exec"), space)
        value = (
            None if last is None else eval(compile(ast.Expression(last.value), name, "eval"), space)
        )
    return (printed.getvalue() + ("" if value is None else repr(value))).rstrip()


def notebook(path: Path) -> str:
    """The same as a file that Jupyter opens."""
    return jupytext.writes(jupytext.read(path), fmt="ipynb")
