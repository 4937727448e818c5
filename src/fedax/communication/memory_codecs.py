"""Codecs with memory: EF21 and DIANA around another codec.

Clients store their memories between rounds, one for each vector of each phase. The round reads and
writes them by `Codec.message_and_memory`.
"""

from abc import abstractmethod
from typing import Any

from jaxtyping import Array, Float, Key

from fedax.communication.channel import Codec, Message
from fedax.core.hyper import hyper
from fedax.errors import InvalidInput
from fedax.utils.layout import accumulator


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

    def compress(self, v: Float[Array, "dim"], key: Key[Array, ""]) -> Any:
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
    `Codec.relative_error`): `TopK`, `Sign`, or a fine quantizer. The messages of an
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
        decoded = self.codec.restore(parts, dim, dtype)
        scale = self._scale(dim)
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
        codec: Q, unbiased: `RandK`, `QSGD`, or `Quantizer` with a step for every
            message.
        alpha: $\alpha$, in [0, 1]; 0 chooses $1 / (1 + \omega)$, the largest of the theory, with
            the $\omega$ of `codec.relative_error`.

    Example:
        >>> import fedax
        >>> codec = fedax.codecs.DIANA(fedax.codecs.RandK(0.25))
        >>> codec.rate(1000), fedax.codecs.DIANA(fedax.codecs.RandK(0.25), alpha=0.5).rate(1000)
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
