"""Several runs of Python on one page."""

import pytest

import fedax
from fedax.core import InvalidInput
from problems import regression


@pytest.mark.slow
def test_a_page_of_several_runs(tmp_path):
    runs = fedax.run_grid([fedax.FedAvg()], regression(), seed=[0, 1], rounds=2)
    one = fedax.run(fedax.FedProx(mu=1.0), regression(), rounds=2)
    path = fedax.compare(
        {"Many": runs, "One </script>": one}, tmp_path / "new" / "page.html", title="Mine & yours"
    )
    page = path.read_text(encoding="utf-8")
    assert "<h1>Mine &amp; yours</h1>" in page
    assert "2 methods, 3 runs." in page
    assert "One </script>" not in page
    assert "Many" in page


@pytest.mark.parametrize("given", [{}, {"A": []}])
def test_what_is_no_run_is_refused(tmp_path, given):
    with pytest.raises(InvalidInput, match=r"compare\(histories=\.\.\.\)"):
        fedax.compare(given, tmp_path / "page.html")
    assert not list(tmp_path.iterdir())


def test_pdf_figures_have_fonts_that_publishers_take(tmp_path):
    runs = fedax.run_grid([fedax.FedAvg()], regression(), seed=[0, 1], rounds=2)
    content = fedax.compare({"A": runs}, tmp_path / "f.pdf").read_bytes()
    assert b"/Subtype /Type3" not in content
    assert b"/Subtype /Type0" in content
