r"""Steps of descent on the kernels of fully connected layers, $w \leftarrow w + c\, x^\top g$, without an array for the gradient.

The gradient of a large kernel is written, read again for the step, and gone; with a batch of some dozen examples that takes as long
as the arithmetic, or longer. In a traced step, `in_place` finds kernels whose gradient has no other use, and makes one call of the
product and the step. Where the gradient by the examples is taken from the same kernel, it belongs to the call: each part of the
kernel is then read once for both, and the kernel changes where it is, because all that reads it comes before.
"""

import math
from collections import Counter
from typing import Any, NamedTuple

import jax
from jax.extend.core import Literal
from jax.interpreters import batching

from fedax.ops.affine import NARROWEST, input_gradient_p, kernel_gradient_p
from fedax.ops.primitives import Result, differentiate_by, primitive


def _results(kernel: Any, x: Any, gradient: Any, *factors: Any, back: bool, **_: Any) -> list[Result]:
    return [Result(kernel.shape, kernel.dtype, False)] + [Result(x.shape, x.dtype, False)] * back


def _apart(kernel: Any, x: Any, gradient: Any, *factors: Any, back: bool, minus: bool, native: bool = False) -> list[Any]:
    """The step as it is traced: a product for the gradient, then the step."""
    change = math.prod(factors) * kernel_gradient_p.bind(x, gradient, native=native)[0][0]
    after = kernel - change if minus else kernel + change
    return [after, input_gradient_p.bind(gradient, kernel[None], native=native)[0]] if back else [after]


step_p = primitive(
    "fedax_affine_step",
    _results,
    _apart,
    ("fedax_affine_step", lambda *_, minus, **__: [int(minus)]),
    (False,) * 3,
    in_place=1,
)
differentiate_by(step_p, _apart)


def _batched(operands: Any, dims: Any, **params: Any) -> Any:
    """The products have forms of their own for many models or examples."""
    outs = jax.vmap(lambda *single: _apart(*single, **params), tuple(dims))(*operands)
    return outs, [0] * len(outs)


batching.primitive_batchers[step_p] = _batched


def in_place(program: Any) -> Any:
    """A traced program whose steps on kernels are single calls, where the extension has their products; the same if it has none."""
    text = _Text(program)
    steps = [step for number in range(len(program.eqns)) if (step := _step(text, number)) is not None]
    if not steps:
        return program
    at = {step.place: step for step in steps}
    done = set().union(*(step.replaced for step in steps))
    equations = []
    for number, equation in enumerate(program.eqns):
        if number in at:
            before = [n for n in at[number].before if n not in done]
            equations += [*(program.eqns[n] for n in before), at[number].equation]
            done.update(before)
        elif number not in done:
            equations.append(equation)
    return program.replace(eqns=equations)


class _Text:
    """The equations of a program, and for each variable the number of the one that makes it and how often it is used."""

    def __init__(self, program: Any) -> None:
        self.equations = program.eqns
        self.made = {out: number for number, equation in enumerate(program.eqns) for out in equation.outvars}
        used = [operand for equation in program.eqns for operand in equation.invars] + program.outvars
        self.uses = Counter(operand for operand in used if not isinstance(operand, Literal))

    def maker(self, variable: Any) -> int:
        """The number of the equation; -1 for what the program is given."""
        return -1 if isinstance(variable, Literal) else self.made.get(variable, -1)

    def only(self, variable: Any, name: str) -> int:
        """The same if the equation has that name and nothing else uses the variable; -1 otherwise."""
        number = self.maker(variable)
        return number if number >= 0 and self.uses[variable] == 1 and self.equations[number].primitive.name == name else -1

    def since(self, variable: Any, place: int) -> set[int]:
        """The equations from a place on that a variable depends on."""
        found, left = set[int](), [self.maker(variable)]
        while left:
            number = left.pop()
            if number >= place and number not in found:
                found.add(number)
                left += map(self.maker, self.equations[number].invars)
        return found


class _Step(NamedTuple):
    """Equations of a program, by their numbers, that are one step; the equation in their place, and those that go before it."""

    place: int
    replaced: set[int]
    equation: Any
    before: list[int]


def _step(text: _Text, number: int) -> _Step | None:
    """The step that an equation ends."""
    last = text.equations[number]
    if last.primitive.name not in ("add", "sub"):
        return None
    minus = last.primitive.name == "sub"
    for kernel, change in [tuple(last.invars)] + [tuple(last.invars[::-1])] * (not minus):
        replaced, factors = [number], []
        while (scaled := text.only(change, "mul")) >= 0:
            factor, change = sorted(text.equations[scaled].invars, key=lambda operand: operand.aval.ndim)
            replaced.append(scaled)
            factors.append(factor)
        summed = text.only(change, "reduce_sum")
        taken = text.only(text.equations[summed].invars[0], kernel_gradient_p.name) if summed >= 0 else -1
        if taken < 0:
            continue
        gradient = text.equations[taken]
        x, other = gradient.invars
        back = _input_gradient(text, kernel, other)
        replaced += [summed, taken, *back]
        fits = factors and all(factor.aval.ndim == 0 for factor in factors) and change.aval.shape == kernel.aval.shape
        fits = fits and x.aval.shape[0] == 1 and min(kernel.aval.shape) >= NARROWEST and gradient.params["native"]
        operands = [kernel, x, other, *factors]
        if not fits or len({operand.aval.dtype for operand in operands}) > 1:
            continue
        place = min([taken, *back])  # the gradient by the examples is used from there on
        before = set().union(*(text.since(operand, place) for operand in operands))
        if before.isdisjoint(replaced) and all(out.aval.ndim == 0 for n in before for out in text.equations[n].outvars):
            outs = [*last.outvars, *(out for n in back for out in text.equations[n].outvars)]
            params = {"native": True, "back": bool(back), "minus": minus}
            equation = gradient.replace(primitive=step_p, invars=operands, outvars=outs, params=params)
            return _Step(place, {*replaced}, equation, sorted(before))
    return None


def _input_gradient(text: _Text, kernel: Any, gradient: Any) -> list[int]:
    """The equation with the gradient by the examples from the same kernel and gradient by the outputs, if there is one."""
    for number, equation in enumerate(text.equations):
        if equation.primitive is input_gradient_p and equation.invars[0] is gradient and equation.params["native"]:
            group = text.maker(equation.invars[1])
            made = text.equations[group] if group >= 0 else None
            if made is not None and made.primitive.name == "broadcast_in_dim" and made.invars[0] is kernel:
                return [number]
    return []
