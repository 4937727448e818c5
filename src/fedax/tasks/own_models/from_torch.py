"""Tasks of PyTorch modules."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from fedax.core import History, InvalidInput, Task
from fedax.models import Model
from fedax.tasks.clients import read_clients
from fedax.tasks.from_model import from_model, select_inputs
from fedax.tasks.lora import Adapted
from fedax.tasks.own_models.torch_modules.comparison import refuse_unequal
from fedax.tasks.own_models.torch_modules.datasets import with_arrays
from fedax.tasks.own_models.torch_modules.layers import Context, Draws
from fedax.tasks.own_models.torch_modules.program import export

_LOSSES = {
    "CrossEntropyLoss": 'optax.softmax_cross_entropy_with_integer_labels(outputs, examples["y"])',
    "MSELoss": '(outputs[:, 0] - examples["y"]) ** 2',
    "BCEWithLogitsLoss": 'optax.sigmoid_binary_cross_entropy(outputs[:, 0], examples["y"])',
}
"""Losses of PyTorch by name, in JAX."""
_LOSSES |= {
    "cross_entropy": _LOSSES["CrossEntropyLoss"],
    "mse_loss": _LOSSES["MSELoss"],
    "binary_cross_entropy_with_logits": _LOSSES["BCEWithLogitsLoss"],
}


def from_torch(
    module: Any,
    loss: Callable[..., Any],
    clients: Any,
    *,
    inputs: Any = "x",
    test: Any = None,
    validation: Any = None,
    central: Any = None,
    **options: Any,
) -> Task:
    """Makes a task of a PyTorch module; needs PyTorch (`pip install torch`).

    PyTorch exports the module twice, for training and for evaluation (`torch.export`), and the
    exported operators run in JAX: layers by fedax's operations, weights and inputs in PyTorch's
    order of axes, so that images are (batch, channels, rows, columns). PyTorch itself computes
    nothing in a run, and the module is not changed. When it is taken, outputs, gradients and
    buffers are compared with PyTorch's on eight examples, and a module is refused whose forward or
    hooks do what the exported operators do not: stop or change gradients, count calls, draw random
    numbers of Python. Dropout gets a random key in training. Buffers
    that training changes, such as batch statistics, are the model's state. Its minibatches are
    full: short ones are filled again with examples of the client.
    Parameters without `requires_grad` are frozen. All seeds start from the module's weights.

    Args:
        module: a `torch.nn.Module`.
        loss: `loss(outputs, examples) -> (batch,)` in JAX, one loss per example.
        clients: as in `from_loss`, with arrays or tensors; or for each client a
            `torch.utils.data.Dataset` or another data set with a length, such as one of Hugging
            Face with a transform, whose items are pairs (x, y) or dicts. They are read once, with
            their transforms.
        inputs, options: as in `fedax.from_model`.
        test, validation, central: as in `from_loss`.

    Returns:
        A task whose parameters are a dict of arrays by their names in `module.state_dict()`.
        `fedax.save_params` writes them as a file that PyTorch reads, `torch_state_dict` brings a
        run's result back.

    Example:
        task = fedax.tasks.from_torch(net, cross_entropy, clients)

    Raises:
        InvalidInput: another object than a module; a module that `torch.export` refuses, or with
            operators that have no form in JAX, named with their submodule and line, or that
            differs from PyTorch; a module, a loss or data that do not fit each other.
    """
    import torch

    if not isinstance(module, torch.nn.Module):
        hint = (
            f"Write {module.__name__}(...), with parentheses." if isinstance(module, type) else ""
        )
        raise InvalidInput.of("from_torch(module=...)", module, "a torch.nn.Module", hint)
    _refuse_unsupported(torch, module)
    _refuse_torch_loss(torch, loss)
    data, _ = read_clients(
        with_arrays(clients, "clients"),
        test=with_arrays(test, "test"),
        validation=with_arrays(validation, "validation"),
        central=None if central is None else with_arrays([central], "central")[0],
    )
    # from the first example to the last one of the first client
    rows = np.linspace(0, int(data.sizes[0]) - 1, 8).astype(int)
    examples = {name: jnp.asarray(values[rows]) for name, values in data.train[0].items()}
    x = select_inputs(examples, inputs)
    model = _make_model(module, tuple(map(np.asarray, x if isinstance(x, tuple) else (x,))))
    return from_model(model, loss, data, inputs=inputs, **options)


def _refuse_unsupported(torch: Any, module: Any) -> None:
    """Refuses modules with tensors or layers that have no form here, by their names.

    Raises:
        InvalidInput: a tensor of a type that NumPy does not know, or an LSTM with projections.
    """
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        kind = str(tensor.dtype).removeprefix("torch.")
        if kind.startswith(("bfloat16", "float8", "float4")):
            raise InvalidInput.found(
                "from_torch(module=...)",
                f"{name!r} of type {kind}",
                "tensors of type float32, float64 or float16",
                "Write module.float().",
            )
    for name, layer in module.named_modules():
        if isinstance(layer, torch.nn.LSTM) and layer.proj_size:
            where = f"{name!r} (LSTM)" if name else "an LSTM"
            raise InvalidInput.found(
                "from_torch(module=...)",
                f"{where} with proj_size={layer.proj_size}",
                "LSTMs without projections, proj_size=0",
            )


def _refuse_torch_loss(torch: Any, loss: Any) -> None:
    """Refuses losses of PyTorch, with their form in JAX.

    Raises:
        InvalidInput: such a loss.
    """
    kind = loss if isinstance(loss, type) or not isinstance(loss, torch.nn.Module) else type(loss)
    if not str(getattr(kind, "__module__", "")).startswith("torch."):
        return
    name = getattr(kind, "__name__", "a loss")
    jax_loss = _LOSSES.get(name)
    hint = "" if jax_loss is None else f"Write lambda outputs, examples: {jax_loss}."
    raise InvalidInput.found(
        "from_torch(loss=...)",
        f"{name} of PyTorch",
        "a function in JAX, one loss per example",
        hint,
    )


def _make_model(module: Any, arrays: tuple[np.ndarray, ...]) -> Model:
    """Returns the module's model, whose programs are made and checked on some inputs."""
    # in the precision of the parameters
    types = {str(p.dtype).removeprefix("torch.") for p in module.parameters()}
    if len(types) == 1:
        arrays = tuple(a.astype(*types) if a.dtype.kind == "f" else a for a in arrays)
    # copies, because the export sets the mode and may count calls
    training = export(copy.deepcopy(module), arrays, training=True)
    evaluation = export(copy.deepcopy(module), arrays, training=False)
    names, params = _read_parameters(module)
    named_buffers = module.named_buffers(remove_duplicate=False)
    buffers = {name: jnp.asarray(buffer.detach().numpy()) for name, buffer in named_buffers}
    saved = module.state_dict()
    # counts of batches matter to a norm with momentum=None only, which torch.export refuses
    changed = sorted(name for name in training.updates if not name.endswith("num_batches_tracked"))
    for name in changed:
        if not jnp.issubdtype(buffers[name].dtype, jnp.floating) or name not in saved:
            got = f"the buffer {name!r} of type {buffers[name].dtype}, which training changes"
            raise InvalidInput.found(
                "from_torch(module=...)", got, "changes of real buffers of the state_dict only"
            )
    # buffers that training changes are the state, the others stay constants
    state = {name: buffers.pop(name) for name in changed}

    def run(params: PyTree, state: PyTree, inputs: Sequence[Any], context: Context) -> Any:
        # tied parameters are one array under several names
        tensors = (
            buffers
            | (state or {})
            | {name: params[first_name] for name, first_name in names.items()}
        )
        program = evaluation if context.draw is None else training
        outputs, updates = program(tensors, inputs, context)
        if context.draw is None or state is None:
            return outputs, state
        return outputs, {name: updates[name] for name in state}

    def apply(params: PyTree, state: PyTree, x: Any, key: Any) -> Any:
        context = Context(None if key is None else Draws(key))
        return run(params, state, x if isinstance(x, tuple) else (x,), context)

    refuse_unequal(module, run, params, state or None, arrays)
    untrained = {name for name, p in module.named_parameters() if not p.requires_grad}
    return Model(lambda key: (params, state or None), apply, lambda name, leaf: name in untrained)


