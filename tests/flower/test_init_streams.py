"""Random streams of `init` over Flower, and what clients keep from round to round."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from federation import federation, run

from draws import Draws, check_init_draws_apart


@pytest.mark.slow
def test_init_draws_as_in_a_simulation(tmp_path):
    ours = run(Draws(), federation(tmp_path, Draws()), observe=[])
    theirs = run(Draws(), observe=[])
    check_init_draws_apart(ours)
    for name, values in theirs.logged.items():
        np.testing.assert_allclose(ours.logged[name], values, rtol=1e-12, atol=1e-12, err_msg=name)
