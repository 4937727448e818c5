"""Codecs with memory: EF21 and DIANA around another codec, and PowerSGD with error feedback.

Clients store their memories between rounds, one for each vector of each phase. The round reads and
writes them by `Codec.message_and_memory`.
"""

import dataclasses
import math
from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from fedax.communication.channel import Codec, Message
from fedax.core.hyper import hyper
from fedax.errors import InvalidInput
from fedax.utils.layout import Layout, accumulator
from fedax.utils.norms import scale_of


class SharedMemory(Codec):
    """Base of codecs that send the difference of a vector to a memory of client and receiver.

    Messages are those of `codec`, and cost its bits. Only a channel has memories, so `message`,
    which knows of none, is refused.
    """

    codec: Any

    def __check_init__(self) -> None:
        field = f"{type(self).__name__}(codec=...)"
        if not isinstance(self.codec, Codec):
            raise InvalidInput.of(field, self.codec, "a codec of fedax.codecs")
        if self.codec.has_memory:
            hint = "Write feedback=False." if hasattr(self.codec, "feedback") else ""
            raise InvalidInput.of(field, self.codec, "a codec without memory", hint)

    @abstractmethod
    def rate(self, dim: int) -> float:
        """Returns the factor of a message of `dim` numbers that the memory moves by."""

    @property
    def is_unbiased(self) -> bool:
        return self.codec.is_unbiased

    def relative_error(self, dim: int) -> float | None:
        """Returns that of `codec`; it holds for the difference to the memory, which is the vector
        itself in a client's first message.
        """
        return self.codec.relative_error(dim)

    @property
    def has_memory(self) -> bool:
        return True

    @property
    def shares_memory(self) -> bool:
        return True

    def with_layout(self, layout: Layout) -> "SharedMemory":
        return dataclasses.replace(self, codec=self.codec.with_layout(layout))

    def message(
        self, v: Float[Array, "dim"], key: Key[Array, ""], near: Float[Array, "dim"] | None = None
    ) -> Message:
        reason = "its messages need a memory, which only a channel has"
        hint = f"Write Channel(up={type(self).__name__}(...))."
        raise InvalidInput.because(type(self).__name__, reason, hint)

    def message_and_memory(
        self,
        v: Float[Array, "dim"],
        memory: Float[Array, "dim"],
        key: Key[Array, ""],
        near: Float[Array, "dim"] | None = None,
    ) -> tuple[Message, Float[Array, "dim"]]:
        # the memory is one of the difference to `near`, which changes from round to round
        message = Codec.message(self, v, key, memory if near is None else near + memory)
        wide = accumulator(memory.dtype)
        moved = memory.astype(wide) + self.rate(v.shape[0]) * message.decoded.astype(wide)
        return message, moved.astype(memory.dtype)

    def compress(self, v: Float[Array, "dim"], key: Key[Array, ""]) -> tuple[Any, Any]:
        return self.codec.compress(v, key)

    def restore(self, parts: Any, dim: int, dtype: Any) -> Float[Array, "dim"]:
        return self.codec.restore(parts, dim, dtype)

    def bits(self, dim: int, width: int = 32) -> int:
        return self.codec.bits(dim, width)

    def encode(self, parts: Any, dim: int) -> bytes:
        return self.codec.encode(parts, dim)

    def decode(self, data: bytes, dim: int) -> Any:
        return self.codec.decode(data, dim)


