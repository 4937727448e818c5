"""PyTorch's exported graph of a module, as a list of steps that JAX runs."""

import contextlib
import dataclasses
import inspect
import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from fedax.core import InvalidInput
from fedax.tasks.own_models.torch_modules import layers, recurrent
from fedax.tasks.own_models.torch_modules.operators import OPERATORS

CONTEXTUAL = recurrent.CONTEXTUAL
_KEPT = (
    "dropout", "einsum", "gelu", "group_norm", "gru", "layer_norm", "linear", "lstm", "max_pool1d",
    "max_pool2d",
    "max_pool3d", "mish", "rms_norm", "rnn_relu", "rnn_tanh", "scaled_dot_product_attention",
    "silu", "hardswish",
    "hardsigmoid", "elu", "leaky_relu", "softplus",
    "adaptive_avg_pool1d", "avg_pool1d", "log_sigmoid",
)  # fmt: skip
"""Operators that PyTorch is asked to leave whole."""
_CHECKS = ("_assert", "sym_constrain_range")
"""Beginnings of the names of operators that only check."""
_PRODUCTS = ("mul.", "pow.", "prod.", "bitwise_left_shift.")
"""Beginnings of the names of operators whose whole numbers leave 32 bits soon."""
_PLACES = ("layout", "device", "pin_memory", "memory_format", "non_blocking")
"""Arguments about memory and devices."""


@dataclasses.dataclass(frozen=True)
class Ref:
    """The result of a step, or an input."""

    name: str


@dataclasses.dataclass(frozen=True)
class Step:
    """One call.

    Attributes:
        name: of the result.
        function: in JAX, of the arguments.
        args: with `Ref` for results of other steps.
        kwargs: by name.
        takes_context: whether the function also takes the call's `Context`.
    """

    name: str
    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    takes_context: bool


@dataclasses.dataclass(frozen=True)
class Program:
    """A module in one mode, training or evaluation.

    Attributes:
        steps: in order.
        tensors: names of the inputs that are parameters or buffers, by the module's names for them.
        constants: arrays by the names of inputs that are constants of the graph.
        inputs: names of the arguments' inputs.
        outputs: the results, in the structure that the module returns.
        updates: results by the names of the buffers that they replace.
    """

    steps: tuple[Step, ...]
    tensors: Mapping[str, str]
    constants: Mapping[str, np.ndarray]
    inputs: tuple[str, ...]
    outputs: Any
    updates: Mapping[str, Ref]

    def __call__(
        self,
        tensors: Mapping[str, Any],
        inputs: Sequence[Any],
        context: layers.Context = layers.EVALUATION,
    ) -> tuple[PyTree, dict[str, Any]]:
        """Returns outputs and updated buffers.

        Args:
            tensors: parameters and buffers by name.
            inputs: the module's arguments.
            context: of the call.
        """
        values: dict[str, Any] = {
            name: jnp.asarray(tensors[tensor]) for name, tensor in self.tensors.items()
        }
        values |= {name: jnp.asarray(array) for name, array in self.constants.items()}
        values |= zip(self.inputs, map(jnp.asarray, inputs), strict=True)

        def resolve(value: Any) -> Any:
            match value:
                case Ref(name):
                    return values[name]
                case list() | tuple():
                    return type(value)(map(resolve, value))
                case dict():
                    return {name: resolve(item) for name, item in value.items()}
                case _:
                    return value

        # PyTorch's rules are those of "standard" and "allow"
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            for step in self.steps:
                args = resolve(step.args)
                if step.takes_context:
                    args = [context, *args]
                values[step.name] = step.function(*args, **resolve(step.kwargs))
            return resolve(self.outputs), {name: resolve(ref) for name, ref in self.updates.items()}


