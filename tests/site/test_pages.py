"""The pages of algorithms, before they are a site."""

import sys
from pathlib import Path

import pytest

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
