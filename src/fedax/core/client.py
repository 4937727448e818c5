"""The client, as a work function sees it, and the interface of its local solver."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Key, PyTree

from fedax.core.bound_model import PerExample
from fedax.core.hyper import MOST_COUNT, PerClient, Scalar, check_declared, entry
from fedax.core.local_problem import LocalProblem
from fedax.core.scheduling.schedule import Schedule
from fedax.core.task import Task
from fedax.errors import InvalidInput
from fedax.utils.jax_internals import get_opaque_trace_state
from fedax.utils.layout import Layout, Part
from fedax.utils.random import Index, stream

Carry = TypeVar("Carry")


class Minibatch(ABC):
    """Some of a client's examples, as one step of local work sees them. `params` is the model's own
    pytree.

    Every gradient of a step's minibatch is a training step of the model's state, if it has one (see
    `Client.model_state`), but for `gradient_aside`.
    """

    client: "Client"

    @abstractmethod
    def loss(self, params: PyTree) -> Float[Array, ""]:
        """Returns the mean loss over the batch, with the task's l2."""

    @abstractmethod
    def gradient(self, params: PyTree) -> PyTree:
        """Returns the gradient of `loss`."""

    def gradient_aside(self, params: PyTree) -> PyTree:
        """Returns the gradient of `loss` at another point than that of the model which is trained,
        whose state it leaves as it is.
        """
        with self.client.frozen_state():
            return self.gradient(params)

    def hessian_product(self, params: PyTree, direction: PyTree) -> PyTree:
        """Returns the Hessian of `loss` times a direction, at about the cost of two gradients."""

        def slope(params: PyTree) -> PyTree:
            return optax.tree.vdot(self.gradient(params), direction)

        return jax.grad(slope)(params)

    @abstractmethod
    def mean_of(self, function: PerExample, params: PyTree) -> PyTree:
        """Returns the mean over the batch of a function of its examples, such as features by class.

        Args:
            function: `(params, examples, key) -> values`, as `Task.loss`: a pytree of arrays whose
                first axis is the batch. It gets the model's parameters with the frozen ones, and
                the task's arrays by name, labels included.
            params: the trained parameters.
        """

    @abstractmethod
    def gradient_of(self, function: PerExample, params: PyTree) -> PyTree:
        """Returns the gradient of `mean_of` by the parameters.

        The function gives one number per example, such as another loss that the method defines. The
        task's l2 is not part of it, and the model's state stays.
        """


StepGradient: TypeAlias = Callable[[Minibatch, PyTree], PyTree]
"""What steps take for the gradient of a minibatch at some parameters."""


