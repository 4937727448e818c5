r"""The three products of a convolution: outputs, gradient of the image, gradient of the kernel.

Each is bilinear, and the transposes of each are the other two: derivatives of any order and mode
are these three again. With groups g, examples n, stride s and zeros around the image,

$$y_{gnrcq} = \sum_{ijp} x_{gn,\, sr+i,\, sc+j,\, p}\, k_{gijpq}.$$
"""

from typing import Any, Literal, NamedTuple

import jax
from jax import lax
from jaxtyping import Array, Float

from fedax.ops import products
from fedax.ops.primitives import (
    Result,
    aligned,
    batch_groups,
    batch_size,
    fold_batch,
    primitive,
    unfold_batch,
)
from fedax.utils.jax_internals import ad, batching

Borders = tuple[tuple[int, int], tuple[int, int]]
Groups = Float[Array, "groups _ _ _ _"]
"""Images (group, example, row, column, channel) or kernels (group, height, width, channel,
output)."""
PlainForm = Literal["products", "by_groups", "xla"]
"""A convolution without the extension: as matrix products; as products where several clients have
kernels of their own, and by XLA elsewhere; by XLA."""


class Plan(NamedTuple):
    """Sizes of image, kernel and outputs in rows and columns; steps between outputs.

    Zeros around the image.
    """

    image: tuple[int, int]
    window: tuple[int, int]
    outputs: tuple[int, int]
    strides: tuple[int, int]
    borders: Borders


