"""Recurrent layers of PyTorch's exported graphs."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from fedax.ops.affine import product_by_rows
from fedax.ops.lstm import recur
from fedax.tasks.own_models.torch_modules.layers import CONTEXTUAL as CONTEXTUAL
from fedax.tasks.own_models.torch_modules.layers import Context, contextual, drop

Cell = Callable[[Any, Array, Array, Array | None], Any]
"""The next state, of the state, the projected inputs, the recurrent kernel and its bias."""


@contextual("lstm.input")
def _lstm(
    context: Context, x: Array, start: Sequence[Any], *settings: Any
) -> tuple[Array | None, ...]:
    """Returns the states after every step, and the last hidden states and cells of all layers.

    A start of None means zeros, and that nothing reads the cells: fedax has that recurrence.
    """
    if start[0] is None:
        return (*_layers(context, x, None, _fast_lstm, settings)[:2], None)
    return _layers(context, x, tuple(start), _by_cell(_lstm_cell, joined=True), settings)


@contextual("gru.input")
def _gru(context: Context, x: Array, start: Array, *settings: Any) -> tuple[Array, ...]:
    return _layers(context, x, (start,), _by_cell(_gru_cell), settings)


@contextual("rnn_tanh.input")
def _rnn_tanh(context: Context, x: Array, start: Array, *settings: Any) -> tuple[Array, ...]:
    return _layers(context, x, (start,), _by_cell(_rnn_cell(jnp.tanh), joined=True), settings)


@contextual("rnn_relu.input")
def _rnn_relu(context: Context, x: Array, start: Array, *settings: Any) -> tuple[Array, ...]:
    return _layers(context, x, (start,), _by_cell(_rnn_cell(jax.nn.relu), joined=True), settings)


def _layers(
    context: Context,
    x: Array,
    start: tuple[Array, ...] | None,
    run: Callable[..., Any],
    settings: Sequence[Any],
) -> tuple[Array, ...]:
    """Runs layers of one or two directions, with dropout between them.

    `run` does it for one: of inputs (steps, batch, features), parameters and a start to the states
    after every step and the last state, a tuple.
    """
    params, biases, layers, dropout, training, bidirectional, batch_first = settings
    x = x.swapaxes(0, 1) if batch_first else x
    # arrays of a layer and direction: two kernels, and two biases if there are any
    directions, each = 1 + bidirectional, 2 + 2 * biases
    last = []
    for layer in range(layers):
        sides = []
        for side in range(directions):
            place = layer * directions + side
            begin = None if start is None else tuple(part[place] for part in start)
            # the second direction reads the steps from the end
            states, end = run(
                x[::-1] if side else x, params[place * each : (place + 1) * each], begin
            )
            sides.append(states[::-1] if side else states)
            last.append(end)
        x = sides[0] if directions == 1 else jnp.concatenate(sides, axis=2)
        if training and layer < layers - 1:
            x = drop(context, x, dropout)
    return x.swapaxes(0, 1) if batch_first else x, *(
        jnp.stack(parts) for parts in zip(*last, strict=True)
    )


def _fast_lstm(x: Array, params: Sequence[Array], start: None) -> tuple[Array, tuple[Array]]:
    inputs, recurrent, *biases = params
    projected = _project(x, inputs)
    if biases:
        projected = projected + (biases[0] + biases[1])
    peepholes = jnp.zeros((3, recurrent.shape[1]), x.dtype)
    states: Any = recur(projected, recurrent.T, peepholes, False)
    return states, (states[-1],)


def _project(x: Array, inputs: Array) -> Array:
    """Multiplies the inputs of all steps at once by the kernel."""
    return product_by_rows(x.reshape(-1, x.shape[2]), inputs).reshape(*x.shape[:2], -1)


def _by_cell(cell: Cell, *, joined: bool = False) -> Callable[..., Any]:
    """Returns a layer of a cell; the recurrent bias may be `joined` to that of the inputs."""

    def run(
        x: Array, params: Sequence[Array], start: tuple[Array, ...]
    ) -> tuple[Array, tuple[Array, ...]]:
        inputs, recurrent, *biases = params
        projected = _project(x, inputs)
        projected = projected + biases[0] if biases else projected
        projected = projected + biases[1] if biases and joined else projected
        # that of a GRU lies within the reset gate, so it cannot be joined
        bias = biases[1] if biases and not joined else None

        def step(state: tuple[Array, ...], now: Array) -> tuple[tuple[Array, ...], Array]:
            state = cell(state, now, recurrent, bias)
            return state, state[0]

        end, states = lax.scan(step, start, projected)
        return states, end

    return run


def _lstm_cell(
    state: tuple[Array, ...], now: Array, recurrent: Array, bias: Array | None
) -> tuple[Array, ...]:
    h, c = state
    i, f, g, o = jnp.split(now + h @ recurrent.T, 4, axis=1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def _gru_cell(
    state: tuple[Array, ...], now: Array, recurrent: Array, bias: Array | None
) -> tuple[Array, ...]:
    (h,) = state
    own = h @ recurrent.T if bias is None else h @ recurrent.T + bias
    (r, z, n), (own_r, own_z, own_n) = jnp.split(now, 3, axis=1), jnp.split(own, 3, axis=1)
    r, z = jax.nn.sigmoid(r + own_r), jax.nn.sigmoid(z + own_z)
    # the reset gate acts on the product with the state, as in PyTorch
    n = jnp.tanh(n + r * own_n)
    return ((1 - z) * n + z * h,)


def _rnn_cell(activation: Callable[[Array], Array]) -> Cell:
    return lambda state, now, recurrent, bias: (activation(now + state[0] @ recurrent.T),)