class Client(ABC):
    """One client in one phase of one round. Concrete in eager and deployed runs, traced in compiled
    ones.

    Attributes:
        index: its number in the population, from 0.
        size: n_k, its training examples.
        share: n_k / n, its share of all training examples.
        steps: minibatch steps of this round.
        batch: examples of a full minibatch in this round, at most `size`.
        round: the round, from 0; with an asynchronous server the version of the model that it
            received.
        staleness: server steps between the one that it received and the one that takes its upload.
            It is known on arrival only: for uploads and their weights, not for local work.
        layout: how the model's parameters lie in the flat vector.
        solver, schedule, task: as given to `run`.
        model_state: what the model updates without a gradient, None if it has nothing such; the
            engine's business.
        solver_state: what the solver stores between rounds, None if it starts afresh; see
            `Solver.initial_state`.

    Engines make clients, with `streams`, the key of the client's random numbers in the round; see
    `key`.
    """

    index: Index
    size: Index
    share: Float[Array, ""]
    steps: Index
    batch: Index
    round: Index

    def __init__(
        self,
        task: Task,
        solver: "Solver",
        schedule: Schedule,
        layout: Layout,
        streams: Key[Array, ""],
    ) -> None:
        self.task = task
        self.solver = solver
        self.schedule = schedule
        self.layout = layout
        self._streams = streams
        self.staleness: Index = 0
        # `_step_trace` is the trace in which gradients train the state, None outside of steps
        self.model_state = task.state
        self.trained = False
        self._step_trace: object = None
        self.solver_state: PyTree = None
        self._has_solved = False
        self._minimized: list[tuple[Array, Array]] = []

    def loss(self, w: Float[Array, "dim"]) -> Float[Array, ""]:
        """Returns f_k(w), the mean loss over all training examples, with the task's l2."""
        # so many examples are all of them
        return self.first(MOST_COUNT).loss(self.layout.unravel(w))

    def gradient(self, w: Float[Array, "dim"]) -> Float[Array, "dim"]:
        """Returns the gradient of f_k at w, over all training examples."""
        return self.layout.ravel(self.first(MOST_COUNT).gradient(self.layout.unravel(w)))

    def gradient_of(self, problem: LocalProblem, w: Float[Array, "dim"]) -> Float[Array, "dim"]:
        """Returns the gradient of a local problem at w, over all training examples."""
        gradient = problem.added_gradient(
            self.layout, self.layout.unravel(self.gradient(w)), self.layout.unravel(w)
        )
        return self.layout.ravel(gradient)

    def hessian_product(
        self, w: Float[Array, "dim"], direction: Float[Array, "dim"]
    ) -> Float[Array, "dim"]:
        """Returns the Hessian of f_k at w times a direction, see `Minibatch.hessian_product`."""
        examples = self.first(MOST_COUNT)
        unravel = self.layout.unravel
        return self.layout.ravel(examples.hessian_product(unravel(w), unravel(direction)))

    def mean_of(self, function: PerExample, w: Float[Array, "dim"]) -> PyTree:
        """Returns the mean of a function over all training examples, see `Minibatch.mean_of`."""
        return self.first(MOST_COUNT).mean_of(function, self.layout.unravel(w))

    def for_each_minibatch(
        self, step: Callable[..., Carry], carry: Carry, batches: int = 1
    ) -> Carry:
        """Folds `step(carry, minibatch)` over this round's minibatches: all local work is built on
        it.

        With several `batches` a step also gets the minibatches that follow in the epoch's order
        (from its end on, the first ones); the number of steps stays the same. The model's state
        goes from step to step beside the carry. A step that takes gradients in a loop of its own
        writes the loop with `repeat`; within `jax.grad` and the like the state stays as it is.
        """
        if self.model_state is None:
            return self.fold(step, carry, batches)

        start: Any = (carry, self.model_state)
        carry, self.model_state = self.fold(self._with_state(step), start, batches)
        self.trained = True
        return carry

    def repeat(self, count: int, step: Callable[[Carry], Carry], carry: Carry) -> Carry:
        """Applies `step` to `carry` `count` times, within a step of `for_each_minibatch`.

        `step` may take gradients.
        """
        with_state = self._with_state(step)
        carry, state = jax.lax.fori_loop(
            0, count, lambda _, carry: with_state(carry), (carry, self.model_state)
        )
        self.take_over(state)
        return carry

    @contextmanager
    def frozen_state(self) -> Generator[None]:
        """Leaves the model's state as it is: for work on a second model, beside the one that goes
        up.
        """
        state = self.model_state
        try:
            yield
        finally:
            self.model_state = state

    def take_over(self, state: PyTree) -> None:
        """Sets the model's state after a training step.

        Does nothing if the state is frozen, or if the gradient was taken inside a transformation
        such as `jax.grad`, where the state is a tracer that must not leak.
        """
        if self.task.state_policy != "frozen" and self._step_trace == get_opaque_trace_state():
            self.model_state = state

    def _with_state(self, step: Callable[..., Carry]) -> Callable[..., tuple[Carry, PyTree]]:
        """Returns the step with a carry that is a pair: the caller's, and the model's state."""

        def with_state(
            carry: tuple[Carry, PyTree], *minibatches: Minibatch
        ) -> tuple[Carry, PyTree]:
            # the trace of the step tells later which gradients are training steps, see `take_over`
            previous = self.model_state, self._step_trace
            self.model_state = carry[1]
            self._step_trace = get_opaque_trace_state()
            try:
                return step(carry[0], *minibatches), self.model_state
            finally:
                self.model_state, self._step_trace = previous

        return with_state

    @abstractmethod
    def fold(self, step: Callable[..., Carry], carry: Carry, batches: int) -> Carry:
        """Runs the steps of `for_each_minibatch`, which carry the model's state themselves."""

    @abstractmethod
    def first(self, count: int, split: Literal["train", "test"] = "train") -> Minibatch:
        """Returns the first `count` examples, or all if there are fewer, in the given order."""

    def adapted(
        self, w: Float[Array, "dim"], rate: Scalar, split: Literal["train", "test"]
    ) -> Float[Array, "dim"]:
        """Returns the model after one gradient step of size `rate` on the client's first 20
        examples.
        """
        return w - rate * self.layout.ravel(self.first(20, split).gradient(self.layout.unravel(w)))

    def minimize(
        self, problem: LocalProblem | None = None, *, start: Float[Array, "dim"]
    ) -> Float[Array, "dim"]:
        """Runs the user's solver on `problem` (its own loss by default) from `start`, for this
        round's work.

        An upload whose first vector is the result has `start` as its reference, see `Upload`.
        """
        end = self.solver.minimize(self, problem or LocalProblem(), start)
        self._minimized.append((end, start))
        return end

    def start_of(self, ends: Sequence[Array]) -> Array | None:
        """Returns where `minimize` began when it returned the first of `ends`, which is told by
        identity; None for any other array. For engines.
        """
        return next((start for end, start in self._minimized if ends and end is ends[0]), None)

    def minimize_only(self, part: Part, w: Float[Array, "dim"]) -> Float[Array, "dim"]:
        """Runs the solver on the client's loss for some leaves only.

        The other leaves are neither moved nor differentiated.
        """
        if not any(part.chosen):
            return w
        # a stored state has the structure of the whole model
        if self.solver_state is not None:
            allowed = "False for methods that train some leaves apart from the others"
            raise InvalidInput.of("run(solver=...), keep", True, allowed)
        # a copy sees the chosen leaves as the whole model, so that any solver works on them
        partial_client = copy.copy(self)
        others = part.others
        partial_client.layout = part.layout
        partial_client.task = self.task.holding(others.layout.unravel(others.take(w)))
        w = part.put(w, partial_client.minimize(start=part.take(w)))
        # training moved the state of the copy
        self.model_state = partial_client.model_state
        self.trained = partial_client.trained
        return w

    def store_solver_state(self, state: PyTree) -> None:
        """Stores the solver's state after its work.

        Raises:
            InvalidInput: a second local problem in the same work: both would share one state.
        """
        if self._has_solved:
            allowed = "False for methods whose clients solve several local problems in a round"
            raise InvalidInput.of("run(solver=...), keep", True, allowed)
        self.solver_state = state
        self._has_solved = True

    def key(self, purpose: str) -> Key[Array, ""]:
        """Returns this client's random stream of this round for one purpose."""
        return stream(self._streams, purpose)

    def mine(self, value: PerClient) -> Array:
        """Returns the client's entry of a per-client hyperparameter, or the common value."""
        return entry(value, self.index)

    @property
    def learning_rate(self) -> Scalar:
        """The step size of this round, for methods whose formulas have one.

        Raises:
            InvalidInput: the solver does not take plain gradient steps of one size.
        """
        return self.solver.step_size() * self.rate

    def mean_gradient(self, moved: Float[Array, "dim"]) -> Float[Array, "dim"]:
        """Returns the gradient of each step on average, from the start of local work less its end.

        Raises:
            InvalidInput: the solver does not take plain gradient steps of one size.
        """
        return moved / (self.learning_rate * jnp.asarray(self.steps, moved.dtype))

    @property
    def plain_learning_rate(self) -> Scalar:
        """The step size of this round, for work that takes its steps without the solver.

        Raises:
            InvalidInput: the solver's steps are not plain gradient steps of one size.
        """
        return self.solver.plain_step_size() * self.rate

    @property
    def nominal_learning_rate(self) -> Scalar:
        """The learning rate that the solver multiplies its momentum or its gradients by in this
        round, as released code uses it.

        Raises:
            InvalidInput: the solver is not `SGD`.
        """
        return self.solver.nominal_step_size() * self.rate

    @property
    def objective_weight(self) -> Float[Array, ""]:
        r"""Its weight $p_k$ in the objective up to a common factor: $n_k/n$, or 1 where the
        schedule has equal weights.
        """
        return self.share if self.schedule.weights == "size" else jnp.ones_like(self.share)

    @property
    def steps_before(self) -> Index:
        """The local steps of a client that took part in every round before this one, each of as
        many as this one has.
        """
        # with `times` the rounds before had other numbers of steps, known in advance
        times = self.schedule.times
        return (
            self.round * self.steps
            if times is None
            else jnp.asarray((0, *times), jnp.int32)[self.round]
        )

    @property
    def rate(self) -> Scalar:
        """The solver's factor on the learning rate in this round."""
        return self.solver.factor(self.round, self.layout.dtype)


