"""The contract of a method: `init`, `round`, `model`, and a citation."""

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import equinox as eqx
from jaxtyping import Array, Float, PyTree

from fedax.core.client import Client
from fedax.core.federation import ClientStates, Federation
from fedax.core.hyper import check_declared, declared, describe_with_hyperparameters
from fedax.core.local_problem import LocalProblem
from fedax.core.scheduling.schedule import Schedule
from fedax.core.task import Task
from fedax.utils.layout import Layout

State = TypeVar("State")
Reading = Literal["paper", "authors' code", "others' code", "abstract"]


class Personal(NamedTuple):
    """The model that every client uses itself.

    Attributes:
        work: a work function that returns the model, `work(client, *down[, own state])`, without
            uploading anything. Local work in it is that of round 0: its number of steps, its
            learning rate, and the same minibatches every time. The model is evaluated in the
            client's `model_state` after it.
        down: what it is sent.
        states: the clients' states, if it needs its own.
    """

    work: Callable[..., Float[Array, "dim"]]
    down: tuple[PyTree, ...]
    states: ClientStates | None = None

    @classmethod
    def remembered(cls, states: ClientStates) -> "Personal":
        """Returns the models that the clients' states hold."""
        return cls(lambda client, model: model, (), states)


class Solved(NamedTuple):
    """A client's local problem and the solution that a round makes of it."""

    problem: LocalProblem
    solution: Float[Array, "dim"]


class ModelAndStates(eqx.Module):
    """The state of a method that has a global model and states, and nothing else.

    Attributes:
        w: the global model.
        clients: the clients' states.
    """

    w: Float[Array, "dim"]
    clients: ClientStates


@dataclasses.dataclass(frozen=True)
class Reduction:
    """With hyperparameters `setting`, the method is `to` with hyperparameters `other`: an identity
    that the laws check.

    `equal_sizes` says that it holds if all clients have equally many examples.
    """

    setting: dict[str, Any]
    to: str
    other: dict[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    equal_sizes: bool = False


@dataclasses.dataclass(frozen=True)
class Citation:
    """A citation, and special cases.

    What a round sends and computes is traced, see `fedax.footprint`.

    Attributes:
        paper: authors, title, place and year.
        read: what was read to write the method: the paper's text, its authors' code, others' code,
            its abstract or introduction; one or several.
        equation: the place in the paper, such as "Alg. 1", if it is known, also where the text was
            not read.
        reductions: the special cases, which the laws check.
        by_examples: whether a step with full gradients of all clients depends on the examples
            alone, not on who holds them.
        exact: whether its fixed point is the minimum of the objective, with any cohorts and several
            local steps.
    """

    paper: str
    read: tuple[Reading, ...]
    equation: str = ""
    reductions: tuple[Reduction, ...] = ()
    by_examples: bool = False
    exact: bool = False


class Algorithm(eqx.Module, Generic[State]):
    """An immutable record of hyperparameters with three pure functions over a federation.

    `round` is straight-line code; its work functions are methods that see only their client, what
    was sent down, and their own state. A minimal method:

        class FedAvg(Algorithm[Vector]):
            def round(self, fed, state):
                return fed.average(self.train, fed.sample(), state)

            def train(self, client, w):
                return Upload(client.minimize(start=w))
    """

    citation: ClassVar[Citation]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.__dict__.get("__doc__"):
            cls.__doc__ = describe_with_hyperparameters(cls)

    # by name only: the order of a method's hyperparameters means nothing
    def __new__(cls, **hyperparameters: Any) -> "Algorithm[State]":
        return super().__new__(cls)

    def __check_init__(self) -> None:
        check_declared(self)

    def _repr_html_(self) -> str:
        """Returns a table of the hyperparameters with their ranges, for notebooks."""
        import pandas as pd  # takes long to import

        rows = {
            name: [getattr(self, name), limits.allowed, limits.doc]
            for name, limits in declared(self).items()
        }
        heads = [type(self).__name__, "allowed", "meaning"]
        return pd.DataFrame.from_dict(rows, "index", columns=heads).to_html()

    def check(self, schedule: Schedule, sizes: Sequence[int]) -> None:
        """Refuses a schedule that the method cannot work with.

        `sizes` are the clients' training examples.

        Raises:
            InvalidInput: it is one; raised before anything is compiled.
        """

    def check_model(self, task: Task, layout: Layout) -> None:
        """Refuses a model that the method cannot work with, such as one without the leaves that it
        names.

        Raises:
            InvalidInput: it is one; raised before anything is compiled.
        """

    def init(self, fed: Federation, w: Float[Array, "dim"]) -> State:
        """Returns the state before round 0, from the model's starting point.

        Its random streams (`fed.key`, `fed.sample`) are different from those of every round. No
        client works in it.
        """
        return w  # type: ignore[return-value]

    @abstractmethod
    def round(self, fed: Federation, state: State) -> State:
        """Runs one communication round and returns the new state."""

    def model(self, state: State) -> Float[Array, "dim"]:
        """Returns the global model of a state: its `w`, or the state itself if it has none."""
        return getattr(state, "w", state)  # type: ignore[return-value]

    def personal(self, state: State) -> Personal | None:
        """Returns how clients compute the models that they use; None if that is the global one."""
        return None

    def nodes(self, state: State) -> ClientStates | None:
        """Returns the clients' models, flat, of a method without a server; else None."""
        return None

    @property
    def equal_weights(self) -> bool:
        """Whether its objective is the mean of the clients' losses, whatever the schedule's
        `weights` (without a server).
        """
        return False

    def weights(self, state: State) -> ClientStates | None:
        """Returns the weights of the clients' uploads, if the method stores them; else None."""
        return None

    def solved(
        self, client: Client, w: Float[Array, "dim"], gradient: Float[Array, "dim"]
    ) -> Solved | None:
        r"""Returns the local problem of the method's theory, and the client's solution of it.

        All clients count as working in the next round.

        `gradient` is $\nabla f(w)$. None for methods without a theory of what is asked.
        """
        return None