class EF21(SharedMemory):
    r"""Sends a biased codec's message of the difference to what the receiver has already.

    With the vector $v_i$ of client i (of a trained model its change), its memory $g_i$, zero at
    first, and the codec C:

    $$ g_i \leftarrow g_i + C(v_i - g_i), $$

    and the receiver takes the new $g_i$. As the vectors settle down, differences vanish and with
    them the error, where error feedback keeps a part of it. C has to be contractive (see
    `Codec.relative_error`): `TopK`, `Sign`, `PowerSGD`, or a fine quantizer. The messages of an
    unbiased codec of variance $\omega$, such as `RandK`, are divided by $1 + \omega$, which makes
    it contractive.

    The mean is over the clients of a round. The memories of absent ones stay as they are, and do
    not count. A message costs the bits of C. On `Simulation` and `Eager`; not with an asynchronous
    server or on a graph that changes.

    Args:
        codec: C, without error feedback.

    Example:
        >>> import fedax
        >>> channel = fedax.Channel(up=fedax.codecs.EF21(fedax.codecs.TopK(0.1, feedback=False)))
        >>> channel.up.bits(1000)
        4200

    Source: Richtarik, Sokolov and Fatkhullin, EF21: A New, Simpler, Theoretically Better, and
    Practically Faster Error Feedback, NeurIPS 2021 (paper not read). Read were its authors' code
    (github.com/IgorSokoloff/ef21_experiments_source_code: `bdfg_distributed_stable.py` of the
    logistic regression, `DL/EF21_100K.py`) and, for the division, App. B.1.3 of Sadiev et al.,
    Don't Compress Gradients in Random Reshuffling: Compress Gradient Differences, NeurIPS 2024, and
    FL_PyTorch (github.com/burlachenkok/flpytorch). The two codes begin with $g_i = v_i$, sent
    uncompressed and not counted; from then on the steps are these.
    """

    @property
    def is_unbiased(self) -> bool:
        return False

    def relative_error(self, dim: int) -> float | None:
        error = self.codec.relative_error(dim)
        return error if error is None else error * self._scale(dim)

    def rate(self, dim: int) -> float:
        return 1.0

    def restore(self, parts: Any, dim: int, dtype: Any) -> Float[Array, "dim"]:
        decoded, scale = self.codec.restore(parts, dim, dtype), self._scale(dim)
        return decoded if scale == 1 else scale * decoded

    def _scale(self, dim: int) -> float:
        # the error of a biased codec is no variance to divide by
        omega = self.codec.relative_error(dim) if self.codec.is_unbiased else None
        return 1 / (1 + (omega or 0.0))


class DIANA(SharedMemory):
    r"""Sends an unbiased codec's message of the difference to a memory that learns the vectors.

    With the vector $v_i$ of client i (of a trained model its change), its memory $h_i$, zero at
    first, and the codec Q, the receiver takes

    $$ \hat v_i = h_i + Q(v_i - h_i), \qquad h_i \leftarrow h_i + \alpha Q(v_i - h_i), $$

    with the old $h_i$ on the left. $\hat v_i$ is unbiased, and its variance vanishes as $h_i$
    approaches $v_i$. Gradient descent then reaches the optimum itself where clients differ; with
    Q alone it stays at a distance.

    The mean is over the clients of a round; the memories of absent ones stay as they are. (With one
    memory at the server, the mean of all, sampled clients would have another estimate.) A message
    costs the bits of Q. On `Simulation` and `Eager`; not with an asynchronous server or on a graph
    that changes.

    Args:
        codec: Q, unbiased: `RandK`, `QSGD`, `Natural`, or `Quantizer` with a step for every
            message.
        alpha: $\alpha$, in [0, 1]; 0 chooses $1 / (1 + \omega)$, the largest of the theory, with
            the $\omega$ of `codec.relative_error`.

    Example:
        >>> import fedax
        >>> codec = fedax.codecs.DIANA(fedax.codecs.RandK(0.25))
        >>> codec.rate(1000), fedax.codecs.DIANA(fedax.codecs.Natural(), alpha=0.5).rate(1000)
        (0.25, 0.5)

    Source: Mishchenko, Gorbunov, Takac and Richtarik, Distributed Learning with Compressed Gradient
    Differences, 2019 (arXiv:1901.09269), for any unbiased codec as in Horvath et al., Stochastic
    Distributed Learning with Gradient Quantization and Variance Reduction, 2019 (papers not read).
    Read were Alg. 2 of a later paper of two of the authors, which has these steps (Sadiev et al.,
    Don't Compress Gradients in Random Reshuffling: Compress Gradient Differences, NeurIPS 2024),
    and code of others among them: FL_PyTorch (github.com/burlachenkok/flpytorch,
    `utils/algorithms.py`) and github.com/SamuelHorvath/VR_Byzantine (`worker.py`, where the memory
    stays at zero in a client's first message).
    """

    alpha: float = hyper(
        0.0,
        static=True,
        low=0.0,
        high=1.0,
        doc="factor of a message that the memory moves by; 0 chooses it by the codec's variance",
    )

    def __check_init__(self) -> None:
        if not isinstance(self.codec, Codec):  # refused by the base class, which checks later
            return
        if not self.codec.is_unbiased:
            hint = "Put a biased one into EF21."
            raise InvalidInput.of("DIANA(codec=...)", self.codec, "an unbiased codec", hint)
        if not self.alpha and self.codec.relative_error(1) is None:
            allowed = f"numbers in (0, 1], as {type(self.codec).__name__} declares no variance"
            raise InvalidInput.of("DIANA(alpha=...)", self.alpha, allowed)

    def rate(self, dim: int) -> float:
        if self.alpha:
            return self.alpha
        omega = self.codec.relative_error(dim)
        assert omega is not None, "checked when the codec was made"
        return 1 / (1 + omega)


