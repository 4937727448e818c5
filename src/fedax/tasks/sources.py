"""Data sets by name, with the task that is made of each by default."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fedax import data
from fedax.core import InvalidInput, Task, UnknownName
from fedax.core.task import Given
from fedax.data import FederatedData
from fedax.data.files import FILES, fetch
from fedax.data.folder import MissingFile, data_folder
from fedax.data.options import NonNegative, Share, check, options_of
from fedax.data.partition import by_user, find_partition
from fedax.data.sources.tweets import read_sent140
from fedax.models import SentimentLSTM
from fedax.models.storage import place_model, read_weights
from fedax.tasks.from_model import classification, seed_torch
from fedax.tasks.images import CIFAR10, DIGITS, GREY, MNIST
from fedax.tasks.logistic import logistic
from fedax.utils.plugins import find


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


def _classify(
    load: Callable[..., FederatedData],
    options: dict[str, Any],
    *,
    model: Any = "softmax",
    l2: NonNegative = 0.0,
) -> Task:
    return classification(load(**options), model, l2=l2)


_predict_characters = functools.partial(_classify, model="bigram")


def _classify_tweets(
    load: Callable[..., FederatedData],
    options: dict[str, Any],
    *,
    model: Any = "lstm",
    l2: NonNegative = 0.0,
) -> Task:
    # words are vectors that are data, not parameters
    federated, (_, table) = read_sent140(**options)
    network = SentimentLSTM(table.shape[1]) if model == "lstm" else model
    return classification(federated, network, augment=WordVectors(table), l2=l2)


def _regress(
    load: Callable[..., FederatedData],
    options: dict[str, Any],
    *,
    l2: NonNegative | None = None,
) -> Task:
    return logistic(load(**options), l2=l2)


@dataclass(frozen=True)
class DataSet:
    """Data set, and the task that is made of it.

    Args:
        load: gives the data from options.
        about: one line.
        make: gives the task from `load`, its options, and options of its own by keyword.
        files: in `fedax.data.files.FILES`; empty if it needs no file, or if the user brings it.
        light: options that verify its files at the least cost.
    """

    load: Callable[..., FederatedData]
    about: str
    make: Callable[..., Task] = _classify
    files: tuple[str, ...] = ()
    light: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def reads_folder(self) -> bool:
        """Whether it reads files of the data folder: its option `folder` has a default."""
        folder = options_of(self.load).get("folder")
        return folder is not None and folder.default is not inspect.Parameter.empty

    def __call__(self, **options: Any) -> Task:
        own = {name: options.pop(name) for name in _keywords(self.make) if name in options}
        return self.make(self.load, options, **own)


_FEW = {"partition": "index", "clients": 1}
_FASHION = tuple(file for file in FILES if file.startswith("fashion_mnist/"))

DATASETS: dict[str, DataSet] = {
    "synthetic": DataSet(
        data.synthetic, "drawn: logistic models that differ between clients, 60 features"
    ),
    "digits": DataSet(data.digits, "1,797 digits of 8 x 8 pixels, from scikit-learn", DIGITS),
    "mnist": DataSet(data.mnist, "70,000 digits of 28 x 28 pixels", MNIST, ("mnist.npz",), _FEW),
    "mnist_writers": DataSet(
        data.mnist_writers, "MNIST, one client for each of 539 writers", MNIST
    ),
    "mnist_devices": DataSet(
        data.mnist_devices,
        "MNIST on 1,000 devices with two digits each, as FedProx",
        GREY,  # standardised pixel by pixel already
        ("mnist.npz",),
    ),
    "fashion_mnist": DataSet(
        data.fashion_mnist,
        "70,000 pictures of clothes, 28 x 28 pixels",
        GREY,
        _FASHION,
        _FEW,
    ),
    "cifar10": DataSet(
        data.cifar10,
        "60,000 colour images of 32 x 32 pixels",
        CIFAR10,
        ("cifar-10-binary.tar.gz",),
        _FEW,
    ),
    "femnist": DataSet(data.femnist, "62 characters by writer, files written by LEAF", GREY),
    "femnist_letters": DataSet(
        data.femnist_letters, "letters a to j on 200 devices, files of FedProx"
    ),
    "sent140": DataSet(
        data.sent140,
        "tweets by user, files written by LEAF, and GloVe's vectors",
        _classify_tweets,
    ),
    "shakespeare": DataSet(
        data.shakespeare, "plays by speaking role, files written by LEAF", _predict_characters
    ),
    "tinyshakespeare": DataSet(
        data.tinyshakespeare,
        "1.1 million characters of plays, 309 speaking roles",
        _predict_characters,
        ("shakespeare/tinyshakespeare.txt",),
        {"stride": 80},
    ),
    "a5a": DataSet(data.a5a, "6,414 people of Adult, 122 features", _regress, ("libsvm/a5a",)),
    "a9a": DataSet(data.a9a, "32,561 people of Adult, 123 features", _regress, ("libsvm/a9a",)),
    "mushrooms": DataSet(
        data.mushrooms, "8,124 mushrooms, 112 features", _regress, ("libsvm/mushrooms",)
    ),
    "w8a": DataSet(data.w8a, "49,749 web pages, 300 features", _regress, ("libsvm/w8a",)),
    "libsvm": DataSet(data.libsvm, "any LIBSVM text file", _regress),
    "table": DataSet(data.from_table, "CSV or Parquet: a table, or one for each client"),
    "stored": DataSet(data.stored, "clients in NumPy files, read as they are needed"),
}
"""By name; every other name of a task refers to the user's code."""


