"""PyTorch's exported graph of a module, with JAX's functions for its operators."""

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from fedax.core import InvalidInput
from fedax.models.torch_modules.layers import LAYERS
from fedax.models.torch_modules.operators import OPERATORS
from fedax.models.torch_modules.recurrent import DRAWING, Draw

FUNCTIONS = OPERATORS | LAYERS | DRAWING
_KEPT = (
    "adaptive_avg_pool1d.default", "avg_pool1d.default", "einsum.default", "elu.default",
    "gelu.default", "group_norm.default", "gru.input", "hardsigmoid.default", "hardswish.default",
    "leaky_relu.default", "linalg_vector_norm.default", "linear.default", "log_sigmoid.default",
    "lstm.input", "max_pool1d.default", "max_pool2d.default", "max_pool3d.default", "mish.default",
    "rnn_relu.input", "rnn_tanh.input", "silu.default", "softplus.default", "std.correction",
)  # fmt: skip
"""Operators that PyTorch would break down, and that have a function here."""
_BROKEN_DOWN = (
    "_native_batch_norm_legit", "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training", "native_layer_norm", "upsample_bilinear2d",
    "upsample_nearest2d",
)  # fmt: skip
"""Operators that PyTorch would leave whole, and breaks down when asked to."""
_IGNORED = (
    "copy", "device", "generator", "implicit", "layout", "memory_format", "non_blocking", "path",
    "pin_memory", "sparse_grad",
)  # fmt: skip
"""Arguments about memory, devices and ways to compute."""
_PRODUCTS = ("mul", "pow", "prod", "bitwise_left_shift")
"""Operators whose whole numbers leave 32 bits soon."""


@dataclasses.dataclass(frozen=True)
class Program:
    """A module in one mode, training or evaluation.

    Attributes:
        exported: by PyTorch, with JAX's functions in its graph.
    """

    exported: Any

    def __call__(
        self, tensors: Mapping[str, Any], inputs: Sequence[Any], draw: Draw | None = None
    ) -> tuple[PyTree, dict[str, Any]]:
        """Returns outputs, and by name the buffers that the module changes.

        Args:
            tensors: parameters and buffers by name.
            inputs: the module's arguments.
            draw: of random numbers; None in evaluation.
        """
        import torch  # pyright: ignore[reportMissingImports]

        signature = self.exported.graph_signature
        remaining = iter(inputs)
        values: list[Any] = [draw]
        for spec in signature.input_specs:
            match spec.kind.name:
                case "USER_INPUT":
                    values.append(jnp.asarray(next(remaining)))
                case "CONSTANT_TENSOR":
                    values.append(jnp.asarray(self.exported.constants[spec.target].numpy()))
                case _:
                    values.append(jnp.asarray(tensors[spec.target]))
        # PyTorch's rules are those of "standard" and "allow"
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            interpreter = torch.fx.Interpreter(self.exported.graph_module)
            returned = interpreter.run(*values, enable_io_processing=False)
        outputs = []
        updates = {}
        for spec, value in zip(signature.output_specs, returned, strict=True):
            if spec.kind.name == "BUFFER_MUTATION":
                updates[spec.target] = value
            else:
                outputs.append(value)
        return self.exported.call_spec.out_spec.unflatten(outputs), updates

    @property
    def updates(self) -> list[str]:
        """The names of the buffers that the module changes."""
        specs = self.exported.graph_signature.output_specs
        return [spec.target for spec in specs if spec.kind.name == "BUFFER_MUTATION"]


