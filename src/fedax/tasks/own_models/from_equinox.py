"""Tasks of Equinox modules."""

import inspect
from collections.abc import Callable
from typing import Any, Unpack

import equinox as eqx
import jax
from jaxtyping import PyTree

from fedax.core import InvalidInput, Task
from fedax.tasks.own_models.libraries import Options, refuse_other_library
from fedax.tasks.own_models.outputs import (
    Network,
    find_training_flags,
    from_network,
    training_arguments,
)
from fedax.tasks.own_models.signature import call_with


def from_equinox(
    module: Any, loss: Callable[..., Any], clients: Any, **options: Unpack[Options]
) -> Task:
    """Makes a task of an Equinox module.

    The module is called for each example alone, under `vmap` with the axis name "batch", and in
    inference mode in evaluation. If it takes a `key`, every example gets its own in training. An
    argument such as `train`, which `from_flax` knows, tells it whether it trains if it has a truth
    value by default.
    Leaves other than real arrays, such as activation functions, are not trained. Norms know no
    padding, so with batch statistics the batch size has to divide the clients' examples.

    Args:
        module: an Equinox module; a pair of a module and its state, as `eqx.nn.make_with_state`
            makes it; or a function of a random key that makes either, so that seeds differ in the
            starting point. It gets the key by name if it has an argument `key`.
        loss: `loss(outputs, examples) -> (batch,)`, one loss per example; both have a batch axis.
        clients: as in `from_loss`.
        options: as in `from_flax`.

    Example:
        >>> import equinox as eqx, jax, numpy as np, fedax
        >>> make = lambda key: eqx.nn.MLP(2, "scalar", 8, 1, key=key)
        >>> clients = [{"x": np.ones((4, 2)), "y": np.ones(4)}] * 3
        >>> task = fedax.tasks.from_equinox(
        ...     make, lambda outputs, e: (outputs - e["y"]) ** 2, clients
        ... )
        >>> history = fedax.run(fedax.FedAvg(), task, solver=fedax.SGD(0.1), rounds=3)
        >>> history.params(np.ones(2)).shape
        ()

    Raises:
        InvalidInput: another object than a module; a module, a loss or data that do not fit each
            other.
    """
    refuse_other_library("from_equinox", module)
    if not (isinstance(module, eqx.Module | tuple) or callable(module)):
        allowed = "an Equinox module, a pair of one and its state, or a function of a key"
        raise InvalidInput.of("from_equinox(module=...)", module, allowed)
    return from_network(
        "from_equinox", lambda inputs: _make_network(module), loss, clients, **options
    )


def _make_network(module: Any) -> Network:
    is_made = isinstance(module, eqx.Module | tuple)
    example = module if is_made else call_with(module, "key", jax.random.key(0))
    model, state = example if isinstance(example, tuple) else (example, None)
    refuse_other_library("from_equinox", model)
    if not isinstance(model, eqx.Module) or not callable(model):
        raise InvalidInput.of(
            "from_equinox(module=...)",
            model,
            "a module that can be called, or a function that makes one",
        )
    parameters = inspect.signature(type(model).__call__).parameters
    takes_key = "key" in parameters
    # layers of Equinox have flags that are None by default, which the inference mode decides
    flags = tuple(
        flag
        for flag in find_training_flags(type(model).__call__, "from_equinox")
        if isinstance(parameters[flag].default, bool)
    )

    def start(key: Any) -> PyTree:
        result = call_with(module, "key", key)
        return result[0] if isinstance(result, tuple) else result

    def apply(model: PyTree, state: PyTree, inputs: tuple[Any, ...], key: Any, mask: Any) -> Any:
        del mask
        is_training = key is not None
        model = eqx.nn.inference_mode(model, not is_training)
        count = jax.tree.leaves(inputs)[0].shape[0]
        keys = None if key is None or not takes_key else jax.random.split(key, count)

        def apply_to_example(inputs: tuple[Any, ...], state: PyTree, key: Any) -> Any:
            options: dict[str, Any] = {"key": key} if takes_key else {}
            options |= training_arguments(flags, is_training)
            return (
                (model(*inputs, **options), None)
                if state is None
                else model(*inputs, state, **options)
            )

        # an axis of examples for inputs and keys, none for the state, which all share
        axes = (0, None, None if keys is None else 0)
        return jax.vmap(apply_to_example, axis_name="batch", in_axes=axes, out_axes=(0, None))(
            inputs, state, keys
        )

    return Network(apply, model if is_made else start, state)
