"""What a method draws in `init` comes from a stream of its own, on every engine and after a
resumption."""

import pytest

import fedax
from draws import Draws, check_init_draws_apart
from problems import regression

SCHEDULE = fedax.Schedule(cohort=3, epochs=(1, 4), batch_size=4)
ENGINES = {
    "one device": lambda: fedax.Simulation(devices=1),
    "two devices": lambda: fedax.Simulation(chunk=2, devices=2),
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
