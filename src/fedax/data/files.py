"""Published files of data sets: where they come from, and what they hold."""

from pathlib import Path
from typing import NamedTuple

from fedax.core import DataError


class File(NamedTuple):
    """Address of a file, and the SHA-256 of its bytes."""

    address: str
    sha256: str


_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"
_FASHION = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
_TINY = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"

FILES = {
    "mnist.npz": File(
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz",
        "731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1",
    ),
    "fashion_mnist/train-images-idx3-ubyte.gz": File(
        _FASHION + "train-images-idx3-ubyte.gz",
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    ),
    "fashion_mnist/train-labels-idx1-ubyte.gz": File(
        _FASHION + "train-labels-idx1-ubyte.gz",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    ),
    "fashion_mnist/t10k-images-idx3-ubyte.gz": File(
        _FASHION + "t10k-images-idx3-ubyte.gz",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    ),
    "fashion_mnist/t10k-labels-idx1-ubyte.gz": File(
        _FASHION + "t10k-labels-idx1-ubyte.gz",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
    "cifar-10-binary.tar.gz": File(
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    ),
    "shakespeare/tinyshakespeare.txt": File(
        _TINY, "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
    ),
    "libsvm/a5a": File(
        _LIBSVM + "a5a", "5cb3a6603de0a0eb43afcdd45b1820c71ee7f20da1c09f054696bb71cbc45ad8"
    ),
    "libsvm/a9a": File(
        _LIBSVM + "a9a", "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906"
    ),
    "libsvm/mushrooms": File(
        _LIBSVM + "mushrooms", "f39a4eb628dc61a7d43760815b061c9e497aa728ce1ad8bde57a09ef6043b538"
    ),
    "libsvm/w8a": File(
        _LIBSVM + "w8a", "6a9fa8fd5f524303240a5db07d4b3d4a51e8b7b4b20a914105d8e3e8c81640f2"
    ),
}
"""By their paths in the data folder."""


def fetch(name: str, folder: Path) -> None:
    """Downloads a file of `FILES` into the data folder; an archive is unpacked there.

    Raises:
        DataError: the file cannot be fetched, or differs from the published one. Nothing is stored
            then.
    """
    import pooch

    file = FILES[name]
    unpack = pooch.Untar(extract_dir=str(folder)) if name.endswith(".tar.gz") else None
    path = folder / name
    hint = f"Without a network, put {name} into the data folder yourself."
    try:
        pooch.retrieve(file.address, file.sha256, path.name, path.parent, processor=unpack)
    except (OSError, ValueError) as error:  # no network, no such host or file, another content
        raise DataError.found(name, str(error), f"the file at {file.address}", hint) from error
