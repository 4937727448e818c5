"""Language models: the next token of the clients' texts."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from fedax.core import DataError, InvalidInput, Ragged, Task, UnknownName
from fedax.data import Tokens, texts_by_client
from fedax.data.limits import TEST_FRACTION, checked, real, whole
from fedax.data.overlap import train_size
from fedax.data.texts.tokens import LENGTH, SIZES
from fedax.examples.client_names import ClientNames, client_name
from fedax.models import Model, Transformer
from fedax.tasks.classify import OfLogits, Start
from fedax.tasks.own_models.by_name import check_model
from fedax.utils.numbers import python_number
from fedax.utils.shares import whole_part

LANGUAGE_MODELS: dict[str, Callable[[int, int], Model]] = {
    "transformer": lambda length, vocabulary: Transformer(vocabulary, length),
}
"""From the length of a sequence and the size of the vocabulary, by the name that tasks and
experiment files use.
"""


@dataclass(frozen=True)
class NextTokenLoss(OfLogits):
    r"""Mean of $\log \sum_v e^{z_v} - z_y$ over a sequence's tokens, without padding.

    y is the token that follows.

    Examples have x, y and mask, all of shape (batch, length).

    Args:
        model: its logits have shape (batch, length, vocabulary).
        augment: of no use for text, None.
    """

    mask: ClassVar[str] = "mask"

    def __call__(self, params: PyTree, examples: Any, key: Any) -> Float[Array, "batch"]:
        logits = self.model(params, examples["x"], key)
        # a masked sum: its gradient is elementwise, where indexing would scatter
        tokens = jnp.arange(logits.shape[2], dtype=examples["y"].dtype)
        label_logits = jnp.where(examples["y"][:, :, None] == tokens[None, None], logits, 0.0).sum(
            2
        )
        return _mean_over_sequence(
            jax.nn.logsumexp(logits, axis=2) - label_logits, examples["mask"]
        )


@dataclass(frozen=True)
class NextTokenAccuracy(OfLogits):
    """Share of a sequence's tokens, without padding, whose next token has the largest logit.

    Args:
        model: its logits have shape (batch, length, vocabulary).
        augment: of no use for text, None.
    """

    mask: ClassVar[str] = "mask"

    def __call__(self, params: PyTree, examples: Any, key: Any) -> Float[Array, "batch"]:
        logits = self.model(params, examples["x"], key)
        correct = jnp.argmax(logits, axis=2).astype(examples["y"].dtype) == examples["y"]
        return _mean_over_sequence(correct.astype(logits.dtype), examples["mask"])


@dataclass(frozen=True)
class NextTokenProbabilities(OfLogits):
    """Probabilities of all tokens to follow each sequence.

    After its last token that is not padding.
    """

    def __call__(self, params: PyTree, examples: Any, key: Any) -> Float[Array, "batch vocabulary"]:
        logits = self.model(params, examples["x"], key)
        last = jnp.maximum(examples["mask"].sum(1, dtype=jnp.int32) - 1, 0)
        return jax.nn.softmax(
            jnp.take_along_axis(logits, last[:, None, None], axis=1)[:, 0], axis=1
        )


def _mean_over_sequence(
    values: Float[Array, "batch length"], mask: Bool[Array, "batch length"]
) -> Float[Array, "batch"]:
    count = jnp.maximum(mask.sum(1, dtype=jnp.int32), 1).astype(values.dtype)
    return jnp.where(mask, values, 0).sum(1) / count


@checked(length=LENGTH, minimum=whole(low=1), test_fraction=TEST_FRACTION, l2=real(low=0))
def language(
    source: Any = "tinyshakespeare",
    model: str | Model = "transformer",
    *,
    tokens: str | Tokens = "characters",
    vocabulary: int | None = None,
    length: int = 80,
    minimum: int = 1,
    test_fraction: float | int = 0.2,
    holdout: Any = None,
    folder: str | Path | None = None,
    l2: float | int = 0.0,
    name: str | None = None,
) -> Task:
    """Makes a language model of the clients' texts. Needs the extra `text`.

    It predicts the next token from the tokens so far.

    Each text is cut into sequences of `length` tokens, of which the last one is filled up; the
    loss, and the score "accuracy", are means over a sequence's tokens without padding. Every
    sequence counts alike. Its predictions are the probabilities of the token that follows a
    sequence, shape (batch, vocabulary).

    Args:
        source: the texts by client: a mapping of names to a text or a list of texts, or a list of
            those; or, by name or path, what `fedax.data.texts_by_client` reads, such as
            Shakespeare's plays by role.
        model: "transformer" (two layers, width 64), or a model from tokens (batch, length) to
            logits (batch, length, vocabulary).
        tokens: "characters", "bytes", "bpe", or `fedax.data.Tokens`; by name they are learned from
            all training texts.
        vocabulary: its size, see `Tokens.of`.
        length: tokens of a sequence, at least 1.
        minimum: clients with fewer sequences are left out; at least 1.
        test_fraction: share of each client's sequences kept for testing, the last ones, in [0, 1).
            Not of LEAF's files, which have a test part.
        holdout: texts that belong to no client, as a global test set.
        folder: of the data sets by name.
        l2: adds l2/2 times the squared norm of the parameters to every client's loss; at least 0.
        name: for tables and messages.

    Raises:
        DataError: no client with `minimum` sequences; missing or broken files.
        InvalidInput: an option out of range, a model that does not fit the vocabulary.

    >>> import fedax
    >>> plays = {"A": "To be, or not to be.", "B": ["Hm.", "Who's there?"]}
    >>> task = fedax.tasks.language(
    ...     plays, fedax.models.Transformer(257, 8, width=8, layers=1), tokens="bytes", length=8
    ... )
    >>> (
    ...     task.train.sizes.tolist(),
    ...     task.test.sizes.tolist(),
    ...     task.train.arrays["mask"].sum(1).tolist(),
    ... )
    ([2, 2], [1, 1], [8, 8, 2, 8])
    """
    holdout_texts = None if holdout is None else _as_list(holdout, "language(holdout=...)")
    train, test, title = _read_texts(source, folder)
    has_names = isinstance(source, str | Path | Mapping)  # a list has numbers alone
    if isinstance(tokens, str):
        if tokens not in SIZES:
            raise UnknownName.among("language(tokens=...)", tokens, SIZES)
        tokens = Tokens.of(
            _select_training_texts(train.values(), test is None, test_fraction), tokens, vocabulary
        )
    elif not isinstance(tokens, Tokens):
        allowed = f"fedax.data.Tokens, or one of {', '.join(SIZES)}"
        raise InvalidInput.of("language(tokens=...)", tokens, allowed)
    elif vocabulary is not None and vocabulary != tokens.size:
        raise InvalidInput.of(
            "language(vocabulary=...)", vocabulary, f"{tokens.size}, as the tokens have, or None"
        )
    # sequences of each client, and the last ones of each for testing
    sequences = {client: tokens.sequences(examples, length) for client, examples in train.items()}
    sequences = {
        client: examples for client, examples in sequences.items() if len(examples["y"]) >= minimum
    }
    if not sequences:
        raise DataError.of(
            "language(minimum=...)", minimum, "numbers of sequences that some client reaches"
        )
    test_sequences = None
    if test is not None:
        test_sequences = [tokens.sequences(test.get(client, []), length) for client in sequences]
    elif test_fraction:
        cuts = {
            client: train_size(len(examples["y"]), test_fraction)
            for client, examples in sequences.items()
        }
        test_sequences = [
            {key: rows[cuts[client] :] for key, rows in examples.items()}
            for client, examples in sequences.items()
        ]
        sequences = {
            client: {key: rows[: cuts[client]] for key, rows in examples.items()}
            for client, examples in sequences.items()
        }
    network, examples = (
        _make_model(model, length, tokens.size),
        Ragged.of(list(sequences.values()), where="train"),
    )
    return Task(
        start=Start(network),
        loss=NextTokenLoss(network),
        train=examples,
        scores={"accuracy": NextTokenAccuracy(network)},
        test=None
        if test_sequences is None or not any(len(rows["y"]) for rows in test_sequences)
        else Ragged.of(test_sequences, where="test", allow_empty=True, like=examples),
        holdout=None if holdout_texts is None else dict(tokens.sequences(holdout_texts, length)),
        l2=python_number(l2),
        name=name or title,
        predictor=NextTokenProbabilities(network),
        names=ClientNames(sequences) if has_names else None,
    )


def _read_texts(
    source: Any, folder: str | Path | None
) -> tuple[dict[str, list[str]], dict[str, list[str]] | None, str]:
    """Reads training texts by client, those for testing if they are separate, and a name."""
    if isinstance(source, str | Path):
        texts = texts_by_client(source, folder)
        return texts.train, texts.test, Path(source).stem
    if not isinstance(source, Iterable):
        allowed = "texts by client, in a mapping or a list; or the name or path of such"
        raise InvalidInput.of("language(source=...)", source, allowed)
    clients = source if isinstance(source, Mapping) else dict(enumerate(source))
    return (
        {
            client_name(client, "language(source=...)"): _as_list(
                client_texts, f"language(source=...)[{client!r}]"
            )
            for client, client_texts in clients.items()
        },
        None,
        "language",
    )


def _as_list(texts: Any, where: str) -> list[str]:
    """Returns a text or several as a list.

    Raises:
        DataError: anything else, by its place; `where` names it.
    """
    if isinstance(texts, str):
        return [texts]
    if not isinstance(texts, Iterable) or isinstance(texts, bytes | Mapping):
        raise DataError.of(where, texts, "a text, or a list of texts")
    listed = list(texts)
    for i, text in enumerate(listed):
        if not isinstance(text, str):
            raise DataError.of(f"{where}[{i}]", text, "a text")
    return listed


def _select_training_texts(
    clients: Iterable[Sequence[str]], holds_out: bool, test_fraction: float | int
) -> Iterable[str]:
    """Yields the texts that a vocabulary is learned from.

    Without the last part of each client's, if that is kept for testing.
    """
    for texts in clients:
        sizes = np.cumsum([len(text) for text in texts])
        train_length = (
            whole_part(1 - test_fraction, sizes[-1]) + 1 if holds_out and len(sizes) else None
        )
        # the first `train_length` characters of the client, over all its texts
        for text, end in zip(texts, sizes, strict=True):
            yield (
                text
                if train_length is None
                else text[: max(train_length - int(end) + len(text), 0)]
            )


def _make_model(model: str | Model, length: int, vocabulary: int) -> Model:
    if isinstance(model, str):
        if model not in LANGUAGE_MODELS:
            raise UnknownName.among("language(model=...)", model, LANGUAGE_MODELS)
        return LANGUAGE_MODELS[model](length, vocabulary)
    allowed = f"a model with init(key) and a call, or one of {', '.join(LANGUAGE_MODELS)}"
    check_model("language(model=...)", model, allowed)
    x = jax.ShapeDtypeStruct((3, length), jnp.int32)
    shape = jax.eval_shape(
        lambda key, x: model(model.init(key), x, None), jax.random.key(0), x
    ).shape
    if shape != (3, length, vocabulary):
        got, allowed = (
            f"logits of shape {shape} for 3 sequences",
            (f"{(3, length, vocabulary)}: batch, length, vocabulary"),
        )
        raise InvalidInput.found("language(model=...)", got, allowed)
    return model
