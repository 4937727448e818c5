"""Devices of a virtual clock: how fast each client computes, sends and receives, and the energy
that it takes.

Everything here is plain NumPy in 64 bits. It runs on the host, beside the compiled rounds, and
cannot change them.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float, Int

from fedax.core.hyper import Declared, hyper
from fedax.errors import InvalidInput
from fedax.utils.plugins import is_reference, load

Numbers: TypeAlias = Float[np.ndarray, "some"]
Clients: TypeAlias = Int[np.ndarray, "some"] | Sequence[int]
Amount: TypeAlias = (
    float | Sequence[float] | np.ndarray | Callable[[np.ndarray, int], np.ndarray | float]
)
"""A number, one for each client, or a function of clients' numbers and a round."""

RATES = "speed", "down", "up"
CHARACTERISTICS = *RATES, "latency", "energy", "energy_down", "energy_up"
"""What a client's device is described by."""


class Cost(NamedTuple):
    """What a phase costs each of some clients.

    Attributes:
        examples: that it processes.
        seconds: from the server's message to its own.
        joules: that it takes.
    """

    examples: Numbers
    seconds: Numbers
    joules: Numbers


@dataclasses.dataclass(frozen=True, eq=False)
class Clock(Declared):
    r"""The clients' devices, from which a virtual clock has the seconds and the joules of every
    round.

    A phase of client $k$ with $b_\downarrow$ bits down, $b_\uparrow$ bits up and $n$ examples
    takes, with its latency $l_k$,

    $$l_k + \frac{b_\downarrow}{\text{down}_k} + \frac{n}{\text{speed}_k} +
    \frac{b_\uparrow}{\text{up}_k}$$

    seconds. Every characteristic is a number, an array with one number for each client in the order
    of the task's clients, or a function of clients' numbers and the round. Draw arrays from any
    distribution with NumPy, or read them from any table.

    Args:
        speed: examples that a client trains on in a second, above 0: those of all minibatches and
            gradients.
        down, up: bits that it receives and sends in a second, above 0.
        latency: seconds of a phase that do not depend on its messages, both ways together, at least
            0.
        energy: joules of an example, at least 0.
        energy_down, energy_up: joules of a bit, at least 0.
        passes: passes over its examples that a phase with local work counts as, above 0. Only
            needed for solvers that decide by the data how long they work, such as `Exact`.
        server_seconds: that the server takes in every phase after the last upload that it waits
            for, or in every step of an asynchronous server; finite, at least 0.
        server_seconds_per_byte: in addition, for each byte of the uploads that it takes; finite, at
            least 0. Graphs have no server.

    Raises:
        InvalidInput: a value out of range, with the field.

    >>> clock = Clock(speed=[100.0, 10.0], up=1e6, latency=0.5, energy_up=1e-6)
    >>> clock.seconds([0, 1], 0, 0, 1_000_000, np.array([50, 50])).tolist()
    [2.0, 6.5]
    >>> clock.joules([0, 1], 0, 0, 1_000_000, np.array([50, 50])).tolist()
    [1.0, 1.0]
    >>> waits = Clock(latency=lambda clients, round: 1.0 + clients * round)
    >>> waits.seconds([0, 2], 3, 0, 0, 0).tolist()
    [1.0, 7.0]
    """

    speed: Amount = math.inf
    down: Amount = math.inf
    up: Amount = math.inf
    latency: Amount = 0.0
    energy: Amount = 0.0
    energy_down: Amount = 0.0
    energy_up: Amount = 0.0
    passes: float | None = hyper(None, kind=float, low=0.0, open_low=True, optional=True)
    server_seconds: float = hyper(0.0, low=0.0)
    server_seconds_per_byte: float = hyper(0.0, low=0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in CHARACTERISTICS:
            value = getattr(self, name)
            if callable(value):
                continue
            _check(name, value)
            if np.ndim(value):
                object.__setattr__(self, name, np.asarray(value, np.float64))

    @classmethod
    def of(cls, spelling: Mapping[str, Any]) -> "Clock":
        """Makes devices from a table of their arguments, as files spell it: a characteristic may be
        `"FILE:NAME"`, an array or a function of the user's.
        """
        loaded = {
            name: load("device", value).value
            for name, value in spelling.items()
            if is_reference(value)
        }
        try:
            return cls(**{**spelling, **loaded})
        except TypeError as error:
            raise InvalidInput.because("[clock]", str(error)) from error

    def check(self, clients: int) -> None:
        """Refuses arrays with another number of values than there are clients.

        Raises:
            InvalidInput: names the characteristic.
        """
        for name in CHARACTERISTICS:
            shape = np.shape(getattr(self, name))
            if shape not in ((), (clients,)):
                allowed = f"{clients} values, one for each client"
                raise InvalidInput.found(f"Clock({name}=...)", f"{shape[0]} values", allowed)

    def values(self, name: str, clients: Clients, round: int) -> Numbers:
        """Returns a characteristic of some clients in a round."""
        ids = np.asarray(clients, np.int64)
        values = getattr(self, name)
        if callable(values):
            values = values(ids, round)
            _check(name, values)
        elif np.ndim(values):
            values = values[ids]
        return np.broadcast_to(np.asarray(values, np.float64), ids.shape)

    def seconds(
        self,
        clients: Clients,
        round: int,
        down_bits: float | np.ndarray,
        up_bits: float | np.ndarray,
        examples: float | np.ndarray,
    ) -> Numbers:
        """Returns the seconds that a phase takes each of some clients.

        Args:
            clients: their numbers.
            round: the number of the round, from 0.
            down_bits, up_bits: of their messages, a number for all or one for each.
            examples: that each of them processes.
        """
        down, up, speed, latency = (
            self.values(name, clients, round) for name in ("down", "up", "speed", "latency")
        )
        return latency + (down_bits / down + up_bits / up) + examples / speed

    def seconds_at_server(self, up_bits: float) -> float:
        """Returns the seconds that the server takes for uploads of so many bits together."""
        return self.server_seconds + self.server_seconds_per_byte * up_bits / 8

    def examples_after(
        self,
        seconds: float,
        clients: Clients,
        round: int,
        down_bits: float | np.ndarray,
        examples: float | np.ndarray,
    ) -> Numbers:
        """Returns how many examples clients have processed some seconds after the start of a phase.

        Arguments as in `seconds`. Latency and downlink come first.
        """
        down, speed, latency = (
            self.values(name, clients, round) for name in ("down", "speed", "latency")
        )
        computing_seconds = np.maximum(seconds - latency - down_bits / down, 0.0)
        # an infinite speed takes no time, once the message is there
        return np.minimum(examples, computing_seconds * np.where(computing_seconds > 0, speed, 0.0))

    def joules(
        self,
        clients: Clients,
        round: int,
        down_bits: float | np.ndarray,
        up_bits: float | np.ndarray,
        examples: float | np.ndarray,
    ) -> Numbers:
        """Returns the joules that a phase takes each of some clients; arguments as in `seconds`."""
        names = ("energy_down", "energy_up", "energy")
        down, up, energy = (self.values(name, clients, round) for name in names)
        return down * down_bits + up * up_bits + energy * examples


def _check(name: str, value: object) -> None:
    """Refuses values of a characteristic that are out of range, or no numbers."""
    array = np.asarray(value)
    is_rate = name in RATES
    is_number = array.dtype.kind in "iuf" and array.ndim <= 1
    if not is_number or not (array > 0 if is_rate else (array >= 0) & np.isfinite(array)).all():
        allowed = "numbers > 0, inf for no time" if is_rate else "finite numbers >= 0"
        raise InvalidInput.of(f"Clock({name}=...)", value, f"{allowed}, or functions of them")
