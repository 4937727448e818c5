"""Search spaces: ranges, edges, derived spaces and the sequence of settings."""

import numpy as np
import pytest

import fedax
from fedax.algorithms import algorithm_classes
from fedax.benchmark.spaces import Range, draw_settings, read_spaces, space_of, unit_points
from fedax.core import InvalidInput, UnknownName
from fedax.core.hyper import declared

RATE = (0.01, 1.0)


@pytest.mark.parametrize("name", algorithm_classes())
def test_settings_of_all_methods_are_allowed(name):
    kind = algorithm_classes()[name]
    space = space_of(kind, RATE, {}, read_spaces())
    (edge,) = draw_settings(space, np.full((1, len(space)), 0.999))
    shifted = {key: one.shifted(edge[key]) for key, one in space.items()}
    for one in (space, shifted):
        for setting in draw_settings(one, unit_points(len(one), 8, 1)):
            kind(**{key: value for key, value in setting.items() if key in declared(kind)})
    assert next(iter(space)) == "learning_rate"
    assert set(read_spaces()) <= set(algorithm_classes())


def test_derived_spaces_follow_from_declarations():
    assert space_of(fedax.APFL, RATE, {}, {})["alpha"][:3] == (0.0, 1.0, False)
    assert set(space_of(fedax.AccSDANE, RATE, {}, {})) == {"learning_rate", "lam"}  # mu is 0
    assert set(space_of(fedax.AccSDANE, RATE, {"lam": 1.0}, {})) == {"learning_rate"}


def test_edges_move_ranges_within_their_limits():
    free = Range(0.01, 1.0, log=True)
    bounded = Range(0.0, 1.0, limits=declared(fedax.APFL)["alpha"])
    assert (free.edge(0.9), free.edge(0.1), free.edge(0.011)) == ("high", "", "low")
    assert bounded.edge(0.99) == ""  # nothing lies beyond 1
    moved = free.shifted(0.9)
    assert (moved.low, moved.high) == pytest.approx((10**-0.5, 10**0.5))
    assert free.shifted(0.1) == free
    below = Range(0.0, 0.9, limits=declared(fedax.FedCM)["alpha"])
    assert below.shifted(0.89).high == 1.0


def test_points_fill_the_cube_and_are_shared():
    points = unit_points(3, 16, 54)
    assert ((points > 0) & (points < 1)).all()
    assert (points[:, :1] == unit_points(1, 16, 54)).all()
    assert (points[:, 0] < 0.5).sum() == 8


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        ({"nu": {"log": [0.1, 1.0]}}, UnknownName),
        ({"mu": [0.1, 1.0]}, InvalidInput),
        ({"mu": {"log": [0.0, 1.0]}}, InvalidInput),
        ({"mu": {"linear": [1.0, 0.5]}}, InvalidInput),
        ({"mu": {"cubic": [0.5, 1.0]}}, InvalidInput),
        ({"solver.nothing": {"log": [0.1, 1.0]}}, UnknownName),
    ],
)
def test_wrong_ranges_are_refused(entry, error):
    with pytest.raises(error):
        space_of(fedax.FedProx, RATE, {}, {"fedprox": entry})
