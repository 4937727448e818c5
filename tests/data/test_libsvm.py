"""LIBSVM text: the parser against its definition, the four published files, and the convex problem
they pose."""

import gzip

import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from convex import gradient, newton, smoothness
from fedax import data, tasks


@pytest.mark.parametrize("pack", [lambda text: text, gzip.compress], ids=["plain", "gzipped"])
def test_text_becomes_a_table(tmp_path, pack):
    path = tmp_path / "toy.txt"
    path.write_bytes(pack(b"2 1:1 3:-0.25\n1 2:4\n2\n# a remark\n1 4:1e-3\n"))
    x, y = data.read_libsvm(path)
    assert x.tolist() == [[1, 0, -0.25, 0], [0, 4, 0, 0], [0, 0, 0, 0], [0, 0, 0, np.float32(1e-3)]]
    assert y.tolist() == [1, 0, 1, 0]
    assert data.read_libsvm(path, features=6)[0].shape == (4, 6)


def test_blocks_are_contiguous_and_labels_mapped(tmp_path):
    (tmp_path / "mine").write_text("".join(f"{2 * (k % 2) - 1} 1:{k}\n" for k in range(1, 8)))
    split = data.libsvm("mine", clients=3, split="in_order", folder=tmp_path)
    assert [client["x"][:, 0].tolist() for client in split.train] == [[1, 2, 3], [4, 5], [6, 7]]
    assert [client["y"].tolist() for client in split.train] == [[1, 0, 1], [0, 1], [0, 1]]


# file: examples, features, of the larger label, stored values
PUBLISHED = {
    "a5a": (6_414, 122, 1_569, 88_939),
    "a9a": (32_561, 123, 7_841, 451_592),
    "mushrooms": (8_124, 112, 4_208, 170_604),
    "w8a": (49_749, 300, 1_479, 579_586),
}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_published_files(name, data_folder):
    if not (data_folder / "libsvm").is_dir():
        pytest.skip("no LIBSVM files")
    rows, features, positive, stored = PUBLISHED[name]
    loaded = getattr(data, name)(clients=20, folder=data_folder)
    assert loaded.label_counts.sum(axis=0).tolist() == [rows - positive, positive]
    assert loaded.train[0]["x"].shape[1] == features
    assert sum(np.count_nonzero(client["x"]) for client in loaded.train) == stored
    assert loaded.sizes.tolist() == [len(block) for block in np.array_split(np.arange(rows), 20)]


# f* and the smoothness of the loss without regulariser; the greatest smoothness of 20 blocks (with
# it) and sigma^2
CONVEX = {
    "a5a": (0.32362128215943686, 1.574027, 1.62748, 0.00542725),
    "mushrooms": (0.014485866128334239, 2.586214, 3.88629, 0.000185239),
}


@pytest.mark.parametrize("name", sorted(CONVEX))
def test_the_convex_problem_is_that_of_local_gd(name, data_folder):
    if not (data_folder / "libsvm").is_dir():
        pytest.skip("no LIBSVM files")
    optimum, common, worst, variance = CONVEX[name]
    task = fedax.task(name, clients=20, folder=str(data_folder))
    a = np.asarray(task.train.arrays["x"], float)
    signs = 2.0 * task.train.arrays["y"] - 1
    n = len(a)
    assert task.l2 == 1 / n
    assert smoothness(a, 0) == pytest.approx(common, abs=1e-6)
    w = newton(a, signs, 1 / n)

    def value(params):
        losses = task.loss(
            jnp.asarray(params), {key: jnp.asarray(v) for key, v in task.train.arrays.items()}, None
        )
        return float(losses.mean()) + task.l2 / 2 * float(params @ params)

    assert value(w) == pytest.approx(optimum, abs=1e-12)
    assert value(np.zeros(a.shape[1])) == pytest.approx(np.log(2), abs=1e-12)
    blocks = [task.train[k] for k in range(20)]
    tops = []
    squares = []
    for block in blocks:
        b = np.asarray(block["x"], float)
        s = 2.0 * block["y"] - 1
        tops.append(smoothness(b, 1 / n))
        slope = gradient(w, b, s, 1 / n)
        squares.append(slope @ slope)
    assert max(tops) == pytest.approx(worst, rel=3e-6)
    assert np.mean(squares) == pytest.approx(variance, rel=3e-6)


def test_accuracy_counts_the_right_side():
    examples = {"x": jnp.array([[1.0], [1.0], [-1.0], [0.0]]), "y": jnp.array([1, 0, 0, 1])}
    task = tasks.logistic(data.FederatedData.from_arrays([dict(examples)], classes=2))
    assert task.scores["accuracy"](jnp.array([2.0]), examples, None).tolist() == [1, 0, 1, 0.5]
