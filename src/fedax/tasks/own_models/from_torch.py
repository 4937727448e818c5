"""Tasks of PyTorch modules."""

import copy
from collections.abc import Callable, Mapping
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from fedax.core import History, InvalidInput, Task
from fedax.errors import install_hint
from fedax.tasks.own_models.libraries import Options, needed
from fedax.tasks.own_models.outputs import Network, from_network, none_if_empty
from fedax.tasks.own_models.torch_modules.program import Program, export
from fedax.utils.arguments import checked_call
from fedax.utils.leaf_names import chosen


@checked_call
def from_torch(module: Any, loss: Callable[..., Any], clients: Any, **options: Unpack[Options]) -> Task:
    """Makes a task of a PyTorch module; needs PyTorch (`pip install torch`).

    PyTorch exports the module once for training and once for evaluation (`torch.export`), and its
    operators run in JAX: layers by fedax's operations, weights and inputs in PyTorch's order of
    axes, images as (batch, channels, rows, columns). The module is not changed, and PyTorch does
    not run in training. Dropout gets a random key in training. Buffers that training changes, such
    as batch statistics, are the model's state; padding is left out of batch statistics. Parameters
    without `requires_grad` are frozen.

    Args:
        module: a `torch.nn.Module`; its weights are the starting point.
        loss: `loss(outputs, examples) -> (batch,)` in JAX, one loss per example.
        clients: as in `from_loss`; arrays, or tensors.
        options: as in `from_flax`.

    Returns:
        A task whose parameters are a dict of arrays by their names in `state_dict()`, so that
        `fedax.save_params` writes a file that `load_state_dict` reads; see also `torch_state_dict`.

    Example:
        task = fedax.tasks.from_torch(net, cross_entropy, clients)

    Raises:
        InvalidInput: another object than a module; a module that `torch.export` refuses, or with
            operators that have no form in JAX, named with the submodule and the line; a module, a
            loss or data that do not fit each other.
    """
    torch = needed("torch", "from_torch")
    if not isinstance(module, torch.nn.Module):
        hint = f"Write {module.__name__}(...), with parentheses." if isinstance(module, type) else ""
        raise InvalidInput.of("from_torch(module=...)", module, "a torch.nn.Module", hint)
    fixed = {name for name, parameter in module.named_parameters() if not parameter.requires_grad}
    if fixed:
        options["frozen"] = _also_frozen(fixed, options.get("frozen"))
    return from_network("from_torch", lambda inputs: _network(copy.deepcopy(module), inputs), loss, clients, **options)


def _also_frozen(fixed: set[str], more: Any) -> Callable[[str, Any], bool]:
    """Returns a predicate of leaves: parameters that PyTorch does not train, and the user's own choice."""

    def is_frozen(name: str, leaf: Any) -> bool:
        return name in fixed or (more is not None and chosen({name: leaf}, more, "from_torch(frozen=...)")[0])

    return is_frozen


def _network(module: Any, inputs: tuple[Any, ...]) -> Network:
    arrays = [np.asarray(array) for array in inputs]
    training, evaluation = (export(module, arrays, training=mode) for mode in (True, False))
    names, params = _parameters(module)
    buffers = {name: jnp.asarray(buffer.detach().numpy()) for name, buffer in module.named_buffers()}
    changed = {name for name in training.updates if not name.endswith("num_batches_tracked")}
    counters = [name for name in changed if not jnp.issubdtype(buffers[name].dtype, jnp.floating)]
    if counters:
        raise InvalidInput.found("from_torch(module=...)", f"the buffer {counters[0]!r} of whole numbers, which training changes", "buffers of real numbers, or that stay")
    fixed = {name: buffer for name, buffer in buffers.items() if name not in changed}

    def apply(params: PyTree, state: PyTree, inputs: tuple[Any, ...], key: Any, mask: Any) -> Any:
        program = evaluation if key is None else training
        tensors = fixed | (state or {}) | {name: params[own] for name, own in names.items()}
        outputs, updates = program(tensors, inputs, key, mask)
        if key is None or state is None:
            return outputs, state
        return outputs, {name: updates[name] for name in state}

    state = {name: buffers[name] for name in sorted(changed)}
    return Network(apply, params, none_if_empty(state), sees_padding=True)


def _parameters(module: Any) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """Returns for every parameter's name the first one of the same tensor, and arrays by these first names."""
    first: dict[int, str] = {}
    names = {
        name: first.setdefault(id(parameter), name) for name, parameter in module.named_parameters(remove_duplicate=False)
    }
    return names, {name: module.get_parameter(name).detach().numpy() for name in first.values()}


@checked_call
def torch_state_dict(module: Any, result: History | Mapping[str, Any]) -> dict[str, Any]:
    """Returns a result in the form of a module's `state_dict()`, for `module.load_state_dict`.

    What was not trained or updated stands as the module has it; the module is not changed.

    Args:
        module: the one that `from_torch` took.
        result: the history of a run, with parameters and buffers, or parameters by name.

    Example:
        module.load_state_dict(fedax.tasks.torch_state_dict(module, history))

    Raises:
        InvalidInput: names or shapes that the module does not have.
    """
    torch = needed("torch", "torch_state_dict")
    arrays = {**result.params, **(result.model_state or {})} if isinstance(result, History) else dict(result)
    names, known = _parameters(module)[0], module.state_dict()
    for name, array in arrays.items():
        if name not in known or tuple(known[name].shape) != np.shape(array):
            got = f"{name!r} of shape {np.shape(array)}"
            raise InvalidInput.found("torch_state_dict(result=...)", got, "names and shapes of the module's state_dict")

    def of(name: str, tensor: Any) -> Any:
        array = arrays.get(names.get(name, name))
        return tensor.clone() if array is None else torch.from_numpy(np.array(array)).to(tensor.dtype)

    return {name: of(name, tensor) for name, tensor in known.items()}
