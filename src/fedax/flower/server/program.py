"""The rounds of a deployed run, and its observers' view: sums that the clients form over their own
examples.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedax.core.federation import Cohort
from fedax.core.task import Task
from fedax.engine.backends.python_rounds import PythonProgram
from fedax.engine.round.client import Setup
from fedax.engine.round.engine import ProgramInputs, RunCarry
from fedax.engine.round.evaluation import CompiledView, ModelsOfClients, empty_cohort
from fedax.engine.round.single_client import with_sizes
from fedax.errors import InvalidInput
from fedax.flower.server.backend import FlowerBackend, Sums
from fedax.flower.server.engine import Flower
from fedax.flower.server.secure import SecureBackend
from fedax.observe.base import Gradients, Observer, OfClients, Split, View, compute_all
from fedax.utils.layout import accumulator

REMEMBERED = 20
"""Rounds after which clients drop versions of their memories, where no checkpoint tells which are
needed."""


class FlowerProgram(PythonProgram):
    """Rounds in Python; see `FlowerBackend`."""

    def __init__(self, inputs: ProgramInputs, engine: Flower) -> None:
        setup = inputs.setup
        backend = SecureBackend if engine.secure else FlowerBackend
        super().__init__(inputs, lambda setup, root: backend(setup, root, engine))
        sizes = {
            name: [getattr(client_sizes, name) for client_sizes in engine.sizes]
            for name in setup.task.data.parts
        }
        self.task = with_sizes(setup.task, sizes)
        self._rounds_done = 0
        self._checkpoint_rounds: list[int] = []

    def advance(self, states: Any, first: int, count: int) -> Any:
        self._rounds_done = first + count
        floor = first - REMEMBERED
        # of two checkpoints, the older one may be needed again
        if len(self._checkpoint_rounds) == 2:
            floor = self._checkpoint_rounds[0]
        for backend, _ in self.runs:
            backend.floor = max(floor, 0)
        return super().advance(states, first, count)

    def gather_carries(self, states: Any) -> list[RunCarry]:
        """Returns the states for a checkpoint, of which the last two are kept; clients keep their
        states.
        """
        self._checkpoint_rounds = [*self._checkpoint_rounds, self._rounds_done][-2:]
        return self.split(states)

    def check(self, observers: Sequence[Observer]) -> None:
        """Refuses what asks for more than sums over a client's examples, without asking a client.

        Raises:
            InvalidInput: personal models; the first such observer, by name.
        """
        if any(isinstance(observer, ModelsOfClients) for observer in observers):
            allowed = "False with the Flower engine: the clients' own models stay with them"
            raise InvalidInput.of("run(personal=...)", True, allowed)
        for observer in observers:
            for backend, _ in self.runs:
                look = functools.partial(self._look, observer, backend.setup)
                try:
                    jax.eval_shape(look, backend.plan.state)
                except InvalidInput as error:
                    reason = f"{type(observer).__name__} is for no deployed run: {str(error)[:-1]}"
                    raise InvalidInput.because("run(observe=...)", reason) from error

    def _look(self, observer: Observer, setup: Setup, state: Any) -> dict[str, Any]:
        """Computes the metrics of an observer of clients that have answered."""
        clients = setup.population.clients
        layout = setup.layout

        def measure(*_: Any) -> Sums:
            ones = jnp.ones(clients, accumulator(layout.dtype))
            return Sums(ones, dict.fromkeys(["loss", *self.task.scores], ones))

        worked = empty_cohort(clients, layout.dtype)
        return observer(FlowerView(self.task, setup, measure, state, worked))

    def metrics(
        self, run: int, carry: RunCarry, worked: Cohort, observers: tuple[Observer, ...]
    ) -> dict[str, Any]:
        backend, _ = self.runs[run]
        view = FlowerView(self.task, backend.setup, backend.measure, carry.state, worked)
        metrics = compute_all(observers, view)
        if self.setup.drop and view.measured_clients is not None:
            metrics["measured_clients"] = view.measured_clients
        return metrics


class FlowerView(View):
    """See `View`. Clients that are left out are NaN, and do not count in sums.

    A central test set is the server's own. Gradients and memories of single clients are nothing
    that an observer may ask for.

    Args:
        task: with everybody's sizes and nobody's examples.
        setup: of the server.
        measure: asks the clients, see `FlowerBackend.measure`.
        state: of the run.
        worked: the cohort that worked last.
    """

    def __init__(
        self,
        task: Task,
        setup: Setup,
        measure: Callable[..., Sums],
        state: Any,
        worked: Cohort,
    ) -> None:
        algorithm = setup.algorithm
        self.setup = setup
        self.task = task
        self._measure = measure
        self._worked = worked
        self.equal = setup.has_equal_weights
        self.nodes = None
        self.method = algorithm
        self.solver = setup.solver
        self.schedule = setup.schedule
        self.w = algorithm.model(setup.published(state))
        self._personal = algorithm.personal(state)
        self._answered: dict[tuple[OfClients, bool], Sums] = {}

    @property
    def weights(self) -> Float[Array, "clients"] | None:
        raise _refusal("weights that clients remember")

    def each(self, look: Callable[..., Any], *rows: Float[Array, "clients ..."]) -> Any:
        raise _refusal("losses and gradients of single clients")

    def cohort(self) -> Cohort:
        if self.setup.private is not None and self.setup.private.amplified:
            reason = "an observer shows who was drawn, which privacy by sampling hides"
            raise InvalidInput.because("run(observe=...)", reason)
        return self._worked

    def per_client(self, split: OfClients, score: str) -> Float[Array, "clients"]:
        return self._means(split, score, False)

    def personal(self, split: OfClients, score: str) -> Float[Array, "clients"]:
        return self._means(split, score, self._personal is not None)

    def _means(self, split: OfClients, score: str, personal: bool) -> Float[Array, "clients"]:
        sums = self._sums(split, personal)
        return jnp.where(sums.examples > 0, sums.scores[score] / sums.examples, jnp.nan)

    def measured(self, split: OfClients) -> Bool[Array, "clients"]:
        # asked after `per_client` or `personal`, which share the answers that came
        answered = [sums for (name, _), sums in self._answered.items() if name == split]
        counts = [sums.examples for sums in answered or [self._sums(split)]]
        return (jnp.stack(counts) > 0).all(axis=0)

    def overall(self, split: Split, score: str) -> Float[Array, ""]:
        if split == "central" and self.task.central is not None:
            return CompiledView(self.setup, self.w).overall("central", score)
        sums = self._sums("test" if split == "central" else split)
        return sums.scores[score].sum() / sums.examples.sum()

    def objective(self) -> Float[Array, ""]:
        if not self.equal:
            return super().objective()
        # the others' mean stands for clients that are left out
        return self.per_client("train", "loss").mean(where=self.measured("train"))

    @property
    def measured_clients(self) -> Int[Array, ""] | None:
        """The number of clients that answered all measurements, None if there was none. A client
        without examples of a split is not missing there.
        """
        answered = [
            (sums.examples > 0) == View.measured(self, split)
            for (split, _), sums in self._answered.items()
        ]
        return jnp.stack(answered).all(axis=0).sum() if answered else None

    def per_node(self, score: str) -> Float[Array, "clients"]:
        return jnp.broadcast_to(self.overall("central", score), (self.task.train.clients,))

    def gradients(self) -> Gradients:
        raise _refusal("gradients of single clients")

    def _sums(self, split: OfClients, personal: bool = False) -> Sums:
        if (split, personal) not in self._answered:
            model = self._personal if personal else None
            down = self.w if model is None else model.down
            self._answered[split, personal] = self._measure(down, split, model)
        return self._answered[split, personal]


def _refusal(what: str) -> InvalidInput:
    return InvalidInput.because(
        "observe", f"it asks for {what}, which deployed clients do not send"
    )
