"""Codecs of messages, as compiled arithmetic and as bytes; `fedax.codecs` lists them.

All scales and values travel as 32-bit floats and are rounded to them before use, so that
`decode(encode(...))` is exactly what a simulation computes with. Vectors of half precision are
compressed and restored in `accumulator` of their type: their steps, quotients and squares would
underflow or overflow in it.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from fedax.communication.channel import Codec
from fedax.communication.memory_codecs import DIANA, EF21, SharedMemory
from fedax.core.hyper import Scalar, class_of, declared, hyper, make
from fedax.errors import InvalidInput
from fedax.utils.layout import accumulator
from fedax.utils.norms import scale_of

SCALE = 32
"""Bits of a scale or a value on the wire."""

_BLUR = 2.0**-22  # relative error of a quotient by a 32-bit number


class Identity(Codec):
    """Sends the numbers as they are.

    >>> Identity().bits(10), Identity().bits(10, width=64)
    (320, 640)
    """

    def compress(self, v: Float[Array, "dim"], key: Key[Array, ""]) -> Any:
        return {"values": v}

    def restore(self, parts: Any, dim: int, dtype: Any) -> Float[Array, "dim"]:
        values = parts["values"]
        # bytes do not tell bfloat16 from float16, so they are decoded as whole numbers
        return values if values.dtype == dtype else jax.lax.bitcast_convert_type(values, dtype)

    def bits(self, dim: int, width: int = 32) -> int:
        return dim * width

    @property
    def is_unbiased(self) -> bool:
        return True

    def relative_error(self, dim: int) -> float:
        return 0.0

    def encode(self, parts: Any, dim: int) -> bytes:
        return np.asarray(parts["values"]).tobytes()

    def decode(self, data: bytes, dim: int) -> Any:
        return {"values": np.frombuffer(data, f"<u{len(data) // dim}")}


class Quantizer(Codec):
    r"""The grid of b bits and step s of quantized DFedAvgM:
    $\{-2^{b-1} s, \dots, (2^{b-1} - 1) s\}$.

    $$ q(a) = \lfloor a / s \rfloor s, \qquad \text{or stochastic: } (\lfloor a / s \rfloor + 1) s
       \text{ with probability } a / s - \lfloor a / s \rfloor. $$

    The pair (s, q) costs 32 + d b bits. Entries beyond the grid are clipped to it.
    Stochastic rounding is unbiased with $E \lVert Q(v) - v \rVert^2 \le d s^2 / 4$; the paper
    claims this also for rounding down, whose error reaches $d s^2$. As s is sent in 32 bits,
    rounding down takes an entry as a point of the grid that is one up to a relative error of
    $2^{-22}$; so the largest entry of a message whose step is chosen for it keeps its value.

    With a step per message, $E \lVert Q(v) - v \rVert^2 \le \omega \lVert v \rVert^2$ with $\omega
    = d / (4 n^2)$, $n = 2^{b-1} - 1$; rounding down it is $d / n^2$. Rounding down, or a fixed step
    that clips, is biased and has no feedback: choose b so large that its error does not matter, or
    send it by `EF21`.

    Args:
        b: bits of an entry, 1 to 32; at least 2 if the step is chosen per message.
        step: s, above 0; or 0 for $s = \max_i |v_i| / (2^{b-1} - 1)$ anew in every message, with
            which nothing is clipped.
        rounding: "stochastic" or "floor".

    >>> Quantizer(b=8).bits(100)
    832

    Source: Sun, Li and Wang, Decentralized Federated Averaging, 2021, sec. 3.2, eq. (6).
    """

    b: int = hyper(8, low=1, high=32, doc="bits of an entry")
    step: float = hyper(
        0.0,
        static=True,
        low=0.0,
        doc="distance of the grid's points; 0 chooses it for every message",
    )
    rounding: str = hyper(
        "stochastic", choices=("stochastic", "floor"), doc="unbiased, or always down"
    )

    def __check_init__(self) -> None:
        if self.b == 1 and not self.step:
            raise InvalidInput.of(
                f"{type(self).__name__}(b=...)", 1, "2 to 32, or 1 with a fixed step"
            )

    def compress(self, v: Float[Array, "dim"], key: Key[Array, ""]) -> Any:
        v = v.astype(accumulator(v.dtype))
        # a client that diverged must not look healthy
        step = jnp.where(jnp.isfinite(v).all(), self._step(v), jnp.nan)
        bottom, top = self._range(v.dtype)
        # a NaN step fails the comparison too; `restore` gives 0 * NaN for it
        exact = jnp.where(step > 0, v / step.astype(v.dtype), 0)
        levels = jnp.floor(exact)
        if self.rounding == "stochastic":
            # up with the probability of the fraction that is cut off
            levels = jnp.where(
                exact - levels + jax.random.uniform(key, v.shape, v.dtype) >= 1, levels + 1, levels
            )
        else:  # a point of the grid stays one, although its step is known to 32 bits only
            levels = jnp.where(
                jnp.abs(exact - jnp.round(exact)) <= _BLUR * jnp.abs(exact),
                jnp.round(exact),
                levels,
            )
        return {"step": step, "levels": jnp.clip(levels, bottom, top).astype(jnp.int32)}

    def restore(self, parts: Any, dim: int, dtype: Any) -> Float[Array, "dim"]:
        wide = accumulator(dtype)
        return (parts["levels"].astype(wide) * parts["step"].astype(wide)).astype(dtype)

    def bits(self, dim: int, width: int = 32) -> int:
        return SCALE + dim * self.b

    @property
    def is_unbiased(self) -> bool:
        return self.rounding == "stochastic" and not self.step

    def relative_error(self, dim: int) -> float | None:
        if self.step:
            return None
        return dim / ((1 << (self.b - 1)) - 1) ** 2 / (4 if self.is_unbiased else 1)

    def encode(self, parts: Any, dim: int) -> bytes:
        # levels from 0 on, which `packed` needs
        levels = np.asarray(parts["levels"], np.int64) + (1 << (self.b - 1))
        return np.asarray(parts["step"], "<f4").tobytes() + packed(levels, self.b)

    def decode(self, data: bytes, dim: int) -> Any:
        levels = unpacked(data[4:], self.b, dim) - (1 << (self.b - 1))
        return {"step": np.frombuffer(data[:4], "<f4")[0], "levels": levels.astype(np.int32)}

    def _step(self, v: Float[Array, "dim"]) -> Float[Array, ""]:
        if self.step:
            return jnp.float32(self.step)
        return self._round_up_step(jnp.abs(v).max())

    def _round_up_step(self, largest: Float[Array, ""]) -> Float[Array, ""]:
        """Returns the 32-bit step whose highest level is `largest`, rounded up."""
        top = self._range(largest.dtype)[1]
        step = (largest / top).astype(jnp.float32)
        # a step that was rounded down would put the largest entry beyond the grid
        is_too_small = (step <= 0) | (largest / step.astype(largest.dtype) > top)
        return jnp.where(
            largest > 0,
            jnp.where(is_too_small, jnp.nextafter(step, jnp.float32(np.inf)), step),
            jnp.float32(0),
        )

    def _range(self, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
        """Returns the lowest and the highest level; the float type must hold the highest one."""
        exact = (1 << (self.b - 1)) - 1
        # the float type may round this up, to a level that does not fit into b bits
        top = np.asarray(exact, dtype)
        return np.asarray(-(1 << (self.b - 1)), dtype), top if int(top) <= exact else np.asarray(
            np.nextafter(top, 0 * top)
        )


class QSGD(Quantizer):
    r"""Stochastic rounding of $v_i / \lVert v \rVert$ to multiples of $1 / (2^{b-1} - 1)$, with
    sign; 32 + d b bits.

    $E \lVert Q(v) - v \rVert^2 \le \min(d / n^2, \sqrt d / n) \lVert v \rVert^2$ with $n = 2^{b-1}
    - 1$. The code has fixed length; it is not Elias's.

    Args:
        b: bits of an entry, as in `Quantizer`.
        step, rounding: 0 and "stochastic", its definition; others are refused.

    Source: Alistarh et al., QSGD: Communication-Efficient SGD via Gradient Quantization and
    Encoding, NeurIPS 2017, sec. 3.1.
    """

    def __check_init__(self) -> None:
        if self.step or self.rounding != "stochastic":
            raise InvalidInput.of(
                "QSGD(step, rounding)",
                (self.step, self.rounding),
                "(0.0, 'stochastic'), its definition",
            )

    def relative_error(self, dim: int) -> float:
        n = (1 << (self.b - 1)) - 1
        return min(dim / n**2, dim**0.5 / n)

    def _step(self, v: Float[Array, "dim"]) -> Float[Array, ""]:
        scale = scale_of(v)  # squares of large and small entries fit
        return self._round_up_step(
            jnp.maximum(scale * jnp.sqrt(((v / scale) ** 2).sum()), jnp.abs(v).max())
        )  # rounding may put the norm of a single entry below it


class TopK(Codec):
    r"""The largest entries by magnitude, with their places: $k (32 + \lceil \log_2 d \rceil)$ bits.

    Biased: $\lVert C(v) - v \rVert^2 \le (1 - k/d) \lVert v \rVert^2$; what was left out is added
    to the client's next message. With `feedback=False` small entries may never be sent: do that in
    `EF21` only, or in a method that corrects messages itself.

    Args:
        fraction: of the d entries, in (0, 1]; k is `round(fraction * d)`, at least 1.
        feedback: whether clients keep what was left out.

    >>> TopK(0.1).bits(1000)
    4200

    Source: Stich, Cordonnier and Jaggi, Sparsified SGD with Memory, NeurIPS 2018, Def. 2.1, Alg. 1.
    """

    fraction: Scalar = hyper(
        0.1, static=True, low=0.0, open_low=True, high=1.0, doc="share of the entries that are sent"
    )
    feedback: bool = hyper(True, doc="whether what was left out is added to the next message")

    def count(self, dim: int) -> int:
        """Returns the number of entries that are sent."""
        return max(1, round(float(self.fraction) * dim))

    def compress(self, v: Float[Array, "dim"], key: Key[Array, ""]) -> Any:
        indices = jax.lax.top_k(jnp.abs(v), self.count(v.shape[0]))[1].astype(jnp.int32)
        return {"places": indices, "values": v[indices].astype(jnp.float32)}

    def restore(self, parts: Any, dim: int, dtype: Any) -> Float[Array, "dim"]:
        return jnp.zeros(dim, dtype).at[parts["places"]].set(parts["values"].astype(dtype))

    def bits(self, dim: int, width: int = 32) -> int:
        return self.count(dim) * (SCALE + _index_bits(dim))

    def relative_error(self, dim: int) -> float:
        return 1 - self.count(dim) / dim

    def encode(self, parts: Any, dim: int) -> bytes:
        values = np.asarray(parts["values"], "<f4").view("<u4").astype(np.int64)
        width = _index_bits(dim)
        # the value in the high bits and the place in the low ones, at most 63 bits together
        return packed((values << width) + np.asarray(parts["places"], np.int64), SCALE + width)

    def decode(self, data: bytes, dim: int) -> Any:
        width = _index_bits(dim)
        words = unpacked(data, SCALE + width, self.count(dim))
        values = (words >> width).astype(np.uint32).view(np.float32)
        return {"places": (words & ((1 << width) - 1)).astype(np.int32), "values": values}


class RandK(TopK):
    r"""Random entries with their places, scaled by $d/k$: $k (32 + \lceil \log_2 d \rceil)$ bits.

    Unbiased, with $E \lVert Q(v) - v \rVert^2 = (d/k - 1) \lVert v \rVert^2$, so that nothing is
    remembered.

    Args:
        fraction: of the d entries, in (0, 1]; k is `round(fraction * d)`, at least 1.
        feedback: False; others are refused.

    >>> RandK(0.1).bits(1000)
    4200

    Source: Stich, Cordonnier and Jaggi, Sparsified SGD with Memory, NeurIPS 2018, Def. 2.1
    (rand_k), here without bias.
    """

    feedback: bool = hyper(False, doc="whether what was left out is added to the next message")

    def __check_init__(self) -> None:
        if self.feedback:
            raise InvalidInput.of("RandK(feedback=...)", self.feedback, "False, as it is unbiased")

    def compress(self, v: Float[Array, "dim"], key: Key[Array, ""]) -> Any:
        dim = v.shape[0]
        count = self.count(v.shape[0])
        indices = jax.random.permutation(key, jnp.arange(dim, dtype=jnp.int32))[:count]
        # a client that diverged must not look healthy, whichever of its entries are sent
        scaled = v[indices].astype(accumulator(v.dtype)) * (dim / count)
        values = jnp.where(jnp.isfinite(v).all(), scaled, jnp.nan)
        return {"places": indices, "values": values.astype(jnp.float32)}

    @property
    def is_unbiased(self) -> bool:
        return True

    def relative_error(self, dim: int) -> float:
        return dim / self.count(dim) - 1


class Sign(Codec):
    r"""The signs and the mean magnitude, $\frac{\lVert v \rVert_1}{d} \mathrm{sign}(v)$: 32 + d
    bits.

    Biased: $\lVert C(v) - v \rVert^2 = \lVert v \rVert^2 - \lVert v \rVert_1^2 / d \le (1 - 1/d)
    \lVert v \rVert^2$. With `feedback=False` means of messages miss their goal, see `TopK`.

    Args:
        feedback: whether clients add what was lost to their next message.

    >>> Sign().bits(100)
    132

    Source: Karimireddy et al., Error Feedback Fixes SignSGD and other Gradient Compression Schemes,
    ICML 2019, Alg. 1.
    """

    feedback: bool = hyper(True, doc="whether what was lost is added to the next message")

    def compress(self, v: Float[Array, "dim"], key: Key[Array, ""]) -> Any:
        magnitudes = jnp.abs(v.astype(accumulator(v.dtype)))
        unit = scale_of(magnitudes)  # the sum of large entries fits
        scale = (magnitudes / unit).mean() * unit
        return {"scale": scale.astype(jnp.float32), "positive": v >= 0}

    def restore(self, parts: Any, dim: int, dtype: Any) -> Float[Array, "dim"]:
        scale = parts["scale"].astype(dtype)
        return jnp.where(parts["positive"], scale, -scale)

    def bits(self, dim: int, width: int = 32) -> int:
        return SCALE + dim

    def relative_error(self, dim: int) -> float:
        return 1 - 1 / dim

    def encode(self, parts: Any, dim: int) -> bytes:
        return np.asarray(parts["scale"], "<f4").tobytes() + packed(
            np.asarray(parts["positive"], np.int64), 1
        )

    def decode(self, data: bytes, dim: int) -> Any:
        return {
            "scale": np.frombuffer(data[:4], "<f4")[0],
            "positive": unpacked(data[4:], 1, dim).astype(bool),
        }


CODECS: dict[str, type[Codec]] = {
    "none": Identity,
    "quantizer": Quantizer,
    "qsgd": QSGD,
    "topk": TopK,
    "randk": RandK,
    "sign": Sign,
    "ef21": EF21,
    "diana": DIANA,
}
"""Codecs by their name in experiment files."""


def make_codec(name: str, **options: Any) -> Codec:
    """Makes a codec by name.

    The codec within `ef21` and `diana` is given by its name and options too, and has no feedback by
    default.

    >>> make_codec("quantizer", b=4).bits(8)
    64
    >>> make_codec("ef21", codec={"name": "topk", "fraction": 0.1}).codec
    TopK(fraction=0.1, feedback=False)

    Raises:
        UnknownName: no such codec or option.
        InvalidInput: an option out of its range, no codec within.
    """
    if not issubclass(class_of("codec", CODECS, name, Codec), SharedMemory):
        return make("codec", CODECS, name, Codec, options)
    inner = options.pop("codec", {})
    if isinstance(inner, Mapping) and "name" not in inner:
        hint = 'Write codec = {name = "topk", fraction = 0.1}.'
        raise InvalidInput.because(f"codec {name!r}", "it has no codec for its messages", hint)
    if isinstance(inner, Mapping):
        # the codec around it has the memory, so this one must have none
        option_names = declared(class_of("codec", CODECS, inner["name"], Codec))
        defaults: dict[str, Any] = {"feedback": False} if "feedback" in option_names else {}
        inner = make_codec(**{**defaults, **inner})
    return make("codec", CODECS, name, Codec, options, codec=inner)


def packed(values: np.ndarray, width: int) -> bytes:
    """Packs whole numbers into bytes.

    Args:
        values: from 0 to 2^width - 1.
        width: bits of each, the highest first.
    """
    # one row of bits for each number, the highest bit first
    shifts = np.arange(width - 1, -1, -1, dtype=np.int64)
    return np.packbits(((values[:, None] >> shifts) & 1).astype(np.uint8)).tobytes()


def unpacked(data: bytes, width: int, count: int) -> np.ndarray:
    """Inverts `packed`: returns the first `count` numbers of `width` bits in `data`."""
    bits = (
        np.unpackbits(np.frombuffer(data, np.uint8), count=count * width)
        .reshape(count, width)
        .astype(np.int64)
    )
    return bits @ (1 << np.arange(width - 1, -1, -1, dtype=np.int64))


def _index_bits(dim: int) -> int:
    return max(1, (dim - 1).bit_length())
