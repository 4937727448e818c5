"""Tutorials as a user has them: notebooks that Jupyter opens, run without a screen from the first
cell to the last."""

import json
from pathlib import Path

import pytest

from sources import own_files

ROOT = Path(__file__).parents[2]
NAMES = ("start", "own-model", "own-method")

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_headless(name, tmp_path, monkeypatch):
    """The file that the site offers for download, in a kernel of its own."""
    for package in ("jupytext", "nbclient", "ipykernel"):
        pytest.importorskip(package, reason="a library of other people")
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.syspath_prepend(ROOT / "docs" / "hooks")
    import notebooks

    path = tmp_path / f"{name}.ipynb"
    path.write_text(notebooks.notebook(ROOT / "docs" / "tutorials" / f"{name}.py"))
    found = nbformat.read(path, as_version=4)
    nbformat.validate(found)
    assert not any(cell.get("outputs") for cell in found.cells)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    found.metadata["kernelspec"]["name"] = "python3"
    NotebookClient(
        found, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    cells = [cell for cell in found.cells if cell.cell_type == "code"]
    assert all(cell.execution_count == i for i, cell in enumerate(cells, 1))
    assert not any(
        output.output_type == "error" or output.get("name") == "stderr"
        for cell in cells
        for output in cell.outputs
    )
    assert sum(bool(cell.outputs) for cell in cells) >= 3


BOOKS = own_files("docs/notebooks", suffix=".ipynb")


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_a_hosted_notebook_runs(path, tmp_path, monkeypatch):
    """Cell by cell, as a hosted service would, except for the cell that installs fedax."""
    monkeypatch.chdir(tmp_path)
    space = {"__name__": "__main__", "display": print}
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and "%pip" not in source:
            exec(compile(source, path.name, "exec"), space)
    assert len(space["results"]) >= 2