def export(module: Any, inputs: Sequence[np.ndarray], *, training: bool) -> Program:
    """Returns a module's program.

    Args:
        module: its mode is set.
        inputs: arguments for some examples.
        training: the mode.

    Raises:
        InvalidInput: operators that have no function here. Other errors are PyTorch's.
    """
    import torch  # pyright: ignore[reportMissingImports]

    module.train(training)
    examples = tuple(as_tensor(module, array) for array in inputs)
    # one name for all inputs: PyTorch refuses what it decides by the number of examples
    batch = torch.export.Dim("batch")
    shapes = torch.export.ShapesCollection()
    for example in examples:
        shapes[example] = {0: batch}
    table = torch.export.default_decompositions()
    table.update(
        torch._decomp.get_decompositions([getattr(torch.ops.aten, name) for name in _BROKEN_DOWN])
    )
    for overload in list(table):
        if str(overload).removeprefix("aten.") in _KEPT:
            del table[overload]
    with torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of PyTorch about itself
        exported = torch.export.export(module, examples, dynamic_shapes=shapes)
        exported = exported.run_decompositions(table)
    graph = exported.graph_module.graph
    _refuse(graph.nodes, training, float_type(module))
    for node in graph.nodes:
        if _name(node) == "lstm" and _is_plain(node):
            node.update_arg(1, None)
    with graph.inserting_before(next(iter(graph.nodes))):
        draw = graph.placeholder("draw")
    for node in graph.nodes:
        if name := _name(node):
            node.target = FUNCTIONS[name]
            if name in DRAWING:
                node.args = (draw, *node.args)
            node.kwargs = {
                key: _convert(value) for key, value in node.kwargs.items() if key not in _IGNORED
            }
    return Program(exported)


def float_type(module: Any) -> Any:
    """Returns the type of a module's real parameters, which its real inputs get too."""
    import torch  # pyright: ignore[reportMissingImports]

    types = (p.dtype for p in module.parameters() if p.dtype.is_floating_point)
    return next(types, torch.float32)


def as_tensor(module: Any, array: np.ndarray) -> Any:
    """Returns an argument of a module as it would get it in PyTorch."""
    import torch  # pyright: ignore[reportMissingImports]

    tensor = torch.from_numpy(np.array(array))
    if tensor.is_floating_point():
        return tensor.to(float_type(module))
    return tensor if tensor.dtype == torch.bool else tensor.to(torch.int64)


def _name(node: Any) -> str:
    """Returns the name of a node's operator, "" for functions of Python and other nodes."""
    packet = getattr(node.target, "overloadpacket", None)
    return "" if packet is None else packet.__name__


def _refuse(nodes: Any, training: bool, float_type: Any) -> None:
    """Refuses operators without a function, and arithmetic in 64 bits that JAX would do in 32.

    Raises:
        InvalidInput: names the operators.
    """
    import torch  # pyright: ignore[reportMissingImports]

    is_narrow = jnp.asarray(0).dtype == np.int32
    unknown = set()
    wide = set()
    for node in nodes:
        name = _name(node)
        if name and (name not in FUNCTIONS or (name == "bernoulli" and not training)):
            unknown.add(str(node.target))
        kind = getattr(node.meta.get("val"), "dtype", None)
        is_long = kind == torch.int64 and name in _PRODUCTS
        if is_narrow and (is_long or kind == torch.float64 != float_type):
            wide.add(f"{node.target} in {str(kind).removeprefix('torch.')}")
    mode = "training" if training else "evaluation"
    if unknown:
        got = f"the operators {', '.join(sorted(unknown))} in {mode}"
        allowed = 'operators that "PyTorch modules" in the documentation lists'
        raise InvalidInput.found("models.torch(module=...)", got, allowed)
    if wide:
        hint = "Write x.int() or x.float(), or set jax_enable_x64."
        raise InvalidInput.found(
            "models.torch(module=...)", ", ".join(sorted(wide)), "arithmetic in 32 bits", hint
        )


def _is_plain(lstm: Any) -> bool:
    """Returns whether an LSTM starts at zeros, and nothing reads its last cells."""
    starts: Any = lstm.args[1]
    is_at_zero = all(_name(start) == "full" and start.args[1] == 0 for start in starts)
    return is_at_zero and not any(user.args[1] == 2 and user.users for user in lstm.users)


def _convert(value: Any) -> Any:
    """Returns a type of PyTorch as JAX has it, and other values as they are."""
    is_type = type(value).__name__ == "dtype"
    name = str(value).removeprefix("torch.")
    return jax.dtypes.canonicalize_dtype(name) if is_type else value
