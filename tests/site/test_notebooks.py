"""Notebooks for a hosted service; those of the tutorials run when the site is built."""

import json

import pytest

from sources import own_files

pytestmark = pytest.mark.slow

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
