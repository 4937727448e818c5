"""Models as files: safetensors with the names of their leaves."""

import json
import warnings
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from fedax.core import History, InvalidInput, Task, UnknownName
from fedax.examples.arrays import as_ndarray, check_range
from fedax.utils.files import read, write
from fedax.utils.leaf_names import OnBase, is_in_module, names_of

_TYPES = {
    "BF16": "bfloat16", "BOOL": "bool", "F16": "float16", "F32": "float32", "F64": "float64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "I16": "int16", "I32": "int32",
    "I64": "int64", "I8": "int8", "U16": "uint16", "U32": "uint32", "U64": "uint64", "U8": "uint8",
}  # fmt: skip
"""NumPy's types by their names in safetensors."""


class Weights(NamedTuple):
    """The content of a model file.

    Attributes:
        arrays: by name, those of the model's state too.
        about: the facts that fedax wrote beside them; empty for files of others.
    """

    arrays: dict[str, np.ndarray]
    about: dict[str, Any]


def leaf_names(params: PyTree) -> list[str]:
    """Returns the names of a model's leaves in flat order: the path to each, joined by dots.

    A lone array is called `params`.

    >>> leaf_names({"dense": {"kernel": 0.0, "bias": 0.0}, "scales": [0.0, 0.0]})
    ['dense.bias', 'dense.kernel', 'scales.0', 'scales.1']
    """
    names = [name or "params" for name in names_of(params)]
    if len(set(names)) == len(names):
        return names
    # a key may hold a dot itself
    return [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(params)]


def save_params(
    params: PyTree,
    path: str | Path,
    *,
    names: Mapping[str, str] | None = None,
    about: Mapping[str, Any] | None = None,
    state: PyTree = None,
) -> None:
    """Writes a model to a file of safetensors.

    The leaves are named by their path in the tree (see `leaf_names`). The file also keeps the
    version of fedax and what `about` says.

    Args:
        params: any pytree of arrays; other leaves, such as functions, are left out, as are the
            numbers that are settings of Equinox modules, such as a rate of dropout.
        path: of the file, which ends in `.safetensors`; folders are made.
        names: from the names of leaves to those of their arrays in the file; other leaves keep
            theirs.
        about: facts to keep, as JSON can hold them.
        state: of the model, a pytree of arrays such as batch statistics, which `load_state` reads.

    Raises:
        InvalidInput: a path of another ending, or one array for two leaves.
        WriteFailed: a file that cannot be written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_params(
    ...         {"kernel": jnp.ones((2, 3))}, f"{folder}/a.safetensors", names={"kernel": "weight"}
    ...     )
    ...     load_params(f"{folder}/a.safetensors")["weight"].shape
    (2, 3)
    """
    path = Path(path)
    if path.suffix != ".safetensors":
        raise InvalidInput.of("file of a model", str(path), "names that end in .safetensors")
    write(path, to_bytes(named_arrays(params, state, names), about))


def load_params(
    path: str | Path,
    like: Any = None,
    *,
    names: Mapping[str, str] | None = None,
    strict: bool = True,
) -> PyTree:
    """Reads a model from a file of safetensors, also one that another library wrote.

    Args:
        path: of the file.
        like: a model of the same structure, whose own numbers do not matter, or a task; leaves that
            are not arrays stay as they are in it. Without it, the arrays are returned by name, as
            NumPy arrays, with those of the model's state if the file has one.
        names: from the names of leaves (see `leaf_names`) to those of their arrays in the file;
            other leaves have their own name there.
        strict: whether arrays in the file that no leaf takes are refused. Those of a task's state
            and frozen leaves are not.

    Returns:
        The model, in the structure and the float types of `like`.

    Raises:
        InvalidInput: a file that is missing, damaged or of another kind; a leaf without array, an
            array without leaf, another shape, real numbers for whole ones. The message names the
            leaf.

    Example:
        >>> import fedax, tempfile
        >>> task = fedax.task("digits", clients=2)
        >>> history = fedax.run(fedax.FedAvg(), task, rounds=1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     history.save(f"{folder}/model.safetensors")
        ...     params = fedax.load_params(f"{folder}/model.safetensors", like=task)
        >>> all(jax.tree.leaves(jax.tree.map(np.array_equal, params, history.params)))
        True
    """
    arrays = read_weights(path).arrays
    if like is None:
        return arrays
    params = _place_arrays(arrays, like, str(path), names or {}, strict)
    return like.assembled(params) if isinstance(like, Task) else params


