"""Layers that any JAX model can call, in the form that is fast where it runs.

Arrays are images of shape (batch, rows, columns, channels) and kernels of shape (height, width,
channels, outputs), as Flax has them. Everything has reverse-mode derivatives of any order and works
under `jit`, `vmap` and `scan`; forward mode (`jax.jvp`) ends at `conv2d` and `group_norm`. On CPUs
the extension of fedax computes float32 and float64 (`fedax doctor` says whether it is there); its
memory order, examples innermost, is declared to XLA, so that arrays are laid out anew only where
another operation wants them otherwise. Elsewhere XLA does it all.

>>> import jax, jax.numpy as jnp
>>> from fedax import layers
>>> def network(params, x):
...     h = layers.conv2d(x, params["kernel"], stride=2, padding="SAME")
...     h = layers.group_norm(h, params["scale"], params["offset"], groups=2)
...     return layers.max_pool(jax.nn.relu(h)).mean((1, 2))
>>> params = {"kernel": jnp.ones((3, 3, 1, 4)), "scale": jnp.ones(4), "offset": jnp.zeros(4)}
>>> network(params, jnp.ones((5, 8, 8, 1))).shape
(5, 4)
"""

from fedax.ops import activate as activate
from fedax.ops import convolve as conv2d
from fedax.ops import group_norm as group_norm
from fedax.ops import join as join
from fedax.ops import max_pool as max_pool

__all__ = ["activate", "conv2d", "group_norm", "join", "max_pool"]
