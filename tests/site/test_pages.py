"""The pages of algorithms, before they are a site."""

import json
import sys
import tomllib
from pathlib import Path

import pytest

from sources import own_files

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "hooks"))


@pytest.mark.parametrize(
    ("name", "there", "not_there"),
    [
        ("FedProx", "prox=client.mine(self.mu)", "minimize(start=w)"),
        ("FedYogi", "jnp.sign(v - delta**2)", "optax.sgd(1.0)"),
        ("FedAvg", "minimize(start=w)", "# of "),
    ],
)
def test_code_of_a_method_is_what_runs(name, there, not_there):
    """Work functions of a parent are shown unless the method has its own."""
    import algorithms

    import fedax

    text = algorithms._code(getattr(fedax, name))
    assert there in text
    assert not_there not in text
    assert text.count("def round(") == 1


def test_every_method_has_advice():
    """In docs/hooks/advice.toml: where to begin, or when it disappoints."""
    import algorithms

    assert set(algorithms.ADVICE) == {
        kind.__name__ for kind in algorithms.algorithm_classes().values()
    }
    assert all(entry.keys() <= {"tune", "fails"} and entry for entry in algorithms.ADVICE.values())


ISSUED = (
    "SDANE AccSDANE FedRed DANE ProxSkip FedExProx FedCM FedLin Mime MimeLite FedSpeed FedSAM "
    "MOON FedBABU FedRoD FedALA SCAFFOLDM PushSum EXTRA "
    "ExactDiffusion NIDS DFedSAM BEER"
)
"""Successors of the papers and yardsticks, of which each has to stay short."""


@pytest.mark.parametrize("name", ISSUED.split())
def test_successors_and_yardsticks_are_short(name):
    import verbs

    import fedax

    assert 0 < verbs.logic_lines(getattr(fedax, name)) <= 45


@pytest.mark.parametrize(
    ("name", "uses", "not_these"),
    [
        (
            "FedSAM",
            {"solver", "hook in the step", "sampled cohort", "mean"},
            {"client state", "full gradient"},
        ),
        ("FedCM", {"local problem", "hook in the step"}, {"full gradient"}),
        ("Mime", {"full gradient", "mean"}, {"graph"}),
        ("MOON", {"own loss of the examples", "client state"}, {"all clients"}),
        ("ProxSkip", {"all clients", "client state"}, {"sampled cohort"}),
        ("PushSum", {"graph (doubly stochastic or column-stochastic)", "solver"}, {"mean"}),
        ("BEER", {"codec", "random key"}, {"sampled cohort"}),
    ],
)
def test_verbs_come_from_the_code(name, uses, not_these):
    import verbs

    import fedax

    found = set(verbs.used(getattr(fedax, name)))
    assert uses <= found
    assert not not_these & found


def test_verbs_of_a_method_that_is_written_here():
    """Inherited work counts, comments and docstrings do not."""
    import verbs

    import fedax

    class Half(fedax.FedAvg):
        """Text.

        More text.
        """

        # a reason
        def train(self, client, w):
            """Text with client.gradient(w)."""
            return fedax.Upload(client.gradient(w))

    assert verbs.used(Half) == ["full gradient", "sampled cohort", "mean"]
    assert verbs.logic_lines(Half) == 3


@pytest.mark.slow
def test_every_algorithm_is_in_the_table_of_verbs():
    import algorithms
    import verbs

    rows = [
        line for line in verbs.table(algorithms.by_family()).splitlines() if line.startswith("| [")
    ]
    assert len(rows) == len(algorithms.algorithm_classes())
    assert all("solver" in row or "gradient" in row or "loop" in row for row in rows)


def test_the_gallery_has_every_example_as_it_is_now():
    """`python docs/hooks/gallery.py NAME` runs an example and draws its picture again."""
    import gallery

    made, pages = tomllib.loads(gallery.MADE.read_text()), gallery.pages()
    assert set(pages) == {f"gallery/{name}.md" for name in [*gallery.examples(), "index"]}
    for name, path in gallery.examples().items():
        picture = gallery.FOLDER / f"{name}.png"
        assert made[name]["sha256"] == gallery.digest(path), f"{name} has changed"
        assert made[name]["output"]
        assert picture.stat().st_size < 300_000
        assert pages[f"gallery/{name}.md"].count(path.read_text().strip()) == 1
        assert f"({name}.md)" in pages["gallery/index.md"]


def test_hosted_notebooks_install_an_uploaded_wheel_first_and_have_no_output():
    """No name of a package index is known to belong to the project."""
    books = own_files("docs/notebooks", suffix=".ipynb")
    assert [path.stem for path in books] == ["compare", "own-method"]
    for path in books:
        code = [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]
        assert '%pip install --quiet "{wheels[-1]}' in "".join(code[0]["source"])
        assert not any("%pip install" in "".join(cell["source"]) for cell in code[1:])
        assert not any(cell["outputs"] for cell in code)


def test_pictures_of_the_docs_are_small():
    large = [path for path in own_files("docs", suffix=".png") if path.stat().st_size > 300_000]
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
