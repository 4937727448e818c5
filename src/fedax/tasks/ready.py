"""Ready-made classification tasks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedax import data
from fedax.core import Task, UnknownName
from fedax.data import FederatedData
from fedax.data.limits import CLIENTS, SEED, SPLIT, TEST_FRACTION, checked, choice, real
from fedax.data.sources.synthetic import SPREAD
from fedax.models import MLP, Augmentation, Model, ResNet, Softmax, cifar_cnn, lenet, mnist_cnn
from fedax.tasks.classify import classification
from fedax.tasks.images import changed, check_changes, limits_of

MODELS: dict[str, Callable[[int, int], Model]] = {
    "softmax": Softmax,
    "mlp": lambda features, classes: MLP((features, 200, 200, classes)),
    "mlp_dropout": lambda features, classes: MLP((features, 128, classes), dropout=0.5),
    "mnist_cnn": lambda features, classes: mnist_cnn(classes),
    "lenet": lambda features, classes: lenet(classes),
    "cifar_cnn": lambda features, classes: cifar_cnn(classes),
    "resnet20": lambda features, classes: ResNet(classes=classes),
}
"""From features and classes, by the name that tasks and experiment files use."""

_COMMON = {"clients": CLIENTS, "seed": SEED, "test_fraction": TEST_FRACTION, "l2": real(low=0)}


@checked(**_COMMON, alpha=SPREAD, beta=SPREAD, iid=choice(False, True))
def synthetic(
    alpha: float | int = 1.0,
    beta: float | int = 1.0,
    iid: bool = False,
    clients: int = 30,
    model: str | Model = "softmax",
    seed: int = 0,
    test_fraction: float | int = 0.1,
    l2: float | int = 0.0,
) -> Task:
    """Makes Synthetic(alpha, beta): 60 features, 10 classes, heavy-tailed sizes.

    See `fedax.data.synthetic`.

    Args:
        alpha: spread of the clients' models, from 0 to below a million.
        beta: spread of the clients' inputs, from 0 to below a million.
        iid: one model and one input distribution for all clients; alpha and beta then have no
            effect.
        clients: at least 1.
        model: "softmax" (610 parameters), "mlp" (hidden layers 200-200), or a model.
        seed: of the data. The starting point belongs to the seed of the run.
        test_fraction: share of each client's examples kept for testing, in [0, 1).
        l2: adds l2/2 times the squared norm of the parameters to every client's loss; at least 0.

    >>> synthetic(0.5, 0.5, clients=3).name
    'Synthetic(0.5, 0.5)'
    """
    architecture = _model("synthetic", model)
    return _task(data.synthetic(alpha, beta, iid, clients, seed, test_fraction), None, architecture, l2)


@checked(**_COMMON, **limits_of("digits"), split=SPLIT)
def digits(
    partition: str = "shards",
    clients: int = 20,
    model: str | Model = "softmax",
    *,
    seed: int = 0,
    test_fraction: float | int = 0.2,
    split: str = "shuffled",
    l2: float | int = 0.0,
    crop: int = 0,
    flip: bool = False,
    frozen: bool = False,
    normalize: str = "none",
    **options: Any,
) -> Task:
    """Makes a task of the 1,797 small digits of scikit-learn: 64 features, 10 classes.

    See `fedax.data.digits`.

    Args:
        partition: iid, index, quantity_skew, shards, dirichlet, power_law or histogram.
        clients: at least 1.
        model: "softmax" (650 parameters), "mlp" (hidden layers 200-200), or a model.
        seed: of partition and split. The starting point belongs to the seed of the run.
        test_fraction: share of each client's examples kept for testing, in [0, 1).
        split: "shuffled" draws the test examples, "in_order" takes the last ones.
        l2: adds l2/2 times the squared norm of the parameters to every client's loss; at least 0.
        crop, flip, frozen, normalize: as in `mnist`.
        options: of the partition: `sigma` (quantity_skew), `shards_per_client` (shards), `alpha`
            and `minimum` (dirichlet), `classes_per_client` and `ratio` (power_law).

    >>> digits("dirichlet", clients=5, alpha=0.5).train.clients
    5
    """
    architecture, changes = _model("digits", model), {"crop": crop, "flip": flip, "frozen": frozen, "normalize": normalize}
    check_changes("digits", changes)
    federated = data.digits(partition, clients, seed, test_fraction, split, **options)
    return _task(*changed("digits", federated, seed, **changes), architecture, l2)


@checked(**_COMMON, **limits_of("mnist"), split=SPLIT, merged=choice(False, True))
def mnist(
    partition: str = "shards",
    clients: int = 100,
    model: str | Model = "softmax",
    *,
    seed: int = 0,
    test_fraction: float | int = 0.0,
    split: str = "shuffled",
    merged: bool = False,
    folder: str | Path | None = None,
    examples: int = 0,
    l2: float | int = 0.0,
    crop: int = 0,
    flip: bool = False,
    frozen: bool = False,
    normalize: str = "none",
    **options: Any,
) -> Task:
    """Makes a task of MNIST from a local file: 784 features, 10 classes; see `fedax.data.mnist`.

    Args:
        partition: as in `digits`.
        clients: at least 1.
        model: "softmax" (7,850 parameters), "mlp" (the 2NN with 199,210), or a model.
        seed: of partition and split.
        test_fraction: share of each client's examples kept for its own testing, in [0, 1).
        split: as in `digits`.
        merged: deals out the official test images too; otherwise they are the global test set.
        folder: where `mnist.npz` lies; by default the variable FEDAX_DATA, or the user's cache.
        examples: takes only the first so many images, for a quick try; 0 is all.
        l2: as in `digits`.
        crop: zeros on every side of a training image, from which a window of the old size is cut at
            random; at least 0.
        flip: mirrors training images left and right with probability 1/2, after the crop.
        frozen: draws crops and flips once, before training, by `seed`; otherwise anew for every
            example of every step, and losses over whole training sets are without them. Not without
            `crop` or `flip`.
        normalize: "none"; "published", by the constants in the papers' released code (mean 0.1307,
            deviation 0.3081); or "dataset", by mean and deviation of each channel of the training
            images. Comes last, for test images too.
        options: of the partition, as in `digits`.

    Raises:
        DataError: a missing or broken file.
    """
    architecture, changes = _model("mnist", model), {"crop": crop, "flip": flip, "frozen": frozen, "normalize": normalize}
    check_changes("mnist", changes)
    federated = data.mnist(partition, clients, seed, test_fraction, split, merged, folder, examples, **options)
    return _task(*changed("mnist", federated, seed, **changes), architecture, l2)


def _model(owner: str, model: str | Model) -> Callable[[int, int], Model]:
    if not isinstance(model, str):
        return lambda features, classes: model
    if model not in MODELS:
        raise UnknownName.among(f"{owner}(model=...)", model, MODELS)
    return MODELS[model]


def _task(
    federated: FederatedData, augment: Augmentation | None, architecture: Callable[[int, int], Model], l2: float | int
) -> Task:
    features = federated.train[0]["x"].shape[1]
    return classification(federated, architecture(features, federated.classes), augment=augment, l2=l2)
