"""The reference engine: a Python loop over clients and minibatches, with nothing compiled and
nothing padded.

It is slow and simple on purpose: every other engine has to agree with it, and a method is debugged
in it. Where a work function fails, its error names the round and the client. Minibatches of a model
with a state are filled with examples of the client, as in other engines.
"""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from fedax.core.client import Carry, Client, Minibatch
from fedax.core.federation import ClientStates, Cohort
from fedax.engine.backends.python_rounds import PythonBackend, PythonProgram
from fedax.engine.round.client import Setup, local_work
from fedax.engine.round.engine import Engine, ProgramInputs, RunCarry
from fedax.engine.round.evaluation import view_of
from fedax.engine.round.phase import ClientResult, PhaseResult, PhaseWork
from fedax.errors import FedaxError, WorkError
from fedax.numerics.permutation import permutation
from fedax.observe.base import Observer, compute_all
from fedax.utils.random import stream


class EagerClient(Client):
    """A client with a concrete number and its own arrays."""

    def __init__(
        self, setup: Setup, index: int, round: int, root: Key[Array, ""], occurrence: int
    ) -> None:
        super().__init__(
            setup.task,
            setup.solver,
            setup.schedule,
            setup.layout,
            stream(root, "client", round, index, occurrence),
        )
        self.index = index
        self.round = round
        self.data = {name: jnp.asarray(values) for name, values in setup.task.train[index].items()}
        self.size: int = int(setup.task.train.sizes[index])
        self.share = jnp.asarray(self.size / setup.population.total, setup.layout.dtype)
        work = local_work(setup.schedule, root, round, index, self.size)
        self.steps = int(work.steps)
        self.stride = int(work.batch)
        self.batch = min(self.stride, self.size)

    def first(self, count: int, split: Literal["train", "test"] = "train") -> "EagerMinibatch":
        data = getattr(self.task, split)[self.index]
        chosen = {name: jnp.asarray(values[:count]) for name, values in data.items()}
        return EagerMinibatch(self, chosen, None)

    def fold(self, step: Callable[..., Carry], carry: Carry, batches: int) -> Carry:
        full = self.schedule.batch_size == "full"
        per_epoch = -(-self.size // self.batch)
        for step_index in range(self.steps):
            epoch, batch_index = divmod(step_index, per_epoch)
            if batch_index == 0:
                order = np.arange(self.size)
                if self.schedule.order == "shuffled" and not full:
                    # a method may repeat its minibatches in a traced loop
                    with jax.ensure_compile_time_eval():
                        key = jax.random.fold_in(self.key("order"), epoch)
                        order = np.asarray(permutation(key, self.size, self.size))
            # the same keys as in a compiled run: by step, by minibatch of the step, by piece (0)
            noise = jax.random.fold_in(self.key("noise"), step_index)
            minibatches = []
            for j in range(batches):
                begin = (batch_index + j) % per_epoch * self.batch
                rows = order[begin : begin + self.batch]
                if self.task.couples:
                    width = self.schedule.widest(self.task.train.largest, filled=True)
                    rows = order[(begin + np.arange(width) % self.stride) % self.size]
                key = jax.random.fold_in(jax.random.fold_in(noise, j) if j else noise, 0)
                minibatches.append(
                    EagerMinibatch(self, {name: v[rows] for name, v in self.data.items()}, key)
                )
            carry = step(carry, *minibatches)
        return carry


class EagerMinibatch(Minibatch):
    """A minibatch without padding."""

    def __init__(self, client: EagerClient, data: dict[str, Array], key: Any) -> None:
        self.client = client
        self.data = data
        self.key = key

    def loss(self, params: PyTree) -> Float[Array, ""]:
        return self._with_state(params)[0]

    def gradient(self, params: PyTree) -> PyTree:
        gradient, state = jax.grad(self._with_state, has_aux=True)(params)
        if self.key is not None and state is not None:
            self.client.take_over(state)
        return gradient

    def mean_of(self, function: Callable[..., Any], params: PyTree) -> PyTree:
        task = self.client.task.at(self.client.model_state)
        return task.sums(function, params, self.data, self._weights, self.key)

    def gradient_of(self, function: Callable[..., Any], params: PyTree) -> PyTree:
        return jax.grad(lambda params: self.mean_of(function, params))(params)

    @property
    def _weights(self) -> Float[Array, "batch"]:
        count = len(next(iter(self.data.values())))
        return jnp.full(count, 1 / max(count, 1), self.client.layout.dtype)

    def _with_state(self, params: PyTree) -> Any:
        task = self.client.task.at(self.client.model_state)
        loss, state = task.trained(params, self.data, self._weights, self.key)
        return loss + task.l2 / 2 * sum(
            (leaf**2).sum() for leaf in jax.tree.leaves(params)
        ) if task.l2 else loss, state


class ReferenceBackend(PythonBackend):
    """Runs the clients of a cohort in turn. Errors in their work name the method, the round and
    the client.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    def run_clients(
        self, phase_work: PhaseWork, cohort: Cohort, states: dict[str, ClientStates]
    ) -> list[ClientResult]:
        method = type(self.setup.algorithm).__name__
        location = f"{method}.{phase_work.name}, round {phase_work.round}, client"
        results = []
        for position, k in enumerate(cohort.ids.tolist()):
            work = phase_work.for_slot(position)
            rows = {name: memory.of(k) for name, memory in states.items()}
            client = EagerClient(self.setup, k, int(work.round), work.root, work.occurrence)
            try:
                results.append(work(client, rows))
            except FedaxError:
                raise
            except Exception as error:
                raise WorkError(f"{location} {k}: {type(error).__name__}: {error}") from error
        return results

    def exchange(
        self,
        phase_work: PhaseWork,
        everyone: Cohort,
        states: dict[str, ClientStates],
        neighbours: Array,
        weights: Array,
    ) -> tuple[PhaseResult, ClientStates]:
        result = self.work(phase_work, everyone, states, True)
        # rows of the neighbour table are padded with the node itself at weight 0
        nodes = list(zip(np.asarray(weights), np.asarray(neighbours), strict=True))

        def mix(uploads: Array) -> Array:
            received = [
                sum(jnp.asarray(w, uploads.dtype) * uploads[j] for w, j in zip(*node, strict=True))
                for node in nodes
            ]
            return jnp.stack(received)

        return result, ClientStates(jax.tree.map(mix, result.rows[0]))


class Eager(Engine):
    """The reference engine; see the module. No arguments."""

    in_process = True

    def program(self, inputs: ProgramInputs) -> "ReferenceProgram":
        return ReferenceProgram(inputs, lambda setup, _: ReferenceBackend(setup))


class ReferenceProgram(PythonProgram):
    """Rounds in Python; observers, which are no part of a round, are compiled."""

    def metrics(
        self, run: int, carry: RunCarry, worked: Cohort, observers: tuple[Observer, ...]
    ) -> dict[str, Any]:
        call = self.setup.task.programs.call
        return call(_observe, self.runs[run][0].setup, carry, worked, observers)


def _observe(
    setup: Setup, carry: RunCarry, last_cohort: Cohort, observers: tuple[Observer, ...]
) -> dict[str, Any]:
    return compute_all(observers, view_of(setup, carry, last_cohort))
