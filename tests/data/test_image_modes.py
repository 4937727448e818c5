"""Images of a data set in the modes that files have, and its labels: taken as they are meant or
refused in a sentence."""

import numpy as np
import pytest

from fedax.core import DataError
from fedax.data import hub

datasets = pytest.importorskip("datasets")
image = pytest.importorskip("PIL.Image")

GREY = np.arange(16, dtype=np.uint8).reshape(4, 4) * 15
COLOUR = np.stack([GREY, GREY[::-1], GREY.T], axis=2)


def saved(folder, images, labels=(0, 1)):
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.Value("string" if "a" in labels else "int64")}
    )
    datasets.Dataset.from_dict({"image": images, "label": list(labels)}, features).save_to_disk(
        str(folder)
    )
    return str(folder)


MODES = {
    "grey": (image.fromarray(GREY), GREY / 255),
    "colour": (image.fromarray(COLOUR), COLOUR / 255),
    "palette": (image.fromarray(COLOUR).quantize(16), None),
    "black and white": (
        image.fromarray(np.where(GREY > 99, 255, 0).astype(np.uint8)).convert("1"),
        (GREY > 99) * 1.0,
    ),
    "16 bits": (image.fromarray(GREY.astype(np.uint16) * 257), GREY / 255),
    "transparent": (
        image.fromarray(COLOUR).convert("RGBA"),
        np.dstack([COLOUR / 255, np.ones((4, 4))]),
    ),
}


@pytest.mark.parametrize(("picture", "expected"), MODES.values(), ids=MODES)
def test_images_of_every_mode_are_shares_of_white(tmp_path, picture, expected):
    found = hub(saved(tmp_path / "set", [picture, picture]), clients=1, flat=False).train[0]["x"]
    expected = np.asarray(picture.convert("RGB")) / 255 if expected is None else expected
    np.testing.assert_allclose(found[0], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("pictures", "message"),
    [
        (
            [image.fromarray(GREY), image.fromarray(COLOUR)],
            r"shapes \[\(4, 4\), \(4, 4, "
            r"3\)\].*inputs of one shape",
        ),
        (
            [image.fromarray(GREY), image.fromarray(GREY.astype(np.uint16))],
            r"\['uint16', "
            r"'uint8'\].*inputs of one type",
        ),
        (
            [image.fromarray(GREY), None],
            r"row 1: got nothing; allowed: an image or numbers in "
            r"every row",
        ),
    ],
)
def test_images_of_several_modes_are_refused(tmp_path, pictures, message):
    with pytest.raises(DataError, match=message):
        hub(saved(tmp_path / "set", pictures), clients=1)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ((0, -1), "-1 in row 1.*labels from 0 on.*drop them"),
        ((0, None), "None in row 1"),
        (("a", "b"), "'a' in row 0.*Number"),
    ],
)
def test_labels_that_are_none_are_refused(tmp_path, labels, message):
    with pytest.raises(DataError, match=message):
        hub(saved(tmp_path / "set", [image.fromarray(GREY)] * 2, labels), clients=1)


def test_classes_are_matched_by_name(tmp_path):
    def part(names):
        features = datasets.Features(
            {
                "x": datasets.Sequence(datasets.Value("float32")),
                "label": datasets.ClassLabel(names=names),
            }
        )
        return datasets.Dataset.from_dict({"x": [[0.0], [1.0]], "label": [0, 1]}, features)

    datasets.DatasetDict(train=part(["cat", "dog"]), test=part(["dog", "cat"])).save_to_disk(
        str(tmp_path / "set")
    )
    with pytest.raises(
        DataError,
        match=r"got \['dog', 'cat'\]; allowed: classes \['cat', "
        r"'dog'\] in the test split",
    ):
        hub(str(tmp_path / "set"), clients=1, features="x", test="test")
