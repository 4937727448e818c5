"""Recurrent layers of PyTorch's exported graphs, and the operator that draws random numbers."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from fedax.models.torch_modules.layers import linear
from fedax.ops.lstm import recur

Draw = Callable[[float, Sequence[int]], Array | float]
"""Draws an array of a shape that is True with a probability."""
State = tuple[Array, ...]
Cell = Callable[[State, Array, Array], State]
"""The next state, of the state, the projected inputs and the projected hidden state."""


class Draws:
    """Draws from a random key: another array for each operator that asks."""

    def __init__(self, key: Array) -> None:
        self.key = key
        self.count = 0

    def __call__(self, probability: float, shape: Sequence[int]) -> Array:
        """Returns an array that is True with a probability."""
        self.count += 1
        return jax.random.bernoulli(jax.random.fold_in(self.key, self.count), probability, shape)


def _bernoulli(draw: Draw, x: Array, rate: float) -> Array:
    """Returns ones with a probability, else zeros."""
    return jnp.broadcast_to(draw(rate, x.shape), x.shape).astype(x.dtype)


def _drop(draw: Draw | None, x: Array, rate: float) -> Array:
    if draw is None or rate == 0:
        return x
    return x * draw(1 - rate, x.shape) / (1 - rate) if rate < 1 else jnp.zeros_like(x)


def _lstm_cell(state: State, inputs: Array, hidden: Array) -> State:
    i, f, g, o = jnp.split(inputs + hidden, 4, axis=1)
    c = jax.nn.sigmoid(f) * state[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def _gru_cell(state: State, inputs: Array, hidden: Array) -> State:
    r, z, n = jnp.split(inputs, 3, axis=1)
    hidden_r, hidden_z, hidden_n = jnp.split(hidden, 3, axis=1)
    z = jax.nn.sigmoid(z + hidden_z)
    # the reset gate acts on the product with the state, as in PyTorch
    n = jnp.tanh(n + jax.nn.sigmoid(r + hidden_r) * hidden_n)
    return ((1 - z) * n + z * state[0],)


def _rnn_cell(activation: Callable[[Array], Array]) -> Cell:
    return lambda state, inputs, hidden: (activation(inputs + hidden),)


def _run_layer(cell: Cell, x: Array, params: Sequence[Array], start: State) -> tuple[Array, State]:
    """Returns the states after every step of (steps, batch, features), and the last state.

    Without a start it is an LSTM that starts at zeros and whose last cells nothing reads: fedax has
    that recurrence.
    """
    kernel, recurrent, *biases = params
    inputs = linear(x, kernel)
    if not start:
        peepholes = jnp.zeros((3, recurrent.shape[1]), x.dtype)
        states: Any = recur(sum(biases, inputs), recurrent.T, peepholes, False)
        return states, (states[-1],)
    bias, recurrent_bias = biases or (0, 0)

    def step(state: State, inputs: Array) -> tuple[State, Array]:
        state = cell(state, inputs, state[0] @ recurrent.T + recurrent_bias)
        return state, state[0]

    end, states = lax.scan(step, start, inputs + bias)
    return states, end


def _recurrence(cell: Cell) -> Callable[..., tuple[Array, ...]]:
    def run_layers(
        draw: Draw | None,
        x: Array,
        start: Array | Sequence[Array] | None,
        params: Sequence[Array],
        *settings: Any,
    ) -> tuple[Array, ...]:
        """Returns the last layer's states after every step, and the last states of all layers."""
        biases, layers, dropout, training, bidirectional, batch_first = settings
        starts = [start] if isinstance(start, jax.Array) else start or ()
        x = x.swapaxes(0, 1) if batch_first else x
        # arrays of a layer and direction: two kernels, and two biases if there are any
        count = 4 if biases else 2
        directions = 2 if bidirectional else 1
        ends = []
        for layer in range(layers):
            if layer and training:
                x = _drop(draw, x, dropout)
            outputs = []
            for index in range(layer * directions, (layer + 1) * directions):
                own_params = params[index * count : (index + 1) * count]
                own_start = tuple(array[index] for array in starts)
                # the second direction reads the steps from the end
                order = slice(None, None, -1 if index % directions else 1)
                states, end = _run_layer(cell, x[order], own_params, own_start)
                outputs.append(states[order])
                ends.append(end)
            x = jnp.concatenate(outputs, axis=2)
        x = x.swapaxes(0, 1) if batch_first else x
        return x, *(jnp.stack(arrays) for arrays in zip(*ends))

    return run_layers


DRAWING: dict[str, Callable[..., Any]] = {
    "bernoulli": _bernoulli,
    "native_dropout": lambda draw, x, rate, training: (_drop(draw, x, rate), None),
    "lstm": _recurrence(_lstm_cell),
    "gru": _recurrence(_gru_cell),
    "rnn_tanh": _recurrence(_rnn_cell(jnp.tanh)),
    "rnn_relu": _recurrence(_rnn_cell(jax.nn.relu)),
}
"""Functions by the operators' names whose first argument is a `Draw`, or None in evaluation."""
