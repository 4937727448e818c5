"""Sentiment of tweets: words as vectors that are data, not parameters."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fedax import data
from fedax.core import Task, UnknownName
from fedax.data.limits import checked, real
from fedax.models import SentimentLSTM
from fedax.tasks.from_model import classification


@dataclass(frozen=True, eq=False)
class WordVectors:
    """Replaces the numbers of words by their vectors, on the way into the model.

    Args:
        table: a row for each word.
    """

    table: Float[np.ndarray, "words width"]

    def __call__(
        self, x: Int[Array, "batch length"], key: Any
    ) -> Float[Array, "batch length width"]:
        return jnp.asarray(self.table, float)[x]


@checked(l2=real(low=0))
def sent140(
    folder: str | Path | None = None,
    model: Any = "lstm",
    l2: float | int = 0.0,
    *,
    minimum: int = 30,
    clients: int | None = None,
    test_fraction: float | int = 0.2,
    seed: int = 0,
) -> Task:
    """Makes a task of tweets by user, positive or negative; see `fedax.data.sent140`.

    With GloVe's frozen vectors.

    Args:
        folder: that holds LEAF's folders `train` and `test`, or the published table of tweets, and
            `glove.6B.300d.txt`; by default `sent140` in `fedax.data.data_folder`.
        model: "lstm" (`SentimentLSTM`, 243,861 parameters), or a model on words' vectors with two
            logits.
        l2: adds l2/2 times the squared norm of the parameters to every client's loss; at least 0.
        minimum, clients, test_fraction, seed: of the table, as in `fedax.data.sent140`.

    Raises:
        DataError: a missing or broken file.

    Source: data and model of Li et al., FedDANE (arXiv:2001.01920), released code.
    """
    if isinstance(model, str) and model != "lstm":
        raise UnknownName.among("sent140(model=...)", model, ["lstm"])
    selection = {
        "minimum": minimum,
        "clients": clients,
        "test_fraction": test_fraction,
        "seed": seed,
    }
    vocabulary, table = data.tweet_vectors(folder, **selection)
    network = SentimentLSTM(table.shape[1]) if isinstance(model, str) else model
    return classification(
        data.sent140(vocabulary, folder, **selection), network, augment=WordVectors(table), l2=l2
    )