def task(name: str, **options: Any) -> Task:
    """Makes the task of a data set, or of your own code, by name.

    Args:
        name: one of `fedax data list`: synthetic, digits, mnist, mnist_writers, mnist_devices,
            fashion_mnist, cifar10, femnist, femnist_letters, sent140, shakespeare,
            tinyshakespeare, a5a, a9a, mushrooms, w8a, libsvm, table or stored. Or a
            function that returns a `fedax.Task`, or a task: `path/to/file.py:name`,
            `package.module:name`.
        options: of the function of that name in `fedax.data`, of its partition, and those below;
            for your own task, the arguments of your function. `fedax data describe NAME` lists
            them.

    Options of all data sets but a5a, a9a, mushrooms, w8a and libsvm, which are binary logistic
    regression (`l2` is 1/n by default, see `fedax.tasks.logistic`; n is counted before
    `validation` and `unseen` take examples out):

    - `model`: softmax, mlp, mlp_dropout, mnist_cnn, lenet, cifar_cnn or resnet20; of text bigram,
      lstm, lstm_two_biases or lstm_peepholes; or a model, see `fedax.classification`. By
      default softmax; bigram of plays; of tweets "lstm", a `SentimentLSTM` on GloVe's frozen
      vectors.
    - `l2`: adds l2/2 times the squared norm of the parameters to every client's loss; at least 0.

    Options of images:

    - `crop`: zeros on every side of a training image, from which a window of the old size is cut at
      random; at least 0.
    - `flip`: mirrors training images left and right with probability 1/2, after the crop.
    - `frozen`: draws crops and flips once, before training, by `seed`; otherwise for every example
      of every step, and losses over whole training sets are without them.
    - `normalize`: "none"; "dataset", by mean and deviation of each channel of the training images,
      with those that `validation` and `unseen` take out; or, of MNIST and CIFAR-10, "published", by
      the constants in the papers' released code. Comes last, for test images too.

    Options of every task:

    - `validation`, `unseen`: shares in [0, 1) of each client's training examples and of the clients
      (see `with_validation` and `with_unseen` of `fedax.FederatedData`; their seed is the task's).
    - `params`: a file with the model to start from (see `fedax.load_params`).

    >>> task("digits", partition="iid", clients=4, unseen=0.25).train.clients
    3

    Raises:
        UnknownName: no such task or option; the message holds the nearest name.
        InvalidInput: an option out of its range, before any work; a `DataError` for missing or
            broken files.
    """
    known = task_options(name, options)
    _check_names(f"task {name!r}", name, known, options)
    options = check(name.rpartition(":")[2], known, options)
    changes = {key: options.pop(key) for key in _keywords(change_task) if key in options}
    with seed_torch():
        made = find_task(name)(**options)
    if not isinstance(made, Task):
        got = f"{name!r}, which returns an object of {type(made).__name__}"
        raise InvalidInput.found("task", got, "a fedax.Task")
    if changes.get("validation") and options.get("frozen"):
        hint = "Draw crops and flips in every step: frozen = false."
        reason = "the examples would be cropped and flipped too"
        raise InvalidInput.because(f"{name}(validation=...)", reason, hint)
    return change_task(made, options.get("seed", 0), **changes)


