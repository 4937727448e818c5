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
    context: Context, x: Array, start: Sequence[Array] | None, *settings: Any
) -> tuple[Array | None, ...]:
    """Returns the states after every step, and the last hidden states and cells of all layers.

    A start of None means zeros, and that nothing reads the cells: fedax has that recurrence.
    """
    if start is None:
        return (*_run_layers(context, x, None, _run_fast_lstm, settings)[:2], None)
    return _run_layers(context, x, tuple(start), _scan_cell(_lstm_cell, joined=True), settings)


@contextual("gru.input")
def _gru(context: Context, x: Array, start: Array, *settings: Any) -> tuple[Array, ...]:
    return _run_layers(context, x, (start,), _scan_cell(_gru_cell), settings)


@contextual("rnn_tanh.input")
def _rnn_tanh(context: Context, x: Array, start: Array, *settings: Any) -> tuple[Array, ...]:
    return _run_layers(context, x, (start,), _scan_cell(_rnn_cell(jnp.tanh), joined=True), settings)


@contextual("rnn_relu.input")
def _rnn_relu(context: Context, x: Array, start: Array, *settings: Any) -> tuple[Array, ...]:
    return _run_layers(
        context, x, (start,), _scan_cell(_rnn_cell(jax.nn.relu), joined=True), settings
    )


def _run_layers(
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
    directions, arrays_per_direction = 1 + bidirectional, 2 + 2 * biases
    final_states = []
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            index = layer * directions + direction
            initial_state = None if start is None else tuple(array[index] for array in start)
            # the second direction reads the steps from the end
            states, final_state = run(
                x[::-1] if direction else x,
                params[index * arrays_per_direction : (index + 1) * arrays_per_direction],
                initial_state,
            )
            outputs.append(states[::-1] if direction else states)
            final_states.append(final_state)
        x = outputs[0] if directions == 1 else jnp.concatenate(outputs, axis=2)
        if training and layer < layers - 1:
            x = drop(context, x, dropout)
    return x.swapaxes(0, 1) if batch_first else x, *(
        jnp.stack(arrays) for arrays in zip(*final_states, strict=True)
    )


def _run_fast_lstm(x: Array, params: Sequence[Array], start: None) -> tuple[Array, tuple[Array]]:
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


def _scan_cell(cell: Cell, *, joined: bool = False) -> Callable[..., Any]:
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

        def step(
            state: tuple[Array, ...], projected_step: Array
        ) -> tuple[tuple[Array, ...], Array]:
            state = cell(state, projected_step, recurrent, bias)
            return state, state[0]

        end, states = lax.scan(step, start, projected)
        return states, end

    return run


def _lstm_cell(
    state: tuple[Array, ...], projected: Array, recurrent: Array, bias: Array | None
) -> tuple[Array, ...]:
    h, c = state
    i, f, g, o = jnp.split(projected + h @ recurrent.T, 4, axis=1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def _gru_cell(
    state: tuple[Array, ...], projected: Array, recurrent: Array, bias: Array | None
) -> tuple[Array, ...]:
    (h,) = state
    hidden = h @ recurrent.T if bias is None else h @ recurrent.T + bias
    (r, z, n), (hidden_r, hidden_z, hidden_n) = (
        jnp.split(projected, 3, axis=1),
        jnp.split(hidden, 3, axis=1),
    )
    r, z = jax.nn.sigmoid(r + hidden_r), jax.nn.sigmoid(z + hidden_z)
    # the reset gate acts on the product with the state, as in PyTorch
    n = jnp.tanh(n + r * hidden_n)
    return ((1 - z) * n + z * h,)


def _rnn_cell(activation: Callable[[Array], Array]) -> Cell:
    return lambda state, projected, recurrent, bias: (
        activation(projected + state[0] @ recurrent.T),
    )
