"""Images as the extension has them in memory, the example innermost, from rows as data sets have
them.
"""

from typing import Any

from fedax.ops.conv import Images
from fedax.ops.primitives import Result, batch_by, choose, primitive
from fedax.utils.jax_internals import ad


def lay_images(x: Images) -> Images:
    """Returns the same images in another memory layout.

    Called once, before the first layer, where XLA would copy number by number.

    >>> import jax.numpy as jnp
    >>> lay_images(jnp.ones((2, 3, 3, 1))).shape
    (2, 3, 3, 1)
    """
    return lay_p.bind(x[None], native=True)[0][0] if choose(x) else x


def _results(x: Any, **_: Any) -> list[Result]:
    return [Result(x.shape, x.dtype)]


lay_p = primitive(
    "fedax_lay", _results, lambda x: [x], ("fedax_lay", lambda *_, **__: [0]), (False,)
)
batch_by(lay_p, (1,), (1,))


def _jvp(primals: Any, tangents: Any, **params: Any) -> Any:
    return lay_p.bind(*primals, **params), [tangents[0]]


ad.primitive_jvps[lay_p] = _jvp