def load(name: str, **options: Any) -> FederatedData:
    """Loads the data of a data set by name.

    >>> load("digits", clients=3).clients
    3

    Raises:
        UnknownName: no such data set or option.
        InvalidInput: an option out of range; a `DataError` for missing or broken files.
    """
    data_set = dataset(name)
    _check_names(f"data set {name!r}", name, _with_partition(data_set.load, options), options)
    return data_set.load(**options)


def dataset(name: str) -> DataSet:
    """Returns the data set of a name.

    Raises:
        UnknownName: no such data set; names the nearest.
    """
    if name not in DATASETS:
        raise UnknownName.among("data set", name, DATASETS)
    return DATASETS[name]


def find_task(name: str) -> Callable[..., Task]:
    """Returns the data set of a name, or the user's function that makes a task.

    Raises:
        UnknownName: no such task; the message holds the nearest name.
        InvalidInput: a file or a module that cannot be loaded, or something else than a function or
            a task.
    """
    allowed = "a function that returns a fedax.Task, or a fedax.Task"
    found = find(
        "task", name, DATASETS, allowed, lambda value: isinstance(value, Task) or callable(value)
    )
    return (lambda: found) if isinstance(found, Task) else found


def task_options(name: str, given: Mapping[str, Any] | None = None) -> dict[str, inspect.Parameter]:
    """Returns every option of the task `name`.

    Among them those of the partition that the `given` options choose.

    >>> task_options("digits", {"partition": "dirichlet"})["alpha"].default
    0.5

    Raises:
        UnknownName: no such task or partition.
    """
    maker = find_task(name)
    options = _keywords(change_task)
    if isinstance(maker, DataSet):
        options = _keywords(maker.make) | options
        maker = maker.load
    return _with_partition(maker, given or {}) | options


def prepare(name: str, folder: Path | None = None) -> str:
    """Downloads the files of a data set if they are missing, and verifies them.

    Args:
        name: of the data set.
        folder: the data folder; see `fedax.data.data_folder`.

    Returns:
        The state as a sentence.

    Raises:
        UnknownName: no such data set.
        DataError: files are broken, cannot be fetched, or differ from the published ones.
    """
    data_set = dataset(name)
    if not data_set.reads_folder:
        return "nothing to prepare: it reads no file of the data folder"
    read = functools.partial(data_set.load, folder=folder, **data_set.light)
    state = "ready and verified"
    try:
        read()
    except MissingFile:
        if not data_set.files:
            raise
        for file in data_set.files:
            fetch(file, data_folder(folder))
        read()
        state = "fetched and verified"
    return f"{state} in {data_folder(folder)}"


def _check_names(
    kind: str, name: str, known: Mapping[str, inspect.Parameter], options: Mapping[str, Any]
) -> None:
    for key in options:
        if key not in known:
            raise UnknownName.among(f"option of {kind}", key, known)
    for key, option in known.items():
        if option.default is option.empty and key not in options:
            raise InvalidInput.found(f"{name}({key}=...)", "nothing", f"a value: {kind} needs it")


def _with_partition(
    function: Callable[..., Any], given: Mapping[str, Any]
) -> dict[str, inspect.Parameter]:
    """Returns the options of a function, and those of the partition that it passes on to."""
    options = options_of(function)
    common = ("n", "labels", "users", *options)
    added = options_of(_partition_of(options, given))
    return options | {key: option for key, option in added.items() if key not in common}


def _partition_of(
    options: Mapping[str, inspect.Parameter], given: Mapping[str, Any]
) -> Callable[..., Any]:
    """Returns the partition that a function with some options passes on to."""
    if "partition" not in options:
        return lambda: None
    partition = given.get("partition", options["partition"].default)
    # by default one client for each value of a column
    return find_partition(partition) if isinstance(partition, str) else by_user


def _keywords(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    options = options_of(function)
    return {name: option for name, option in options.items() if option.kind is option.KEYWORD_ONLY}


def change_task(
    made: Task,
    seed: int,
    *,
    validation: Share | None = None,
    unseen: Share | None = None,
    params: str | None = None,
) -> Task:
    """Applies the options that all tasks have."""
    # unseen clients first: validation examples are taken from those that take part
    data = made.data.with_unseen(unseen or 0, seed).with_validation(validation or 0, seed)
    changed = dataclasses.replace(made, data=data)
    if params is None:
        return changed
    start, changed = place_model(read_weights(Path(params)).arrays, changed, params)
    return dataclasses.replace(changed, start=Given(start))
