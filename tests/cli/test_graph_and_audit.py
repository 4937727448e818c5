"""`fedax graph`."""

import pytest

from commands import call, succeed
from fedax.graphs import TOPOLOGIES, Graph

pytestmark = pytest.mark.slow


def test_graph_shows_what_the_paper_counts():
    """Ring of 20: 20 links of degree 2, lambda 0.96737, 40 messages of 32 d and 32 + 8 d bits."""
    result = succeed("graph", "ring", "--clients", "20", "--dim", "1000")
    for text in ("0.96737", "1,280,000", f"{40 * (32 + 8000):,}"):
        assert text in result.output


def test_every_graph_of_a_number_of_clients_is_known():
    needs = {"random_regular": "degree=3", "erdos_renyi": "p=0.9"}
    texts = [f"{name}:{needs[name]}" if name in needs else name for name in (*TOPOLOGIES, *needs)]
    result = succeed("graph", *texts, "--clients", "6", "--dim", "10", "--codec", "none")
    for wrong in ("random_regular:degree=3", "ring:foo=2"):
        found = call("graph", wrong, "--clients", "5")
        assert (found.exit_code, found.stderr.startswith("Error: graph ")) == (2, True)
    lines = {line.split()[0]: line.split()[1:] for line in result.output.splitlines() if line}
    assert lines["ring"][:5] == ["6", "1", "6", "2", f"{Graph.ring(6).lam:.5f}"]
