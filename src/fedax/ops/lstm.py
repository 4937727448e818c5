"""Long short-term memory over a sequence."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Key

from fedax.ops.extension import call, derive_by, fold_batches, serves

Sequence = Float[Array, "steps batch features"]
Gates = Float[Array, "steps batch gates"]


class LSTM(NamedTuple):
    r"""The parameters of one layer of hidden width h, gates in the order i, f, g, o.

    $$i = \sigma(a_i + p_i c),\; f = \sigma(a_f + p_f c + \phi),\; g = \tanh a_g,\; c' = f c + i
    g,\; o = \sigma(a_o + p_o c'),\; h' = o \tanh c'$$

    with $a = x W + h U + b$ (+ a second bias, as PyTorch has it) and peepholes p (Gers and
    Schmidhuber, 2000) if there are any. The forget bias $\phi$ is a constant of the call and no
    parameter.
    """

    inputs: Float[Array, "features gates"]
    recurrent: Float[Array, "hidden gates"]
    bias: Float[Array, "gates"]
    second_bias: Float[Array, "gates"] | None = None
    peepholes: Float[Array, "3 hidden"] | None = None

    @classmethod
    def init(
        cls,
        key: Key[Array, ""],
        features: int,
        hidden: int,
        *,
        biases: int = 1,
        peepholes: bool = False,
        uniform: bool = False,
    ) -> "LSTM":
        """Initializes Glorot-uniform kernels and zero biases, or with `uniform` all numbers uniform
        up to 1 / sqrt(hidden).
        """
        shapes = [
            (features, 4 * hidden),
            (hidden, 4 * hidden),
            (4 * hidden,),
            (4 * hidden,),
            (3, hidden),
        ]
        # a key for each, used or not: no option changes the draws of another
        keys = jax.random.split(key, len(shapes))
        bound = hidden**-0.5
        if uniform:
            arrays = [
                jax.random.uniform(k, shape, minval=-bound, maxval=bound)
                for k, shape in zip(keys, shapes)
            ]
        else:
            # one matrix over inputs and state together, as cells with a single kernel draw it
            joint = jax.nn.initializers.glorot_uniform()(keys[0], (features + hidden, 4 * hidden))
            arrays = [
                joint[:features],
                joint[features:],
                *(jnp.zeros(shape) for shape in shapes[2:]),
            ]
        return cls(
            arrays[0],
            arrays[1],
            arrays[2],
            arrays[3] if biases == 2 else None,
            arrays[4] if peepholes else None,
        )

    def __call__(self, x: Sequence, forget_bias: float = 0.0) -> Float[Array, "steps batch hidden"]:
        """Returns the hidden states after every step, from a state of zeros."""
        steps, batch, features = x.shape
        hidden = self.recurrent.shape[0]
        bias = self.bias if self.second_bias is None else self.bias + self.second_bias
        if forget_bias:
            # gates lie side by side as i, f, g, o: a step of the second quarter
            bias = bias + forget_bias * jnp.repeat(jnp.array([0, 1, 0, 0], bias.dtype), hidden)
        # the inputs of all steps at once: one long product in place of many short ones
        projected = (x.reshape(-1, features) @ self.inputs).reshape(steps, batch, -1) + bias[
            None, None, :
        ]
        peepholes = jnp.zeros((3, hidden), bias.dtype) if self.peepholes is None else self.peepholes
        return recur(projected, self.recurrent, peepholes, self.peepholes is not None)


SMALLEST = 16
"""Hidden units from which on the extension serves: a vector of its widest instruction set."""


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def recur(
    projected: Gates,
    kernel: Float[Array, "hidden gates"],
    peepholes: Float[Array, "3 hidden"],
    peep: bool,
) -> Float[Array, "steps batch hidden"]:
    """Runs the recurrence of `LSTM` over projected inputs, with reverse-mode derivatives of any
    order.
    """
    return _forward(projected, kernel, peepholes, peep)[0]


def _forward(projected: Gates, kernel: Array, peepholes: Array, peep: bool) -> tuple[Array, Any]:
    hs, cs, gates = _states((projected, kernel, peepholes), peep)
    return hs, (hs, cs, gates, kernel, peepholes)


def _backward(
    peep: bool, saved: Any, gradient: Float[Array, "steps batch hidden"]
) -> tuple[Array, Array, Array]:
    """Passes only the state's gradient through the loop.

    The parameters' gradients are one product over all steps after it.
    """
    hs, cs, gates, kernel, peepholes = saved
    da = _gate_gradient((gradient, gates, cs, kernel, peepholes), peep)
    width = kernel.shape[0]
    # sums h of the step before times da, over all steps and examples
    dkernel = _shift(hs).reshape(-1, width).T @ da.reshape(-1, 4 * width)
    if not peep:
        return da, dkernel, jnp.zeros_like(peepholes)
    # i and f see the cell before the step, o the one after it
    previous_cells = _shift(cs)
    di, df, _, do = jnp.split(da, 4, axis=2)
    of_input = (di * previous_cells).sum((0, 1))
    of_forget = (df * previous_cells).sum((0, 1))
    return da, dkernel, jnp.stack([of_input, of_forget, (do * cs).sum((0, 1))])


recur.defvjp(_forward, _backward)


def _shift(states: Float[Array, "steps batch hidden"]) -> Float[Array, "steps batch hidden"]:
    """Returns the states before every step."""
    return jnp.concatenate([jnp.zeros_like(states[:1]), states[:-1]])


def _sigmoid(x: Array) -> Array:
    return 0.5 * jnp.tanh(0.5 * x) + 0.5  # on CPUs faster than by the exponential


def _compute_states(projected: Gates, kernel: Array, peepholes: Array, peep: bool) -> list[Array]:
    """Returns hidden states, cells, and the four gates side by side, after every step."""
    # shape (batch, hidden)
    zero = jnp.zeros_like(projected[0, :, : kernel.shape[0]])

    def step(state: tuple[Array, Array], projected: Array) -> tuple[Any, Any]:
        h, c = state
        i, f, g, o = jnp.split(projected + h @ kernel, 4, axis=1)
        if peep:
            i = i + peepholes[0][None, :] * c
            f = f + peepholes[1][None, :] * c
        i = _sigmoid(i)
        f = _sigmoid(f)
        g = jnp.tanh(g)
        c = f * c + i * g
        o = _sigmoid(o + peepholes[2][None, :] * c if peep else o)
        h = o * jnp.tanh(c)
        return (h, c), (h, c, jnp.concatenate([i, f, g, o], axis=1))

    return list(lax.scan(step, (zero, zero), projected)[1])


def _compute_gradient(
    gradient: Array, gates: Gates, cs: Array, kernel: Array, peepholes: Array, peep: bool
) -> list[Array]:
    """Computes the gradient of the gates' inputs from that of the hidden states."""
    transposed = kernel.T

    def step(carry: tuple[Array, Array], inputs: tuple[Array, ...]) -> tuple[Any, Array]:
        dh, dc = carry
        gradient, gates, c, c_before = inputs
        i, f, g, o = jnp.split(gates, 4, axis=1)
        # from the step after it, and from this step's own output
        dh = dh + gradient
        tanh = jnp.tanh(c)
        do = dh * tanh * o * (1 - o)
        dc = dc + dh * o * (1 - tanh * tanh)
        if peep:
            dc = dc + do * peepholes[2][None, :]
        di = dc * g * i * (1 - i)
        df = dc * c_before * f * (1 - f)
        dg = dc * i * (1 - g * g)
        # what reaches the cell before: along c, and through the gates that see it
        dc = dc * f
        if peep:
            dc = dc + di * peepholes[0][None, :] + df * peepholes[1][None, :]
        da = jnp.concatenate([di, df, dg, do], axis=1)
        return (da @ transposed, dc), da

    zero = jnp.zeros_like(gradient[0])
    return [lax.scan(step, (zero, zero), (gradient, gates, cs, _shift(cs)), reverse=True)[1]]


def _states(operands: tuple[Gates, Array, Array], peep: bool) -> Any:
    """Returns `_compute_states`, by the extension where it serves."""

    def native(projected: Gates, kernel: Array, peepholes: Array) -> Any:
        state = (*projected.shape[:2], kernel.shape[0])
        return _call(0, peep, (projected, kernel, peepholes), (state, state, projected.shape))

    plain = partial(_compute_states, peep=peep)
    if not _uses_extension(operands):
        return plain(*operands)
    return derive_by(fold_batches(native, native, (1, None, None), (1, 1, 1)), plain)(*operands)


def _gate_gradient(operands: tuple[Array, ...], peep: bool) -> Gates:
    """Returns `_compute_gradient`, by the extension where it serves."""

    def native(gradient: Array, gates: Gates, cs: Array, kernel: Array, peepholes: Array) -> Any:
        return _call(1, peep, (gradient, gates, cs, kernel, peepholes), (gates.shape,))

    plain: Any = partial(_compute_gradient, peep=peep)
    if not _uses_extension(operands):
        return plain(*operands)[0]
    folded = fold_batches(native, native, (1, 1, 1, None, None), (1,))
    return derive_by(folded, plain)(*operands)[0]


def _uses_extension(operands: tuple[Array, ...]) -> bool:
    # the last operand is the peepholes, shape (3, hidden)
    return operands[-1].shape[1] >= SMALLEST and serves(*operands)


def _call(kind: int, peep: bool, operands: tuple[Array, ...], shapes: Any) -> list[Any]:
    """Calls the extension; all arrays lie in the order of their axes."""
    layouts = [None] * len(operands)
    result_layouts = [None] * len(shapes)
    return list(call("fedax_recur", [kind, int(peep)], operands, layouts, shapes, result_layouts))
