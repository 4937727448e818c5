"""Local solvers: the minimisation of a client's local problem."""

import dataclasses
import functools
import inspect
import math
import operator
from abc import abstractmethod
from typing import Any, ClassVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PyTree

from fedax.core.bound_model import PerExample
from fedax.core.client import Client, Minibatch, Solver, StepGradient
from fedax.core.hyper import Scalar, hyper
from fedax.core.local_problem import LocalProblem
from fedax.errors import InvalidInput
from fedax.utils.layout import accumulator
from fedax.utils.random import Index


class Descent(Solver):
    r"""Minibatch steps of an Optax optimizer; the base of `SGD` and `Optax`.

    Args:
        decay: of the learning rate: a number $\delta$ in (0, 1], for the factors $\delta^t$, or an
            Optax schedule that gives the factor from a count t, from 0.
        decay_by: what t counts: `"round"`, the rounds of the run; `"step"`, the client's steps
            within a round; or `"run"`, its steps over the whole run, those of rounds without it
            included (as many in each as in this one, or as `Schedule.times` says).
        keep: whether each client stores the optimizer's state, such as momentum, and goes on with
            it in its next round. By default it starts afresh in every round. The state lies with
            the client's other states: offloaded, in checkpoints, never sent.
        sharpness: $\rho$ of sharpness-aware minimisation, at least 0; None for plain steps. Every
            step takes its gradient at the worst point nearby,

            $$ \nabla f_B\Big(w + \rho \frac{\nabla f_B(w)}{\lVert \nabla f_B(w) \rVert}\Big), $$

            of the minibatch B. The local problem's other terms, momentum, clipping and decay stay
            as they are, so that every method whose clients call `client.minimize` has a
            sharpness-aware form.

    Source of sharpness-aware steps: Foret et al., Sharpness-Aware Minimization for Efficiently
    Improving Generalization, ICLR 2021, Alg. 1.
    """

    _: dataclasses.KW_ONLY
    decay: float | optax.Schedule = hyper(
        1.0,
        static=True,
        low=0.0,
        open_low=True,
        high=1.0,
        schedule=True,
        doc="decay of the learning rate",
    )
    decay_by: str = hyper("round", choices=("round", "step", "run"), doc="count of the decay")
    keep: bool = hyper(
        False,
        static=True,
        later=True,
        doc="whether clients keep the optimizer's state between rounds",
    )
    sharpness: Scalar | None = hyper(
        None,
        kind=float,
        low=0.0,
        optional=True,
        later=True,
        doc="distance to the worst point nearby, where a step takes its gradient",
    )

    def initial_state(self, params: PyTree) -> PyTree:
        with jax.numpy_dtype_promotion("standard"):
            state = self.transformation().init(params) if self.keep else None
        # plain SGD has a state without arrays, and stores nothing
        return state if jax.tree.leaves(state) else None

    @property
    def has_step_decay(self) -> bool:
        """Whether the learning rate is another one in every step."""
        return self.decay != 1 and self.decay_by != "round"

    def factor(self, round: Index, dtype: DTypeLike) -> Scalar:
        return (
            self._decay_factor(round, dtype)
            if self.decay != 1 and self.decay_by == "round"
            else 1.0
        )

    def _decay_factor(self, count: Index, dtype: DTypeLike) -> Array:
        schedule: optax.Schedule = (
            self.decay if callable(self.decay) else optax.exponential_decay(1.0, 1, self.decay)
        )
        # a whole number would give 32 bits
        count = jnp.asarray(count, accumulator(dtype))
        return jnp.asarray(schedule(count), dtype)

    @abstractmethod
    def transformation(self) -> optax.GradientTransformation:
        """Returns the Optax optimizer, with the learning rate of round 0."""

    def minimize(
        self, client: Client, problem: LocalProblem, start: Float[Array, "dim"]
    ) -> Float[Array, "dim"]:
        layout = client.layout
        step_gradient = problem.step_gradient
        if self.sharpness is not None:
            step_gradient = sharp_gradient(self.sharpness, step_gradient)
        scaling = optax.scale(client.rate)
        if self.has_step_decay:
            # steps of the rounds before, which a decay over the run counts too
            steps_before = client.steps_before if self.decay_by == "run" else 0
            scaling = optax.scale_by_schedule(
                lambda count: self._decay_factor(steps_before + cast(Array, count), layout.dtype)
            )
        optimizer = optax.chain(self.transformation(), scaling)

        def step(carry: tuple[PyTree, PyTree], batch: Minibatch) -> tuple[PyTree, PyTree]:
            params, state = carry
            if step_gradient is None:
                gradient = batch.gradient(params)
            else:
                gradient = step_gradient(batch, params)
            gradient = problem.added_gradient(layout, gradient, params)
            # Optax multiplies numbers of 32 bits with counts
            with jax.numpy_dtype_promotion("standard"):
                updates, state = optimizer.update(gradient, state, params)
            params = optax.apply_updates(params, updates)
            return params if drift is None else optax.tree.add_scale(params, -rate, drift), state

        # `start` is flat, shape (dim,); steps work on the user's pytree, so that they do not
        # unravel the model before every gradient
        drift = None if problem.drift is None else layout.unravel(problem.drift)
        rate = 0.0 if drift is None else client.nominal_learning_rate
        params = layout.unravel(start)
        with jax.numpy_dtype_promotion("standard"):
            state: PyTree = optimizer.init(params)
        is_stored = client.solver_state is not None
        if is_stored:
            # the count of the decay starts afresh: it has the round in it where it should
            state = (client.solver_state, *state[1:])
        params, state = client.for_each_minibatch(step, (params, state))
        if is_stored:
            client.store_solver_state(state[0])
        return layout.ravel(params)


