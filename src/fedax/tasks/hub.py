"""Tasks of data sets of the Hugging Face hub: images, rows of numbers, and texts."""

import inspect
from collections.abc import Callable
from typing import Any

from fedax import data
from fedax.core import InvalidInput, Task
from fedax.data.limits import check, choice
from fedax.data.texts.tokens import KIND, size_of
from fedax.models import BagOfTokens, Model, Transformer
from fedax.tasks.language import language
from fedax.tasks.sources import L2, MODELS, like_source, of_source


def _make_hub_task(
    *positional: Any,
    model: str | Model | None = None,
    predict: str = "label",
    l2: float | int = 0.0,
    **options: Any,
) -> Task:
    check(
        "hub", {"predict": choice("label", "next"), "tokens": KIND}, {"predict": predict} | options
    )
    # options that are read here, defaults included
    bound = inspect.signature(data.hub).bind(*positional, **options)
    bound.apply_defaults()
    arguments = bound.arguments
    text, tokens, vocabulary = (arguments[key] for key in ("text", "tokens", "vocabulary"))
    if predict == "label":
        models, default = MODELS, "softmax"
        if text is not None:
            models, default = classifiers(size_of(tokens, vocabulary)), "transformer"
        return of_source(data.hub, models, default)(
            *positional, model=model or default, l2=l2, **options
        )
    if text is None:
        raise InvalidInput.of(
            "hub(predict=...)", predict, "'label', or 'next' with a column of texts, text=..."
        )
    # options that `hub_texts` has as well
    text_options = {
        key: arguments[key]
        for key in inspect.signature(data.hub_texts).parameters
        if key != "options"
    }
    texts, holdout = data.hub_texts(**text_options, **arguments["options"])
    sequences = {key: arguments[key] for key in ("tokens", "vocabulary", "length", "test_fraction")}
    name = f"{arguments['dataset']}, {arguments['partition']}"
    return language(texts, model or "transformer", **sequences, holdout=holdout, l2=l2, name=name)


hub = like_source(
    _make_hub_task,
    data.hub,
    {"model": None, "predict": "label", "l2": 0.0},
    [
        """model: by name, or a model. Of images and rows of numbers "softmax" (the default), "mlp"
        and the other models of `mnist`; of texts with labels "transformer" (the default) or "bag"
        (softmax regression on shares of tokens); of texts alone "transformer".""",
        """predict: "label", or "next" for a language model of the texts, which looks at no labels;
        see `language`. Then `test_fraction` keeps each client's last sequences for testing.""",
        L2,
    ],
)


def classifiers(vocabulary: int) -> dict[str, Callable[[int, int], Model]]:
    """Returns makers of text classifiers by name.

    Each takes the length of a text and the number of classes.
    """
    return {
        "transformer": lambda length, classes: Transformer(vocabulary, length, classes=classes),
        "bag": lambda length, classes: BagOfTokens(vocabulary, classes),
    }
