"""The privacy that a run spends, before it is made."""

import dataclasses
import math
from typing import Any

from fedax.communication.accounting import epsilon_of, noise_of
from fedax.communication.channel import Channel
from fedax.communication.privacy import Privacy
from fedax.core.algorithm import Algorithm
from fedax.core.scheduling.schedule import Schedule
from fedax.core.task import Task
from fedax.engine.driver.grid import Grid
from fedax.engine.driver.options import RunOptions
from fedax.engine.round.private import Private


def privacy_spent(
    algorithm: Algorithm[Any],
    task: Task,
    *,
    schedule: Schedule,
    privacy: Privacy,
    rounds: int = 100,
) -> float:
    r"""Returns the $\varepsilon$ that a run spends, at the $\delta$ of its privacy.

    Infinity without noise.

    Of one run, between the neighbours that `Privacy` names. Several runs on the same data spend
    more together.

    Args:
        algorithm, task, schedule, rounds: of the run.
        privacy: of its channel.

    >>> import fedax
    >>> task, schedule = (
    ...     fedax.task("digits", clients=50),
    ...     fedax.Schedule(cohort=10, sampling="poisson", weights="equal"),
    ... )
    >>> private = fedax.Privacy(noise=1.0, delta=1e-3)
    >>> round(
    ...     fedax.privacy.privacy_spent(
    ...         fedax.FedAvg(), task, schedule=schedule, privacy=private, rounds=20
    ...     ),
    ...     2,
    ... )
    5.23

    Raises:
        InvalidInput: a method or a schedule for which it does not hold.
    """
    private = _private_of(algorithm, task, schedule, privacy)
    return epsilon_of(private.ledger, privacy.noise, privacy.delta, rounds)


def noise_for(
    epsilon: float,
    algorithm: Algorithm[Any],
    task: Task,
    *,
    schedule: Schedule,
    privacy: Privacy,
    rounds: int = 100,
) -> float:
    r"""Returns the noise multiplier with which a run spends at most $\varepsilon$ at its $\delta$.

    Args:
        epsilon: to spend, above 0.
        algorithm, task, schedule, rounds: of the run.
        privacy: of its channel; its own noise does not matter.

    Raises:
        InvalidInput: a method or a schedule for which it does not hold, or options of `privacy`
            that do not fit the noise found, such as `count_noise`.
    """
    # the noise of adaptive clipping has to fit the noise that is found
    any_noise = dataclasses.replace(privacy, noise=1.0, quantile=None, count_noise=None)
    private = _private_of(algorithm, task, schedule, any_noise)
    noise = noise_of(private.ledger, epsilon, privacy.delta, rounds)
    # refuses what does not fit this noise, rather than the noise that `privacy` came with
    private._replace(privacy=dataclasses.replace(privacy, noise=noise)).check_count_noise()
    return noise


def _private_of(
    algorithm: Algorithm[Any], task: Task, schedule: Schedule, privacy: Privacy
) -> Private:
    """Returns the privacy of a run, checked as the run would be, without its budget."""
    channel = Channel(privacy=dataclasses.replace(privacy, budget=math.inf))
    private = Grid([algorithm], task, [], RunOptions(schedule=schedule, channel=channel)).private
    assert private is not None, "asked for"
    return private