def _read_parameters(module: Any) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """Returns for every parameter's name the first one of the same tensor, and arrays by first
    names.
    """
    first_names: dict[int, str] = {}
    named_parameters = module.named_parameters(remove_duplicate=False)
    names = {
        name: first_names.setdefault(id(parameter), name) for name, parameter in named_parameters
    }
    return names, {
        name: module.get_parameter(name).detach().numpy().copy() for name in first_names.values()
    }


def state_dict_of(history: History) -> dict[str, Any]:
    """Returns the parameters and the model's state of a run as tensors by name, see
    `History.state_dict`.
    """
    import torch

    return {
        name: torch.from_numpy(np.array(array)) for name, array in _merge_arrays(history).items()
    }


def _merge_arrays(history: History) -> dict[str, Any]:
    """Returns parameters with adapters merged, and state; of states that clients keep, their
    mean.
    """
    params, state = history.params, history.final_state or {}
    params = params.merged() if isinstance(params, Adapted) else params
    if not isinstance(params, dict) or not isinstance(state, dict):
        raise InvalidInput.found(
            "state_dict()", type(params).__name__, "the history of a task of from_torch"
        )
    return params | state


def torch_state_dict(module: Any, result: History | Mapping[str, Any]) -> dict[str, Any]:
    """Returns a run's result as a `state_dict`, for `module.load_state_dict`.

    What was not trained or updated stands there as the module has it. The module is not changed.

    Args:
        module: the one that `from_torch` took.
        result: the history of a run, whose parameters and buffers are taken, or arrays by name.

    Example:
        module.load_state_dict(fedax.tasks.torch_state_dict(module, history))

    Raises:
        InvalidInput: names or shapes that the module does not have.
    """
    import torch

    if isinstance(result, History):
        result = _merge_arrays(result)
    names, tensors = _read_parameters(module)[0], module.state_dict()
    for name, array in result.items():
        if name not in tensors or tuple(tensors[name].shape) != np.shape(array):
            got = f"{name!r} of shape {np.shape(array)}"
            raise InvalidInput.found(
                "torch_state_dict(result=...)", got, "names and shapes of the module's state_dict"
            )

    def find_tensor(name: str, tensor: Any) -> Any:
        # tied parameters are trained under the first of their names
        array = result.get(names.get(name, name))
        return (
            tensor.clone() if array is None else torch.from_numpy(np.array(array)).to(tensor.dtype)
        )

    return {name: find_tensor(name, tensor) for name, tensor in tensors.items()}