def export(module: Any, inputs: Sequence[np.ndarray], *, training: bool) -> Program:
    """Returns a module's program.

    Args:
        module: a `torch.nn.Module`; its mode is set.
        inputs: arguments for some examples.
        training: the mode.

    Raises:
        InvalidInput: a module that PyTorch cannot export, or with operators that have no function
            here.
    """
    import torch

    module.train(training)
    examples = tuple(as_tensor(module, array) for array in inputs)
    # one name for all inputs: PyTorch refuses what it decides by the number of examples
    batch = torch.export.Dim("batch")
    try:
        with _silence_torch(), torch.enable_grad():
            exported = torch.export.export(
                module, examples, dynamic_shapes=_dynamic_shapes(module, examples, {0: batch})
            )
            # everything is broken down but the operators of _KEPT
            table = torch.export.default_decompositions()
            for overload in list(table):
                if overload.name().split("::")[1].split(".")[0] in _KEPT:
                    del table[overload]
            exported = exported.run_decompositions(table)
    except Exception as error:
        shapes = [tuple(example.shape) for example in examples]
        words = " ".join(str(error).split()[:60])
        reason = f"torch.export refuses it on inputs of shapes {shapes}: {words}"
        raise InvalidInput.because("from_torch(module=...)", reason) from error
    _refuse_wide_numbers(list(exported.graph.nodes), float_type(module))
    return _make_program(exported)


@contextlib.contextmanager
def _silence_torch() -> Iterator[None]:
    """Silences the warnings, logs and graphs that PyTorch writes when it refuses a module."""
    disabled = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def float_type(module: Any) -> Any:
    """Returns the type of a module's real parameters, which its real inputs get too."""
    import torch

    types = (p.dtype for p in module.parameters() if p.dtype.is_floating_point)
    return next(types, torch.float32)


def as_tensor(module: Any, array: np.ndarray) -> Any:
    """Returns an argument of a module as it would get it in PyTorch."""
    import torch

    tensor = torch.from_numpy(np.array(array))
    if array.dtype.kind == "f":
        return tensor.to(float_type(module))
    return tensor.to(torch.int64) if array.dtype.kind == "i" else tensor


