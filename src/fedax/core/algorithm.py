"""The contract of a method: `init`, `round`, `model`, and a card that says where it comes from."""

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import equinox as eqx
from jaxtyping import Array, Float

from fedax.core.channel import Codec
from fedax.core.errors import InvalidInput
from fedax.core.federation import Federation, Memory
from fedax.core.hyper import check_declared
from fedax.core.schedule import Schedule

State = TypeVar("State")


class Personal(NamedTuple):
    """How every client makes the model that it uses itself.

    Attributes:
        work: a work function that returns the model, `work(client, *down[, own memory])`, without uploading anything.
        down: what it is sent.
        memory: the clients' memories, if it needs its own.
    """

    work: Callable[..., Float[Array, "dim"]]
    down: tuple[Any, ...]
    memory: Memory | None = None

    @classmethod
    def remembered(cls, memory: Memory) -> "Personal":
        """The models are what the clients' memories hold."""
        return cls(lambda client, own: own, (), memory)


class Remembering(eqx.Module):
    """The state of a method that has a global model and memories, and nothing else.

    Attributes:
        w: the global model.
        memory: the clients' memories.
    """

    w: Float[Array, "dim"]
    memory: Memory


@dataclasses.dataclass(frozen=True)
class Phase:
    """One call of a verb: what one participant receives and sends, in model vectors and single numbers.

    `everyone` says that all clients take part, not a drawn cohort; `links` that each sends its upload to every neighbour on a
    graph; `coded` that the vectors of the upload are messages of the algorithm's `codec`; `models` that the first of them is a
    model which started from the first vector sent down, so that a channel codes what was learned, not the model.
    """

    work: str
    down: tuple[int, int]
    up: tuple[int, int]
    everyone: bool = False
    links: bool = False
    coded: bool = False
    models: bool = False

    def bits(self, dim: int, width: int, codec: Codec | None = None) -> tuple[int, int]:
        """Bits received by one participant and of its upload, for `dim` parameters of `width` bits."""
        down, up = ((vectors * dim + numbers) * width for vectors, numbers in (self.down, self.up))
        if self.coded and codec is not None:
            up = self.up[0] * codec.bits(dim, width) + self.up[1] * width
        return down, up


@dataclasses.dataclass(frozen=True)
class Reduction:
    """With hyperparameters `setting`, the method is `to` with hyperparameters `other`: an identity that the laws check.

    `equal_sizes` says that it holds if all clients have equally many examples.
    """

    setting: dict[str, Any]
    to: str
    other: dict[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    equal_sizes: bool = False


@dataclasses.dataclass(frozen=True)
class Form:
    """With hyperparameters `setting`, a round has these phases in place of the card's."""

    setting: dict[str, Any]
    phases: tuple[Phase, ...]


@dataclasses.dataclass(frozen=True)
class Card:
    """Where a method comes from, and what it claims; shown by `fedax algorithms` and checked by the laws.

    The phases are those of the default hyperparameters, `forms` those of others; see `Algorithm.phases`.
    """

    title: str
    paper: str
    equation: str
    phases: tuple[Phase, ...]
    memory: str = "none"
    reductions: tuple[Reduction, ...] = ()
    forms: tuple[Form, ...] = ()


class Algorithm(eqx.Module, Generic[State]):
    """An immutable record of hyperparameters with three pure functions over a federation.

    `round` is straight-line code; its work functions are methods that see only their client, what was sent down, and their own
    memory. A minimal method:

        class FedAvg(Algorithm[Vector]):
            def round(self, fed, state):
                return fed.average(self.train, fed.sample(), state)

            def train(self, client, w):
                return Upload(client.minimize(start=w))
    """

    card: ClassVar[Card]

    def __new__(cls, *values: Any, **hyperparameters: Any) -> "Algorithm[State]":
        if values:
            known = ", ".join(f"{field.name}=..." for field in dataclasses.fields(cls))
            allowed = f"hyperparameters by name, {cls.__name__}({known})" if known else "no hyperparameters"
            raise InvalidInput.of(f"{cls.__name__}(...)", values[0], allowed)
        return super().__new__(cls)

    def __check_init__(self) -> None:
        check_declared(self)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """What a round with these hyperparameters calls and sends, in order."""
        card = getattr(self, "card", None)
        if card is None:
            return ()
        mine = (f.phases for f in card.forms if all(getattr(self, name) == value for name, value in f.setting.items()))
        return next(mine, card.phases)

    def check(self, schedule: Schedule, sizes: Sequence[int]) -> None:
        """Refuses a schedule that the method cannot work with; `sizes` are the clients' training examples.

        Raises:
            InvalidInput: it is one; raised before anything is compiled.
        """

    def init(self, fed: Federation, w: Float[Array, "dim"]) -> State:
        """The state before round 0, from the model's starting point."""
        return w  # type: ignore[return-value]

    @abstractmethod
    def round(self, fed: Federation, state: State) -> State:
        """One communication round."""

    def model(self, state: State) -> Float[Array, "dim"]:
        """The global model held by a state: its `w`, or the state itself if it has none."""
        return getattr(state, "w", state)  # type: ignore[return-value]

    def personal(self, state: State) -> Personal | None:
        """How clients make their own models, for methods that have such; by default they use the global one."""
        return None

    def nodes(self, state: State) -> Memory | None:
        """The clients' models, one flat vector each, of a method that keeps them (without a server, on a graph)."""
        return None

    def gradients(self, steps: float, epoch: float) -> float:
        """The minibatch gradients that a participant of every phase computes in a round of so many local steps.

        A gradient over all its examples is as many as an `epoch` has. A Hessian-vector product counts as one.
        """
        return steps

    @property
    def equal_weights(self) -> bool:
        """Whether its objective is the mean of the clients' losses, whatever the schedule's `weights` (without a server)."""
        return False

    def weights(self, state: State) -> Memory | None:
        """The weights that the clients' uploads have in a mean, a number each, of a method that remembers its own."""
        return None
