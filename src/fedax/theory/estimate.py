r"""The constants of the papers, measured on a task: curvature, the optimum of convex problems,
variances.

All pass over the training examples in pieces, and see the objective that is trained: mean losses of
the clients with the task's l2, client k weighing $p_k = n_k/n$ or, with `weights="equal"`, 1/N.
Curvature is that *at a point*, which bounds the smoothness of the whole objective from below. It is
that smoothness for quadratics, and at 0 for logistic regression with two classes and one weight for
each feature. Softmax regression with C classes has $\lambda_{\max}(X^\top X) / (C n)$ at 0, and
elsewhere it may have up to $\lambda_{\max}(X^\top X) / 2n$. `fedax.theory.constants` has bounds of
the whole objective.

    >>> import fedax
    >>> task = fedax.Task(np.float64(0.0), lambda w, x: 2 * (w - x) ** 2, [[1.0, 2.0], [6.0]])
    >>> losses = Losses(task, weights="equal")
    >>> best = optimum(losses)
    >>> round(smoothness(losses), 5), round(float(best.w[0]), 5), round(best.value, 5)
    (4.0, 3.75, 10.375)
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import scipy  # imports what is asked for, and only then
from jaxtyping import Array, Float, PyTree

from fedax.core import InvalidInput, Task
from fedax.core.task import weighted_sum
from fedax.utils.layout import Layout

Point = Float[Array | np.ndarray, "dim"]


PIECE = 1024
"""How many examples pass through the model at once."""


class Losses:
    r"""The losses $f_k$ of a task's clients and $f = \sum_k p_k f_k$, with gradients and Hessian
    products.

    Args:
        task: what is learned.
        weights: `"shares"`, $p_k = n_k/n$, or `"equal"`, $p_k = 1/N$.
        start: the parameters to start from, a pytree; by default those that the task makes from a
            fixed key, at which no run of a task with a random start begins.

    Attributes:
        start: the starting point, flat.
        shares: $p_k$.
        layout: how parameters lie in a flat vector; `layout.ravel(history.params)` is a point.

    Raises:
        KeyError: another weighting.
    """

    def __init__(self, task: Task, *, weights: str = "shares", start: PyTree = None) -> None:
        params = task.start(jax.random.key(0)) if start is None else start
        self.task = task
        self.layout = Layout.of(params)
        self.start = self.layout.ravel(params)
        sizes = np.asarray(task.train.sizes)
        counted = {"shares": sizes, "equal": np.ones(self.clients)}[weights]
        self.shares = counted / counted.sum()
        self._piece = min(PIECE, task.train.largest)
        self._arrays = {name: jnp.asarray(values) for name, values in task.train.arrays.items()}
        # weights by example: p_k / n_k in f, and 1 / n_k in the loss of its client
        dtype = self.start.dtype
        self._mean_weights = jnp.asarray(np.repeat(self.shares / sizes, sizes), dtype)
        self._client_weights = jnp.asarray(np.repeat(1 / sizes, sizes), dtype)
        # programs, compiled at their first call
        self._value_and_gradient_of = self._sum_pieces(jax.value_and_grad(self._loss))
        self._product_of = self._sum_pieces(self._product)
        self._squares_of = jax.jit(self._map_squares)

    @property
    def clients(self) -> int:
        """N."""
        return self.task.train.clients

    def value(self, w: Point, client: int | None = None) -> float:
        """Returns $f(w)$, or $f_k(w)$ of one client."""
        return self.value_and_gradient(w, client)[0]

    def gradient(self, w: Point, client: int | None = None) -> Float[np.ndarray, "dim"]:
        r"""Returns $\nabla f(w)$, or $\nabla f_k(w)$ of one client."""
        return self.value_and_gradient(w, client)[1]

    def value_and_gradient(
        self, w: Point, client: int | None = None
    ) -> tuple[float, Float[np.ndarray, "dim"]]:
        r"""Returns $f(w)$ and $\nabla f(w)$, or those of one client's loss."""
        zeros = jnp.zeros((), self.start.dtype), jnp.zeros_like(self.start)
        value, gradient = self._sum_over(client, self._value_and_gradient_of, zeros, w)
        return float(value), np.asarray(gradient, float)

    def gradients(self, w: Point) -> Float[np.ndarray, "clients dim"]:
        r"""Returns $\nabla f_k(w)$ of every client."""
        return np.array([self.gradient(w, k) for k in range(self.clients)])

    def hessian_product(
        self, w: Point, v: Point, client: int | None = None
    ) -> Float[np.ndarray, "dim"]:
        r"""Returns $\nabla^2 f(w) v$, or that of one client's loss, at the cost of about two
        gradients.
        """
        zeros = jnp.zeros_like(self.start)
        return np.asarray(self._sum_over(client, self._product_of, zeros, w, v), float)

    def squares(self, w: Point, rows: Any) -> Float[np.ndarray, "examples"]:
        r"""Returns $\lVert \nabla \ell_j(w) \rVert^2$ of single training examples, without l2."""
        examples = {name: values[rows] for name, values in self._arrays.items()}
        return np.asarray(self._squares_of(self._as_point(w), examples), float)

    def _as_point(self, w: Point) -> Array:
        point = jnp.asarray(w, self.start.dtype)
        if point.shape != self.start.shape:
            raise InvalidInput.found(
                "w", f"shape {point.shape}", f"a flat vector of {self.start.shape[0]} numbers"
            )
        return point

    def _sum_over(self, client: int | None, program: Any, zeros: PyTree, *vectors: Point) -> Any:
        """Runs a program of `_sum_pieces` on the examples of a client, or on all."""
        offsets = self.task.train.offsets
        first, last = (0, self.clients) if client is None else (client, client + 1)
        weights = self._mean_weights if client is None else self._client_weights
        points = [self._as_point(vector) for vector in vectors]
        return program(
            points, self._arrays, weights, int(offsets[first]), int(offsets[last]), zeros
        )

    def _sum_pieces(self, evaluate: Any) -> Any:
        """Compiles the sum of a function over the pieces of a range of examples."""

        def run(
            points: Sequence[Array],
            arrays: dict[str, Array],
            weights: Array,
            begin: Array,
            end: Array,
            zeros: PyTree,
        ) -> PyTree:
            def add_piece(i: Array, total: PyTree) -> PyTree:
                piece = evaluate(*points, arrays, weights, begin + i * self._piece, end)
                return jax.tree.map(jnp.add, total, piece)

            count = (end - begin + self._piece - 1) // self._piece
            return jax.lax.fori_loop(0, count, add_piece, zeros)

        return jax.jit(run)

    def _loss(
        self, w: Array, arrays: dict[str, Array], weights: Array, begin: Array, end: Array
    ) -> Array:
        """Returns the loss of one piece from `begin`, with l2 in the share of its examples."""
        # a piece may reach beyond the end: rows there have weight 0
        rows = begin + jnp.arange(self._piece, dtype=jnp.int32)
        weight = jnp.where(rows < end, weights.at[rows].get(mode="clip"), 0)
        examples = {name: values.at[rows].get(mode="clip") for name, values in arrays.items()}
        values = self.task.functions["loss"](self.layout.unravel(w), examples, None)
        losses = weighted_sum(values, weight)
        # the weights of all pieces add up to 1, so l2 counts once
        return losses + weight.sum() * self.task.l2 / 2 * (w @ w)

    def _product(self, w: Array, v: Array, *piece: Any) -> Array:
        return jax.grad(lambda w: jax.grad(self._loss)(w, *piece) @ v)(w)

    def _map_squares(self, w: Array, examples: PyTree) -> Array:
        def loss(w: Array, example: PyTree) -> Array:
            batch = jax.tree.map(lambda value: value[None], example)
            values = self.task.functions["loss"](self.layout.unravel(w), batch, None)
            return values[0].astype(w.dtype)

        def square(example: PyTree) -> Array:
            gradient = jax.grad(loss)(w, example)
            return gradient @ gradient

        # 64 gradients at a time: each has as many numbers as the model
        return jax.lax.map(square, examples, batch_size=64)