class PowerSGD(Codec):
    r"""Sends every matrix of the model as two factors of rank r, by one step of power iteration.

    For a matrix M of n rows and m columns and a right factor Q of r columns:

    $$ P \leftarrow \mathrm{orth}(M Q), \qquad Q \leftarrow M^T P, \qquad C(M) = P Q^T, $$

    which are r (n + m) numbers. A leaf of more axes is a matrix with the last axis as its columns.
    Vectors, small matrices that r (n + m) numbers would not shorten, and messages that are not of
    the whole model's length go uncompressed. A matrix of rank at most r arrives up to rounding.

    Biased: what was left out is added to the client's next message, and the client's Q of the last
    message begins the iteration of the next one. The first Q is Gaussian, the same for all clients.
    With `feedback=False`, on the way down and within `EF21`, each message has a new Gaussian Q, so
    that $E \lVert C(M) - M \rVert^2 \le (1 - r/m) \lVert M \rVert^2$.

    Every client approximates its matrices by itself, as a single worker of the released code does,
    so that the mean of k clients has rank up to k r. There several workers share the factors of
    their mean: they orthonormalize the mean of their M Q, average their $M^T P$, and keep as lost
    what the shared product leaves out. That takes two sums per step, which a message has not.

    Args:
        rank: r, at least 1.
        feedback: whether clients keep what was left out, and Q.
        shapes: of the leaves in the vector; a run fills in those of its model.

    Example:
        >>> import fedax
        >>> fedax.codecs.PowerSGD(rank=2, shapes=((100, 50), (50,))).bits(5050)
        11200
        >>> channel = fedax.Channel(up=fedax.codecs.PowerSGD(rank=2))

    Source: Vogels, Karimireddy and Jaggi, PowerSGD: Practical Low-Rank Gradient Compression for
    Distributed Optimization, NeurIPS 2019 (paper not read). Read was its authors' code
    (github.com/epfml/powersgd): `RankKReducer` in `paper-code/gradient_reducers.py`, which has
    these steps, with the first axis of a leaf as rows, and `train.py`. The later package
    `powersgd.py` there sends one of the factors in each step, in turns, and nothing compressed in
    the first 100.
    """

    rank: int = hyper(2, low=1, doc="rank of what is sent of a matrix")
    feedback: bool = hyper(True, doc="whether what was left out is added to the next message")
    shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True, default=(), kw_only=True)

    def with_layout(self, layout: Layout) -> "PowerSGD":
        return self if self.shapes else dataclasses.replace(self, shapes=layout.shapes)

    def initial_memory(self, dim: int, dtype: Any, key: Key[Array, ""]) -> Any:
        # what messages lost, and the right factors of the matrices
        return jnp.zeros(dim, dtype), self._draw_factors(dim, dtype, key)

    def message_and_memory(
        self,
        v: Float[Array, "dim"],
        memory: Any,
        key: Key[Array, ""],
        near: Float[Array, "dim"] | None = None,
    ) -> tuple[Message, Any]:
        residual, right = memory
        compensated = v + residual
        # `near` is left out of the compression, but is part of `due` and of the message's value
        values, right = self._iterate(compensated if near is None else compensated - near, right)
        message = Message({"values": values}, None, self, v.shape[0], str(v.dtype), near)
        return message, (compensated - message.value, right)

    def compress(self, v: Float[Array, "dim"], key: Key[Array, ""]) -> tuple[Any, None]:
        right = self._draw_factors(v.shape[0], v.dtype, key)
        return {"values": self._iterate(v, right)[0]}, None

    def restore(self, parts: Any, dim: int, dtype: Any) -> Float[Array, "dim"]:
        values, begin, pieces = parts["values"], 0, []
        if values.dtype != dtype:  # as decoded from bytes
            values = jax.lax.bitcast_convert_type(values, dtype)
        for size, rows, columns in self._pieces(dim):
            # rows and columns are 0 for what goes uncompressed, hence `or`
            end = begin + (self.rank * (rows + columns) or size)
            piece = values[begin:end]
            if rows:
                wide, middle = piece.astype(accumulator(dtype)), self.rank * rows
                left = wide[:middle].reshape(rows, self.rank)
                piece = (left @ wide[middle:].reshape(columns, self.rank).T).astype(dtype)
            pieces.append(piece.ravel())
            begin = end
        return jnp.concatenate(pieces)

    def bits(self, dim: int, width: int = 32) -> int:
        return width * sum(
            self.rank * (rows + columns) or size for size, rows, columns in self._pieces(dim)
        )

    def relative_error(self, dim: int) -> float:
        columns = [columns for _, rows, columns in self._pieces(dim) if rows]
        return 1 - self.rank / max(columns) if columns else 0.0

    def encode(self, parts: Any, dim: int) -> bytes:
        return np.asarray(parts["values"]).tobytes()

    def decode(self, data: bytes, dim: int) -> Any:
        # bytes of a number from the length: bits(dim, 8) / 8 is how many numbers there are
        return {"values": np.frombuffer(data, f"<u{8 * len(data) // self.bits(dim, 8)}")}

    def _iterate(
        self, v: Float[Array, "dim"], right: tuple[Array, ...]
    ) -> tuple[Float[Array, "numbers"], tuple[Array, ...]]:
        """Returns the numbers sent for v, in the order of its leaves, and the new right factors."""
        wide, old, new = accumulator(v.dtype), iter(right), []
        begin, numbers = 0, []
        for size, rows, columns in self._pieces(v.shape[0]):
            piece = v[begin : begin + size]
            begin += size
            if not rows:
                numbers.append(piece)
                continue
            matrix, factor = piece.reshape(rows, columns).astype(wide), next(old).astype(wide)
            # the factor has the scale of the last message, whose product with a small matrix
            # would underflow
            left = jnp.linalg.qr(matrix @ (factor / scale_of(factor)))[0]
            # a client that diverged must not look healthy
            left = jnp.where(jnp.isfinite(matrix).all(), left, jnp.nan).astype(v.dtype)
            # with the left factor as it is sent, so that its rounding does not count twice
            new.append((matrix.T @ left.astype(wide)).astype(v.dtype))
            numbers += [left.ravel(), new[-1].ravel()]
        return jnp.concatenate(numbers), tuple(new)

    def _draw_factors(self, dim: int, dtype: Any, key: Key[Array, ""]) -> tuple[Array, ...]:
        columns = [columns for _, rows, columns in self._pieces(dim) if rows]
        return tuple(
            jax.random.normal(jax.random.fold_in(key, i), (count, self.rank), dtype)
            for i, count in enumerate(columns)
        )

    def _pieces(self, dim: int) -> list[tuple[int, int, int]]:
        """Returns the size of each piece of a vector, and rows and columns of those sent as
        factors, else 0.
        """
        # a vector of another length than the model's has no matrices
        sizes = [math.prod(shape) for shape in self.shapes]
        if sum(sizes) != dim:
            return [(dim, 0, 0)]
        pieces = []
        for shape, size in zip(self.shapes, sizes, strict=True):
            columns = shape[-1] if len(shape) > 1 else 0
            rows = size // columns if columns else 0
            shortens = self.rank * (rows + columns) < size
            pieces.append((size, rows, columns) if rows and shortens else (size, 0, 0))
        return pieces
