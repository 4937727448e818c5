"""Operations with a form for each platform, and the rules that all of them share.

Arrays of an operation have a first axis, the group: examples and parameters of different groups do
not meet. Batching adds groups, or examples where the result of an example depends on no other one.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedax.ops.extension import usable
from fedax.utils.jax_internals import Primitive, ad, batching, mlir

IMAGES = (0, 4, 2, 3, 1)
"""Memory order of (group, example, row, column, channel) in the extension: the example is
innermost."""


class Result(NamedTuple):
    """Shape and type of a result, and whether it lies in memory as images do."""

    shape: tuple[int, ...]
    dtype: Any
    images: bool = True


def primitive(
    name: str,
    results: Callable[..., Sequence[Result]],
    plain: Callable[..., Sequence[Any]],
    call: tuple[str, Callable[..., Sequence[int] | None]] | None,
    images: tuple[bool, ...],
    in_place: int = 0,
) -> Primitive:
    """Creates an operation with several results.

    Args:
        name: of the operation.
        results: of the operands' abstract values and the parameters.
        plain: the operation in JAX, for all platforms and wherever there is no extension.
        call: the extension's function, and the whole numbers it gets, of the operands' shapes and
            the parameters; None in their place: the plain form for these shapes. None: the plain
            form everywhere.
        images: for each operand, whether it lies in memory as images do; more operands than stand
            here do not.
        in_place: so many results may lie where the operands of the same places do.
    """
    operation = Primitive(name)
    operation.multiple_results = True

    @operation.def_abstract_eval
    def abstract(*operands: Any, **params: Any) -> list[Any]:
        return [
            # all else, such as the axes of a mesh, is as in the first operand
            operands[0].update(shape=r.shape, dtype=np.dtype(r.dtype))
            for r in results(*operands, **params)
        ]

    image_operands = {index for index, is_images in enumerate(images) if is_images}

    def native(*operands: Any, **params: Any) -> Sequence[Any]:
        assert call is not None
        target, numbers = call
        # the condition is evaluated first, so that `numbers` gets no `native`
        extension_numbers = (
            numbers(*(x.shape for x in operands), **params) if params.pop("native") else None
        )
        if extension_numbers is None:
            return plain(*operands, **params)
        outs = list(results(*operands, **params, native=True))
        run = jax.ffi.ffi_call(
            target,
            [jax.ShapeDtypeStruct(r.shape, r.dtype) for r in outs],
            input_layouts=[
                IMAGES if index in image_operands else tuple(range(x.ndim))
                for index, x in enumerate(operands)
            ],
            output_layouts=[IMAGES if r.images else tuple(range(len(r.shape))) for r in outs],
            input_output_aliases={index: index for index in range(in_place)},
        )
        return run(*operands, numbers=np.array(extension_numbers, np.int64))

    def lower_plain(*operands: Any, native: bool, **params: Any) -> Sequence[Any]:
        return plain(*operands, **params)

    # for all platforms; that of the CPU below goes before it
    mlir.register_lowering(operation, mlir.lower_fun(lower_plain, multiple_results=True))
    if call is not None:
        mlir.register_lowering(
            operation, mlir.lower_fun(native, multiple_results=True), platform="cpu"
        )

    @operation.def_impl
    def eager(*operands: Any, **params: Any) -> Any:
        # one operation is a program in any case; without this it would call itself
        with jax.disable_jit(False):
            return jax.jit(operation.bind, static_argnames=tuple(params))(*operands, **params)

    return operation


def choose(*operands: Any, native: bool | None = None) -> bool:
    """Returns whether the extension serves these operands; by default wherever it can."""
    # the extension has no half precision, and no mixture
    fits = {str(x.dtype) for x in operands} in ({"float32"}, {"float64"})
    return fits and usable() if native is None else native and fits


def aligned(*operands: Any) -> tuple[Any, ...]:
    """Returns the operands of one operation, all varying over the same axes of a mesh."""
    axes = [_varying_axes(x) for x in operands]
    all_axes = frozenset().union(*axes)
    return tuple(
        _vary(x, tuple(all_axes - varying_axes)) if all_axes - varying_axes else x
        for x, varying_axes in zip(operands, axes)
    )


def _varying_axes(x: Any) -> frozenset[Any]:
    kind = jax.typeof(x)  # JAX has renamed the attribute
    return kind.mat.varying if hasattr(kind, "mat") else getattr(kind, "vma", frozenset())


def _vary(x: Any, axes: tuple[Any, ...]) -> Any:
    if hasattr(lax, "pcast"):
        return lax.pcast(x, axes, to="varying")
    return lax.pvary(x, axes)  # pyright: ignore[reportAttributeAccessIssue]


def fold_batch(x: Any, batch: int, axis: int) -> Any:
    """Joins the batch axis to another one, outside of it."""
    moved = jnp.moveaxis(x, batch, axis)
    return moved.reshape(*moved.shape[:axis], -1, *moved.shape[axis + 2 :])


def unfold_batch(x: Any, size: int, axis: int) -> Any:
    """Inverts `fold_batch`: the batch axis stands at `axis`."""
    return x.reshape(*x.shape[:axis], size, x.shape[axis] // size, *x.shape[axis + 1 :])


def batch_size(operands: Sequence[Any], dims: Sequence[Any]) -> int:
    return next(x.shape[d] for x, d in zip(operands, dims) if d is not None)


def batch_groups(
    operation: Primitive, operands: Sequence[Any], dims: Sequence[Any], params: Any
) -> tuple[Any, Any]:
    """Makes every member of the batch a group, or several."""
    size = batch_size(operands, dims)
    joined = [
        # operands without a batch are copied for each member
        fold_batch(jnp.broadcast_to(x[None], (size, *x.shape)), 0, 0)
        if d is None
        else fold_batch(x, d, 0)
        for x, d in zip(operands, dims)
    ]
    outs = operation.bind(*joined, **params)
    return [unfold_batch(out, size, 0) for out in outs], [0] * len(outs)


def batch_by(operation: Primitive, axes: Sequence[int | None], result_axes: Sequence[int]) -> None:
    """Registers: more examples where only operands with an axis of examples have the batch.

    Otherwise more groups.

    Args:
        operation: the operation.
        axes: of the examples in each operand, None where there is none.
        result_axes: the axis of the examples in each result.
    """

    def rule(operands: Sequence[Any], dims: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        if any((d is None) != (axis is None) for d, axis in zip(dims, axes)):
            return batch_groups(operation, operands, dims, params)
        joined = [
            x if axis is None else fold_batch(x, d, axis)
            for x, d, axis in zip(operands, dims, axes)
        ]
        size = batch_size(operands, dims)
        return [
            unfold_batch(out, size, axis)
            for out, axis in zip(operation.bind(*joined, **params), result_axes)
        ], list(result_axes)

    batching.primitive_batchers[operation] = rule


def in_groups(operation: Primitive) -> None:
    """Registers: batches are groups."""
    batching.primitive_batchers[operation] = lambda operands, dims, **params: batch_groups(
        operation, operands, dims, params
    )


def differentiate_by(operation: Primitive, plain: Callable[..., Sequence[Any]]) -> None:
    """Registers: forward derivatives by all operands are those of the plain form."""

    def rule(
        primals: Sequence[Any], tangents: Sequence[Any], *, native: bool, **params: Any
    ) -> tuple[Any, Any]:
        dense_tangents = tuple(map(ad.instantiate_zeros, tangents))
        _, out = jax.jvp(
            lambda *operands: plain(*operands, **params), tuple(primals), dense_tangents
        )
        return operation.bind(*primals, native=native, **params), out

    ad.primitive_jvps[operation] = rule
