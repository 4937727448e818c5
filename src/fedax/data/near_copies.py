"""Detection of near copies across a split: held-out examples that are changed training examples.

Crops, shifts, mirror images, noise, another brightness, encoding or rounding give examples that are
no exact copies, which `fedax.data.overlap` would keep on one side. They are looked for by sampling:
some held-out examples are compared with some training examples.

- Images are compared by the magnitudes of their low spatial frequencies, after standardization. A
  shift does not change these, and a mirror image swaps the signs of frequencies.
- Rows of real numbers are compared column by column, standardized. Columns with few different
  values are left out: rows that agree in them may well be different examples.

An example counts as a copy if its nearest training example is closer than chance allows. Where
unrelated examples fill m dimensions evenly, the nearest of k is within r times the distance of the
k-th with a probability of at most k r^m. The dimension m is estimated from the distances of the
k-th and the 2k-th neighbour. Clients may differ, so that a client's examples are close to each
other and far from all others: r also refers to the distances from the examples of the client that
has the nearest one.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

HELD_OUT, TRAINED = 1000, 5000
"""Examples that are compared, at most; drawn by a fixed seed."""
LEAST = 50
"""Training examples and held-out ones below which nothing is concluded."""
NEIGHBOURS = 10
"""k; an example may have about as many copies in the sample without their hiding each other."""
CHANCE = 1e-5
"""Probability below which a nearest neighbour counts as a copy."""
SHARE, FEW = 0.05, 5
"""Estimated share, and copies in the sample, from which on there is a warning."""
SIDE, FREQUENCIES = 24, 6
"""Pixels to which larger images are averaged, and periods per image of the highest frequency."""
SCALES = (1.0, 0.875, 1.143)
"""Magnifications in which held-out images are compared: crops are often resized."""
DIMENSION = 500
"""Training examples by which the dimension is estimated."""
COLUMNS = 256
"""Columns of rows of numbers that are compared, at most."""

Images = Float[np.ndarray, "_ rows columns"]
Features = Float[np.ndarray, "_ features"]


class NearCopies(NamedTuple):
    """Held-out examples that look like changed training examples.

    Attributes:
        share: of all held-out examples, estimated.
        held_out: rows of those in the sample.
        trained: for each the row of the training example that it is close to.
    """

    share: float
    held_out: Int[np.ndarray, "found"]
    trained: Int[np.ndarray, "found"]


Rows = Sequence[Int[np.ndarray, "_"]]
"""Rows of some examples of each client."""


def find_near_copies(arrays: Mapping[str, Any], trained: Rows, held_out: Rows) -> NearCopies | None:
    """Looks for near copies among held-out examples, by sampling.

    Args:
        arrays: of all examples; the widest one of images or real numbers is compared.
        trained: rows of each client's training examples.
        held_out: rows of the others.

    Returns:
        None if there are too few examples, or no array that can be compared.
    """
    values = max(
        (v for v in arrays.values() if _is_comparable(v)), key=lambda v: v[:1].size, default=None
    )
    train_rows, held_out_rows = np.concatenate(trained), np.concatenate(held_out)
    if values is None or min(len(train_rows), len(held_out_rows)) < LEAST:
        return None
    rng, examples = np.random.default_rng(0), len(train_rows)
    held_out_rows = np.sort(
        rng.choice(held_out_rows, min(HELD_OUT, len(held_out_rows)), replace=False)
    )
    # whole clients are drawn, because the spread of a client's examples is needed
    owners = np.repeat(np.arange(len(trained)), [len(rows) for rows in trained])
    sample = np.lexsort((rng.random(examples), rng.permutation(len(trained))[owners]))[:TRAINED]
    train_rows, owners = train_rows[sample], owners[sample]
    features = _compute_features(np.asarray(values[train_rows]), np.asarray(values[held_out_rows]))
    if features is None:
        return None
    is_copy, nearest = _find_copies(*features, owners)
    # a copied example is in the sample by chance only
    share = min(1.0, float(is_copy.mean()) * examples / len(train_rows))
    return NearCopies(share, held_out_rows[is_copy], train_rows[nearest[is_copy]])


def warn_of_near_copies(
    arrays: Mapping[str, Any], trained: Rows, held_out: Rows, where: str
) -> None:
    """Warns if a notable share of held-out examples are near copies; see `find_near_copies`.

    Args:
        arrays, trained, held_out: as there.
        where: names the split in the message.
    """
    copies = find_near_copies(arrays, trained, held_out)
    if copies is None or copies.share < SHARE or len(copies.held_out) < FEW:
        return
    copy, original = (
        f"row {rows[0]} (client {next(k for k, owned in enumerate(clients) if rows[0] in owned)})"
        for rows, clients in ((copies.held_out, held_out), (copies.trained, trained))
    )
    warnings.warn(
        f"{where}: about {copies.share:.0%} of the held-out examples look like changed copies of "
        "training examples,"
        f" such as {copy} of {original}: crops, mirror images, noise, another brightness or "
        "rounding. Scores on them are"
        " too high. Give all versions of an example one number in an array, and name it: "
        "together='...'. Or split"
        " first and augment the training examples afterwards.",
        stacklevel=2,
    )


def _is_comparable(values: Any) -> bool:
    """Returns whether an array has real numbers, or bytes of images, in at least two axes."""
    return (
        values.ndim >= 2
        and values[:1].size >= 3
        and (values.dtype.kind == "f" or values.dtype == np.uint8)
    )


def _compute_features(
    train: np.ndarray, held_out: np.ndarray
) -> tuple[Features, list[Features], bool] | None:
    """Returns the arguments of `_find_copies` for two samples; None if they cannot be compared."""
    if (images := _to_gray(train)) is not None:
        queries = _to_gray(held_out)
        assert queries is not None, "of the same shape"
        return (
            _compute_spectra(images),
            [_compute_spectra(_magnify(queries, scale)) for scale in SCALES],
            True,
        )
    train_rows, held_out_rows = (values.reshape(len(values), -1) for values in (train, held_out))
    columns = np.sort(np.random.default_rng(0).permutation(train_rows.shape[1])[:COLUMNS])
    ordered = np.sort(train_rows[:, columns], axis=0)
    # a value in a twentieth of the rows fills a run of that length
    run = max(1, len(train_rows) // 20)
    columns = columns[(ordered[run:] != ordered[:-run]).all(axis=0)]
    if len(columns) < 3:
        return None
    # equal rows of rounded numbers may well be different examples
    return (
        train_rows[:, columns].astype(np.float64),
        [held_out_rows[:, columns].astype(np.float64)],
        False,
    )


def _to_gray(values: np.ndarray) -> Images | None:
    """Returns images as small gray ones; None for rows that are no images.

    Flat rows are images if their length is a square, or three times one, and neighbours are alike.
    """
    shape, flat = values.shape[1:], values.ndim == 2
    if flat:  # gray or coloured
        shape = next(
            (
                (s, s, c)
                for c in (1, 3)
                if (s := round((shape[0] / c) ** 0.5)) >= 12 and c * s**2 == shape[0]
            ),
            (),
        )
    if len(shape) == 2:
        shape = (*shape, 1)
    if len(shape) != 3 or min(shape[0], shape[2]) > 4:
        return None
    # channels last or first, at most four of them
    images = values.reshape(-1, *shape).mean(3 if shape[2] <= 4 else 1, dtype=np.float32)
    if flat:
        centred = images - images.mean(0)
        changes = max(float((np.diff(centred, axis=axis) ** 2).mean()) for axis in (1, 2))
        if changes > 1.4 * float((centred**2).mean()):  # 2 of independent numbers
            return None
    if min(images.shape[1:]) < 8:
        return None
    # means over whole blocks of pixels
    block = max(1, min(images.shape[1:]) // SIDE)
    tall, wide = (size // block for size in images.shape[1:])
    cut = images[:, : tall * block, : wide * block]
    return cut.reshape(len(images), tall, block, wide, block).mean((2, 4))


def _magnify(images: Images, scale: float) -> Images:
    """Returns images of the same size, magnified about their centre by linear interpolation."""
    matrices = []
    for size in images.shape[1:]:
        pixels, centre = np.arange(size), (size - 1) / 2
        positions = (pixels - centre) / scale + centre
        matrices.append(
            np.array([np.interp(positions, pixels, unit) for unit in np.eye(size)], np.float32)
        )
    # shapes: (old rows, rows) and (old columns, columns)
    return matrices[0].T @ images @ matrices[1] if scale != 1 else images


def _compute_spectra(images: Images) -> Features:
    """Returns magnitudes of low frequencies, the same for shifted and mirrored images.

    Mirrored images have the magnitudes at (u, v) and (-u, v) exchanged: their sum and their
    absolute difference do not change.
    """
    images = images - images.mean((1, 2), keepdims=True)
    images /= np.maximum(np.sqrt((images**2).mean((1, 2), keepdims=True)), 1e-12)
    low = [np.arange(min(FREQUENCIES, size // 2) + 1) for size in images.shape[1:]]
    sizes = np.abs(np.fft.rfft2(images)[:, :, low[1]])
    # -u are the negative frequencies of the first axis
    same, mirrored = sizes[:, low[0]], sizes[:, -low[0]]
    return np.concatenate([same + mirrored, np.abs(same - mirrored)], axis=1).reshape(
        len(images), -1
    )


def _find_copies(
    train: Features, versions: list[Features], equal_count: bool, owners: Int[np.ndarray, "trained"]
) -> tuple[Bool[np.ndarray, "held_out"], Int[np.ndarray, "held_out"]]:
    """Finds the held-out examples that are closer to a training example than by chance.

    Args:
        train: features of training examples.
        versions: features of held-out ones, as they are and changed.
        equal_count: whether examples with equal features count as copies.
        owners: clients of the training examples.
    """
    mean, deviation = train.mean(0), train.std(0)
    # columns that hardly vary get an infinite scale, and do not count
    scale = np.where(deviation > 1e-6 * deviation.max(), deviation, np.inf).astype(train.dtype)
    train = (train - mean) / scale
    k = min(NEIGHBOURS, len(train) // 4)
    is_copy, nearest = np.zeros(len(versions[0]), bool), np.zeros(len(versions[0]), np.int64)
    dimension = _estimate_dimension(
        _squared_distances(train[:: max(1, len(train) // DIMENSION)], train), k
    )
    reference = np.zeros(0)
    for version in versions:
        squares = _squared_distances((version - mean) / scale, train)
        if not equal_count:
            # rows with equal numbers are no copies here
            squares[squares < 1e-12 * np.median(squares[:, 0])] = np.inf
        if version is versions[0]:
            reference = np.partition(squares, k - 1, axis=1)[:, k - 1]
            dimension = min(dimension, _estimate_dimension(squares, k))
        limit = _distance_limit(dimension, k)
        closest_rows = squares.argmin(1)
        closest = squares[np.arange(len(closest_rows)), closest_rows]
        # the first version that is close decides
        close = (closest < limit * reference) & ~is_copy
        for row in np.flatnonzero(close):
            # close also against the examples of the client that has it
            close[row] = closest[row] < limit * np.median(
                squares[row, owners == owners[closest_rows[row]]]
            )
        nearest = np.where(close, closest_rows, nearest)
        is_copy |= close
    return is_copy, nearest


def _distance_limit(dimension: float, k: int) -> float:
    """Returns the ratio to the k-th squared distance that is too small for chance."""
    return (CHANCE / k) ** (2 / dimension)


def _estimate_dimension(squares: Float[np.ndarray, "some trained"], k: int) -> float:
    """Returns the dimension that examples fill, from squared distances to training examples.

    Twice as many neighbours lie within 2^(1 / m) times the distance. The smaller one of two
    estimates counts: of k neighbours and, after copies are left out, of a third as many. Data may
    lie on a curve and fill more dimensions only in the large.
    """
    first = np.sort(np.partition(squares, 2 * k - 1, axis=1)[:, : 2 * k], axis=1)
    dimension = _dimension_of_growth(first[:, k - 1], first[:, -1])
    copies = (first < _distance_limit(dimension, k) * first[:, k - 1 : k]).sum(1)
    # the neighbours behind those that look like copies
    rows, few = np.arange(len(first)), np.minimum(copies + max(1, k // 3) - 1, k - 1)
    return min(
        dimension,
        _dimension_of_growth(
            first[rows, few], first[rows, np.minimum(few + max(1, k // 3), 2 * k - 1)]
        ),
    )


def _dimension_of_growth(near: Float[np.ndarray, "some"], far: Float[np.ndarray, "some"]) -> float:
    """Returns the dimension in which twice as many neighbours lie within squared distances."""
    growth = np.log(np.maximum(far, 1e-30) / np.maximum(near, 1e-30)) / 2
    return float(np.log(2) / max(np.median(growth), 1e-3))


def _squared_distances(
    rows: Float[np.ndarray, "held_out features"], train: Float[np.ndarray, "trained features"]
) -> Float[np.ndarray, "held_out trained"]:
    squares = rows @ (-2 * train.T)
    squares += (rows**2).sum(1)[:, None]
    squares += (train**2).sum(1)
    # rounding may give less than 0
    return np.maximum(squares, 0, out=squares)
