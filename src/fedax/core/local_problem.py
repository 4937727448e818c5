"""The local problem: what a client minimises in place of its own loss."""

from collections.abc import Callable

import equinox as eqx
import jax
from jaxtyping import Array, Float, PyTree

from fedax.core.hyper import Scalar
from fedax.errors import InvalidInput
from fedax.utils.layout import Layout


class LocalProblem(eqx.Module):
    r"""The problem
    $\min_w\; f_k(w) + \langle \ell, w \rangle + \frac{\rho}{2}\lVert w - a \rVert^2$.

    With $\ell$ = `linear`, $\rho$ = `prox` and $a$ = `anchor` this is the local problem of FedAvg
    (nothing set), FedProx ($\rho = \mu$, $a = w_t$), DANE and FedDANE
    ($\ell = g_t - \nabla F_k(w_t)$), SCAFFOLD ($\ell = c - c_k$), FedDyn, FedBC
    ($\rho = 2\lambda_k$, $a = z$) and pFedMe.

    Args:
        anchor: the point that the quadratic pulls to, shape `(dim,)`.
        linear: the linear term, shape `(dim,)`.
        prox: the weight of the quadratic; its gradient is `prox * (w - anchor)`.
        drift: a vector d that every step of `SGD` adds beside its own update u,
            $w \leftarrow w + u - \eta d$, shape `(dim,)`. Unlike `linear` it does not enter the
            momentum, and the result minimises no function. Other solvers refuse it.
        step_gradient: `(minibatch, params) -> gradient`, which steps of `SGD` and `Optax` take
            instead of the minibatch's gradient of the loss; the added terms above come on top.
            Momentum, clipping and decay work on the result, as with `SGD(sharpness=...)`. Solvers
            that need a function to minimise refuse it.
    """

    anchor: Float[Array, "dim"] | None = None
    linear: Float[Array, "dim"] | None = None
    prox: Scalar | None = None
    drift: Float[Array, "dim"] | None = None
    step_gradient: Callable[..., PyTree] | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        if (self.prox is None) != (self.anchor is None):
            raise InvalidInput.of(
                "LocalProblem(anchor, prox)", (self.anchor, self.prox), "both or neither"
            )

    def require_function(self, solver: str) -> None:
        """Refuses a drift and changed gradients of steps, for solvers that need a function to
        minimise.

        Raises:
            InvalidInput: the problem has one of them.
        """
        if self.drift is not None or self.step_gradient is not None:
            allowed = "SGD, whose steps this method changes"
            raise InvalidInput.found("run(solver=...)", solver, allowed)

    def added_gradient(self, layout: Layout, gradient: PyTree, params: PyTree) -> PyTree:
        r"""Adds the gradient of the added terms, $\ell + \rho (w - a)$, to `gradient`, leaf by
        leaf.
        """
        if self.linear is not None:
            gradient = jax.tree.map(
                lambda g, shift: g + shift, gradient, layout.unravel(self.linear)
            )
        if self.anchor is not None:
            anchor = layout.unravel(self.anchor)
            prox = self.prox
            gradient = jax.tree.map(lambda g, w, a: g + prox * (w - a), gradient, params, anchor)
        return gradient

    def added_value(self, w: Float[Array, "dim"]) -> Float[Array, ""]:
        r"""Returns the added terms,
        $\langle \ell, w \rangle + \frac{\rho}{2}\lVert w - a \rVert^2$.
        """
        # a zero of w's type, which stays NaN where w is
        value = (w * 0).sum()
        if self.linear is not None:
            value = value + self.linear @ w
        if self.anchor is not None and self.prox is not None:
            value = value + self.prox / 2 * ((w - self.anchor) ** 2).sum()
        return value
