r"""Descent steps in place: rewrites a dense layer's gradient and step into one native call.

A step on the kernel of a fully connected layer is $w \leftarrow w + c\, x^\top g$, with inputs x
(batch, in), gradients of the outputs g (batch, out) and w (in, out). Traced plainly, the gradient
$x^\top g$ is written to memory, read again for the step, and dropped; for batches of some dozen
examples that takes as long as the arithmetic, or longer.

`rewrite_descent_steps` finds kernels whose gradient has no other use, and replaces the product and
the step by one call. If the same equations also take the gradient of the inputs, $g w^\top$, it
becomes part of the call: each block of w is then read from memory once for both. XLA can update w
in place, because all equations that read w come before the call. See `rewrites` for the switch and
the gain.
"""

import math
from collections import Counter
from typing import Any, NamedTuple

import jax

from fedax.engine.compilation.rewrites import disabled_reason
from fedax.ops.affine import NARROWEST, input_gradient_p, kernel_gradient_p
from fedax.ops.extension import usable
from fedax.ops.primitives import Result, differentiate_by, primitive
from fedax.utils.jax_internals import Literal, batching


def can_rewrite_steps() -> bool:
    """Returns whether the switch and the native extension allow rewriting descent steps."""
    return not disabled_reason() and usable()


def _result_shapes(
    kernel: Any, x: Any, gradient: Any, *factors: Any, back: bool, **_: Any
) -> list[Result]:
    return [Result(kernel.shape, kernel.dtype, False)] + [Result(x.shape, x.dtype, False)] * back


def _plain_step(
    kernel: Any, x: Any, gradient: Any, *factors: Any, back: bool, minus: bool, native: bool = False
) -> list[Any]:
    """Computes the step as it is traced without the rewrite: first the gradient, then the step.

    Args:
        kernel: w, shape (in, out).
        x: inputs of the layer, shape (1, batch, in); the first axis is the group axis of the native
            products.
        gradient: with respect to the outputs, shape (1, batch, out).
        factors: scalars, whose product is c.
        back: whether to return the gradient of the inputs too.
        minus: whether to subtract.
        native: whether the products are native calls.
    """
    change = math.prod(factors) * kernel_gradient_p.bind(x, gradient, native=native)[0][0]
    new_kernel = kernel - change if minus else kernel + change
    return (
        [new_kernel, input_gradient_p.bind(gradient, kernel[None], native=native)[0]]
        if back
        else [new_kernel]
    )


descent_step_p = primitive(
    "fedax_affine_step",
    _result_shapes,
    _plain_step,
    ("fedax_affine_step", lambda *_, minus, **__: [int(minus)]),
    (False,) * 3,
    in_place=1,
)
differentiate_by(descent_step_p, _plain_step)


def _batch_step(operands: Any, dims: Any, **params: Any) -> Any:
    """Batches the plain step, whose products have batched native forms; the call has none."""
    outs = jax.vmap(lambda *single: _plain_step(*single, **params), tuple(dims))(*operands)
    return outs, [0] * len(outs)


batching.primitive_batchers[descent_step_p] = _batch_step


def rewrite_descent_steps(jaxpr: Any) -> Any:
    """Returns a jaxpr whose descent steps on kernels are single calls.

    A jaxpr without such steps is returned unchanged.
    """
    graph = _Graph(jaxpr)
    matches = [
        match
        for number in range(len(jaxpr.eqns))
        if (match := _match_step(graph, number)) is not None
    ]
    if not matches:
        return jaxpr
    by_position = {match.position: match for match in matches}
    emitted = set().union(*(match.replaced for match in matches))
    equations = []
    for number, equation in enumerate(jaxpr.eqns):
        if number in by_position:
            match = by_position[number]
            hoisted = [n for n in match.moved_up if n not in emitted]
            equations += [*(jaxpr.eqns[n] for n in hoisted), match.call]
            emitted.update(hoisted)
        elif number not in emitted:
            equations.append(equation)
    return jaxpr.replace(eqns=equations)


class _Graph:
    """Def-use graph of a jaxpr: which equation defines a variable, and how often it is used.

    Equations go by their number.
    """

    def __init__(self, jaxpr: Any) -> None:
        self.equations = jaxpr.eqns
        self.definition = {
            out: number for number, equation in enumerate(jaxpr.eqns) for out in equation.outvars
        }
        operands = [
            operand for equation in jaxpr.eqns for operand in equation.invars
        ] + jaxpr.outvars
        self.uses = Counter(operand for operand in operands if not isinstance(operand, Literal))

    def find_definition(self, variable: Any) -> int | None:
        """Returns the equation that defines a variable.

        Returns None for literals and the jaxpr's inputs.
        """
        return None if isinstance(variable, Literal) else self.definition.get(variable)

    def find_sole_definition(self, variable: Any, name: str) -> int | None:
        """Returns the defining equation if it has that primitive and the variable is used once.

        Returns None otherwise.
        """
        number = self.find_definition(variable)
        if (
            number is None
            or self.uses[variable] != 1
            or self.equations[number].primitive.name != name
        ):
            return None
        return number

    def dependencies(self, variable: Any, since: int) -> set[int]:
        """Returns the equations from number `since` on that a variable depends on."""
        reached, pending = set[int](), [self.find_definition(variable)]
        while pending:
            number = pending.pop()
            if number is not None and number >= since and number not in reached:
                reached.add(number)
                pending += map(self.find_definition, self.equations[number].invars)
        return reached