def _dynamic_shapes(module: Any, examples: tuple[Any, ...], batch: Any) -> Any:
    """Returns the shapes that vary, one entry for each argument; those of *args are one entry
    together.
    """
    parameters = list(inspect.signature(module.forward).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    single = tuple(dict(batch) for _ in examples[: len(positional)])
    variadic = tuple(dict(batch) for _ in examples[len(positional) :])
    return (*single, variadic) if variadic else single


def _refuse_wide_numbers(nodes: Sequence[Any], float_type: Any) -> None:
    """Refuses arithmetic in 64 bits that JAX would do in 32.

    Raises:
        InvalidInput: names the operator, module and line.
    """
    if jnp.asarray(0).dtype == np.int64:  # the user has set jax_enable_x64
        return
    for node in nodes:
        kind = str(getattr(node.meta.get("val"), "dtype", ""))
        is_product = kind == "torch.int64" and _operator_name(node).startswith(_PRODUCTS)
        if is_product or (kind == "torch.float64" and kind != str(float_type)):
            got = (
                f"the operator {node.target} in {kind.removeprefix('torch.')} {_find_origin(node)}"
            )
            hint = "Write x.int() or x.float(), or set jax_enable_x64."
            raise InvalidInput.found(
                "from_torch(module=...)", got, "arithmetic in 32 bits, as JAX does it", hint
            )


def _make_program(exported: Any) -> Program:
    signature, nodes = exported.graph_signature, list(exported.graph.nodes)
    tensors, constants, inputs = {}, {}, []
    for spec in signature.input_specs:
        name, kind = getattr(spec.arg, "name", None), spec.kind.name
        if kind in ("PARAMETER", "BUFFER"):
            tensors[name] = spec.target
        elif kind == "CONSTANT_TENSOR":
            constants[name] = exported.constants[spec.target].detach().numpy()
        elif kind == "USER_INPUT":
            inputs.append(name)
    _refuse_unknown(nodes)
    steps = [
        _make_step(node) for node in nodes if node.op == "call_function" and not _is_check(node)
    ]
    (returned,) = next(node for node in nodes if node.op == "output").args
    refs = [_convert_argument(value) for value in returned]
    updates, results = {}, []
    # among the results are the new values of buffers
    for spec, ref in zip(signature.output_specs, refs, strict=True):
        if spec.kind.name == "BUFFER_MUTATION":
            updates[spec.target] = ref
        else:
            results.append(ref)
    outputs = exported.call_spec.out_spec.unflatten(results)
    return Program(tuple(steps), tensors, constants, tuple(inputs), outputs, updates)


def _operator_name(node: Any) -> str:
    return str(node.target).removeprefix("aten.")


def _is_check(node: Any) -> bool:
    return _operator_name(node).startswith(_CHECKS)


def _refuse_unknown(nodes: Sequence[Any]) -> None:
    """Refuses operators that have no function here, with the module that calls each.

    Raises:
        InvalidInput: names the operators, modules and lines.
    """
    unknown: dict[str, str] = {}
    for node in nodes:
        if node.op != "call_function" or _is_check(node) or _is_python(node.target):
            continue
        if _operator_name(node) not in OPERATORS and _operator_name(node) not in CONTEXTUAL:
            unknown.setdefault(str(node.target), _find_origin(node))
    if unknown:
        got = "; ".join(f"the operator {name} {origin}" for name, origin in unknown.items())
        allowed = 'operators that "PyTorch modules" in the documentation lists'
        takes_number = any("_local_scalar_dense" in name for name in unknown)
        hint = (
            "It is .item() or float(): keep the number as a tensor."
            if takes_number
            else "Write this part with other operators."
        )
        raise InvalidInput.found("from_torch(module=...)", got, allowed, hint)


def _is_python(target: Any) -> bool:
    return (
        getattr(target, "__module__", "") in ("_operator", "math", "builtins")
        or str(target) == "aten.sym_size.int"
    )


def _find_origin(node: Any) -> str:
    """Returns the submodule and the line of source that call an operator."""
    # the innermost module
    path, kind = list(node.meta.get("nn_module_stack", {"": ("", "")}).values())[-1]
    kind = kind if isinstance(kind, str) else kind.__qualname__
    lines = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    where = f"of {path!r} ({kind.rpartition('.')[2]})" if path else "of the module itself"
    return where + (f", {lines[-1][0]}:{lines[-1][1]}" if lines else "")


def _make_step(node: Any) -> Step:
    name = _operator_name(node)
    args = list(map(_convert_argument, node.args))
    if name == "sym_size.int":
        function: Callable[..., Any] = _size
    elif _is_python(node.target):
        function = node.target
    else:
        function = CONTEXTUAL.get(name) or OPERATORS[name]
    if name == "lstm.input" and _starts_at_zero(node) and not _reads_cells(node):
        args[1] = None
    kwargs = {
        key: _convert_argument(value) for key, value in node.kwargs.items() if key not in _PLACES
    }
    return Step(node.name, function, args, kwargs, name in CONTEXTUAL)


def _starts_at_zero(lstm: Any) -> bool:
    """Returns whether the hidden states and cells before the first step are zeros."""
    return all(
        _operator_name(start) == "full.default" and start.args[1] == 0 for start in lstm.args[1]
    )


def _reads_cells(lstm: Any) -> bool:
    """Returns whether the program reads the last cells, the third result."""
    return any(user.args[1] == 2 and user.users for user in lstm.users)


def _size(x: Any, axis: int) -> int:
    return x.shape[axis]


def _convert_argument(value: Any) -> Any:
    """Returns an argument without objects of PyTorch."""
    kind = type(value)
    if kind.__name__ == "Node":
        return Ref(value.name)
    if isinstance(value, list | tuple):
        return [_convert_argument(item) for item in value]
    if kind.__module__ == "torch" and kind.__name__ == "dtype":
        return jnp.dtype(str(value).removeprefix("torch."))
    if isinstance(value, bool | int | float | str | None):
        return value
    if kind.__module__.partition(".")[0] == "torch":  # layouts, devices, memory formats
        return None
    return value