class Solver(eqx.Module):
    """Turns a local problem and a starting point into a local model.

    `on_mesh` says whether it can work inside a program over several devices; if not, a simulation
    uses one. `is_counted` says whether the schedule says how many steps it takes; otherwise the
    data do.
    """

    on_mesh: ClassVar[bool] = True
    is_counted: ClassVar[bool] = True

    @property
    def has_step_decay(self) -> bool:
        """Whether the learning rate is another one in every step."""
        return False

    def __check_init__(self) -> None:
        check_declared(self)

    @abstractmethod
    def minimize(
        self, client: Client, problem: LocalProblem, start: Float[Array, "dim"]
    ) -> Float[Array, "dim"]:
        """Returns the local model after this round's work."""

    def initial_state(self, params: PyTree) -> PyTree:
        """Returns what each client stores for the solver between rounds, before the first one; None
        for nothing.
        """
        return None

    def factor(self, round: Index, dtype: DTypeLike) -> Scalar:
        """Returns the factor on the learning rate in all steps of a round."""
        return 1.0

    def step_size(self) -> Scalar:
        """Returns the size of plain gradient steps, before the factor of the round.

        Raises `InvalidInput` for solvers that take other steps.
        """
        raise self._refusal("SGD without momentum, clipping, weight decay or decay by step")

    def plain_step_size(self) -> Scalar:
        """Returns the same for methods that step along gradients themselves; raises `InvalidInput`
        for solvers that take other gradients.
        """
        return self.step_size()

    def nominal_step_size(self) -> Scalar:
        """Returns the learning rate as set, before the round's factor, momentum, clipping and
        decay.
        """
        raise self._refusal("SGD")

    def accumulated(self, client: Client, prox: Scalar) -> Float[Array, ""]:
        r"""Returns $\lVert a \rVert_1$, the sum of the weights of gradients in the model's change.

        `prox` is the weight of a proximal term beside them.
        """
        raise self._refusal("SGD without keep=True, clipping, weight decay or decay by step")

    def _refusal(self, needed: str) -> InvalidInput:
        allowed = f"{needed}, which this method's formulas need"
        return InvalidInput.found("run(solver=...)", type(self).__name__, allowed)