class _Match(NamedTuple):
    """Equations that are one descent step, and the call that replaces them.

    Attributes:
        position: the first of the equations; the call takes its place.
        replaced: all of the equations.
        call: the new equation.
        moved_up: equations that compute the call's factors after `position`; they move in front of
            the call.
    """

    position: int
    replaced: set[int]
    call: Any
    moved_up: list[int]


class _Update(NamedTuple):
    """The pattern `kernel ± f1 * f2 * ... * reduce_sum(kernel_gradient(x, gradient))`.

    Attributes:
        kernel: the variable that takes the step.
        factors: f1, f2, ...
        change: the variable under the factors, of the kernel's shape.
        product: the number of the equation `kernel_gradient`.
        equations: numbers of all equations of the pattern.
    """

    kernel: Any
    factors: list[Any]
    change: Any
    product: int
    equations: list[int]


def _match_step(graph: _Graph, number: int) -> _Match | None:
    """Returns the descent step that an equation `w + change` or `w - change` ends, or None."""
    equation = graph.equations[number]
    if equation.primitive.name not in ("add", "sub"):
        return None
    minus = equation.primitive.name == "sub"
    orders = (
        [tuple(equation.invars)]
        if minus
        else [tuple(equation.invars), tuple(equation.invars[::-1])]
    )
    for kernel, change in orders:
        update = _match_update(graph, number, kernel, change)
        if update is not None and (match := _build_match(graph, number, update, minus)) is not None:
            return match
    return None


def _match_update(graph: _Graph, number: int, kernel: Any, change: Any) -> _Update | None:
    """Follows a change back through its scalings to the gradient of a kernel."""
    equations, factors = [number], []
    while (scaling := graph.find_sole_definition(change, "mul")) is not None:
        # of the two operands, the scalar is the factor
        factor, change = sorted(
            graph.equations[scaling].invars, key=lambda operand: operand.aval.ndim
        )
        equations.append(scaling)
        factors.append(factor)
    # the native product has a group axis of length 1, which the derivative of broadcasting the
    # kernel sums over
    if (summation := graph.find_sole_definition(change, "reduce_sum")) is None:
        return None
    product = graph.find_sole_definition(
        graph.equations[summation].invars[0], kernel_gradient_p.name
    )
    if product is None:
        return None
    return _Update(kernel, factors, change, product, [*equations, summation, product])


def _build_match(graph: _Graph, number: int, update: _Update, minus: bool) -> _Match | None:
    """Builds the call for an update, or returns None if the native step does not support it."""
    product = graph.equations[update.product]
    x, gradient = product.invars
    operands = [update.kernel, x, gradient, *update.factors]
    if not _is_supported(update, product, operands):
        return None
    # the gradient of the inputs is read by equations that follow it, so the call must stand where
    # the first of both stood
    back = _find_input_gradient(graph, update.kernel, gradient)
    replaced = {*update.equations, *back}
    position = min([update.product, *back])
    hoisted = set().union(*(graph.dependencies(operand, position) for operand in operands))
    if not hoisted.isdisjoint(replaced):
        return None  # a factor depends on the step, such as the gradient's norm
    if any(out.aval.ndim > 0 for n in hoisted for out in graph.equations[n].outvars):
        return None  # moving arrays up would keep them in memory for longer
    outs = [
        *graph.equations[number].outvars,
        *(out for n in back for out in graph.equations[n].outvars),
    ]
    params = {"native": True, "back": bool(back), "minus": minus}
    call = product.replace(primitive=descent_step_p, invars=operands, outvars=outs, params=params)
    return _Match(position, replaced, call, sorted(hoisted))


def _is_supported(update: _Update, product: Any, operands: list[Any]) -> bool:
    """Returns whether the native step has a form for these shapes and types."""
    return (
        len(update.factors) > 0
        and all(factor.aval.ndim == 0 for factor in update.factors)
        and update.change.aval.shape == update.kernel.aval.shape
        and product.invars[0].aval.shape[0] == 1
        and min(update.kernel.aval.shape) >= NARROWEST
        and product.params["native"]
        and len({operand.aval.dtype for operand in operands}) == 1
    )


def _find_input_gradient(graph: _Graph, kernel: Any, gradient: Any) -> list[int]:
    """Returns the equation of the inputs' gradient that shares the call's operands, in a list."""
    for number, equation in enumerate(graph.equations):
        if (
            equation.primitive is input_gradient_p
            and equation.invars[0] is gradient
            and equation.params["native"]
        ):
            group = graph.find_definition(equation.invars[1])
            if group is None:
                continue
            broadcast = graph.equations[group]
            if broadcast.primitive.name == "broadcast_in_dim" and broadcast.invars[0] is kernel:
                return [number]
    return []
