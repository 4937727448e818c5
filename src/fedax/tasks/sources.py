"""Classification tasks made from the data sets of `fedax.data`, with a model and l2."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedax import data
from fedax.core import DataError, Task, UnknownName
from fedax.data import FederatedData
from fedax.data.limits import check, real
from fedax.data.options import check_partition_options
from fedax.models import Bigram, CharLSTM
from fedax.tasks.from_model import MODELS, Architecture, classification, make_model
from fedax.tasks.images import CHANGES, DEFAULTS, IMAGE_FORMATS, check_preprocessing, preprocess
from fedax.utils.numbers import python_argument, python_number
from fedax.utils.plugins import is_user_code

TEXT_MODELS: dict[str, Architecture] = {
    "bigram": lambda length, vocabulary: Bigram(vocabulary),
    "lstm": lambda length, vocabulary: CharLSTM(vocabulary),
    "lstm_two_biases": lambda length, vocabulary: CharLSTM(vocabulary, biases=2, start="uniform"),
    "lstm_peepholes": lambda length, vocabulary: CharLSTM(vocabulary, peepholes=True),
}
"""From the length of a window and the size of the vocabulary, by the same names."""

L2 = "l2: adds l2/2 times the squared norm of the parameters to every client's loss; at least 0."


def of_source(
    source: Callable[..., FederatedData],
    models: Mapping[str, Architecture] = MODELS,
    default: str = "softmax",
) -> Callable[..., Task]:
    """Makes a task factory of a function that makes federated data.

    Tasks have the function's options, and `model` and `l2` by keyword. Those on images also have
    `crop`, `flip`, `frozen` and `normalize`, see `mnist`.

    Args:
        source: makes the data from options.
        models: by name, from the columns of the inputs and the number of classes.
        default: the model that is taken if none is named.

    Raises:
        InvalidInput: by the task that it returns: an option out of range, or an unknown one;
            `DataError` for data that do not fit.

    >>> digits = of_source(data.digits)
    >>> digits("iid", clients=4, model="mlp").train.clients
    4
    """
    name = source.__name__
    image_options = DEFAULTS if name in IMAGE_FORMATS else {}

    def task(*positional: Any, model: Any = default, l2: float | int = 0.0, **options: Any) -> Task:
        positional, l2 = tuple(map(python_argument, positional)), python_number(l2)
        options = {key: python_argument(value) for key, value in options.items()}
        check(name, {"l2": real(low=0)}, {"l2": l2})
        # options of images are taken here, the source gets the others
        changes = {key: options.pop(key, value) for key, value in image_options.items()}
        if image_options:
            check_preprocessing(name, changes)
        if isinstance(model, str) and model not in models and not is_user_code("model", model):
            raise UnknownName.among(f"{name}(model=...)", model, models)
        bound = inspect.signature(source).bind(*positional, **options)
        check_partition_options(name, task, bound.arguments)
        federated, augment = source(*positional, **options), None
        if image_options:
            # the seed of the source, given or by default, draws frozen changes too
            bound.apply_defaults()
            federated, augment = preprocess(
                name, federated, bound.arguments.get("seed", 0), **changes
            )
        if federated.train[0]["x"].ndim < 2:
            raise DataError.found(f"{name}: x", "one number per example", "rows of features")
        columns = int(np.prod(federated.train[0]["x"].shape[1:]))
        return classification(
            federated,
            make_model(name, model, models, columns, federated.classes),
            augment=augment,
            l2=l2,
        )

    about = [
        f"model: one of {', '.join(models)}; or a model or maker, as in `classification`.",
        L2,
        *(CHANGES if image_options else ()),
    ]
    return like_source(task, source, {"model": default, "l2": 0.0} | image_options, about)


def like_source(
    task: Callable[..., Task],
    source: Callable[..., Any],
    added: Mapping[str, Any],
    about: list[str],
) -> Callable[..., Task]:
    """Gives a task factory the name, the signature and the docstring of the function of its data.

    Args:
        task: takes the source's arguments, and the others by keyword.
        source: makes the data.
        added: the other arguments with their defaults.
        about: a line on each of them, for the docstring.
    """
    parameters = list(inspect.signature(source).parameters.values())
    # a `**options` stays last
    split = len(parameters) - sum(
        parameter.kind is parameter.VAR_KEYWORD for parameter in parameters
    )
    keywords = [
        inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=value)
        for key, value in added.items()
    ]
    task.__dict__["__signature__"] = inspect.Signature(
        [*parameters[:split], *keywords, *parameters[split:]]
    )
    task.__name__ = task.__qualname__ = source.__name__
    # the docstring is that of the data, without examples
    paragraphs = [
        paragraph
        for paragraph in (inspect.getdoc(source) or "").split("\n\n")
        if ">>>" not in paragraph
    ]
    index = next(
        (i for i, paragraph in enumerate(paragraphs) if paragraph.startswith("Args:")), None
    )
    if index is None:
        index = 1
        paragraphs.insert(index, "Args:")
    paragraphs[index] = "\n    ".join([paragraphs[index], *about])
    task.__doc__ = "\n\n".join([f"Makes a task of `fedax.data.{source.__name__}`.", *paragraphs])
    return task


synthetic = of_source(data.synthetic)
digits = of_source(data.digits)
mnist = of_source(data.mnist)
fashion_mnist = of_source(data.fashion_mnist)
cifar10 = of_source(data.cifar10)
mnist_writers = of_source(data.mnist_writers)
mnist_devices = of_source(data.mnist_devices)
femnist = of_source(data.femnist)
femnist_letters = of_source(data.femnist_letters)
from_table = of_source(data.from_table)
stored = of_source(data.stored)
tinyshakespeare = of_source(data.tinyshakespeare, TEXT_MODELS, "bigram")
shakespeare = of_source(data.shakespeare, TEXT_MODELS, "bigram")
