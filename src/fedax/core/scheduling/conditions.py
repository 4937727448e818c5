"""The conditions of a run: what keeps clients from answering, or from all of their work."""

import dataclasses
from typing import Any

import equinox as eqx

from fedax.core.hyper import check_declared, hyper
from fedax.core.scheduling.availability import Availability


class Conditions(eqx.Module):
    """What keeps clients from answering in a round, or from all of their work.

    Clients that are not available or drop out are not waited for, but for phases with everyone.
    `over_select` and `deadline` need `run(clock=...)`. With both, fast clients count more often, so
    that means are biased towards them. They fit neither sampling that draws a client twice nor
    several phases.

    Probabilities are leaves of the pytree: numbers, or in a sweep over them arrays.

    >>> from fedax import Schedule
    >>> Schedule(cohort=10, conditions=Conditions(dropouts=0.2, stragglers=0.5))
    Schedule(cohort=10, conditions=Conditions(dropouts=0.2, stragglers=0.5))

    Args:
        availability: the clients who can be reached, an `Availability`, or as files spell it, its
            name or a table, `{"name": "daily", "fraction": 0.5}`. A cohort is drawn among those; if
            they are fewer, uniform draws are all of them. In a round in which nobody is there the
            state stays. `History.logged` counts who was `available`, and `drawn`.
        dropouts: the probability, in [0, 1), that a drawn client never answers; it counts as not
            drawn.
        stragglers: the probability, in [0, 1], that a client does only part of its work: a uniform
            draw from 1 up to its epochs (or its steps, if the schedule is in steps).
        deadline: seconds after which a round ends on the virtual clock, above 0, with the answers
            that have come; None to wait for all. Clients that are late are left out as if they had
            dropped out, but what they were sent counts as traffic. In a round without any answer
            the state stays. `History.logged` counts who was `late`.
        over_select: asks this many times `cohort` clients, rounded up, at most all, and takes the
            first `cohort` answers; at least 1.
    """

    _: dataclasses.KW_ONLY
    availability: Availability | None = eqx.field(
        static=True, default=None, converter=Availability.of
    )
    dropouts: float = hyper(0.0, low=0.0, high=1.0, open_high=True)
    stragglers: float = hyper(0.0, low=0.0, high=1.0)
    deadline: float | None = hyper(
        None, kind=float, static=True, low=0.0, open_low=True, optional=True
    )
    over_select: float = hyper(1.0, static=True, low=1.0)

    def __check_init__(self) -> None:
        check_declared(self)

    @staticmethod
    def of(value: Any) -> "Conditions":
        """Makes conditions of a table of their arguments; conditions are returned unchanged."""
        if isinstance(value, Conditions):
            return value
        return Conditions(**value)

    def __repr__(self) -> str:
        return spelled(self, self.options)

    @property
    def options(self) -> dict[str, Any]:
        """All arguments as experiment files spell them."""
        return vars(self) | {"availability": self.availability and self.availability.spelling}


def spelled(owner: Any, options: dict[str, Any]) -> str:
    """Returns the arguments of an object that differ from the defaults, long lists cut in the
    middle, with those of `options` instead of its own.
    """
    texts: list[str] = []
    for field in dataclasses.fields(owner):
        value = options.get(field.name, getattr(owner, field.name))
        text = repr(value)
        if len(text) > 60:
            text = f"{text[:40]} ... {text[-12:]}"
        if value != field.default:
            texts.append(f"{field.name}={text}")
    return f"{type(owner).__name__}({', '.join(texts)})"
