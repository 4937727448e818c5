"""Splits do not leak: what is put aside is no copy of, and overlaps with nothing, that is trained
on."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedax
from fedax.core import DataError
from fedax.data import FederatedData, iid
from fedax.data.sources.play import play
from fedax.tasks import with_held_back, with_validation

QUICK = settings(max_examples=20, deadline=None, database=None, derandomize=True)


def loss(w, examples):
    x = examples["x"]
    return (w - x.reshape(x.shape[0], -1).mean(1)) ** 2


def task_of(clients):
    return fedax.tasks.from_loss(loss, 0.0, clients)


def halves(clients, share, seed=0, **options):
    """Training and validation examples as sets of the numbers in them, and of their rows."""
    labelled = [{**client, "y": np.zeros(len(client["x"]), int)} for client in clients]
    data = FederatedData(labelled, 1).with_validation(share, seed, **options)
    return data.train, data.validation


def seen(side):
    return {
        v
        for client in side
        for name, values in client.items()
        if name != "y"
        for v in values.ravel().tolist()
    }


def kinds(side):
    return {row.tobytes() for client in side for row in client["x"]}


def windows(series, length, stride=1):
    every = np.lib.stride_tricks.sliding_window_view(series, length + 1)[::stride]
    return {"x": every[:, :length].copy(), "next": every[:, length].copy()}


def rows(part):
    return {row.tobytes() for row in np.asarray(part.arrays["x"])}


@QUICK
@given(
    sizes=st.lists(st.integers(2, 12), min_size=1, max_size=4),
    times=st.integers(2, 3),
    share=st.sampled_from([0.2, 0.34, 0.5]),
    seed=st.integers(0, 99),
)
def test_copies_stay_on_one_side_also_across_clients(sizes, times, share, seed):
    """Every example is there `times` times, at clients that are drawn; a share is put aside where
    it can be."""
    rng = np.random.default_rng(seed)
    x = np.repeat(rng.normal(size=(sum(sizes), 3)), times, axis=0)
    order = rng.permutation(len(x))
    bounds = np.cumsum([times * n for n in sizes])[:-1]
    clients = [{"x": part} for part in np.split(x[order], bounds)]
    try:
        kept, away = halves(clients, share, seed)
    except DataError:  # what is left for a client to train on is one example with its copies
        return
    assert not kinds(kept) & kinds(away)
    assert kept.sizes.min() >= 1
    assert kept.sizes.sum() + away.sizes.sum() == len(x)


@pytest.mark.parametrize("split", ["shuffled", "in_order"])
@pytest.mark.parametrize("shape", [(), (2,)], ids=["numbers", "vectors"])
@QUICK
@given(
    length=st.integers(3, 12),
    stride=st.integers(1, 2),
    share=st.sampled_from([0.1, 0.3]),
    seed=st.integers(0, 99),
)
def test_windows_of_a_series_do_not_overlap_across_a_split(
    split, shape, length, stride, share, seed
):
    rng = np.random.default_rng(seed)
    values, clients = (
        rng.permutation(350 * int(np.prod(shape))).reshape(350, *shape).astype(float),
        [],
    )
    for n in (150, 200):
        series, values = values[:n], values[n:]
        every = np.lib.stride_tricks.sliding_window_view(series, length, axis=0)[:-1:stride]
        clients.append(
            {
                "x": np.moveaxis(every, -1, 1).copy(),
                "next": series[length::stride][: len(every)].copy(),
            }
        )
    kept, away = halves(clients, share, seed, split=split)
    assert not seen(kept) & seen(away)
    assert away.sizes.min() >= 1
    for own, client in zip(kept, clients, strict=True):
        # in order: the last ones are put aside
        assert np.array_equal(own["x"], client["x"][: len(own["x"])])


@QUICK
@given(clients=st.integers(1, 4), length=st.integers(3, 10), seed=st.integers(0, 99))
def test_windows_dealt_to_clients_at_random_do_not_overlap_either(clients, length, seed):
    series = np.random.default_rng(seed).permutation(10_000)[:400].astype(float)
    own = windows(series, length)
    parts = iid(len(own["next"]), clients, seed)
    data = FederatedData.partitioned(
        own["x"],
        np.zeros(len(own["next"]), int),
        parts,
        classes=1,
        test_fraction=0.3,
        seed=seed,
        more={"next": own["next"]},
    )
    assert seen(data.test)
    assert not seen(data.train) & seen(data.test)
    kept, away = halves(
        [{key: values[part] for key, values in own.items()} for part in parts], 0.3, seed
    )
    assert not seen(kept) & seen(away)


def test_tasks_are_split_by_the_same_rule():
    series = np.random.default_rng(0).permutation(1000).astype(float)
    clients = [windows(series[:120], 6), windows(series[200:400], 6)]
    kept, away = halves(clients, 0.3, 4)
    parts = with_validation(task_of(clients), 0.3, 4)
    for side, part in ((kept, parts.train), (away, parts.validation)):
        for k, own in enumerate(side):
            np.testing.assert_array_equal(part.client(k)["x"], own["x"])


@pytest.mark.parametrize("split", ["in_order", "shuffled"])
def test_plays_are_split_without_overlaps(split):
    """Every character of this play is another one, so the steps of a window can be told from it."""
    text = "".join(chr(0x4E00 + i) for i in range(900))
    data = play(
        f"A:\n{text[:500]}\n\nB:\n{text[500:]}\n",
        length=20,
        vocabulary="own",
        test_fraction=0.3,
        split=split,
        seed=3,
    )
    for train, test in zip(data.train, data.test, strict=True):
        seen, tested = (
            {*side["x"].ravel().tolist(), *side["y"].tolist()} for side in (train, test)
        )
        assert len(test["y"]) > 50
        assert not seen & tested
    other = play(
        f"A:\n{text}\n",
        length=20,
        vocabulary="own",
        test_fraction=0.3,
        split=f"{split}_rows",
        seed=3,
    )
    assert len(other.train[0]["y"]) + len(other.test[0]["y"]) == 880
    if split == "shuffled":
        assert list(data.names) == ["A", "B"]
        assert data.test[0]["x"].min() != other.test[0]["x"].min()


def test_a_plain_split_is_as_before():
    """Without overlaps, rows are drawn one by one, with the generators that earlier versions
    used."""
    clients = [{"x": np.random.default_rng(k).normal(size=(n, 3))} for k, n in enumerate((9, 4, 1))]
    parts = with_validation(task_of(clients), 0.4, seed=7)
    for k, client in enumerate(clients):
        n = len(client["x"])
        order, cut = np.random.default_rng([7, 2, k]).permutation(n), max(1, int(0.6 * n))
        np.testing.assert_array_equal(parts.train.client(k)["x"], client["x"][np.sort(order[:cut])])
        np.testing.assert_array_equal(
            parts.validation.client(k)["x"], client["x"][np.sort(order[cut:])]
        )


def test_augmented_copies_stay_together_where_their_source_is_named():
    rng = np.random.default_rng(0)
    pictures = rng.normal(size=(30, 4, 4))
    x = np.concatenate(
        [pictures, pictures[:, :, ::-1], pictures + 0.1 * rng.normal(size=pictures.shape)]
    )
    source, owner = np.tile(np.arange(30), 3), np.arange(90) % 3
    clients = [
        {"x": x[owner == k], "y": np.zeros(30, int), "picture": source[owner == k]}
        for k in range(3)
    ]
    parts = with_validation(task_of(clients), 0.3, together="picture")
    kept, away = (
        set(np.asarray(part.arrays["picture"]).tolist()) for part in (parts.train, parts.validation)
    )
    assert not kept & away
    assert parts.validation.total == 27
    data = FederatedData(clients, 1).with_validation(0.3, together="picture")
    assert not {p for c in data.train for p in c["picture"]} & {
        p for c in data.validation for p in c["picture"]
    }
    with pytest.raises(
        DataError,
        match="together: got 'photo'; allowed: None, or an array of one number per example",
    ):
        with_validation(task_of(clients), 0.3, together="photo")


@pytest.mark.parametrize("share", [0.2, 0.5])
@pytest.mark.parametrize("seed", [0, 1])
def test_unseen_clients_share_nothing_with_those_that_are_trained_on(share, seed):
    """Ten clients in pairs of twins, and one example that all of them have."""
    rng = np.random.default_rng(seed)
    own, common = rng.normal(size=(5, 6, 3)), rng.normal(size=(1, 3))
    clients = [{"x": np.concatenate([own[k % 5], common])} for k in range(10)]
    parts = with_held_back(task_of(clients), share, seed)
    assert not rows(parts.train) & rows(parts.held_back.train)
    assert parts.train.clients + parts.held_back.train.clients == 10
    assert parts.held_back.train.sizes.tolist() == [6] * parts.held_back.train.clients
    with pytest.raises(DataError, match="examples that no other client trains on"):
        with_held_back(task_of([clients[0]] * 3), 0.3)


def test_nothing_to_put_aside_is_said():
    with pytest.raises(
        DataError,
        match="Examples that overlap with others, copies or windows, cannot be put aside alone",
    ):
        with_validation(task_of([{"x": np.ones((5, 3))}]), 0.4)
    with pytest.raises(
        DataError,
        match=r"partitioned\(test_fraction=...\): got 0.4; .*cannot "
        r"be put aside alone",
    ):
        FederatedData.partitioned(
            np.ones((5, 3)), np.zeros(5, int), [np.arange(5)], classes=1, test_fraction=0.4
        )
    assert (
        with_validation(
            task_of([{"x": np.ones((5, 3))}]), 0.4, split="shuffled_rows"
        ).validation.total
        == 2
    )
