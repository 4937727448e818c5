"""Models of Flax, Equinox and Haiku as records of fedax.

The caller names the argument by which a module learns whether it trains, such as `train`. The names
`deterministic`, `inference` and `use_running_average` mean the opposite.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from fedax.models.base import Model

_OPPOSITE = ("deterministic", "inference", "use_running_average")


def _training_flag(train: str | None, is_training: bool) -> dict[str, bool]:
    return {} if train is None else {train: is_training != (train in _OPPOSITE)}


def _arguments(x: Any) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x,)


def linen(module: Any, x: Any, *, train: str | None = None) -> Model:
    """Adapts a module of Flax Linen. Its parameters are `variables["params"]`.

    All other collections, such as `batch_stats`, are the state. Dropout draws from the stream
    "dropout" in training.

    Args:
        module: a `flax.linen.Module`.
        x: some inputs, by which the module finds its shapes; a tuple for several arguments.
        train: the module's argument that says whether it trains, such as "train" or
            "deterministic". None if it has none.

    Example:
        model = fedax.models.linen(CNN(), images[:1], train="train")
    """

    def init(key: Any) -> Any:
        streams = {"params": key, "dropout": jax.random.fold_in(key, 1)}
        variables = dict(module.init(streams, *_arguments(x), **_training_flag(train, False)))
        return variables.pop("params"), variables or None

    def apply(params: Any, state: Any, x: Any, key: Any) -> Any:
        is_training = key is not None
        outputs, changed = module.apply(
            {"params": params, **(state or {})},
            *_arguments(x),
            **_training_flag(train, is_training),
            rngs={"dropout": key} if is_training else {},
            mutable=list(state or ()) if is_training else [],
        )
        return outputs, state and {**state, **changed}

    return Model(init, apply)


def nnx(make: Callable[[Any], Any], *, train: str | None = None) -> Model:
    """Adapts a module of Flax NNX. Its parameters are an `nnx.State`, for `nnx.update`.

    The module is told by `train()` and `eval()` whether it trains. All variables but parameters and
    random streams are the state. The streams follow from the key of each call.

    Args:
        make: makes the module from `nnx.Rngs`, such as its class; or `lambda rngs: module`.
        train: an argument of the module's call that says whether it trains, None if it has none.

    Example:
        model = fedax.models.nnx(CNN)
    """
    from flax import nnx as flax

    graph, _, streams, _ = flax.split(make(flax.Rngs(0)), flax.Param, flax.RngState, ...)
    leaves, structure = jax.tree.flatten(streams)

    def streams_of(key: Any) -> Any:
        # keys by place, counts of draws from 0
        fresh = [
            jax.random.fold_in(key, i)
            if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
            else jnp.zeros_like(leaf)
            for i, leaf in enumerate(leaves)
        ]
        return jax.tree.unflatten(structure, fresh)

    def init(key: Any) -> Any:
        _, params, _, state = flax.split(make(flax.Rngs(key)), flax.Param, flax.RngState, ...)
        return params, state if jax.tree.leaves(state) else None

    def apply(params: Any, state: Any, x: Any, key: Any) -> Any:
        # copies, because a module changes its variables
        variables = jax.tree.map(
            lambda leaf: leaf, (params, flax.State({}) if state is None else state)
        )
        streams = streams_of(jax.random.key(0) if key is None else key)
        module = flax.merge(graph, variables[0], streams, variables[1])
        if key is None:
            module.eval()
        else:
            module.train()
        outputs = module(*_arguments(x), **_training_flag(train, key is not None))
        if key is None or state is None:
            return outputs, state
        return outputs, flax.split(module, flax.Param, flax.RngState, ...)[3]

    return Model(init, apply)


def equinox(
    make: Callable[[Any], Any], *, train: str | None = None, key: str | None = None
) -> Model:
    """Adapts a module of Equinox. Its parameters are the module.

    The module is called for each example alone, under `vmap` with the axis name "batch", and in
    inference mode in evaluation. Real arrays are trained, other leaves stay.

    Args:
        make: makes the module, or a pair of it and its state, from a random key; or
            `lambda key: module`.
        train: an argument of the module's call that says whether it trains, None if it has none.
        key: the argument by which the module takes each example's random key in training, such as
            "key", None if it has none.

    Example:
        model = fedax.models.equinox(lambda key: eqx.nn.MLP(2, 1, 8, 1, key=key))
    """
    argument = key

    def init(key: Any) -> Any:
        made = make(key)
        return made if isinstance(made, tuple) else (made, None)

    def apply(module: Any, state: Any, x: Any, key: Any) -> Any:
        module = eqx.nn.inference_mode(module, key is None)
        flag = _training_flag(train, key is not None)

        def call(x: Any, state: Any, key: Any) -> Any:
            keywords = flag if argument is None else {**flag, argument: key}
            if state is None:
                return module(*_arguments(x), **keywords), None
            return module(*_arguments(x), state, **keywords)

        # all examples share the state
        keys = None if key is None else jax.random.split(key, len(jax.tree.leaves(x)[0]))
        over_batch = jax.vmap(call, in_axes=(0, None, 0), out_axes=(0, None), axis_name="batch")
        return over_batch(x, state, keys)

    return Model(init, apply)


def haiku(function: Callable[..., Any], x: Any, *, train: str | None = None) -> Model:
    """Adapts a function that makes and calls modules of Haiku.

    It finds a random key at `hk.next_rng_key()` in training. The state is Haiku's.

    Args:
        function: of the inputs, not transformed.
        x: some inputs, by which the modules find their shapes; a tuple for several arguments.
        train: the argument that says whether the function trains, such as "is_training". None if it
            has none.

    Example:
        model = fedax.models.haiku(lambda x: hk.nets.MLP([32, 10])(x), images[:1])
    """
    import haiku as hk

    pure = hk.transform_with_state(function)

    def init(key: Any) -> Any:
        # norms find their shapes in training
        params, state = pure.init(key, *_arguments(x), **_training_flag(train, True))
        return params, state or None

    def apply(params: Any, state: Any, x: Any, key: Any) -> Any:
        flag = _training_flag(train, key is not None)
        outputs, changed = pure.apply(params, state or {}, key, *_arguments(x), **flag)
        return outputs, state if key is None else changed or None

    return Model(init, apply)
