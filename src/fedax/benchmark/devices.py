"""Devices of the benchmark's tasks: draws that depend on a client's number alone."""

import zlib

import numpy as np
import scipy
from jaxtyping import Float, Int


def speed(clients: Int[np.ndarray, "some"], round: int) -> Float[np.ndarray, "some"]:
    """Returns examples per second, log-normal with the median 200 and a deviation of 1."""
    return 200.0 * np.exp(scipy.special.ndtri(uniform("speed", clients)))


def up(clients: Int[np.ndarray, "some"], round: int) -> Float[np.ndarray, "some"]:
    """Returns bits per second, log-uniform from 5e4 to 1e6."""
    return 5e4 * 20.0 ** uniform("up", clients)


def uniform(name: str, clients: Int[np.ndarray, "some"]) -> Float[np.ndarray, "some"]:
    """Returns uniform numbers in (0, 1) that depend on a name and a client's number alone.

    >>> bool(uniform("speed", np.array([3, 4]))[1] == uniform("speed", np.array([4]))[0])
    True

    Source: the finalizer of SplitMix64, Steele et al., Fast Splittable Pseudorandom Number
    Generators, OOPSLA 2014, Fig. 15.
    """
    state = np.zeros(len(clients), np.uint64)
    for word in (np.uint64(zlib.crc32(name.encode())), np.asarray(clients, np.uint64)):
        state = _mix(_mix(state) ^ word)
    # the upper 53 bits, and half a step more, so that 0 does not occur
    steps = (_mix(state) >> np.uint64(11)).astype(np.float64) + 0.5
    return steps * 2.0**-53


def _mix(state: np.ndarray) -> np.ndarray:
    # arrays of unsigned numbers wrap without a warning
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