class SGD(Descent):
    r"""Stochastic gradient descent, $v \leftarrow \theta v + g,\; w \leftarrow w - \eta v$, with v
    = 0 at the round's start.

    >>> SGD(0.1).learning_rate
    0.1

    Args:
        learning_rate: $\eta$, above 0. `fedax.theory.step_size` computes the largest that a theorem
            allows for a task and a schedule.
        momentum: $\theta$ (heavy ball), in [0, 1).
        clip: the largest norm of g, above 0: a longer one is cut to it, as
            `optax.clip_by_global_norm` does; infinity for none. g is the gradient of the local
            problem on the minibatch, all terms of it.
        weight_decay: $\lambda$, at least 0: $\lambda w$ is added to g after clipping, as
            `optax.add_decayed_weights` does. It is no part of the objective, as the task's l2 is.
        decay, decay_by, sharpness: see `Descent`.
        keep: whether v is the client's own from its last round, not 0.
    """

    learning_rate: Scalar = hyper(0.01, low=0.0, open_low=True, doc="step size")
    momentum: float = hyper(
        0.0, static=True, low=0.0, high=1.0, open_high=True, doc="heavy-ball momentum"
    )
    _: dataclasses.KW_ONLY
    clip: float = hyper(
        math.inf, static=True, low=0.0, open_low=True, later=True, doc="largest norm of a gradient"
    )
    weight_decay: float = hyper(
        0.0, static=True, low=0.0, later=True, doc="part of the weights that is added to a gradient"
    )

    def step_size(self) -> Scalar:
        # formulas with a step size need steps of exactly that size along gradients
        is_plain = not (self.momentum or self.has_step_decay or self._changes_gradients)
        return self.learning_rate if is_plain else super().step_size()

    def plain_step_size(self) -> Scalar:
        if self.sharpness is not None:
            allowed = "None: this work takes its steps along gradients without the solver"
            raise InvalidInput.found("run(solver=...), sharpness", "a number", allowed)
        return self.step_size()

    def nominal_step_size(self) -> Scalar:
        return self.learning_rate

    @property
    def _changes_gradients(self) -> bool:
        """Whether steps are along other vectors than gradients of the local problem."""
        return self.clip < math.inf or self.weight_decay > 0 or (self.keep and self.momentum > 0)

    def accumulated(self, client: Client, prox: Scalar) -> Float[Array, ""]:
        if self.has_step_decay or self._changes_gradients:
            return super().accumulated(client, prox)
        dtype = client.layout.dtype
        wide = accumulator(dtype)
        pull = jnp.asarray(self.learning_rate * client.rate * prox, wide)

        def step(_: Index, state: tuple[Array, Array]) -> tuple[Array, Array]:
            speed, total = state
            # steps along a gradient of 1: `total` is the change so far, against which the pull acts
            speed = self.momentum * speed + 1 - pull * total
            return speed, total + speed

        zero = jnp.zeros((), wide)
        return jax.lax.fori_loop(0, client.steps, step, (zero, zero))[1].astype(dtype)

    def transformation(self) -> optax.GradientTransformation:
        # without a velocity to carry if there is none
        steps = optax.sgd(self.learning_rate, self.momentum or None)
        # clipping bounds the gradient alone, so weight decay comes after it
        transforms = [optax.clip_by_global_norm(self.clip)] * (self.clip < math.inf)
        transforms += [optax.add_decayed_weights(self.weight_decay)] * (self.weight_decay > 0)
        return optax.chain(*transforms, steps)


