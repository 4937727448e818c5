"""Tasks from a user's own loss and plain arrays."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import PyTree

from fedax.core import InvalidInput, Layout, Task
from fedax.core.bound_model import Policy
from fedax.core.directions import Mode
from fedax.core.task import Given
from fedax.examples.arrays import as_array, check_range
from fedax.tasks.clients import read_clients
from fedax.tasks.own_models.signature import choose_leaves, read_signature
from fedax.utils.layout import accumulator
from fedax.utils.leaf_names import Which, is_in_module, names_of
from fedax.utils.numbers import python_number


def from_loss(
    loss: Callable[..., Any],
    params: PyTree,
    clients: Any,
    *,
    test: Any = None,
    scores: Mapping[str, Callable[..., Any]] | None = None,
    central: Any = None,
    frozen: Which | None = None,
    compute: Any = None,
    state: PyTree = None,
    state_policy: Policy = "average",
    l2: float = 0.0,
    name: str | None = None,
    predict: Callable[..., Any] | None = None,
    validation: Any = None,
    modes: Mapping[str, Mode] | None = None,
) -> Task:
    r"""Makes a task from a per-example loss and plain arrays, for any JAX model.

    Args:
        loss: `loss(params, examples) -> (batch,)`. `examples` is what a client holds, with a batch
            axis: an array or a dict of arrays. Shapes and types are checked here. An example's
            value must not depend on the other examples of its batch; `fedax check --task` tests
            that, and so does `fedax.conformance.check(task)`. What the loss reads elsewhere
            (globals, attributes, settings that it closes over) is read when the task's first run
            compiles; a new task reads it anew. It may take more, by these names: `key`, a random
            key for dropout or augmentation, None in evaluation (a third argument without a default
            is the key, whatever its name); `training`, whether this is a training step;
            `state`, see below.
        params: the starting point: a pytree of real numbers or arrays, or a function of a random
            key that makes one, so that seeds differ in it. Leaves that are no numbers, such as
            activation functions, are split off and put back. Of Equinox modules, alone or within
            the pytree, only real arrays are trained.
        clients: a list (or generator) with the array, or the dict of arrays, of each client; a
            mapping of names to those; or `FederatedData`. Every array has one row per example.
        test: the same for test examples; a client may have none.
        scores: further per-example functions of the same signature as `loss`, by name.
        central: a central test set in the form of one client.
        frozen: leaves that are not trained, by name or predicate: neither sent nor counted nor
            differentiated nor copied.
        compute: the float type in which the loss gets the model's leaves, such as "bfloat16". What
            is trained, sent and averaged are masters of 32 bits or more; inputs are the loss's own
            business. Of a model with leaves of several float types, each reaches the loss in its
            own, and the masters are of the widest. None otherwise: masters of the leaves' own type.
        state: what the model updates without a gradient, such as batch statistics; a pytree of
            arrays. A loss that takes `state` returns `(losses, new state)`. Its minibatches are
            full: short ones are filled again with examples of the client. So a loss that couples
            the examples of a minibatch in training takes a state, `()` if it has none.
        state_policy: `"average"`, `"local"` or `"frozen"`, see `fedax.Task`.
        l2: adds $\frac{\text{l2}}{2}\lVert w \rVert^2$ to every client's loss.
        name: for tables and messages.
        predict: the predictions of the signature of `loss`: the probabilities of all classes, shape
            (batch, classes), or anything else with one row per example.
        validation: the same as `test` for examples by which choices are made while training.
        modes: of scores, `"max"` where more is better, `"min"` where less is. Of `"accuracy"` more
            is better without being said.

    Example:
        The mean of all numbers, 3.5, minimises the federated squared error:

        >>> import fedax
        >>> task = fedax.tasks.from_loss(
        ...     lambda w, x: (w - x) ** 2 / 2, 0.0, clients=[[1.0, 2.0], [5.0, 6.0]]
        ... )
        >>> schedule = fedax.Schedule(batch_size="full")
        >>> history = fedax.run(
        ...     fedax.FedAvg(), task, solver=fedax.SGD(1.0), schedule=schedule, rounds=1
        ... )
        >>> float(history.params)
        3.5

    Raises:
        InvalidInput: a loss, a model or data that do not fit each other; nothing has been compiled
            then.
    """
    if "loss" in (scores or {}):
        raise InvalidInput.of(
            "from_loss(scores=...)", "loss", "other names of scores: the loss has this one"
        )
    # plain: each client is one array, without a name
    data, plain = read_clients(clients, name, test=test, validation=validation, central=central)
    functions = {
        key: _adapt(function, plain, key)
        for key, function in {"loss": loss, **(scores or {})}.items()
    }
    predictions = None if predict is None else _adapt(predict, plain, "predict")
    if state is None and functions["loss"].takes_state:
        raise InvalidInput.of(
            "from_loss(state=...)",
            None,
            "the state before the first step, for a loss that takes one",
        )
    start, untrained, types = starting_point(params, frozen, compute)
    functions = {
        key: dataclasses.replace(function, types=types) for key, function in functions.items()
    }
    return Task(
        start=start,
        loss=functions.pop("loss"),
        data=data,
        scores=functions,
        l2=python_number(l2),
        name=name or data.name,
        frozen=untrained,
        state=None if state is None else jax.tree.map(state_leaf, state),
        state_policy=state_policy,
        modes=dict(modes or {}),
        predictor=None if predictions is None else dataclasses.replace(predictions, types=types),
    )


Types: TypeAlias = tuple[str | None, ...] | None
"""Float type in which functions get each leaf, in flat order; None for its own type."""


def starting_point(
    params: PyTree,
    frozen: Which | None = None,
    compute: Any = None,
    always: Callable[[str, Any], bool] | None = None,
) -> tuple[Callable[[Any], PyTree], PyTree, Types]:
    """Splits a model into the leaves that are trained and the others.

    Returns:
        A function of a random key that gives the trained leaves, the pytree of all others (None if
        there are none), and the types in which functions get the leaves.

    Raises:
        InvalidInput: leaves that cannot be trained, each named, with advice.
    """
    leaves = jax.tree.leaves(params)
    # a plain function is a leaf by itself; a model that can be called has leaves of its own
    make = params if callable(params) and len(leaves) == 1 and leaves[0] is params else None
    example = params if make is None else _make_example(make)
    names, leaves, structure = _read_leaves(example)
    example = jax.tree.unflatten(structure, leaves)
    is_frozen = _mark_untrained(example, leaves, frozen)
    if always is not None:
        is_frozen = [
            marked or always(name, leaf)
            for marked, name, leaf in zip(is_frozen, names, leaves, strict=True)
        ]
    for name, leaf, is_leaf_frozen in zip(names, leaves, is_frozen, strict=True):
        if not is_leaf_frozen:
            _check_leaf(name, leaf)
    if all(is_frozen):
        raise InvalidInput.of(
            "from_loss(params=...)", example, "a pytree with at least one real array to train"
        )
    # A large base must not be in memory twice: each array goes before the next one is copied.
    del example, params
    trained = [
        None if is_leaf_frozen else leaf
        for is_leaf_frozen, leaf in zip(is_frozen, leaves, strict=True)
    ]
    for i, is_leaf_frozen in enumerate(is_frozen):
        leaves[i] = _place(leaves[i]) if is_leaf_frozen else None
    untrained = jax.tree.unflatten(structure, leaves) if any(is_frozen) else None
    masters, types = _float_types(trained, compute)
    if make is not None:
        return _Made(make, tuple(is_frozen), masters, frozen is not None), untrained, types
    start = jax.tree.unflatten(
        structure, [None if leaf is None else _to_real(leaf, masters) for leaf in trained]
    )
    Layout.of(start)
    return Given(start), untrained, types


def _make_example(make: Callable[[Any], PyTree]) -> PyTree:
    try:
        return make(jax.random.key(0))
    except Exception as error:
        hint = "A model of Flax, Haiku or Equinox goes into fedax.from_model."
        got = f"a function that fails with a random key ({type(error).__name__}: {error})"
        raise InvalidInput.found(
            "from_loss(params=...)", got, "a pytree, or a function of a random key", hint
        ) from error


def _read_leaves(example: PyTree) -> tuple[list[str], list[Any], Any]:
    """Returns names and leaves, arrays of NumPy in the types of programs, and the structure."""
    names, (leaves, structure) = names_of(example), jax.tree.flatten(example)
    # modules of Equinox hold functions and settings among their leaves
    has_modules = any(is_in_module(example))
    for i, name in enumerate(names):
        leaves[i] = _to_native(leaves[i] if has_modules else _check_numeric(leaves[i], name), name)
    return names, leaves, structure


def _mark_untrained(example: PyTree, leaves: list[Any], frozen: Which | None) -> list[bool]:
    """Returns which leaves are not trained: frozen ones, settings, and arrays without entries."""
    frozen_marks = (
        [False] * len(leaves)
        if frozen is None
        else choose_leaves(example, frozen, "from_loss(frozen=...)")
    )
    # numbers within modules are settings, such as a rate of dropout
    return [
        is_frozen or not (_is_real_array if in_module else _is_number)(leaf) or not np.size(leaf)
        for is_frozen, in_module, leaf in zip(
            frozen_marks, is_in_module(example), leaves, strict=True
        )
    ]


def _float_types(trained: list[Any], compute: Any) -> tuple[str | None, Types]:
    """Returns the type of the masters, None for the leaves' own, and the types that functions get.

    Masters are in one type, because algorithms see one flat vector: the widest of the leaves'.
    """
    leaf_types = [
        None if leaf is None else str(jax.dtypes.canonicalize_dtype(_to_real(leaf).dtype))
        for leaf in trained
    ]
    # all in one type already
    if compute is None and len({*leaf_types} - {None}) <= 1:
        return None, None
    types = (
        tuple(leaf_types)
        if compute is None
        else tuple(leaf_type and _float_type(compute) for leaf_type in leaf_types)
    )
    # of types that are named, whatever the caller's setting
    with jax.numpy_dtype_promotion("standard"):
        widest = functools.reduce(
            jnp.promote_types, [jnp.dtype(leaf_type) for leaf_type in leaf_types if leaf_type]
        )
    return str(accumulator(widest)), types


def _float_type(compute: Any) -> str:
    """Returns the name of a float type.

    >>> _float_type(jnp.bfloat16)
    'bfloat16'
    """
    try:
        dtype = jnp.dtype(compute)
    except TypeError:
        dtype = None
    if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
        raise InvalidInput.of(
            "from_loss(compute=...)",
            compute,
            "a float type such as 'bfloat16', 'float16' or 'float32'",
        )
    return str(dtype)


_STATISTICS = (
    "batch_stats", "running_mean", "running_var", "moving_mean", "moving_var", "moving_variance",
    "num_batches_tracked",
    "mean_ema", "var_ema", "moving_avg",
)  # fmt: skip


def _check_numeric(leaf: Any, name: str) -> Any:
    """Returns a leaf of a pytree without modules; refuses anything but numbers and arrays."""
    if isinstance(leaf, bool):
        return np.asarray(leaf)
    is_plain = isinstance(leaf, int | float | np.generic | jax.Array) and not isinstance(
        leaf, Tracer
    )
    # arrays of NumPy with numbers, also of types such as bfloat16
    if is_plain or (
        isinstance(leaf, np.ndarray) and (leaf.dtype.kind in "fiubc" or leaf.dtype.isbuiltin == 2)
    ):
        return leaf
    where = f"from_loss(params=...), leaf {name!r}" if name else "from_loss(params=...)"
    if hasattr(leaf, "__array__") or hasattr(leaf, "toarray"):
        return as_array(leaf, where)
    hint = "Close over settings in the loss, or give them with functools.partial."
    raise InvalidInput.found(where, f"a {type(leaf).__name__}", "numbers and arrays", hint)


def _to_native(leaf: Any, name: str, field: str = "from_loss(params=...)") -> Any:
    """Returns an array of NumPy in this machine's byte order.

    Refuses masks, and whole numbers that programs cannot hold.
    """
    if not isinstance(leaf, np.ndarray):
        return leaf
    where = f"{field}, leaf {name!r}" if name else field
    plain = (
        as_array(leaf, where)
        if isinstance(leaf, np.ma.MaskedArray) or not leaf.dtype.isnative
        else leaf
    )
    if plain.dtype.kind in "iu":
        check_range(plain, jax.dtypes.canonicalize_dtype(plain.dtype), where)
    with np.errstate(over="ignore"):  # numbers beyond the range are refused below as infinite
        return plain.astype(np.float64) if plain.dtype == np.longdouble else plain


def state_leaf(leaf: Any) -> jax.Array:
    return jnp.asarray(_to_native(leaf, "", "from_loss(state=...)"))


def _check_leaf(name: str, leaf: Any) -> None:
    field = f"from_loss(params=...), leaf {name!r}" if name else "from_loss(params=...)"
    # Haiku joins its names by slashes
    if any(word in _STATISTICS for word in name.replace("/", ".").split(".")):
        hint = (
            "Give it as state=..., and let the loss take `state` and return (losses, new "
            "state), or freeze it by frozen=..."
            " (fedax.from_model does so by itself)."
        )
        raise InvalidInput.found(
            field, "a batch statistic, which no gradient trains", "trained parameters", hint
        )
    dtype = jnp.result_type(leaf) if hasattr(leaf, "dtype") else None
    if dtype is not None and not jnp.issubdtype(dtype, jnp.floating):
        hint = "Write .astype(float) if it is to be trained, or name it in frozen=..."
        raise InvalidInput.found(field, f"an array of type {dtype}", "real numbers", hint)
    if not np.all(np.isfinite(np.asarray(leaf, np.float64))):
        raise InvalidInput.found(field, "NaN or infinity", "finite numbers")
    kind = jax.dtypes.canonicalize_dtype(dtype or float)
    with np.errstate(over="ignore"):
        narrowed = np.asarray(leaf, np.float64).astype(kind)
    if not np.isfinite(narrowed.astype(np.float64)).all():
        raise InvalidInput.found(
            field, "numbers beyond the range", f"numbers that {np.dtype(kind).name} can hold"
        )


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, int | float | np.ndarray | np.generic | jax.Array) and not isinstance(
        leaf, bool
    )


def _is_real_array(leaf: Any) -> bool:
    """Returns whether a leaf of a module is trained; its numbers and counts are settings."""
    return isinstance(leaf, np.ndarray | jax.Array) and jnp.issubdtype(leaf.dtype, jnp.floating)


_ALIGNED = 64
"""Bytes: JAX on a CPU shares NumPy arrays that begin at a multiple of them."""


def _place(leaf: Any) -> Any:
    """Copies a frozen array to where programs run.

    Each program would copy one of NumPy there.
    """
    if not (isinstance(leaf, np.ndarray) and leaf.dtype.kind in "fiub"):
        return leaf
    # aligned, so that `device_put` takes the copy itself
    buffer = np.empty(leaf.nbytes + _ALIGNED, np.uint8)
    start = -buffer.ctypes.data % _ALIGNED
    aligned = buffer[start : start + leaf.nbytes].view(leaf.dtype).reshape(leaf.shape)
    aligned[...] = leaf
    return jax.device_put(aligned)


def _to_real(leaf: Any, dtype: Any = None) -> Any:
    if isinstance(leaf, jax.Array):
        return leaf if dtype is None else leaf.astype(dtype)
    return np.asarray(
        leaf, dtype or getattr(leaf, "dtype", None) or jax.dtypes.canonicalize_dtype(float)
    )


@dataclasses.dataclass(frozen=True)
class _Made:
    """Starting point that a function makes from the seed's key.

    Attributes:
        function: of the key.
        kept: for each leaf, in flat order, whether it is not trained.
        masters: the type of all that are trained; None for their own.
        base: whether some of the rest may be large; then they are not made again.
    """

    function: Callable[[Any], PyTree]
    kept: tuple[bool, ...]
    masters: str | None = None
    base: bool = False

    def __call__(self, key: Any) -> PyTree:
        # XLA removes leaves that are not used
        make = jax.jit(self._select_trained) if self.base else self._select_trained
        trained = make(key)
        return jax.tree.map(
            lambda leaf: jnp.asarray(leaf, self.masters or getattr(leaf, "dtype", None) or float),
            trained,
        )

    def _select_trained(self, key: Any) -> PyTree:
        leaves, structure = jax.tree.flatten(self.function(key))
        return jax.tree.unflatten(
            structure,
            [
                None if is_frozen else leaf
                for is_frozen, leaf in zip(self.kept, leaves, strict=True)
            ],
        )


@dataclasses.dataclass(frozen=True)
class Adapted:
    """A user's function in the engine's form.

    Equal for the same function, so that tasks share compiled programs.

    Attributes:
        function: the user's.
        plain: whether the examples are one array.
        takes_key: whether its third argument is the random key.
        takes_state: whether it takes `state`, see `fedax.core.bound_model.PerExample`.
        takes_training: whether it takes `training`.
        types: see `Types`.
    """

    function: Callable[..., Any]
    plain: bool
    takes_key: str | bool
    takes_state: bool = False
    takes_training: bool = False
    types: Types = None

    def __call__(self, params: PyTree, examples: Any, key: Any, **more: Any) -> Any:
        if self.types is not None:
            leaves, structure = jax.tree.flatten(params)
            typed = (
                leaf if kind is None else leaf.astype(kind)
                for leaf, kind in zip(leaves, self.types, strict=True)
            )
            params = jax.tree.unflatten(structure, typed)
        data = examples["x"] if self.plain else examples
        if self.takes_training:
            more["training"] = key is not None
        if isinstance(self.takes_key, str):
            return self.function(params, data, **{self.takes_key: key}, **more)
        return (
            self.function(params, data, key, **more)
            if self.takes_key
            else self.function(params, data, **more)
        )


def _adapt(function: Callable[..., Any], plain: bool, name: str) -> Adapted:
    key, names = read_signature(function, f"from_loss({name}=...)")
    return Adapted(function, plain, key, "state" in names, "training" in names)