def _make_plain_form(kind: int) -> Any:
    """Computes the product for one group by `products`, or by XLA's convolution."""

    def convolve_by_xla(x: Any, kernel: Any, plan: Plan) -> Any:
        return lax.conv_general_dilated(
            x, kernel, plan.strides, plan.borders, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def apply_to_group(a: Any, b: Any, plan: Plan, by_products: bool) -> Any:
        if by_products:
            return (products.outputs, products.image_gradient, products.kernel_gradient)[kind](
                a, b, plan
            )
        if kind == 0:
            return convolve_by_xla(a, b, plan)
        # transposes of XLA's convolution, by the shape of what it is linear in
        if kind == 1:
            image = jax.ShapeDtypeStruct((a.shape[0], *plan.image, b.shape[2]), a.dtype)
            return jax.linear_transpose(lambda x: convolve_by_xla(x, b, plan), image)(a)[0]
        kernel = jax.ShapeDtypeStruct((*plan.window, a.shape[3], b.shape[3]), a.dtype)
        return jax.linear_transpose(lambda k: convolve_by_xla(a, k, plan), kernel)(b)[0]

    def apply_to_groups(a: Groups, b: Groups, *, plan: Plan, plain: PlainForm) -> list[Any]:
        by_products = plain == "products" or (plain == "by_groups" and a.shape[0] > 1)
        if a.shape[0] == 1:
            return [apply_to_group(a[0], b[0], plan, by_products)[None]]
        return [jax.vmap(lambda a, b: apply_to_group(a, b, plan, by_products))(a, b)]

    return apply_to_groups


def _make_results(kind: int) -> Any:
    def results(a: Any, b: Any, *, plan: Plan, **_: Any) -> list[Result]:
        shape = (
            (*a.shape[:2], *plan.outputs, b.shape[4]),
            (*a.shape[:2], *plan.image, b.shape[3]),
            (a.shape[0], *plan.window, a.shape[4], b.shape[4]),
        )[kind]
        return [Result(shape, a.dtype, kind != 2)]

    return results


def _make_numbers(kind: int) -> Any:
    def numbers(_a: Any, _b: Any, *, plan: Plan, plain: PlainForm) -> list[int]:
        return [kind, *plan.strides, plan.borders[0][0], plan.borders[1][0]]

    return numbers


def _make_primitive(name: str, kind: int) -> Any:
    images = (True, kind == 2)
    return primitive(
        name,
        _make_results(kind),
        _make_plain_form(kind),
        ("fedax_convolve", _make_numbers(kind)),
        images,
    )


outputs_p = _make_primitive("fedax_outputs", 0)
image_gradient_p = _make_primitive("fedax_image_gradient", 1)
kernel_gradient_p = _make_primitive("fedax_kernel_gradient", 2)


PRODUCTS = tuple(operation.name for operation in (outputs_p, image_gradient_p, kernel_gradient_p))
"""Their names in traced programs."""


def bilinear(operation: Any, first: Any, second: Any) -> None:
    """Registers derivatives of what is bilinear in its first two operands.

    `first` and `second` are the transposes by them, of the other one and the cotangent; further
    operands are constants.
    """

    def jvp(primals: Any, tangents: Any, **params: Any) -> Any:
        (a, b, *others), (da, db, *_) = primals, tangents
        # a tangent that is zero adds no product
        terms = [] if isinstance(da, ad.Zero) else [operation.bind(da, b, *others, **params)[0]]
        terms += [] if isinstance(db, ad.Zero) else [operation.bind(a, db, *others, **params)[0]]
        return operation.bind(*primals, **params), [sum(terms[1:], terms[0])]

    def transpose(cotangents: Any, a: Any, b: Any, *others: Any, **params: Any) -> Any:
        (cotangent,) = cotangents
        constants = [None] * len(others)
        if isinstance(cotangent, ad.Zero):
            return [None, None, *constants]
        if ad.is_undefined_primal(a):
            return [first(cotangent, b, params, *others), None, *constants]
        return [None, second(cotangent, a, params, *others), *constants]

    ad.primitive_jvps[operation] = jvp
    ad.primitive_transposes[operation] = transpose


bilinear(
    outputs_p,
    lambda dy, kernel, params: image_gradient_p.bind(dy, kernel, **params)[0],
    lambda dy, x, params: kernel_gradient_p.bind(x, dy, **params)[0],
)
bilinear(
    image_gradient_p,
    lambda dx, kernel, params: outputs_p.bind(dx, kernel, **params)[0],
    lambda dx, gradient, params: kernel_gradient_p.bind(dx, gradient, **params)[0],
)
bilinear(
    kernel_gradient_p,
    lambda dk, gradient, params: image_gradient_p.bind(gradient, dk, **params)[0],
    lambda dk, x, params: outputs_p.bind(x, dk, **params)[0],
)


def join_batches(operation: Any, *cases: tuple[tuple[int | None, ...], int]) -> None:
    """Registers: a batch of some operands joins the axis that these operands share with the result
    (examples, channels or outputs).

    Each case has that axis for each operand, None for those without a batch, and the axis of the
    result. Where no case fits, the members of the batch are more groups.
    """

    def rule(operands: Any, dims: Any, **params: Any) -> Any:
        for axes, result_axis in cases:
            # a case fits if the same operands have a batch
            if all((d is None) == (axis is None) for d, axis in zip(dims, axes, strict=True)):
                joined_operands = [
                    x if axis is None else fold_batch(x, d, axis)
                    for x, d, axis in zip(operands, dims, axes)
                ]
                (out,) = operation.bind(*joined_operands, **params)
                return [unfold_batch(out, batch_size(operands, dims), result_axis)], [result_axis]
        return batch_groups(operation, operands, dims, params)

    batching.primitive_batchers[operation] = rule


# whichever operand is shared, the batch joins the axis that it does not have
join_batches(outputs_p, ((1, None), 1), ((None, 4), 4))
join_batches(image_gradient_p, ((1, None), 1), ((None, 3), 4))
join_batches(kernel_gradient_p, ((4, None), 3), ((None, 4), 4))


def bind_convolution(x: Any, kernel: Any, plan: Plan, native: bool, plain: PlainForm) -> Any:
    """Returns the outputs for images (example, row, column, channel) and a kernel (height, width,
    channel, output).
    """
    x, kernel = aligned(x[None], kernel[None])
    return outputs_p.bind(x, kernel, plan=plan, native=native, plain=plain)[0][0]