class Optax(Descent):
    """Any Optax optimizer as the local solver.

    Args:
        optimizer: an Optax gradient transformation.
        decay, decay_by, sharpness: as in `SGD`, on the optimizer's steps.
        keep: whether each client goes on with the optimizer's state of its last round. By default
            the state is fresh in every round. DiLoCo keeps AdamW's:

            >>> import optax
            >>> inner, outer = (
            ...     Optax(optax.adamw(1e-3), keep=True),
            ...     optax.sgd(0.7, 0.9, nesterov=True),
            ... )

    >>> import optax
    >>> solver = Optax(optax.chain(optax.clip_by_global_norm(10.0), optax.adam(1e-3)))
    """

    optimizer: optax.GradientTransformation = eqx.field(static=True)

    def transformation(self) -> optax.GradientTransformation:
        return self.optimizer


def _plain_gradient(batch: Minibatch, params: PyTree) -> PyTree:
    return batch.gradient(params)


def sharp_gradient(rho: Scalar, inner: StepGradient | None = None) -> StepGradient:
    """Returns the `LocalProblem(step_gradient=...)` of `SGD(sharpness=...)`.

    Args:
        rho: distance to the worst point nearby.
        inner: another `LocalProblem(step_gradient=...)`, which is taken there; by default the
            minibatch's gradient.
    """
    take = inner or _plain_gradient

    def gradient(batch: Minibatch, params: PyTree) -> PyTree:
        ascent = take(batch, params)
        norm = optax.tree.norm(ascent)
        # a gradient of 0 has no direction: the point itself then
        length = jnp.where(norm > 0, rho / jnp.where(norm > 0, norm, 1), 0)
        worst = jax.tree.map(lambda w, g: w + (length * g).astype(w.dtype), params, ascent)
        # the model's state, such as the statistics of batch norm, is trained at the point itself
        with batch.client.frozen_state():
            return take(batch, worst)

    return gradient


def scaled_gradient(factor: Scalar) -> StepGradient:
    """Returns the `LocalProblem(step_gradient=...)` of the minibatch gradient times a factor."""

    def gradient(batch: Minibatch, params: PyTree) -> PyTree:
        return jax.tree.map(lambda slope: factor * slope, batch.gradient(params))

    return gradient


def added_gradient(loss: PerExample, factor: Scalar) -> StepGradient:
    """Returns the `LocalProblem(step_gradient=...)` of the minibatch gradient and that of another
    loss times a factor, see `Minibatch.gradient_of`.
    """

    def gradient(batch: Minibatch, params: PyTree) -> PyTree:
        return jax.tree.map(
            lambda slope, pull: slope + factor * pull,
            batch.gradient(params),
            batch.gradient_of(loss, params),
        )

    return gradient


@functools.cache
def optax_solver(name: str) -> type[Descent] | None:
    """Returns the solver class of one of Optax's optimizers by its name, such as `adam` or
    `contrib.muon`; None if there is none with a learning rate.

    Its arguments are hyperparameters: the learning rate, 0.001 by default, is an input of the
    compiled program, and the others are parts of it.

    >>> optax_solver("adam")(learning_rate=0.01, b1=0.8)
    adam(learning_rate=0.01, b1=0.8)
    """
    try:
        factory = operator.attrgetter(name)(optax)
        parameters = inspect.signature(factory).parameters
    except (AttributeError, TypeError, ValueError):  # no such name, or no function
        return None
    if "learning_rate" not in parameters:
        return None
    # values that a file can spell, but for names of the solver itself, such as the `decay` of the
    # rate; other arguments, such as masks, keep Optax's defaults
    spellable = {
        key: parameter.default
        for key, parameter in parameters.items()
        if key not in ("learning_rate", *Descent.__dataclass_fields__)
        and isinstance(parameter.default, bool | int | float | str | None)
    }

    def transformation(self: Any) -> optax.GradientTransformation:
        return factory(self.learning_rate, **{key: getattr(self, key) for key in spellable})

    fields = {
        key: hyper(default, static=True, doc=f"see optax.{name}")
        for key, default in spellable.items()
    }
    fields = {"learning_rate": hyper(0.001, low=0.0, open_low=True, doc="step size")} | fields
    body = {
        "__annotations__": dict.fromkeys(fields, Any),
        "__module__": __name__,
        "__doc__": f"Optax's `{name}`, with a fresh state in every round unless `keep` is set.",
        "transformation": transformation,
        **fields,
    }
    metaclass: Any = type(Descent)
    return metaclass(name, (Descent,), body)


