"""The observers' view of a deployed run: sums that the clients form over their own examples."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from fedax.core.algorithm import Algorithm, Constraint
from fedax.core.federation import Cohort
from fedax.core.task import Task
from fedax.engine.round.client import Setup
from fedax.engine.round.evaluation import CompiledView, empty_cohort, has_equal_weights
from fedax.engine.round.trace import TracingBackend, initial_carry
from fedax.errors import InvalidInput
from fedax.flower.server.backend import ClientSums, FlowerBackend
from fedax.observe.base import Gradients, Observer, OfClients, Split, View
from fedax.utils.layout import accumulator


class FlowerView(View):
    """See `View`. Clients that are left out are NaN, and do not count in sums.

    A central test set is the server's own. Gradients and memories of single clients are nothing
    that an observer may ask for.

    Args:
        setup: of the server.
        task: with everybody's sizes and nobody's examples.
        backend: to the clients.
        algorithm, state: of the run.
        worked: the cohort that worked last.
    """

    def __init__(
        self,
        setup: Setup,
        task: Task,
        backend: "FlowerBackend | StandInBackend",
        algorithm: Algorithm[Any],
        state: Any,
        worked: Cohort,
    ) -> None:
        self.setup, self.task, self.backend, self._worked = setup, task, backend, worked
        self.equal, self.nodes = has_equal_weights(setup, algorithm), None
        self.method, self.solver, self.schedule = algorithm, setup.solver, setup.schedule
        self.w = algorithm.model(setup.published(state))
        self._personal = algorithm.personal(state)
        self._answered_sums: dict[tuple[str, bool], dict[int, ClientSums]] = {}

    @property
    def weights(self) -> Float[Array, "clients"] | None:
        raise _refusal("weights that clients remember")

    @property
    def constraints(self) -> Constraint | None:
        raise _refusal("constraints that clients remember")

    def each(self, look: Callable[..., Any], *rows: Float[Array, "clients ..."]) -> Any:
        raise _refusal("losses and gradients of single clients")

    def cohort(self) -> Cohort:
        if self.setup.private is not None and self.setup.private.amplified:
            hint = "Its epsilon holds for those who cannot tell who was drawn."
            raise InvalidInput.because(
                "run(observe=...)",
                "an observer shows who was drawn, which privacy by sampling hides",
                hint,
            )
        return self._worked

    def per_client(self, split: OfClients, score: str) -> Float[Array, "clients"]:
        return self._means(self._request_sums(split), score)

    def personal(self, split: OfClients, score: str) -> Float[Array, "clients"]:
        return self._means(self._request_sums(split, personal=self._personal is not None), score)

    def measured(self, split: OfClients) -> Bool[Array, "clients"]:
        # asked after `per_client` or `personal`, which share the answers that came
        answered = [
            sums_by_client
            for (name, _), sums_by_client in self._answered_sums.items()
            if name == split
        ] or [self._request_sums(split)]
        counts = [
            [
                sums_by_client[k].count if k in sums_by_client else 0
                for k in range(self.task.train.clients)
            ]
            for sums_by_client in answered
        ]
        return (jnp.asarray(counts) > 0).all(axis=0)

    def overall(self, split: Split, score: str) -> Float[Array, ""]:
        if split == "central" and self.task.central is not None:
            return CompiledView(self.setup, self.w).overall("central", score)
        all_sums = self._request_sums("test" if split == "central" else split).values()
        total = sum(
            (client_sums.sums[score] for client_sums in all_sums),
            jnp.zeros((), accumulator(self.w.dtype)),
        )
        return total / jnp.asarray(sum(client_sums.count for client_sums in all_sums), total.dtype)

    @property
    def measured_clients(self) -> int | None:
        """The fewest clients whose sums a metric is of, None if none is of clients' sums."""
        return min(map(len, self._answered_sums.values()), default=None)

    def per_node(self, score: str) -> Float[Array, "clients"]:
        return jnp.broadcast_to(self.overall("central", score), (self.task.train.clients,))

    def gradients(self) -> Gradients:
        raise _refusal("gradients of single clients")

    def _request_sums(self, split: str, personal: bool = False) -> dict[int, ClientSums]:
        if (split, personal) not in self._answered_sums:
            personal_model = self._personal if personal else None
            down = self.w if personal_model is None else personal_model.down
            self._answered_sums[split, personal] = self.backend.measure(down, split, personal_model)
        return self._answered_sums[split, personal]

    def _means(self, sums_by_client: dict[int, ClientSums], score: str) -> Float[Array, "clients"]:
        missing = jnp.full((), jnp.nan, accumulator(self.w.dtype))
        rows = [sums_by_client.get(k, ClientSums(0, {})) for k in range(self.task.train.clients)]
        return jnp.stack(
            [
                client_sums.sums[score] / jnp.asarray(client_sums.count, missing.dtype)
                if client_sums.count
                else missing
                for client_sums in rows
            ]
        )


class StandInBackend:
    """Stands in for the backend where an observer is only checked: every client measures zeros."""

    def __init__(self, setup: Setup, task: Task) -> None:
        self.setup, self.task = setup, task

    def measure(self, down: Any, split: str, personal: Any = None) -> dict[int, ClientSums]:
        zeros = dict.fromkeys(
            ["loss", *self.task.scores], jnp.zeros((), accumulator(self.setup.layout.dtype))
        )
        return {k: ClientSums(1, zeros) for k in range(self.task.train.clients)}


def check_observers(
    observers: Sequence[Observer],
    setup: Setup,
    task: Task,
    algorithm: Algorithm[Any],
    root: Key[Array, ""],
) -> None:
    """Refuses observers that ask for more than sums over a client's examples, without asking a
    client.

    Args:
        observers: of the run.
        setup, task, algorithm, root: see `FlowerView`.

    Raises:
        InvalidInput: the first such observer, by name.
    """

    def look(observer: Observer) -> dict[str, Any]:
        w = jnp.zeros(setup.layout.dim, setup.layout.dtype)
        state = initial_carry(TracingBackend(setup), algorithm, root, w).state
        worked = empty_cohort(0, setup.layout.dtype).padded(setup.population.clients)
        return observer(
            FlowerView(setup, task, StandInBackend(setup, task), algorithm, state, worked)
        )

    for observer in observers:
        try:
            jax.eval_shape(lambda observer=observer: look(observer))
        except InvalidInput as error:
            cause = str(error).removeprefix("observe: ").rstrip(".")
            reason = f"{type(observer).__name__} cannot be used in a deployed run: {cause}"
            hint = (
                "Watch the loss and the scores, which are sums over a client's examples; a "
                "simulation shows the rest."
            )
            raise InvalidInput.because("run(observe=...)", reason, hint) from error


def _refusal(what: str) -> InvalidInput:
    return InvalidInput.because(
        "observe", f"it asks for {what}, which deployed clients do not send"
    )
