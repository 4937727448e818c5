"""Tasks of Flax modules, Linen's and NNX's."""

import inspect
import types
from collections.abc import Callable
from typing import Any, Unpack

import jax
import jax.numpy as jnp
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
from fedax.tasks.own_models.padding import mask_of_rows
from fedax.tasks.own_models.signature import call_with


def from_flax(
    module: Any, loss: Callable[..., Any], clients: Any, **options: Unpack[Options]
) -> Task:
    """Makes a task of a Flax module; needs Flax (`pip install flax`).

    Modules are told whether they train by their arguments `train`, `training`, `is_training`,
    `is_train`, `deterministic`, `inference` or `use_running_average`, if they have any; those of
    NNX by `module.train()` and `module.eval()` too. Dropout gets a random key in training. Batch
    statistics are the model's state. Flax's batch norms leave padding out of them. If a module has
    statistics of its own that padding would enter, the batch size has to divide the clients'
    examples. Seeds differ in the starting point, except for a module of NNX that is made already.

    Args:
        module: a Linen module, an NNX module, or a function of `nnx.Rngs` that makes one, such as
            its class; it gets them by name if it has an argument `rngs`.
        loss: `loss(outputs, examples) -> (batch,)`, one loss per example.
        clients: as in `from_loss`.
        options: by keyword, as in `from_loss`, and `inputs`: the name of the array that the module
            is called with, several names, or a function of the examples; by default x, or the only
            array besides y. Scores are functions of outputs and examples; accuracy is one by itself
            if there are whole labels y and a column of outputs for each class. Then
            `predict`, a function of outputs and examples too, is by default the softmax of the
            outputs.

    Returns:
        A task whose parameters are those of Linen's `variables["params"]`, or an `nnx.State` (for
        `nnx.update`).

    Example:
        task = fedax.tasks.from_flax(CNN, cross_entropy, clients)

    Raises:
        InvalidInput: another object than a module; a module, a loss or data that do not fit each
            other.
    """
    refuse_other_library("from_flax", module)
    flax = import_library("flax", "from_flax")
    from flax import linen, nnx

    del flax
    if isinstance(module, linen.Module):
        return from_network(
            "from_flax",
            lambda inputs: _make_linen_network(module, inputs),
            loss,
            clients,
            **options,
        )
    if isinstance(module, nnx.Module):
        return from_network(
            "from_flax", lambda inputs: _make_nnx_network(module, None), loss, clients, **options
        )
    if isinstance(module, type) and issubclass(module, linen.Module):
        hint = f"Write {module.__name__}(...), with parentheses."
        raise InvalidInput.of(
            "from_flax(module=...)", module, "a Linen module, not its class", hint
        )
    if not callable(module):
        raise InvalidInput.of(
            "from_flax(module=...)",
            module,
            "a module of Flax, or a function of nnx.Rngs that makes one",
        )

    def make_module(key: Any) -> Any:
        return call_with(module, "rngs", nnx.Rngs(key))

    return from_network(
        "from_flax",
        lambda inputs: _make_nnx_network(make_module(jax.random.key(0)), make_module),
        loss,
        clients,
        **options,
    )


def _make_linen_network(module: Any, inputs: tuple[Any, ...]) -> Network:
    from flax import linen

    flags = find_training_flags(type(module).__call__, "from_flax")

    def start(key: Any) -> PyTree:
        streams = {name: jax.random.fold_in(key, i) for i, name in enumerate(("params", "dropout"))}
        return module.init(streams, *inputs, **training_arguments(flags, False))

    def params(key: Any) -> PyTree:
        return start(key)["params"]

    def apply(params: PyTree, state: PyTree, inputs: tuple[Any, ...], key: Any, mask: Any) -> Any:
        def intercept(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
            if (
                isinstance(context.module, linen.BatchNorm)
                and context.method_name == "__call__"
                and mask is not None
                # a subclass without it calls the method of `BatchNorm`, which has it
                and "mask" in inspect.signature(context.orig_method).parameters
            ):
                # a mask that the module gives itself goes first
                kwargs = {"mask": mask_of_rows(mask, args[0] if args else kwargs["x"])} | kwargs
            return call(*args, **kwargs)

        variables, flag_arguments = (
            {"params": params, **(state or {})},
            training_arguments(flags, key is not None),
        )
        with linen.intercept_methods(intercept):
            if key is None:
                return module.apply(variables, *inputs, **flag_arguments), state
            # collections that a training step may change
            mutable = list(state or {})
            result = module.apply(
                variables, *inputs, **flag_arguments, rngs={"dropout": key}, mutable=mutable
            )
            return (result[0], {name: result[1][name] for name in mutable})

    # all other collections are the state
    collections = {
        name: values for name, values in start(jax.random.key(0)).items() if name != "params"
    }
    return Network(apply, params, none_if_empty(collections), sees_padding=True)


def _make_nnx_network(example: Any, make_module: Callable[[Any], Any] | None) -> Network:
    from flax import nnx

    refuse_other_library("from_flax", example)
    graph, params, streams, state = nnx.split(example, nnx.Param, nnx.RngState, ...)
    # shape and type of each leaf of the random streams
    specs, flags = (
        jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), streams),
        find_training_flags(type(example).__call__, "from_flax"),
    )
    leaf_specs, structure = jax.tree.flatten(specs, is_leaf=lambda node: isinstance(node, tuple))

    def make_streams(key: Any) -> PyTree:
        """Makes the streams of random numbers from a key; a module sees no other one."""
        base = jax.random.key(0) if key is None else key
        # keys by place from the key of this call, counts of draws from 0
        leaves = [
            jax.random.fold_in(base, i)
            if jnp.issubdtype(dtype, jax.dtypes.prng_key)
            else jnp.zeros(shape, dtype)
            for i, (shape, dtype) in enumerate(leaf_specs)
        ]
        return jax.tree.unflatten(structure, leaves)

    def apply(params: PyTree, state: PyTree, inputs: tuple[Any, ...], key: Any, mask: Any) -> Any:
        variables = jax.tree.map(
            lambda leaf: leaf, (params, nnx.State({}) if state is None else state)
        )  # variables of this trace
        model = nnx.merge(graph, variables[0], make_streams(key), variables[1])
        (model.eval if key is None else model.train)()
        if mask is not None:
            _mask_norms(model, mask)
        outputs = model(*inputs, **training_arguments(flags, key is not None))
        return outputs, state if key is None else nnx.split(model, nnx.Param, nnx.RngState, ...)[3]

    def start(key: Any) -> PyTree:
        assert make_module is not None
        return nnx.split(make_module(key), nnx.Param, ...)[1]

    return Network(apply, start if make_module else params, none_if_empty(state), sees_padding=True)


def _mask_norms(model: Any, mask: Any) -> None:
    """Lets the batch norms of a model leave padding out of their statistics.

    Changes the model, which has to be a copy.
    """
    from flax import nnx

    examples_mask = mask

    class Masked(nnx.BatchNorm):
        def __call__(
            self, x: Any, use_running_average: bool | None = None, *, mask: Any = None
        ) -> Any:
            # a mask that the module gives itself goes first
            mask = mask_of_rows(examples_mask, x) if mask is None else mask
            return super().__call__(x, use_running_average, mask=mask)

    for _, layer in nnx.iter_graph(model):
        if not isinstance(layer, nnx.BatchNorm):
            continue
        kind = type(layer)
        # in the copy of this call only; what `super()` of a subclass calls is masked too
        layer.__class__ = (
            Masked if kind is nnx.BatchNorm else types.new_class(kind.__name__, (kind, Masked))
        )