def smoothness(
    losses: Losses, w: Point | None = None, *, client: int | None = None, tolerance: float = 1e-6
) -> float:
    r"""Returns $\max_j |\lambda_j(\nabla^2 f(w))|$, or that of one client: L at a point.

    Args:
        losses: see `Losses`.
        w: the point, flat; by default the task's start.
        client: its number; None for f.
        tolerance: relative accuracy, above 0; by Lanczos iterations on Hessian products (ARPACK).

    Raises:
        InvalidInput: a point of another size.
    """
    return abs(_extreme_eigenvalue(losses, w, client, tolerance, 0.0, 1.0))


def lowest_eigenvalue(
    losses: Losses, w: Point | None = None, *, client: int | None = None, tolerance: float = 1e-4
) -> float:
    r"""Returns $\lambda_{\min}(\nabla^2 f(w))$, or that of one client; $-\lambda$ of FedDANE's
    Theorem 5 where it is negative.

    Args:
        losses, w, client: as in `smoothness`.
        tolerance: accuracy in parts of the smoothness, above 0.

    Raises:
        InvalidInput: a point of another size.
    """
    largest = smoothness(losses, w, client=client, tolerance=max(tolerance, 1e-3))
    # a little above, so that the shifted matrix is positive definite
    shift = 1.01 * largest
    # the largest eigenvalue of shift - H, which is positive definite; a lowest one near 0 would
    # never converge by itself
    return shift - _extreme_eigenvalue(losses, w, client, tolerance / 2, shift, -1.0)


