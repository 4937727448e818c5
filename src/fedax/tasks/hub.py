"""Tasks of data sets of the Hugging Face hub: images, rows of numbers, and texts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedax import data
from fedax.core import InvalidInput, Task
from fedax.data.limits import checked, choice
from fedax.data.texts.tokens import KIND, size_of
from fedax.models import BagOfTokens, Model, Transformer
from fedax.tasks.language import language
from fedax.tasks.ready import MODELS
from fedax.tasks.sources import of_source


@checked(predict=choice("label", "next"), tokens=KIND)
def hub(
    dataset: str,
    partition: str = "iid",
    clients: int = 10,
    model: str | Model | None = None,
    *,
    text: str | None = None,
    predict: str = "label",
    tokens: str = "bpe",
    vocabulary: int | None = None,
    length: int = 64,
    features: str = "image",
    label: str = "label",
    user: str | None = None,
    train: str = "train",
    test: str | None = None,
    config: str | None = None,
    revision: str | None = None,
    seed: int = 0,
    test_fraction: float | int = 0.0,
    split: str = "shuffled",
    cache: str | Path | None = None,
    flat: bool = True,
    l2: float | int = 0.0,
    **options: Any,
) -> Task:
    """Makes a task of a data set of the Hugging Face hub, or of a folder; see `fedax.data.hub`.

    Args:
        dataset, partition, clients, label, user, train, test, config, revision, seed,
            test_fraction, split, cache: as there.
        model: by name, or a model. Of images and rows of numbers "softmax" (the default), "mlp" and
            the other models of `mnist`; of texts with labels "transformer" (the default) or "bag"
            (softmax regression on shares of tokens); of texts alone "transformer".
        text: the column of texts, in place of `features`.
        predict: "label", or "next" for a language model of the texts, which looks at no labels; see
            `language`. Then `test_fraction` keeps each client's last sequences for testing.
        tokens, vocabulary, length: of texts, as in `fedax.data.hub`.
        features, flat: of other data, as there.
        options: of the partition, as there.
        l2: adds l2/2 times the squared norm of the parameters to every client's loss; at least 0.

    Raises:
        DataError: as `fedax.data.hub`.
        InvalidInput: an option out of range, `predict="next"` without a column of texts.
    """
    # what both kinds of tasks ask of the data set
    source = {
        "config": config,
        "revision": revision,
        "user": user,
        "train": train,
        "test": test,
        "seed": seed,
        "cache": cache,
    }
    tokenizer = {"tokens": tokens, "vocabulary": vocabulary, "length": length}
    if predict == "next":
        if text is None:
            raise InvalidInput.of("hub(predict=...)", predict, "'label', or 'next' with a column of texts, text=...")
        texts, holdout = data.hub_texts(dataset, text, partition, clients, **source, **options)
        name = f"{dataset}, {partition}"
        evaluation = {"test_fraction": test_fraction, "holdout": holdout}
        return language(texts, model or "transformer", **tokenizer, **evaluation, l2=l2, name=name)
    columns = {"text": text, "features": features, "label": label, "flat": flat}
    if text is None:
        models, default = MODELS, "softmax"
    else:
        models, default = classifiers(size_of(tokens, vocabulary)), "transformer"
    make_task = of_source(data.hub, models, default)
    return make_task(
        dataset,
        partition,
        clients,
        **source,
        **tokenizer,
        **columns,
        test_fraction=test_fraction,
        split=split,
        model=model or default,
        l2=l2,
        **options,
    )


def classifiers(vocabulary: int) -> dict[str, Callable[[int, int], Model]]:
    """Returns makers of text classifiers by name.

    Each takes the length of a text and the number of classes.
    """
    return {
        "transformer": lambda length, classes: Transformer(vocabulary, length, classes=classes),
        "bag": lambda length, classes: BagOfTokens(vocabulary, classes),
    }
