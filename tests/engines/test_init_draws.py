"""What a method draws in `init` comes from a stream of its own, on every engine and after a
resumption."""

import jax
import numpy as np
import pytest

import fedax
from draws import Draws, check_init_draws_apart
from problems import regression

SCHEDULE = fedax.Schedule(cohort=3, epochs=(1, 4), batch_size=4)
ENGINES = {
    "one device": lambda: fedax.Simulation(devices=1),
    "two devices": lambda: fedax.Simulation("chunked", chunk=2, devices=2),
    "eager": fedax.Eager,
}


def go(engine, rounds=3, **options):
    given = {
        "solver": fedax.SGD(0.05),
        "schedule": SCHEDULE,
        "seed": 3,
        "observe": [],
        "engine": engine,
    }
    return fedax.run(Draws(), regression((7, 20, 33, 9, 11)), rounds=rounds, **given | options)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_init_draws_from_a_stream_of_its_own(engine):
    check_init_draws_apart(go(ENGINES[engine]()))


@pytest.mark.slow
def test_starts_of_ifca_do_not_repeat_a_key_of_round_0():
    """Two methods with the same draw, one in `init`, the other in round 0: the models differ."""
    options = {
        "solver": fedax.SGD(1e-9),
        "rounds": 1,
        "seed": 3,
        "observe": [],
        "engine": fedax.Eager(),
    }
    start = fedax.run(
        fedax.IFCA(clusters=2, spread=1.0), regression(), **options | {"rounds": 0}
    ).state
    noise = np.asarray(start - start.mean(0, keepdims=True))

    class Noisy(fedax.FedAvg):
        def round(self, fed, state):
            drawn = jax.random.normal(fed.key("clusters"), noise.shape, noise.dtype)
            fed.note(drawn=drawn - drawn.mean(0, keepdims=True))
            return super().round(fed, state)

    drawn = fedax.run(Noisy(), regression(), **options).notes["drawn"][0]
    assert np.abs(drawn - noise).max() > 0.01
