"""Clients by name, in frames, and in forms that are refused: what messages say, and to do."""

import numpy as np
import pytest

from fedax.core import DataError
from fedax.data import FederatedData, store, stored

RNG = np.random.default_rng(0)
A, B = (
    {"x": RNG.normal(size=(n, 2)).astype(np.float32), "y": RNG.integers(0, 3, n)} for n in (3, 5)
)


def test_clients_by_name_are_those_of_a_list():
    data = FederatedData.from_arrays(
        {"b": B, "a": A}, classes=3, test={"a": B}, validation={"b": A}
    )
    assert list(data.names) == ["b", "a"]
    np.testing.assert_array_equal(data.train[0]["x"], B["x"])
    assert data.sizes.tolist() == [5, 3]
    assert data.test_sizes.tolist() == [0, 5]
    np.testing.assert_array_equal(data.test[1]["y"], B["y"])
    assert [len(own["y"]) for own in data.validation] == [3, 0]
    listed = FederatedData.from_arrays([B, A], classes=3, names=["b", "a"], test={"a": B})
    assert listed.test_sizes.tolist() == [0, 5]


def test_clients_by_name_are_written_with_their_names(tmp_path):
    folder = store(tmp_path / "a", {"b": B, "a": A}, classes=3, test={"a": B})
    data = stored(folder)
    assert list(data.names) == ["b", "a"]
    assert (data.sizes.tolist(), data.test_sizes.tolist()) == ([5, 3], [0, 5])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"clients": A}, r"clients: got the arrays \['x', 'y'\] of one client; .* into a list"),
        ({"clients": [A], "test": A}, r"test: got 'x'; allowed: numbers of clients"),
        ({"clients": {"a": A}, "test": {"b": A}}, r"test: got 'b'; allowed: names of clients: 'a'"),
        ({"clients": {1: A, "1": B}}, r"clients: got '1' twice"),
    ],
)
def test_other_forms_are_described_and_not_printed(arguments, message):
    with pytest.raises(DataError, match=message):
        FederatedData.from_arrays(**arguments, classes=3)
