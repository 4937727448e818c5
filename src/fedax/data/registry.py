"""Registry of data sets: what they are, which function makes them, where their files come from."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedax import data
from fedax.core import UnknownName
from fedax.data import FederatedData
from fedax.data.options import check_options, options_of


@dataclass(frozen=True)
class DataSet:
    """Data set with its maker and the addresses of its files.

    Args:
        make: gives the data from options.
        about: one line.
        classes: labels; 0 if that depends on the files.
        files: addresses of its files by their names in the data folder; empty if it needs no file,
            or if the user brings it.
        archives: SHA-256 of archives, compared before they are unpacked.
        light: options that verify its files at the least cost.
        within: the subfolder of the data folder that its maker expects as `folder`.
    """

    make: Callable[..., FederatedData]
    about: str
    classes: int
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    light: Mapping[str, Any] = field(default_factory=dict[str, Any])
    archives: Mapping[str, str] = field(default_factory=dict[str, str])
    within: str = ""

    @property
    def local(self) -> bool:
        """Whether it reads files of the data folder: its option `folder` has a default."""
        needed = inspect.Parameter.empty
        return options_of("", self.make, {}).get("folder", needed) is not needed

    def defaults(self, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """Checks options, and returns all options with their defaults."""
        defaults = options_of(name, self.make, options)
        check_options("data set", name, defaults, options)
        return defaults


_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"
_FASHION = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
_IDX = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
_FEW = {"partition": "index", "clients": 1}
_TINY = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
_MNIST = {"mnist.npz": "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz"}
_CIFAR = {"cifar-10-binary.tar.gz": "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"}
_CIFAR_SUM = {
    "cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
}

DATASETS: dict[str, DataSet] = {
    "synthetic": DataSet(
        data.synthetic, "drawn: logistic models that differ between clients, 60 features", 10
    ),
    "digits": DataSet(data.digits, "1,797 digits of 8 x 8 pixels, from scikit-learn", 10),
    "mnist": DataSet(data.mnist, "70,000 digits of 28 x 28 pixels", 10, _MNIST, _FEW),
    "mnist_writers": DataSet(data.mnist_writers, "MNIST, one client for each of 539 writers", 10),
    "mnist_devices": DataSet(
        data.mnist_devices, "MNIST on 1,000 devices with two digits each, as FedProx", 10, _MNIST
    ),
    "fashion_mnist": DataSet(
        data.fashion_mnist,
        "70,000 pictures of clothes, 28 x 28 pixels",
        10,
        {f"fashion_mnist/{name}": _FASHION + name for name in _IDX},
        _FEW,
    ),
    "cifar10": DataSet(
        data.cifar10, "60,000 colour images of 32 x 32 pixels", 10, _CIFAR, _FEW, _CIFAR_SUM
    ),
    "femnist": DataSet(
        data.femnist, "handwriting by writer, files written by LEAF", 62, within="femnist"
    ),
    "femnist_letters": DataSet(
        data.femnist_letters,
        "letters a to j on 200 devices, files of FedProx",
        26,
        within="femnist_letters",
    ),
    "sent140": DataSet(
        data.sent140,
        "tweets by user, files written by LEAF, and GloVe's vectors",
        2,
        within="sent140",
    ),
    "shakespeare": DataSet(
        data.shakespeare, "plays by speaking role, files written by LEAF", 80, within="shakespeare"
    ),
    "tinyshakespeare": DataSet(
        data.tinyshakespeare,
        "1.1 million characters of plays, 309 speaking roles",
        80,
        {"shakespeare/tinyshakespeare.txt": _TINY},
        {"stride": 80},
    ),
    "a5a": DataSet(
        data.a5a, "6,414 people of Adult, 122 features", 2, {"libsvm/a5a": _LIBSVM + "a5a"}
    ),
    "a9a": DataSet(
        data.a9a, "32,561 people of Adult, 123 features", 2, {"libsvm/a9a": _LIBSVM + "a9a"}
    ),
    "mushrooms": DataSet(
        data.mushrooms,
        "8,124 mushrooms, 112 features",
        2,
        {"libsvm/mushrooms": _LIBSVM + "mushrooms"},
    ),
    "w8a": DataSet(data.w8a, "49,749 web pages, 300 features", 2, {"libsvm/w8a": _LIBSVM + "w8a"}),
    "libsvm": DataSet(data.libsvm, "any LIBSVM text file", 0),
    "table": DataSet(data.from_table, "CSV or Parquet: a table, or one for each client", 0),
}
"""Data sets by name."""


def dataset(name: str) -> DataSet:
    """Returns the data set of a name.

    >>> dataset("digits").classes
    10

    Raises:
        UnknownName: no such data set; names the nearest.
    """
    if name not in DATASETS:
        raise UnknownName.among("data set", name, DATASETS)
    return DATASETS[name]


def load(section: Mapping[str, Any]) -> FederatedData:
    """Loads the data of `{"name": ..., option: value, ...}`, as the command line gives them.

    >>> load({"name": "digits", "clients": 3}).clients
    3

    Raises:
        UnknownName: no such data set or option.
        InvalidInput: an option out of range; a `DataError` for missing or broken files.
    """
    name, options = section["name"], {key: value for key, value in section.items() if key != "name"}
    data_set = dataset(name)
    data_set.defaults(name, options)
    return data_set.make(**options)
