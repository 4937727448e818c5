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
    import tables

    table = "<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>{}</td><td>{}</td></tr></tbody></table>"
    numbers = tables.framed_table(table.format(1, 2))
    assert 'class="wide"' in numbers
    assert "data-head" not in numbers
    assert 'class="whole">1.5 ± 0.2<' in tables.framed_table(table.format("1.5 ± 0.2", 3))
    words = tables.framed_table(table.format("a first sentence", "another <b>one</b> here"))
    assert 'class="wide stacked"' in words
    assert words.count('data-head="a"') == words.count('data-head="b"') == 1


def test_examples_of_one_line_are_code_in_the_reference():
    pytest.importorskip("griffe", reason="a library of other people")
    import docstrings

    text = docstrings.shown("A.\n\nExample:\n    task = from_flax(CNN, loss)\n\nRaises:\n    E: b.")
    assert "Example:\n    ```python\n    task = from_flax(CNN, loss)\n    ```\n" in text
    words = "A.\n\nExample:\n    The mean of all numbers:\n"
    assert docstrings.shown(words).strip() == words.strip()


def test_signatures_of_methods_are_one_line():
    import algorithms

    import fedax

    assert "def train(self, client, x, c, c_k):\n" in algorithms._code(fedax.SCAFFOLD)
