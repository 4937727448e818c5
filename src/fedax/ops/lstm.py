"""Long short-term memory over a sequence."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Key

from fedax.ops.primitives import Result, aligned, batch_by, choose, differentiate_by, primitive

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
        keys, bound = jax.random.split(key, len(shapes)), hidden**-0.5
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
    """Runs the recurrence of `LSTM` over projected inputs.

    First derivatives are in reverse mode, further ones in any.
    """
    return _forward(projected, kernel, peepholes, peep)[0]


def _forward(projected: Gates, kernel: Array, peepholes: Array, peep: bool) -> tuple[Array, Any]:
    # with a first axis of one group
    operands = aligned(projected[None], kernel[None], peepholes[None])
    hs, cs, gates = (
        x[0] for x in recur_p.bind(*operands, peep=peep, native=_uses_extension(*operands))
    )
    return hs, (hs, cs, gates, kernel, peepholes)


def _backward(
    peep: bool, saved: Any, gradient: Float[Array, "steps batch hidden"]
) -> tuple[Array, Array, Array]:
    """Passes only the state's gradient through the loop.

    The parameters' gradients are one product over all steps after it.
    """
    hs, cs, gates, kernel, peepholes = saved
    operands = aligned(*(x[None] for x in (gradient, gates, cs, kernel, peepholes)))
    da = recur_gradient_p.bind(*operands, peep=peep, native=_uses_extension(*operands))[0][0]
    width = kernel.shape[0]
    # sums h of the step before times da, over all steps and examples
    dkernel = _shift(hs).reshape(-1, width).T @ da.reshape(-1, 4 * width)
    if not peep:
        return da, dkernel, jnp.zeros_like(peepholes)
    # i and f see the cell before the step, o the one after it
    previous_cells = _shift(cs)
    di, df, _, do = jnp.split(da, 4, axis=2)
    return (
        da,
        dkernel,
        jnp.stack(
            [
                (di * previous_cells).sum((0, 1)),
                (df * previous_cells).sum((0, 1)),
                (do * cs).sum((0, 1)),
            ]
        ),
    )


recur.defvjp(_forward, _backward)


def _uses_extension(*operands: Array) -> bool:
    # the last operand is the peepholes, shape (groups, 3, hidden)
    return choose(*operands, native=None if operands[-1].shape[2] >= SMALLEST else False)


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
            i, f = i + peepholes[0][None, :] * c, f + peepholes[1][None, :] * c
        i, f, g = _sigmoid(i), _sigmoid(f), jnp.tanh(g)
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
        dh, tanh = dh + gradient, jnp.tanh(c)
        do = dh * tanh * o * (1 - o)
        dc = dc + dh * o * (1 - tanh * tanh)
        if peep:
            dc = dc + do * peepholes[2][None, :]
        di, df, dg = dc * g * i * (1 - i), dc * c_before * f * (1 - f), dc * i * (1 - g * g)
        # what reaches the cell before: along c, and through the gates that see it
        dc = dc * f
        if peep:
            dc = dc + di * peepholes[0][None, :] + df * peepholes[1][None, :]
        da = jnp.concatenate([di, df, dg, do], axis=1)
        return (da @ transposed, dc), da

    zero = jnp.zeros_like(gradient[0])
    return [lax.scan(step, (zero, zero), (gradient, gates, cs, _shift(cs)), reverse=True)[1]]


def _vmap_groups(function: Any) -> Any:
    def plain(*operands: Array, peep: bool) -> list[Array]:
        # one group needs no vmap
        if operands[0].shape[0] == 1:
            return [x[None] for x in function(*(x[0] for x in operands), peep)]
        return jax.vmap(partial(function, peep=peep))(*operands)

    return plain


def _state_shapes(projected: Any, kernel: Any, _: Any, **params: Any) -> list[Result]:
    state = (*projected.shape[:3], kernel.shape[1])
    return [
        Result(shape, projected.dtype, images=False) for shape in (state, state, projected.shape)
    ]


def _gradient_shape(_: Any, gates: Any, *others: Any, **params: Any) -> list[Result]:
    return [Result(gates.shape, gates.dtype, images=False)]


def _make_call(kind: int) -> Any:
    return "fedax_recur", lambda *shapes, peep: [kind, peep]


_all_states, _all_gradients = _vmap_groups(_compute_states), _vmap_groups(_compute_gradient)
recur_p = primitive("fedax_recur", _state_shapes, _all_states, _make_call(0), (False,) * 3)
recur_gradient_p = primitive(
    "fedax_recur_gradient", _gradient_shape, _all_gradients, _make_call(1), (False,) * 5
)
batch_by(recur_p, (2, None, None), (2, 2, 2))
batch_by(recur_gradient_p, (2, 2, 2, None, None), (2,))
differentiate_by(recur_p, _all_states)  # second derivatives: those of `recur` are its gradient's
differentiate_by(recur_gradient_p, _all_gradients)


RECURRENCES = {recur_p.name: (0, 1), recur_gradient_p.name: (1, 3)}
"""Their names in traced programs, and the places of the gates and the kernel among their
operands."""
