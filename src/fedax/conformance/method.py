"""A method under test, the small problems that it is tested on, and what a law says about a
method or a task.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import equinox as eqx
import jax
import numpy as np

from fedax.core import SGD, Algorithm, History, Schedule, Task
from fedax.core.hyper import declared
from fedax.engine.backends.simulation import Simulation
from fedax.engine.driver.run import run
from fedax.engine.round.trace import Footprint, footprint
from fedax.errors import FedaxError, InvalidInput

SIZES = (7, 20, 33, 4, 11)
"""Examples of the clients of `regression`."""
# 2 steps an epoch for client 0: its third is in the next
SCHEDULE = Schedule(cohort=3, steps=3, batch_size=4)


class Broken(FedaxError):
    """A method breaks a law; the message says what to change."""


class Skipped(FedaxError):
    """A law says nothing about a method; the message says why."""


def run_options() -> dict[str, Any]:
    """Returns the options of `fedax.run` unless a law gives others."""
    return {
        "solver": SGD(0.05),
        "schedule": SCHEDULE,
        "rounds": 5,
        "seed": 3,
        "observe": (),
        "observe_every": 5,
        # not at import: JAX may not be set up yet
        "engine": Simulation(devices=1),
    }


def squares(params: Any, examples: Any) -> Any:
    """Returns the losses of linear regression, one for each example."""
    residual = examples["x"] @ params["w"] + params["b"] - examples["y"]
    return residual**2 / 2


def examples_of(sizes: Sequence[int], dtype: Any = float) -> list[dict[str, np.ndarray]]:
    """Returns clients with inputs and targets of different distributions, so that their gradients
    differ.
    """
    rng = np.random.default_rng(0)
    return [
        # the targets of client k are shifted by k
        {"x": rng.normal(size=(n, 3)).astype(dtype), "y": (rng.normal(size=n) + k).astype(dtype)}
        for k, n in enumerate(sizes)
    ]


def least_squares(
    clients: Sequence[Any],
    l2: float = 0.0,
    start: tuple[float, float] = (0.0, 0.0),
    dtype: Any = float,
) -> Task:
    """Returns linear regression on some clients, with a bias and coefficients to start from."""
    params = {"b": np.asarray(start[0], dtype), "w": np.full(3, start[1], dtype)}
    # no owner: all laws on a method share its programs
    return dataclasses.replace(Task(params, squares, clients, l2=l2), owner=None)


def regression(
    sizes: Sequence[int] = SIZES, dtype: Any = float, order: Sequence[int] | None = None
) -> Task:
    """Returns linear regression on the clients of `examples_of`, renumbered by `order`."""
    clients = examples_of(sizes, dtype)
    ordered = [clients[k] for k in order] if order else clients
    return least_squares(ordered, 0.01, (0.0, 0.1), dtype)


@dataclasses.dataclass(frozen=True)
class Method:
    """A method under test.

    Args:
        make: makes the algorithm, given other hyperparameters by name.
        kind: its class.
    """

    make: Callable[..., Algorithm[Any]]
    kind: type[Algorithm[Any]]

    @classmethod
    def of(cls, method: "type[Algorithm[Any]] | Algorithm[Any] | Method") -> "Method":
        """Returns the method of a class with its default hyperparameters, or of an algorithm with
        those that it has.
        """
        if isinstance(method, Method):
            return method
        if isinstance(method, Algorithm):
            return cls(functools.partial(dataclasses.replace, method), type(method))
        return cls(method, method)

    def run(
        self,
        task: Task | None = None,
        hyperparameters: dict[str, Any] | None = None,
        **options: Any,
    ) -> History:
        """Runs it for five rounds on `regression`, or with other options of `fedax.run`.

        Raises:
            Skipped: the method refuses the setting.
        """
        try:
            algorithm = self.make(**hyperparameters or {})
            return run(algorithm, task or regression(), **(run_options() | options))
        except InvalidInput as error:
            raise Skipped(f"the method refuses its setting: {error}") from error

    @functools.cached_property
    def straight(self) -> History:
        """The run that others are compared with."""
        return self.run()

    @functools.cached_property
    def footprint(self) -> Footprint:
        """Phases, traffic and memory of a round."""
        return footprint(self.make(), regression())

    def scaled(self, factor: float) -> dict[str, float]:
        """Returns the real hyperparameters that are inputs of a program, with finite defaults, by
        name: their defaults times a factor, where the ranges allow it.
        """
        fields = self.kind.__dataclass_fields__
        return {
            name: limits.default * factor
            for name, limits in declared(self.kind).items()
            if isinstance(limits.default, float)
            and np.isfinite(limits.default)
            # static fields are parts of the program, not inputs
            and not fields[name].metadata.get("static")
            and limits.allows(limits.default * factor)
        }


Test: TypeAlias = Callable[[Any], None]


@dataclasses.dataclass(frozen=True)
class Law:
    """A law that methods obey, or tasks.

    Attributes:
        name: for `--only` and tests.
        says: what holds, as a sentence about the method or the task.
        advice: what to look at in one that breaks it.
        test: raises `Broken` or `Skipped`.
    """

    name: str
    says: str
    advice: str
    test: Test

    def __str__(self) -> str:
        return self.name

    def judge(self, subject: "Method | Task") -> "Verdict":
        """Returns whether a method or a task obeys it, whatever promotion JAX is set to.

        Any error but `Skipped` counts as breaking it.
        """
        # in double precision, because the laws tell a mistake from rounding by its size; a task
        # has its types already
        is_double = jax.config.values["jax_enable_x64"] or isinstance(subject, Method)
        try:
            with (
                jax.enable_x64(is_double),
                # Optax's optimizers and many a method rely on these
                jax.numpy_dtype_promotion("standard"),
                jax.numpy_rank_promotion("allow"),
            ):
                self.test(subject)
        except Skipped as error:
            return Verdict(self, "skipped", str(error))
        except Broken as error:
            return Verdict(self, "broken", f"{error} {self.advice}")
        except Exception as error:  # the user's own code
            return Verdict(self, "broken", f"{type(error).__name__}: {error}. {self.advice}")
        return Verdict(self, "holds", "")


class Verdict(NamedTuple):
    """What a law says about a method or a task, with the reason where it is broken or skipped."""

    law: Law
    kind: Literal["holds", "broken", "skipped"]
    reason: str


def vector(history: History) -> np.ndarray:
    """Returns the final model of a history as one vector."""
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(history.params)])


def state_arrays(history: History) -> list[np.ndarray]:
    """Returns the arrays of the final state of a history."""
    return [np.asarray(leaf) for leaf in jax.tree.leaves(history.state) if eqx.is_array(leaf)]


def require(holds: Any, reason: str) -> None:
    """Raises `Broken` with a reason unless something holds."""
    if not holds:
        raise Broken(f"{reason}.")


is_equal = functools.partial(np.array_equal, equal_nan=True)
"""Whether two arrays have the same numbers."""


def require_equal(first: History, second: History, reason: str) -> None:
    """Requires the same bits of two final states."""
    require(all(map(is_equal, state_arrays(first), state_arrays(second))), reason)


def require_close(first: History, second: History, reason: str, tolerance: float = 1e-12) -> None:
    """Requires the same final models up to rounding."""
    a = vector(first)
    b = vector(second)
    require(
        np.allclose(a, b, rtol=tolerance, atol=tolerance),
        f"{reason}: the models differ by {np.abs(a - b).max():.2g}",
    )
