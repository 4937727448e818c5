"""Tasks of Haiku models."""

from collections.abc import Callable
from typing import Any, Unpack

from jaxtyping import PyTree

from fedax.core import InvalidInput, Task
from fedax.tasks.own_models.libraries import Options, import_library, refuse_other_library
from fedax.tasks.own_models.outputs import (
    Network,
    find_training_flags,
    from_network,
    none_if_empty,
    training_arguments,
)


def from_haiku(
    module: Callable[..., Any], loss: Callable[..., Any], clients: Any, **options: Unpack[Options]
) -> Task:
    """Makes a task of a Haiku model; needs Haiku (`pip install dm-haiku`).

    A model is told whether it trains by its argument `is_training` (or another one that `from_flax`
    knows), if it has one, and finds a random key at `hk.next_rng_key()` in training. Its
    state is what Haiku keeps as such. Haiku's norms know no padding, so with batch statistics the
    batch size has to divide the clients' examples.

    Args:
        module: a function of the inputs that makes and calls Haiku modules, untransformed.
        loss: `loss(outputs, examples) -> (batch,)`, one loss per example.
        clients: as in `from_loss`.
        options: as in `from_flax`.

    Example:
        task = fedax.tasks.from_haiku(lambda x: hk.nets.MLP([32, 10])(x), cross_entropy, clients)

    Raises:
        InvalidInput: a function that is transformed already; a model, a loss or data that do not
            fit each other.
    """
    refuse_other_library("from_haiku", module)
    hk = import_library("haiku", "from_haiku", "dm-haiku")
    if (hasattr(module, "init") and hasattr(module, "apply")) or not callable(module):
        hint = "It is transformed here, so leave hk.transform out."
        raise InvalidInput.found(
            "from_haiku(module=...)", f"a {type(module).__name__}", "a function of the inputs", hint
        )
    return from_network(
        "from_haiku", lambda inputs: _make_network(hk, module, inputs), loss, clients, **options
    )


def _make_network(hk: Any, function: Callable[..., Any], inputs: tuple[Any, ...]) -> Network:
    import jax

    transformed = hk.transform_with_state(function)
    flags = find_training_flags(function, "from_haiku")

    def start(key: Any) -> PyTree:
        return transformed.init(key, *inputs, **training_arguments(flags, True))[
            0
        ]  # its norms find out their shapes in training

    def apply(params: PyTree, state: PyTree, inputs: tuple[Any, ...], key: Any, mask: Any) -> Any:
        del mask
        # Haiku wants an empty state instead of None
        outputs, new_state = transformed.apply(
            params, state or {}, key, *inputs, **training_arguments(flags, key is not None)
        )
        return outputs, state if state is None or key is None else new_state

    state = transformed.init(jax.random.key(0), *inputs, **training_arguments(flags, True))[1]
    return Network(apply, start, none_if_empty(state))