class Exact(Solver):
    r"""Minimises the local problem over all its examples to stationarity, whatever the schedule
    says of steps.

    For convex problems of moderate size (DANE, the theory's "exact local solver"): BFGS of
    Optimistix.

    Args:
        tol: absolute and relative tolerance of the solve, above 0.
        max_steps: iterations after which the best point so far is returned.
    """

    # its linear solver compares shardings, which differ inside a mesh
    on_mesh: ClassVar[bool] = False
    is_counted: ClassVar[bool] = False

    tol: Scalar = hyper(1e-10, low=0.0, open_low=True, doc="tolerance of the solve")
    max_steps: int = hyper(1000, low=1, doc="most iterations")

    def minimize(
        self, client: Client, problem: LocalProblem, start: Float[Array, "dim"]
    ) -> Float[Array, "dim"]:
        import optimistix as optx  # takes half a second to import, so only on demand

        problem.require_function("Exact")
        tol = cast(float, self.tol)

        @jax.custom_jvp
        def objective(w: Float[Array, "dim"], _: None) -> Float[Array, ""]:
            return client.loss(w) + problem.added_value(w)

        @objective.defjvp
        def _(primals: tuple[Array, None], tangents: tuple[Array, None]) -> tuple[Array, Array]:
            # the full loss is a loop of dynamic length, which reverse mode cannot differentiate;
            # its gradient is known
            w = primals[0]
            tangent = tangents[0]
            return objective(w, None), client.gradient_of(problem, w) @ tangent

        # after `max_steps` the best point so far
        method = optx.BestSoFarMinimiser(optx.BFGS(rtol=tol, atol=tol))
        return optx.minimise(objective, method, start, max_steps=self.max_steps, throw=False).value


class Inexact(Solver):
    r"""Full-gradient steps until the solution is $\gamma$-inexact, whatever the schedule says of
    steps.

    $$ w \leftarrow w - \eta \nabla P(w) \quad\text{until}\quad
       \lVert \nabla P(w) \rVert \le \frac{\gamma (\mu - \lambda)}{1 + \gamma} \lVert w - a \rVert,
       $$

    where P is the local problem with the proximal term $\frac{\mu}{2} \lVert w - a \rVert^2$ and
    $\nabla^2 f_k \succeq -\lambda I$. Then the minimiser $\underline w$ of P has
    $\lVert w - \underline w \rVert \le \gamma \lVert \underline w - a \rVert$
    (`fedax.theory.feddane.enough`). Steps converge for $\eta < \frac{2}{L_k + \mu}$. Where
    $\mu \le \lambda$ nothing is proved, and all `max_steps` are taken. Needs a method with a
    proximal term, such as FedProx, FedDANE, FedDyn or FedBC.

    >>> solver = Inexact(0.1, learning_rate=0.5)

    Args:
        gamma: $\gamma$, in (0, 1).
        learning_rate: $\eta$, above 0.
        concavity: $\lambda$, at least 0; 0 for convex losses.
        max_steps: steps after which the point so far is returned.

    Source: Li et al., FedDANE: A Federated Newton-Type Method (arXiv:2001.01920), Definition 1.
    """

    is_counted: ClassVar[bool] = False

    gamma: Scalar = hyper(
        0.1, low=0.0, open_low=True, high=1.0, open_high=True, doc="inexactness of the solution"
    )
    learning_rate: Scalar = hyper(0.01, low=0.0, open_low=True, doc="step size")
    concavity: Scalar = hyper(0.0, low=0.0, doc="how concave the losses may be")
    max_steps: int = hyper(1000, low=1, doc="most steps")

    def minimize(
        self, client: Client, problem: LocalProblem, start: Float[Array, "dim"]
    ) -> Float[Array, "dim"]:
        problem.require_function("Inexact")
        anchor = problem.anchor
        mu = problem.prox
        if anchor is None or mu is None:
            got = "Inexact, with a method whose local problem has no proximal term"
            raise InvalidInput.found(
                "run(solver=...)",
                got,
                "with such methods, other solvers; its rule is made of that term",
            )
        tolerance_factor = self.gamma * (mu - self.concavity) / (1 + self.gamma)
        # no steps for the padding of a chunk
        max_steps = jnp.where(jnp.asarray(client.steps) > 0, self.max_steps, 0)

        def continues(state: tuple[Array, Array, Array]) -> Array:
            w, gradient, steps = state
            return (steps < max_steps) & (
                jnp.linalg.norm(gradient) > tolerance_factor * jnp.linalg.norm(w - anchor)
            )

        def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            w, gradient, steps = state
            w = w - self.learning_rate * gradient
            return w, client.gradient_of(problem, w), steps + 1

        # (w, gradient of P at w, steps)
        return jax.lax.while_loop(
            continues, step, (start, client.gradient_of(problem, start), jnp.int32(0))
        )[0]
