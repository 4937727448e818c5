"""Search spaces: ranges, edges, derived spaces and the sequence of settings."""

import numpy as np
import pytest

import fedax
from fedax.algorithms import algorithm_classes
from fedax.benchmark.spaces import Range, Space, read_spaces, space_of, unit_points
from fedax.core import InvalidInput, UnknownName
from fedax.core.hyper import declared

RATE = (0.01, 1.0)


@pytest.mark.parametrize("name", algorithm_classes())
def test_settings_of_all_methods_are_allowed(name):
    kind = algorithm_classes()[name]
    space = space_of(kind, RATE, {}, read_spaces())
    wide = space.extended(space.edges(space.settings(np.full((1, len(space.ranges)), 0.999))[0]))
    for one in (space, wide):
        for setting in one.settings(unit_points(len(space.ranges), 8, 1)):
            own = {k: v for k, v in setting.items() if k in declared(kind)}
            kind(**own)
    assert next(iter(space.ranges)) == "learning_rate"


def test_spaces_name_methods_that_there_are():
    assert set(read_spaces()) <= set(algorithm_classes())
    assert all(entry["source"] for entry in read_spaces().values())


def test_derived_spaces_follow_from_declarations():
    assert space_of(fedax.APFL, RATE, {}, {}).ranges["alpha"] == Range(0.0, 1.0)
    assert set(space_of(fedax.AccSDANE, RATE, {}, {}).ranges) == {"learning_rate", "lam"}  # mu is 0
    assert set(space_of(fedax.AccSDANE, RATE, {"lam": 1.0}, {}).ranges) == {"learning_rate"}


def test_edges_move_ranges_once_within_their_limits():
    space = Space({"a": Range(0.01, 1.0, log=True), "b": Range(0.0, 1.0)}, {}, "")
    space = space._replace(limits=declared(fedax.APFL) | {"b": declared(fedax.APFL)["alpha"]})
    assert space.edges({"a": 0.9, "b": 0.99}) == {"a": "high"}  # b cannot go beyond 1
    assert space.edges({"a": 0.1, "b": 0.5}) == {}
    moved = space.extended({"a": "high"}).ranges
    assert moved["b"] == Range(0.0, 1.0)
    assert moved["a"].low == pytest.approx(10**-0.5)
    assert moved["a"].high == pytest.approx(10**0.5)
    both = space.joined(space.extended({"a": "high"}))
    assert both.ranges["a"] == Range(0.01, moved["a"].high, log=True)
    assert both.edges({"a": 0.4, "b": 0.5}) == {}  # the lower end of the moved range is inside
    assert both.edges({"a": 3.0, "b": 0.5}) == {"a": "high"}
    assert Range(0.0, 0.9).shifted("high", declared(fedax.FedCM)["alpha"]).high == 1.0


def test_points_fill_the_cube_and_are_shared():
    points = unit_points(3, 16, 54)
    assert ((points > 0) & (points < 1)).all()
    assert (points[:, :1] == unit_points(1, 16, 54)).all()
    halves = (points[:, 0] < 0.5).sum()
    assert halves == 8


@pytest.mark.parametrize(
    ("entry", "error", "text"),
    [
        ({"nu": {"log": [0.1, 1.0]}}, UnknownName, "FedProx.nu"),
        ({"mu": [0.1, 1.0]}, InvalidInput, "FedProx.mu"),
        ({"mu": {"log": [0.0, 1.0]}}, InvalidInput, "low < high"),
        ({"mu": {"linear": [-1.0, 1.0]}}, InvalidInput, "numbers in"),
        ({"mu": {"linear": [1.0, 0.5]}}, InvalidInput, "low < high"),
        ({"solver.nothing": {"log": [0.1, 1.0]}}, UnknownName, "solver.nothing"),
    ],
)
def test_wrong_ranges_are_refused(entry, error, text):
    with pytest.raises(error, match=text):
        space_of(fedax.FedProx, RATE, {}, {"fedprox": entry})