def load_state(path: str | Path, like: PyTree) -> PyTree:
    """Reads the state of a model, such as batch statistics, from its file.

    `History.save` or `save_params(state=...)` wrote it beside the model.

    Args:
        path: of the file.
        like: a state of the same structure, or a task with one.

    Returns:
        The state in the structure and the types of `like`; None if the file has none.

    Raises:
        InvalidInput: as `load_params`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_params(jnp.ones(2), f"{folder}/a.safetensors", state={"mean": jnp.zeros(3)})
    ...     load_state(f"{folder}/a.safetensors", like={"mean": jnp.ones(3)})["mean"].tolist()
    [0.0, 0.0, 0.0]
    """
    return _state_in(read_weights(path).arrays, like, str(path))


def place_model(arrays: Mapping[str, Any], task: Task, where: str) -> tuple[PyTree, Task]:
    """Returns the trained leaves among the arrays of a model, and the task in the model's state.

    Raises:
        InvalidInput: as `load_params`; no state, where training changes that of the task.
    """
    state = _state_in(arrays, task, where)
    if state is None and _needs_state(task):
        reason = "has the parameters without the model's state, such as batch statistics"
        hint = "History.save and save_params(state=...) write the state."
        raise InvalidInput.because(where, reason, hint)
    return _place_arrays(arrays, task, where), task.at(state)


def initial_model(task: Task, params: Any, caller: str) -> tuple[PyTree, Task]:
    """Returns the trained leaves of a model to start from, and the task in the model's state.

    Warns if training changes a state of the task that a pytree of parameters does not have.

    Args:
        task: of the model.
        params: a pytree with leaves of the task's names and shapes, a history, or the path of a
            file; with the model's state, if training changes that.
        caller: the function with the argument `params`, for messages.

    Raises:
        InvalidInput: a model that is not the task's; the message names the leaf.
    """
    where = f"{caller}(params=...)"
    if isinstance(params, str | Path):
        where = str(params)
        arrays = read_weights(params).arrays
    elif isinstance(params, History):
        arrays = named_arrays(params.params, params.final_state)
    else:
        arrays = dict(zip(leaf_names(params), jax.tree.leaves(params), strict=True))
        if _needs_state(task) and _state_in(arrays, task, where) is None:
            text = (
                f"{where}: the parameters come without the model's state, such as batch "
                "statistics, so the run starts from the task's state. Pass params=history, or a "
                "file that History.save wrote."
            )
            warnings.warn(text, stacklevel=3)
            return _place_arrays(arrays, task, where), task
    if isinstance(task.frozen, OnBase):
        # adapters that were trained beside other frozen arrays: their sum is another model
        for name, leaf in named_arrays(task.frozen, None).items():
            if name in arrays and not np.array_equal(arrays[name], leaf):
                hint = "Make the task by fedax.lora with the same params, alpha and seed."
                raise InvalidInput.because(where, f"was trained with another {name!r}", hint)
    return place_model(arrays, task, where)


def named_arrays(
    params: PyTree, state: PyTree, names: Mapping[str, str] | None = None
) -> dict[str, np.ndarray]:
    """Returns the arrays of a model and its state by name, as `read_weights` does.

    Raises:
        InvalidInput: one name for two leaves.
    """
    own_names = leaf_names(params)
    # a state's name says so only where a leaf of the model has the same
    state_names = [f"state.{name}" if name in own_names else name for name in leaf_names(state)]
    file_names = [(names or {}).get(name, name) for name in own_names] + state_names
    if len(set(file_names)) < len(file_names):
        raise InvalidInput.of("names", file_names, "a different name for every leaf")
    leaves = jax.tree.leaves((params, state))
    stored = _mark_stored((params, state))
    return {
        name: as_ndarray(leaf, name)
        for name, leaf, is_stored in zip(file_names, leaves, stored, strict=True)
        if is_stored
    }


def to_bytes(arrays: Mapping[str, np.ndarray], about: Mapping[str, Any] | None = None) -> bytes:
    """Serializes the arrays of a model; equal ones with equal facts give equal bytes."""
    from safetensors.numpy import save

    # safetensors copies the memory as it is
    packed = {
        name: np.asarray(array, array.dtype.newbyteorder("="), order="C")
        for name, array in arrays.items()
    }
    return save(packed, {"fedax": json.dumps({"fedax": version("fedax"), **(about or {})})})


