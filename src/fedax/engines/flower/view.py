"""The observers' view of a deployed run: sums that the clients form over their own examples."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from fedax.core.algorithm import Algorithm, Constraint
from fedax.core.errors import InvalidInput
from fedax.core.federation import Cohort
from fedax.core.layout import accumulator
from fedax.core.task import Task
from fedax.core.view import Gradients, OfClients, Split, View
from fedax.engines.client import Setup
from fedax.engines.flower.transport import FlowerTransport, Measured
from fedax.engines.view import CompiledView, counts_alike


class FlowerView(View):
    """See `View`. Clients that do not answer are NaN, and do not count in sums.

    A global test set is the server's own. Gradients and memories of single clients are nothing that an observer may ask for.

    Args:
        setup: of the server.
        task: with everybody's sizes and nobody's examples.
        transport: to the clients.
        algorithm, state: of the run.
        worked: the cohort that worked last.
    """

    def __init__(
        self,
        setup: Setup,
        task: Task,
        transport: FlowerTransport,
        algorithm: Algorithm[Any],
        state: Any,
        worked: Cohort,
    ) -> None:
        self.setup, self.task, self.transport, self._worked = setup, task, transport, worked
        self.equal, self.nodes = counts_alike(setup, algorithm), None
        self.method, self.solver, self.schedule = algorithm, setup.solver, setup.schedule
        self.w, self._own = algorithm.model(state), algorithm.personal(state)
        self._measured: dict[tuple[str, bool], dict[int, Measured]] = {}

    @property
    def weights(self) -> Float[Array, "clients"] | None:
        raise _refused("weights that clients remember")

    @property
    def constraints(self) -> Constraint | None:
        raise _refused("constraints that clients remember")

    def each(self, look: Callable[..., Any], *rows: Float[Array, "clients ..."]) -> Any:
        raise _refused("losses and gradients of single clients")

    def cohort(self) -> Cohort:
        return self._worked

    def per_client(self, split: OfClients, score: str) -> Float[Array, "clients"]:
        return self._means(self._sums(split), score)

    def personal(self, split: OfClients, score: str) -> Float[Array, "clients"]:
        return self._means(self._sums(split, personal=self._own is not None), score)

    def overall(self, split: Split, score: str) -> Float[Array, ""]:
        if split == "holdout" and self.task.holdout is not None:
            return CompiledView(self.setup, self.w).overall("holdout", score)
        measured = self._sums("test" if split == "holdout" else split).values()
        total = sum((one.sums[score] for one in measured), jnp.zeros((), accumulator(self.w.dtype)))
        return total / jnp.asarray(sum(one.count for one in measured), total.dtype)

    def per_node(self, score: str) -> Float[Array, "clients"]:
        return jnp.broadcast_to(self.overall("holdout", score), (self.task.train.clients,))

    def gradients(self) -> Gradients:
        raise _refused("gradients of single clients")

    def _sums(self, split: str, personal: bool = False) -> dict[int, Measured]:
        if (split, personal) not in self._measured:
            how = self._own if personal else None
            down = self.w if how is None else how.down
            self._measured[split, personal] = self.transport.measure(down, split, how)
        return self._measured[split, personal]

    def _means(self, measured: dict[int, Measured], score: str) -> Float[Array, "clients"]:
        nothing = jnp.full((), jnp.nan, accumulator(self.w.dtype))
        rows = [measured.get(k, Measured(0, {})) for k in range(self.task.train.clients)]
        return jnp.stack([one.sums[score] / jnp.asarray(one.count, nothing.dtype) if one.count else nothing for one in rows])


def _refused(what: str) -> InvalidInput:
    hint = "Watch the loss and the scores, which are sums over a client's examples; a simulation shows the rest."
    return InvalidInput.because("run(observe=...)", f"an observer asks for {what}, which deployed clients do not send", hint)
