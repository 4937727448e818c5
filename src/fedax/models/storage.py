"""Models as files: safetensors with the names of their leaves, or NumPy archives."""

import hashlib
import io
import json
import warnings
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from fedax.core import History, InvalidInput, Task, UnknownName
from fedax.examples.arrays import as_array, as_ndarray
from fedax.utils.files import read, write, writing
from fedax.utils.leaf_names import OnBase, is_in_module

FORMATS = ("safetensors", "npz")
"""Formats of model files, which are also their endings."""

Names: TypeAlias = Mapping[str, str] | Callable[[str], str] | None
"""From a leaf's name to that of its array in a file."""
Axes: TypeAlias = Collection[str] | Mapping[str, Sequence[int]]
"""Names of leaves whose arrays lie transposed in a file, all axes reversed; or by name the axes
that `numpy.transpose` takes.
"""

_ABOUT, _STATE, _STATE_LEAVES = "fedax", "state of the model: ", "state_leaves"
"""The metadata of a safetensors file, the mark of a state's arrays, and the fact that lists those
that a file has without the mark.
"""
_TYPES = {
    **{f"F{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    **{f"I{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"U{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    "BF16": np.dtype(jnp.bfloat16),
    "F8_E4M3": np.dtype(jnp.float8_e4m3fn),
    "F8_E5M2": np.dtype(jnp.float8_e5m2),
    "BOOL": np.dtype(bool),
}
"""NumPy's types by their names in safetensors."""


class Weights(NamedTuple):
    """The content of a model file.

    Attributes:
        arrays: by name, those of the model's state with a mark before it.
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
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(params)[0]]
    names = [jax.tree_util.keystr(path, simple=True, separator=".") or "params" for path in paths]
    unique = len(set(names)) == len(names)
    # a key may hold a dot itself
    return names if unique else [jax.tree_util.keystr(path) for path in paths]


def save_params(
    params: PyTree,
    path: str | Path,
    *,
    names: Names = None,
    transpose: Axes = (),
    about: Mapping[str, Any] | None = None,
    state: PyTree = None,
) -> None:
    """Writes a model to a file: safetensors, or a NumPy archive if it ends in `.npz`.

    The leaves are named by their path in the tree (see `leaf_names`). A safetensors file also keeps
    their order, the version of fedax, what `about` says, and a SHA-256 sum of all numbers, which
    `load_params` checks.

    Args:
        params: any pytree of arrays; other leaves, such as functions, are left out, as are the
            numbers that are settings of Equinox modules, such as a rate of dropout.
        path: of the file; folders are made.
        names: from the name of a leaf to that of its array in the file, a mapping (other leaves
            keep theirs) or a function.
        transpose: names of leaves that the file has transposed; as in `load_params`, which reverses
            it.
        about: facts to keep, as JSON can hold them.
        state: of the model, a pytree of arrays such as batch statistics, which `load_state` reads.

    Raises:
        InvalidInput: a path of another ending, a name that the model does not have.
        WriteFailed: a file that cannot be written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_params(
    ...         {"kernel": jnp.ones((2, 3))}, f"{folder}/a.safetensors", transpose=["kernel"]
    ...     )
    ...     load_params(f"{folder}/a.safetensors")["kernel"].shape
    (3, 2)
    """
    path = Path(path)
    content = to_bytes(
        params, format_of(path), names=names, transpose=transpose, about=about, state=state
    )
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, content)


def load_params(
    path: str | Path,
    like: Any = None,
    *,
    names: Names = None,
    transpose: Axes = (),
    strict: bool = True,
) -> PyTree:
    """Reads a model from a safetensors file or a NumPy archive.

    Also one that PyTorch or another library wrote.

    Args:
        path: of the file.
        like: a model of the same structure, whose own numbers do not matter, or a task; leaves that
            are not arrays stay as they are in it. Without it, the arrays are returned by name, as
            NumPy arrays, with those of the model's state if the file has one.
        names: from the name of a leaf (see `leaf_names`) to that of its array in the file, a
            mapping (other leaves have their own name there) or a function; nothing is guessed.
        transpose: names of leaves whose arrays the file has transposed, all axes reversed, such as
            the weights of PyTorch's linear layers; or a mapping from these names to the axes of the
            file's array as `numpy.transpose` takes them, such as `(2, 3, 1, 0)` for convolutions.
        strict: whether arrays in the file that no leaf takes are refused.

    Returns:
        The model, in the structure and the float types of `like`.

    Raises:
        InvalidInput: a file that is missing, damaged or of another kind; a leaf without array, an
            array without leaf, another shape or kind of numbers. The message names the leaf.

    Example:
        >>> import fedax, tempfile
        >>> task = fedax.tasks.digits(clients=2)
        >>> history = fedax.run(fedax.FedAvg(), task, rounds=1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     history.save(f"{folder}/model.safetensors")
        ...     params = fedax.load_params(f"{folder}/model.safetensors", like=task)
        >>> all(jax.tree.leaves(jax.tree.map(np.array_equal, params, history.params)))
        True
    """
    path = Path(path)
    arrays = read_weights(path).arrays
    if like is None:
        if names is not None or transpose:
            raise InvalidInput.because(
                "load_params(like=...)", "needed for names and transposed axes"
            )
        return _strip_marks(arrays)
    params = place_arrays(arrays, like, str(path), names=names, transpose=transpose, strict=strict)
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
    ...     save_params(jnp.ones(2), f"{folder}/a.npz", state={"mean": jnp.zeros(3)})
    ...     load_state(f"{folder}/a.npz", like={"mean": jnp.ones(3)})["mean"].tolist()
    [0.0, 0.0, 0.0]
    """
    path = Path(path)
    return state_in(read_weights(path).arrays, like, str(path))


def state_in(arrays: Mapping[str, Any], like: PyTree, where: str) -> PyTree:
    """Extracts the state from the arrays of a file; see `load_state`.

    Of a task also from arrays without the mark of a state, as in the files of other libraries.
    """
    state_arrays = {
        name.removeprefix(_STATE): values
        for name, values in arrays.items()
        if name.startswith(_STATE)
    }
    if isinstance(like, Task):
        # files of other libraries have the state's arrays without the mark
        state_arrays = state_arrays or {
            name: arrays[name] for name in _state_names(like) if name in arrays
        }
        like = like.state
    return (
        place_arrays(state_arrays, like, f"{where}, state")
        if state_arrays and like is not None
        else None
    )


def place_model(arrays: Mapping[str, Any], task: Task, where: str) -> tuple[PyTree, Task]:
    """Returns the trained leaves among the arrays of a model, and the task in the model's state.

    Raises:
        InvalidInput: as `load_params`; no state, where training changes that of the task.
    """
    params, state = place_arrays(arrays, task, where), state_in(arrays, task, where)
    if state is None and needs_state(task):
        reason = "has the parameters without the model's state, such as batch statistics"
        hint = (
            "Older versions of fedax wrote the models of run directories so: run the experiment "
            "again. History.save and save_params(state=...) write the state."
        )
        raise InvalidInput.because(where, reason, hint)
    return params, task.at(state)


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
    where, is_pytree = f"{caller}(params=...)", not isinstance(params, str | Path | History)
    if isinstance(params, str | Path):
        where, arrays = str(params), read_weights(Path(params)).arrays
    elif isinstance(params, History):
        where = f"{caller}(params=history)"
        arrays = named_arrays(params.params, params.final_state)
    else:
        arrays = dict(zip(leaf_names(params), jax.tree.leaves(params), strict=True))
    trained = leaf_names(eqx.filter_eval_shape(task.start, jax.random.key(0)))
    if task.frozen is not None and not any(name in arrays for name in trained):
        reason = f"has none of the leaves that the task trains, {', '.join(trained)}"
        hint = "Give a pretrained model to the task, as by fedax.lora(task, params=...)."
        raise InvalidInput.because(where, reason, hint)
    if isinstance(task.frozen, OnBase):
        _check_frozen(arrays, task.frozen, where)
    if is_pytree and needs_state(task) and state_in(arrays, task, where) is None:
        text = (
            f"{where}: the parameters come without the model's state, such as batch statistics, "
            "so the run starts from the task's state. Pass params=history, or a file that "
            "History.save wrote."
        )
        warnings.warn(text, stacklevel=3)
        return place_arrays(arrays, task, where), task
    return place_model(arrays, task, where)


def _check_frozen(arrays: Mapping[str, Any], frozen: PyTree, where: str) -> None:
    """Refuses adapters that were trained beside other frozen arrays: their sum is another model."""
    for name, leaf in zip(leaf_names(frozen), jax.tree.leaves(frozen), strict=True):
        if name in arrays and not np.array_equal(arrays[name], leaf):
            hint = "Make the task by fedax.lora with the same params, alpha and seed."
            raise InvalidInput.because(where, f"was trained with another {name!r}", hint)


def needs_state(task: Task) -> bool:
    """Returns whether a model of the task is complete with its state only: training changes it."""
    return task.state is not None and task.state_policy != "frozen"


def named_arrays(params: PyTree, state: PyTree) -> dict[str, np.ndarray]:
    """Returns the arrays of a model and its state by name, as `read_weights` does."""
    leaves = [*zip(leaf_names(params), jax.tree.leaves(params), strict=True)]
    leaves += zip(
        (f"{_STATE}{name}" for name in leaf_names(state)), jax.tree.leaves(state), strict=True
    )
    is_stored = _mark_stored(params) + _mark_stored(state)
    return {
        name: np.array(leaf)
        for (name, leaf), stored in zip(leaves, is_stored, strict=True)
        if stored
    }


def _state_names(task: Task) -> list[str]:
    """Returns the names of the leaves of a task's state that no trained leaf has."""
    trained = leaf_names(eqx.filter_eval_shape(task.start, jax.random.key(0)))
    return [name for name in leaf_names(task.state) if name not in trained]


def _strip_marks(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the arrays without the mark of a state's, unless two would have the same name."""
    unmarked = {name.removeprefix(_STATE): values for name, values in arrays.items()}
    return unmarked if len(unmarked) == len(arrays) else dict(arrays)


def place_arrays(
    arrays: Mapping[str, Any],
    like: Any,
    where: str,
    *,
    names: Names = None,
    transpose: Axes = (),
    strict: bool = True,
) -> PyTree:
    """Puts arrays by name into the structure of a model, checked; see `load_params`.

    Of a task, the trained leaves.

    `where` is for messages. Arrays of leaves that a task has frozen are passed over.
    """
    strict = strict and not (isinstance(like, Task) and like.frozen is not None)
    # shapes alone; the starting point is not drawn
    shapes = (
        eqx.filter_eval_shape(like.start, jax.random.key(0)) if isinstance(like, Task) else like
    )
    leaves, structure = jax.tree.flatten(shapes)
    model_names, used, placed = leaf_names(shapes), set[str](), []
    # arrays that the state takes, see `state_in`
    ignored = set[str](_state_names(like)) if isinstance(like, Task) else set[str]()
    # PyTorch counts batches beside the statistics; no state has them
    ignored |= {
        f"{name.removesuffix('running_mean')}num_batches_tracked"
        for name in ignored
        if name.endswith("running_mean")
    }
    arrays = {
        name: values
        for name, values in arrays.items()
        if not name.startswith(_STATE) and name not in ignored
    }
    _check_leaves("names", names if isinstance(names, Mapping) else (), model_names)
    _check_leaves("transpose", transpose, model_names)
    settings = set[str]()
    for name, leaf, stored in zip(model_names, leaves, _mark_stored(shapes), strict=True):
        if not stored:
            placed.append(leaf)
            if eqx.is_array_like(leaf):
                settings.add(_array_name(name, names))
            continue
        key = _array_name(name, names)
        if key not in arrays:
            raise UnknownName.among(f"{where}: no array for the leaf {name!r}, name", key, arrays)
        used.add(key)
        placed.append(
            _fit_array(as_ndarray(arrays[key], f"{where}: {name}"), leaf, name, where, transpose)
        )
    # older files hold numbers that are settings of modules too
    if strict and (unused := [key for key in arrays if key not in used | settings]):
        hint = "Pass strict=False to pass over them, or names={leaf: array}."
        raise InvalidInput.found(
            where,
            f"arrays that no leaf takes: {unused}",
            f"those of the leaves {model_names}",
            hint,
        )
    return jax.tree.unflatten(structure, placed)


def to_bytes(
    params: PyTree,
    format: str = "safetensors",
    *,
    names: Names = None,
    transpose: Axes = (),
    about: Mapping[str, Any] | None = None,
    state: PyTree = None,
) -> bytes:
    """Serializes a model; see `save_params`. Equal models with equal facts give equal bytes."""
    model_names = leaf_names(params)
    _check_leaves("names", names if isinstance(names, Mapping) else (), model_names)
    _check_leaves("transpose", transpose, model_names)
    arrays: dict[str, np.ndarray] = {}
    for name, leaf, stored in zip(
        model_names, jax.tree.leaves(params), _mark_stored(params), strict=True
    ):
        if stored:
            key = _array_name(name, names)
            if key in arrays:
                raise InvalidInput.of(
                    "save_params(names=...)", key, "a different name for every leaf"
                )
            arrays[key] = np.asarray(
                _transpose(_to_native(leaf, name), name, transpose, inverse=True), order="C"
            )
    named_state = zip(leaf_names(state), jax.tree.leaves(state), strict=True)
    arrays |= {
        f"{_STATE}{name}": np.asarray(_to_native(leaf, name), order="C")
        for name, leaf in named_state
    }
    if format == "npz":
        return _to_npz(arrays)
    from safetensors.numpy import save

    # with the names alone, PyTorch reads parameters and buffers as a state_dict
    unmarked = _strip_marks(arrays)
    facts = {
        "fedax": version("fedax"),
        **(about or {}),
        "leaves": list(unmarked),
        "sha256": _checksum(unmarked),
    }
    # names that lost the mark of a state
    if state_leaves := [name for name in unmarked if name not in arrays]:
        facts[_STATE_LEAVES] = state_leaves
    return save(unmarked, {_ABOUT: json.dumps(facts)})


def read_weights(path: Path) -> Weights:
    """Reads the arrays of a file and its metadata; see `load_params`."""
    format = format_of(path)
    try:
        content = read(path)
    except OSError as error:
        raise InvalidInput.because(
            str(path), f"cannot be read: {error.strerror or error}"
        ) from error
    try:
        return Weights(_from_npz(content), {}) if format == "npz" else _from_safetensors(content)
    except Exception as error:  # zip, header, JSON, safetensors: any layer below can fail
        reason = f"no {format} file, or a damaged one ({error or type(error).__name__})"
        raise InvalidInput.because(str(path), reason) from error


def format_of(path: Path) -> str:
    """Returns the format of a file by its ending."""
    format = path.suffix.removeprefix(".")
    if format not in FORMATS:
        hint = "PyTorch writes one with safetensors.torch.save_file(model.state_dict(), path)."
        raise InvalidInput.of(
            "file of a model", str(path), "names that end in .safetensors or .npz", hint
        )
    return format


def _mark_stored(tree: PyTree) -> list[bool]:
    """Returns for each leaf, in flat order, whether files hold it: numbers and arrays, but only
    arrays of Equinox modules, whose numbers are settings.
    """
    arrays = jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct
    return [
        isinstance(leaf, arrays) or (not in_module and eqx.is_array_like(leaf))
        for leaf, in_module in zip(jax.tree.leaves(tree), is_in_module(tree), strict=True)
    ]


def _to_native(leaf: Any, name: str) -> np.ndarray:
    """Returns a leaf in this machine's byte order; refuses masked arrays.

    Safetensors writes the machine's order.
    """
    if isinstance(leaf, np.ma.MaskedArray):
        return as_array(leaf, f"save_params(params=...), leaf {name!r}")
    array = np.asarray(leaf)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _check_leaves(argument: str, names: Collection[str], model_names: Sequence[str]) -> None:
    for name in names:
        if name not in model_names:
            raise UnknownName.among(f"{argument} of the model's leaves", name, model_names)


def _array_name(name: str, names: Names) -> str:
    return (
        name
        if names is None
        else names.get(name, name)
        if isinstance(names, Mapping)
        else names(name)
    )


def _transpose(array: np.ndarray, name: str, transpose: Axes, inverse: bool = False) -> np.ndarray:
    if name not in transpose:
        return array
    axes = (
        list(transpose[name]) if isinstance(transpose, Mapping) else list(range(array.ndim))[::-1]
    )
    if sorted(axes) != list(range(array.ndim)):
        raise InvalidInput.of(
            f"transpose[{name!r}]", axes, f"the axes 0 to {array.ndim - 1}, each once"
        )
    # back into the file: the inverse permutation
    return array.transpose(np.argsort(axes) if inverse else axes)


def _fit_array(array: np.ndarray, leaf: Any, name: str, where: str, transpose: Axes) -> jax.Array:
    if isinstance(leaf, np.ndarray):
        # JAX knows the byte order of this machine only
        leaf = leaf.astype(leaf.dtype.newbyteorder("="))
    array, shape, dtype = _transpose(array, name, transpose), np.shape(leaf), jnp.result_type(leaf)
    if array.shape != shape:
        hint = (
            f"Its transpose fits: transpose=[{name!r}]."
            if array.T.shape == shape and name not in transpose
            else ""
        )
        raise InvalidInput.found(
            f"{where}: {name}", f"shape {array.shape}", f"shape {shape}, as the model has", hint
        )
    is_real, wants_real = (jnp.issubdtype(kind, jnp.floating) for kind in (array.dtype, dtype))
    # real numbers may change their precision, all others keep their type
    if is_real != wants_real or (not is_real and array.dtype != dtype):
        raise InvalidInput.found(
            f"{where}: {name}", str(array.dtype), "real numbers" if wants_real else str(dtype)
        )
    with np.errstate(over="ignore"):
        narrowed = array.astype(dtype)
    # finite numbers that became infinite
    if not np.array_equal(np.isfinite(narrowed), np.isfinite(array)):
        raise InvalidInput.found(
            f"{where}: {name}", "numbers beyond the range", f"numbers that {dtype} can hold"
        )
    return jnp.asarray(narrowed)


def _checksum(arrays: Mapping[str, np.ndarray]) -> str:
    total = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        # the type and shape too: other arrays may have the same bytes
        total.update(f"{name}{array.dtype}{array.shape}".encode())
        total.update(array.reshape(-1).view(np.uint8).data)
    return total.hexdigest()


def _from_safetensors(content: bytes) -> Weights:
    from safetensors import deserialize

    # eight bytes with the length of the header, then the header as JSON
    length = int.from_bytes(content[:8], "little")
    metadata = (
        json.loads(content[8 : 8 + length]).get("__metadata__", {}).get(_ABOUT)
        # `deserialize` refuses a length beyond the file
        if length < len(content)
        else None
    )
    unsorted = {
        name: np.frombuffer(tensor["data"], _TYPES[tensor["dtype"]]).reshape(tensor["shape"])
        for name, tensor in deserialize(content)
    }
    about = {} if metadata is None else json.loads(metadata)
    if about and about["sha256"] != _checksum(unsorted):
        raise ValueError("its checksum does not fit")
    state_names = set(about.pop(_STATE_LEAVES, ()))
    # in the order of the leaves, where the file tells it
    names = about.get("leaves", sorted(unsorted))
    return Weights(
        {(_STATE if name in state_names else "") + name: unsorted[name] for name in names}, about
    )


def _to_npz(arrays: Mapping[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    # numpy.savez names its own arguments like arrays, and writes the time
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            # types that NumPy does not know, such as bfloat16
            is_native = array.dtype.isbuiltin < 2
            body = io.BytesIO()
            np.lib.format.write_array(
                body, array if is_native else array.astype(np.float32), allow_pickle=False
            )
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), body.getvalue())
    return buffer.getvalue()


def _from_npz(content: bytes) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(content), allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}