def read_weights(path: str | Path) -> Weights:
    """Reads the arrays of a file, and its metadata; see `load_params`."""
    from safetensors import deserialize

    try:
        content = read(Path(path))
        arrays = {
            name: np.frombuffer(tensor["data"], jnp.dtype(_TYPES[tensor["dtype"]])).reshape(
                tensor["shape"]
            )
            for name, tensor in sorted(deserialize(content))
        }
        # eight bytes with the length of the header, then the header as JSON
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        about = json.loads(header.get("__metadata__", {}).get("fedax", "{}"))
    except Exception as error:  # the system, header, JSON, safetensors: any layer below can fail
        reason = f"cannot be read as safetensors ({error or type(error).__name__})"
        raise InvalidInput.because(str(path), reason) from error
    return Weights(arrays, about)


def _trained_shapes(like: Any) -> PyTree:
    """Returns the shapes of a task's trained leaves, without drawing them; a model as it is."""
    if isinstance(like, Task):
        return eqx.filter_eval_shape(like.start, jax.random.key(0))
    return like


def _state_in(arrays: Mapping[str, Any], like: PyTree, where: str) -> PyTree:
    """Extracts the state from the arrays of a file; see `load_state`."""
    names = set(arrays)
    if isinstance(like, Task):
        # those of trained leaves, also where they begin with "state", are not the state's
        names.difference_update(leaf_names(_trained_shapes(like)))
        like = like.state
    found = {}
    for name in leaf_names(like):
        # see `named_arrays`
        for key in (name, f"state.{name}"):
            if key in names:
                found[name] = arrays[key]
    return _place_arrays(found, like, f"{where}, state") if found else None


def _needs_state(task: Task) -> bool:
    """Returns whether a model of the task is complete with its state only: training changes it."""
    return task.state is not None and task.state_policy != "frozen"


def _place_arrays(
    arrays: Mapping[str, Any],
    like: Any,
    where: str,
    names: Mapping[str, str] = {},
    strict: bool = True,
) -> PyTree:
    """Puts arrays by name into the structure of a model, see `load_params`.

    Of a task, the trained leaves; arrays of leaves that it has frozen are passed over.
    """
    shapes = _trained_shapes(like)
    leaves, structure = jax.tree.flatten(shapes)
    file_names = [names.get(name, name) for name in leaf_names(shapes)]
    placed = []
    for name, leaf, stored in zip(file_names, leaves, _mark_stored(shapes), strict=True):
        if not stored:
            placed.append(leaf)
        elif name in arrays:
            placed.append(_fit_array(as_ndarray(arrays[name], name), leaf, f"{where}: {name}"))
        else:
            raise UnknownName.among(f"{where}: no array for a leaf, name", name, arrays)
    passed_over = set(file_names)
    if isinstance(like, Task):
        passed_over.update(leaf_names(like.state))
        strict = strict and like.frozen is None
    unused = [
        name
        for name in arrays
        # PyTorch counts batches beside the statistics; no state has them
        if name.removeprefix("state.") not in passed_over
        and not name.endswith("num_batches_tracked")
    ]
    if strict and unused:
        allowed = f"those of the leaves {file_names}, unless strict=False"
        raise InvalidInput.found(where, f"arrays that no leaf takes: {unused}", allowed)
    return jax.tree.unflatten(structure, placed)


def _mark_stored(tree: PyTree) -> list[bool]:
    """Returns for each leaf, in flat order, whether files hold it: numbers and arrays, but only
    arrays of Equinox modules, whose numbers are settings.
    """
    arrays = jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct
    return [
        isinstance(leaf, arrays) or (not in_module and eqx.is_array_like(leaf))
        for leaf, in_module in zip(jax.tree.leaves(tree), is_in_module(tree), strict=True)
    ]


def _fit_array(array: np.ndarray, leaf: Any, where: str) -> jax.Array:
    if array.shape != np.shape(leaf):
        raise InvalidInput.found(where, f"shape {array.shape}", f"shape {np.shape(leaf)}")
    dtype = jax.dtypes.canonicalize_dtype(jnp.result_type(leaf))
    is_real = all(jnp.issubdtype(kind, jnp.floating) for kind in (array.dtype, dtype))
    if not is_real and array.dtype.kind not in "biu":
        raise InvalidInput.found(where, str(array.dtype), str(dtype))
    check_range(array, dtype, where)
    return jnp.asarray(array, dtype)
