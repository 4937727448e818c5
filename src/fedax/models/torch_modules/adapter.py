"""Adapter of PyTorch modules to `fedax.models.Model`."""

import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from fedax.models.base import Model
from fedax.models.torch_modules.recurrent import Draw, Draws

_EXAMPLES = 8
"""Examples on which a module is exported and compared."""


def torch(module: Any, x: Any) -> Model:
    """Adapts a module of PyTorch; needs PyTorch 2.13 or newer.

    PyTorch exports the module twice, for training and for evaluation (`torch.export`), and the
    exported operators run in JAX: layers by fedax's operations, weights and inputs in PyTorch's
    order of axes, so that images are (batch, channels, rows, columns). PyTorch itself computes
    nothing in a run, and the module is not changed.

    The parameters are a dict of arrays by their names in `module.state_dict()`, and start from the
    module's own, whatever the random key. Those without `requires_grad` are frozen. Buffers that
    training changes, such as batch statistics, are the state. `History.state_dict` brings both
    back. Dropout draws from the key of each step.

    On eight examples, outputs, gradients and buffers are compared with PyTorch's. So a module is
    refused whose forward or hooks do what the exported operators do not: stop or change gradients,
    count calls, draw random numbers of Python.

    Args:
        module: a `torch.nn.Module`.
        x: some inputs, such as examples of a client; a tuple for several arguments.

    Raises:
        InvalidInput: operators that have no form in JAX, or a module that differs from PyTorch's
            when it runs in JAX. Other errors are those of `torch.export`.

    Example:
        model = fedax.models.torch(net, clients[0]["x"])
    """
    from fedax.models.torch_modules.comparison import refuse_unequal
    from fedax.models.torch_modules.program import as_tensor, export

    given = x if isinstance(x, tuple) else (x,)
    examples = [np.resize(array, (_EXAMPLES, *np.shape(array)[1:])) for array in given]
    types = [
        jax.dtypes.canonicalize_dtype(as_tensor(module, array).numpy().dtype) for array in examples
    ]
    # copies, because the export sets the mode and may count calls
    training, evaluation = (
        export(copy.deepcopy(module), examples, training=mode) for mode in (True, False)
    )
    # tied parameters are one array, under the first of their names
    first_names: dict[int, str] = {}
    names = {
        name: first_names.setdefault(id(parameter), name)
        for name, parameter in module.named_parameters(remove_duplicate=False)
    }
    params = {name: p.detach().numpy().copy() for name, p in module.named_parameters()}
    frozen = {name for name, p in module.named_parameters() if not p.requires_grad}
    buffers = {
        name: buffer.numpy().copy() for name, buffer in module.named_buffers(remove_duplicate=False)
    }
    # counts of batches matter to a norm with momentum=None only, which torch.export refuses
    changed = [name for name in training.updates if not name.endswith("num_batches_tracked")]
    state = {name: buffers.pop(name) for name in changed} or None

    def run(params: PyTree, state: PyTree, x: Any, draw: Draw | None) -> tuple[Any, PyTree]:
        program = evaluation if draw is None else training
        tensors = {name: params[first] for name, first in names.items()}
        arrays = x if isinstance(x, tuple) else (x,)
        inputs = [jnp.asarray(array, dtype) for array, dtype in zip(arrays, types, strict=True)]
        outputs, updates = program(buffers | (state or {}) | tensors, inputs, draw)
        return outputs, state and {name: updates.get(name, state[name]) for name in state}

    refuse_unequal(module, run, params, state, tuple(examples))
    return Model(
        lambda key: (params, state),
        lambda params, state, x, key: run(params, state, x, None if key is None else Draws(key)),
        (lambda name, leaf: name in frozen) if frozen else None,
    )
