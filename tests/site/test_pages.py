"""The pages of algorithms, before they are a site."""

import sys
from pathlib import Path

import pytest

from sources import own_files

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "hooks"))


def test_pictures_of_the_docs_are_small():
    large = [path for path in own_files("docs", suffix=".png") if path.stat().st_size > 100_000]
    assert large == []


def test_tables_of_sentences_become_cards_on_a_phone():
    pytest.importorskip("latex2mathml", reason="a library of other people")
    from content import frame_tables

    table = "<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>{}</td><td>{}</td></tr></tbody></table>"
    numbers = frame_tables(table.format(1, 2))
    assert 'class="wide"' in numbers
    assert "data-head" not in numbers
    words = frame_tables(table.format("a first sentence", "another <b>one</b> here"))
    assert 'class="wide stacked"' in words
    assert words.count('data-head="a"') == words.count('data-head="b"') == 1


def test_docstrings_are_read_as_markdown():
    griffe = pytest.importorskip("griffe", reason="a library of other people")
    from docstrings import HouseStyle

    text = "A.\n\nEither:\n- a\n\n$$ x\n= y $$\n\nExample:\n    task = from_flax(CNN, loss)\n\n>>> 1 + 1\n2"
    function = griffe.Function("f", docstring=griffe.Docstring(text))
    HouseStyle().on_object(obj=function)
    shown = function.docstring.value
    assert "Either:\n\n- a" in shown
    assert "\n$$ x = y $$\n" in shown
    assert "Examples:\n    ```python\n    task = from_flax(CNN, loss)\n    ```\n" in shown
    assert "```pycon\n>>> 1 + 1\n2\n```" in shown