def _extreme_eigenvalue(
    losses: Losses, w: Point | None, client: int | None, tolerance: float, shift: float, sign: float
) -> float:
    """Returns the eigenvalue of shift + sign H that is largest in absolute value."""
    point = losses._as_point(losses.start if w is None else w)
    dim = point.shape[0]

    def product(v: np.ndarray) -> np.ndarray:
        return shift * v + sign * losses.hessian_product(point, v.ravel(), client)

    # a fixed start, so that equal tasks give equal numbers
    start = np.random.default_rng(0).normal(size=dim)
    image = product(start)
    # ARPACK needs at least two dimensions, and an operator that is not 0
    if dim == 1 or not image.any():
        return float(image[0] / start[0])
    lanczos: Any = scipy.sparse.linalg.eigsh
    eigenvalues = lanczos(
        _linear_operator(dim, product),
        k=1,
        which="LM",
        v0=start,
        tol=tolerance,
        ncv=min(dim, 24),
        return_eigenvectors=False,
    )
    return float(eigenvalues[0])


def _linear_operator(dim: int, matvec: Any) -> Any:
    return cast(Any, scipy.sparse.linalg.LinearOperator)((dim, dim), matvec=matvec, dtype=float)


class Optimum(NamedTuple):
    """A minimiser `w`, flat, the value there, and the norm of the gradient, which tells how exact
    it is.
    """

    w: Float[np.ndarray, "dim"]
    value: float
    gradient: float


def optimum(losses: Losses) -> Optimum:
    r"""Returns the minimiser of a convex f and $f^*$, by Newton's method with conjugate gradients
    and halved steps.

    At most 100 Newton steps, to $\lVert \nabla f \rVert \le 10^{-10}$, or where rounding lets it
    fall no more.

    Args:
        losses: see `Losses`.

    Raises:
        InvalidInput: an objective with negative curvature.
    """
    w = np.asarray(losses.start, float)
    for _ in range(100):
        gradient = losses.gradient(w)
        norm = float(np.linalg.norm(gradient))
        if norm <= 1e-10:
            break
        operator = _linear_operator(len(w), functools.partial(losses.hessian_product, w))
        # solved more exactly as the gradient falls, which keeps Newton's method fast
        direction = scipy.sparse.linalg.cg(
            operator, -gradient, rtol=min(0.1, math.sqrt(norm)) * 0.1, maxiter=4 * len(w)
        )[0]
        # rounding may give a tiny negative curvature of convex losses
        if direction @ (operator @ direction) < -1e-6 * (direction @ direction):
            raise InvalidInput.found("optimum(losses=...)", "negative curvature", "convex losses")
        trials = (w + direction / 2**halvings for halvings in range(20))
        better = (trial for trial in trials if np.linalg.norm(losses.gradient(trial)) < norm)
        trial = next(better, None)
        # rounding decides: the gradient cannot fall any further
        if trial is None:
            break
        w = trial
    return Optimum(w, losses.value(w), float(np.linalg.norm(losses.gradient(w))))


def local_variance(
    losses: Losses,
    w: Point,
    client: int,
    *,
    batch_size: int = 1,
    samples: int | None = None,
    seed: int = 0,
) -> float:
    r"""Returns the gradient variance $\sigma_l^2$ of minibatches drawn without replacement.

    $\sigma_l^2 = \mathbb E \lVert \nabla f_k(w; \xi) - \nabla f_k(w) \rVert^2$.

    $$ \frac{1}{b} \cdot \frac{n_k - b}{n_k - 1} \Big( \frac{1}{n_k} \sum_j \lVert \nabla \ell_j
    \rVert^2
       - \Big\lVert \frac{1}{n_k} \sum_j \nabla \ell_j \Big\rVert^2 \Big). $$

    Args:
        losses: see `Losses`.
        w: the point, flat.
        client: its number.
        batch_size: b, at least 1; from $n_k$ on the batch has all examples.
        samples: how many examples to take the first mean over; None for all.
        seed: of their choice.
    """
    size = int(losses.task.train.sizes[client])
    rows = np.arange(size)
    if samples is not None and samples < size:
        rows = np.random.default_rng(seed).choice(size, samples, replace=False)
    squares = losses.squares(w, rows + losses.task.train.offsets[client])
    # single gradients have no l2, so it is taken out of the mean too
    mean = losses.gradient(w, client) - losses.task.l2 * np.asarray(w, float)
    # draws without replacement: the factor is 0 for a batch of all examples
    scale = max(size - batch_size, 0) / max(size - 1, 1) / batch_size
    return scale * max(float(squares.mean() - mean @ mean), 0.0)
