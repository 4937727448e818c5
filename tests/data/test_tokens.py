"""Tokens of text, padded sequences, and the masks that reach losses."""

import itertools
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax import data, tasks
from fedax.core import DataError, InvalidInput
from fedax.data import Tokens
from fedax.models import BagOfTokens, Transformer

pytest.importorskip("tokenizers", reason="a library of other people")
VERSES = [
    "To be, or not to be: that is the question.",
    "Whether 'tis nobler — in the mind",
    "ü\n\x00 [PAD] \N{PILE OF POO}",
    "",
]


def test_bytes_are_those_of_utf8():
    for tokens, text in zip(Tokens.of([], "bytes").encode(VERSES), VERSES, strict=True):
        assert tokens.tolist() == [byte + 1 for byte in text.encode()]


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_nothing_is_lost(kind):
    tokens = Tokens.of(VERSES[:1], kind)
    found = tokens.encode(VERSES)
    assert [tokens.decode(each) for each in found] == VERSES
    assert max(int(each.max(initial=0)) for each in found) < tokens.size
    assert min(int(each.min(initial=1)) for each in found) >= 1


def test_characters_are_the_most_frequent_ones():
    tokens = Tokens.of(["aab", "bbc"], "characters", 4)
    assert tokens.encode(["abcz"])[0].tolist() == [2, 3, 1, 1]  # padding, any other, a, b
    assert tokens.size == 4
    assert tokens.decode([2, 0, 3]) == "ab"


def test_pairs_are_merged_by_their_frequency():
    """By hand: of "abab" and "abc" the pair (a, b) is the most frequent one, then (ab, ab)."""
    tokens = Tokens.of(["abab abab abc"], "bpe", 259)
    lengths = [len(each) for each in tokens.encode(["ab", "abab", "abc", "ba"])]
    assert (lengths[0], lengths[2], lengths[3]) == (1, 2, 2)
    assert Tokens.of([], "bpe", 300).size == 300  # also where there is nothing to merge


def test_learned_tokens_are_always_the_same():
    texts = ["the cat sat on the mat, the dog ate the rest"] * 3
    assert len({Tokens.of(texts, "bpe", 280).tokenizer.to_str() for _ in range(5)}) == 1


def test_tokens_come_back_from_a_file(tmp_path):
    tokens = Tokens.of(VERSES, "bpe", 270)
    tokens.save(tmp_path / "tokens.json")
    again = Tokens.load(tmp_path / "tokens.json", 270)
    assert all(
        np.array_equal(a, b)
        for a, b in zip(tokens.encode(VERSES), again.encode(VERSES), strict=True)
    )
    with pytest.raises(InvalidInput, match=r"Tokens.load\(size=...\): got 9"):
        Tokens.load(tmp_path / "tokens.json", 9)
    (tmp_path / "tokens.json").write_text("{}")
    with pytest.raises(DataError, match="cannot be read"):
        Tokens.load(tmp_path / "tokens.json")


def test_pieces_are_all_pairs_of_a_token_and_the_next():
    tokens = Tokens.of([], "bytes")
    for text in ("", "a", "ab", "abcdefg"):
        pieces, codes = tokens.sequences([text], 3), [byte + 1 for byte in text.encode()]
        pairs = list(
            zip(
                pieces["x"][pieces["mask"]].tolist(),
                pieces["y"][pieces["mask"]].tolist(),
                strict=True,
            )
        )
        assert pairs == list(itertools.pairwise(codes))
        assert not pieces["x"][~pieces["mask"]].any()
        assert len(pieces["x"]) == -(-max(len(codes) - 1, 0) // 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Tokens.of(["a"], "words"), r"kind=...\): got 'words'; allowed: one of "
            r"'characters', 'bytes', 'bpe'"),
        (lambda: Tokens.of(["a"], "bpe", 256), r"vocabulary: got 256; allowed: whole numbers "
            r"from 257"),
        (lambda: Tokens.of(["\ud800"]), r"texts\[0\]: got .*; allowed: text"),
        (lambda: Tokens.of([], "bytes").rows(["a"], 0), r"length: got 0"),
        (lambda: tasks.language(["abc"], length=0), r"language\(length=...\): got 0"),
        (lambda: tasks.language(["abc"], "lstm"), r"language\(model=...\): got 'lstm'; allowed: "
            r"one of transformer"),
        (lambda: tasks.language(["abc"], Transformer(9, 80)), r"language\(model=...\): got "
            r".*\(3, 80, 9\).*\(3, 80, 128\)"),
        (lambda: tasks.language(["a"]), r"language\(minimum=...\): got 1"),
        (lambda: tasks.language(7), r"language\(source=...\): got 7"),
        (lambda: tasks.language("no/such/play"), r"got 'no/such/play'; allowed: "
            r"'tinyshakespeare', 'shakespeare', a file"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(InvalidInput, match=message):
        call()


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(DataError, match=r"pip install \"tokenizers>="):
        Tokens.of(["a"])


TEXTS = {"anna": "abcabcabcab", "berta": ["cab", "bacbac"], "carl": "c"}
SMALL = Transformer(6, 4, width=8, heads=2, layers=1)


@pytest.fixture(scope="module")
def task():
    return tasks.language(TEXTS, SMALL, vocabulary=6, length=4, test_fraction=0.4)


def test_a_client_without_a_sequence_is_left_out(task):
    assert (task.train.sizes.tolist(), task.test.sizes.tolist()) == ([1, 1], [2, 2])
    assert task.test.arrays["mask"].sum(1).tolist() == [4, 2, 4, 1]


def test_the_loss_is_the_mean_over_real_tokens(task):
    params = task.start(jax.random.key(3))
    every = jax.tree.map(jnp.asarray, dict(task.test.arrays))
    logits = np.asarray(jax.jit(SMALL)(params, every["x"]))
    losses_, shares_ = jax.jit(
        lambda p, e: (task.loss(p, e, None), task.scores["accuracy"](p, e, None))
    )(params, every)
    for i, mask in enumerate(np.asarray(every["mask"])):
        shares = [np.exp(z) / np.exp(z).sum() for z in logits[i][mask]]
        losses = [
            -np.log(p[y]) for p, y in zip(shares, np.asarray(every["y"])[i][mask], strict=True)
        ]
        right = [
            p.argmax() == y for p, y in zip(shares, np.asarray(every["y"])[i][mask], strict=True)
        ]
        np.testing.assert_allclose(losses_[i], np.mean(losses), rtol=1e-12)
        np.testing.assert_allclose(shares_[i], np.mean(right), rtol=1e-12)


def test_padding_moves_nothing(task):
    """Other tokens in the places of padding: the same losses and gradients, to the bit."""
    rows = {key: jnp.asarray(values) for key, values in task.test.arrays.items()}
    other = rows | {
        key: jnp.where(rows["mask"], rows[key], 3).astype(rows[key].dtype) for key in ("x", "y")
    }
    params = task.start(jax.random.key(0))
    function = jax.jit(jax.value_and_grad(lambda p, e: task.loss(p, e, None).sum()))
    a, b = (jax.tree.leaves(function(params, examples)) for examples in (rows, other))
    assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.slow
def test_padded_sequences_train_alike_on_both_engines(task):
    runs = [
        fedax.run(
            fedax.FedAvg(),
            task,
            solver=fedax.SGD(0.5),
            rounds=2,
            engine=engine,
            schedule=fedax.Schedule(batch_size=1),
        )
        for engine in (fedax.Simulation(), fedax.Eager())
    ]
    a, b = (jax.tree.leaves(history.params) for history in runs)
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12)
    assert runs[0].last("train_loss") < runs[0].metrics["train_loss"][0]


def test_a_mask_of_sequences_reaches_a_loss_of_ones_own():
    """The mean of all real numbers of ragged sequences: padding (here 99) counts for nothing."""
    rows = {
        "x": np.array([[1.0, 3.0], [5.0, 99.0]]),
        "mask": np.array([[True, True], [True, False]]),
    }

    def loss(w, e):
        return jnp.where(e["mask"], (w - e["x"]) ** 2 / 2, 0.0).sum(1)

    history = fedax.run(
        fedax.GD(),
        tasks.from_loss(loss, 0.0, [rows]),
        solver=fedax.SGD(2 / 3),
        rounds=1,
        schedule=fedax.Schedule(batch_size="full"),
    )
    np.testing.assert_allclose(history.params, 3.0, rtol=1e-12)


@pytest.mark.slow
def test_predictions_are_of_the_token_that_follows():
    """Of a sequence with padding, those after its last token: the softmax of the model's logits
    there, in NumPy."""
    task = tasks.language(
        {"a": "abcde", "b": "ab"},
        fedax.models.Transformer(257, 3, width=8, layers=1),
        tokens="bytes",
        length=3,
    )
    examples = {key: jnp.asarray(values) for key, values in task.train.arrays.items()}
    params, x, last = (
        task.start(jax.random.key(0)),
        examples["x"],
        task.train.arrays["mask"].sum(1) - 1,
    )
    assert set(last) > {2}
    logits = np.array(
        [task.predictor.model(params, x, None)[row, place] for row, place in enumerate(last)]
    )
    chances = np.exp(logits - logits.max(1, keepdims=True))
    found = task.predictions(params, examples, None)
    np.testing.assert_allclose(found, chances / chances.sum(1, keepdims=True), rtol=1e-6)


def transcribed(params, x, heads):
    """The model in NumPy, one token after the other."""

    def norm(p, v):
        return (v - v.mean()) / np.sqrt(v.var() + 1e-5) * p.scale + p.bias

    def gelu(v):
        return 0.5 * v * (1 + np.tanh(np.sqrt(2 / np.pi) * (v + 0.044715 * v**3)))

    h = [params.tokens[token] + params.places[t] for t, token in enumerate(x)]
    for block in params.blocks:
        three = [norm(block.before, v) @ block.attention.kernel + block.attention.bias for v in h]
        queries, keys, values = (
            [np.split(part, heads) for part in parts]
            for parts in zip(*(np.split(v, 3) for v in three), strict=True)
        )
        mixed = []
        for t in range(len(x)):
            seen = range(t + 1) if params.classes is None else np.flatnonzero(x)
            heads_ = []
            for head in range(heads):
                weights = np.exp(
                    [queries[t][head] @ keys[s][head] / np.sqrt(len(keys[s][head])) for s in seen]
                )
                heads_.append(
                    sum(
                        w * values[s][head]
                        for w, s in zip(weights / weights.sum(), seen, strict=True)
                    )
                )
            mixed.append(np.concatenate(heads_))
        h = [v + m @ block.mixing.kernel + block.mixing.bias for v, m in zip(h, mixed, strict=True)]
        wide = [gelu(norm(block.between, v) @ block.wide.kernel + block.wide.bias) for v in h]
        h = [v + w @ block.narrow.kernel + block.narrow.bias for v, w in zip(h, wide, strict=True)]
    h = [norm(params.last, v) for v in h]
    if params.classes is None:
        return np.stack([params.tokens @ v for v in h])
    return (
        np.mean([h[s] for s in np.flatnonzero(x)], axis=0) @ params.classes.kernel
        + params.classes.bias
    )


@pytest.mark.parametrize("classes", [None, 3])
def test_the_transformer_is_that_of_its_text(classes):
    model = Transformer(7, 6, width=8, heads=2, layers=2, classes=classes)
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda p: p + jnp.asarray(0.3 * rng.normal(size=p.shape)), model.init(jax.random.key(0))
    )
    x = np.array([[3, 1, 4, 1, 5], [2, 6, 0, 0, 0]])
    for row, found in zip(x, jax.jit(model)(params, jnp.asarray(x)), strict=True):
        np.testing.assert_allclose(
            found, transcribed(jax.tree.map(np.asarray, params), row, 2), rtol=1e-9, atol=1e-10
        )
    assert model.parameters == sum(leaf.size for leaf in jax.tree.leaves(params))


def test_a_text_of_padding_alone_is_finite():
    model, x = Transformer(7, 6, width=8, heads=2, layers=1, classes=2), jnp.zeros((1, 3), int)
    gradient = jax.jit(jax.grad(lambda p: model(p, x).sum()))(model.init(jax.random.key(0)))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_a_bag_counts_shares_of_tokens():
    model = BagOfTokens(4, 2)
    kernel = jnp.asarray(np.random.default_rng(0).normal(size=(4, 2)))
    params = model.init(jax.random.key(0))._replace(kernel=kernel)
    found = model(params, jnp.array([[1, 1, 3, 0], [0, 0, 0, 0]]))
    np.testing.assert_allclose(found, [(2 * kernel[1] + kernel[3]) / 3, [0, 0]], rtol=1e-12)
    with pytest.raises(InvalidInput, match="BagOfTokens"):
        BagOfTokens(4, 1)


ROWS = {
    "text": ["good good day", "bad day", "good", "bad bad bad night"] * 3,
    "label": [1, 0, 1, 0] * 3,
    "person": list("aabb") * 3,
}


@pytest.fixture
def saved(tmp_path):
    datasets = pytest.importorskip("datasets", reason="a library of other people")
    table = datasets.Dataset.from_dict(ROWS)
    datasets.DatasetDict({"train": table, "test": table.select([0, 1])}).save_to_disk(
        tmp_path / "reviews"
    )
    return str(tmp_path / "reviews")


def test_a_text_column_of_the_hub_by_label(saved):
    options = {
        "dataset": saved,
        "partition": "user",
        "user": "person",
        "text": "text",
        "tokens": "bytes",
        "length": 9,
    }
    task = tasks.make_task("hub", model="bag", test="test", **options)
    own = task.train.client(0)
    assert own["x"].shape == (6, 9)
    shown = {bytes((row[row > 0] - 1).tolist()).decode() for row in own["x"]}
    assert shown == {"good good", "bad day"}
    assert np.array_equal(own["mask"], own["x"] > 0)
    history = fedax.run(fedax.FedAvg(), task, solver=fedax.SGD(5.0), rounds=10)
    assert history.last("test_accuracy") == 1.0
    assert tasks.make_task("hub", **options).loss.model == Transformer(257, 9, classes=2)


def test_a_text_column_of_the_hub_as_a_language(saved):
    options = {
        "dataset": saved,
        "partition": "user",
        "user": "person",
        "text": "text",
        "predict": "next",
        "length": 8,
    }
    task = tasks.make_task(
        "hub", **options, test="test", tokens="characters", vocabulary=16, test_fraction=0.2
    )
    assert task.train.clients == 2
    assert task.loss.model == Transformer(16, 8)
    assert task.holdout["mask"].sum() == len("good good day") + len("bad day") - 2
    for wrong, message in (
        ({"text": "words"}, "'words'; allowed: one of the columns"),
        ({"text": "label"}, "1 in row 0"),
    ):
        with pytest.raises(DataError, match=message):
            tasks.make_task("hub", **options | wrong)
    with pytest.raises(InvalidInput, match=r"partition=...\): got 'shards'; allowed: one of 'iid'"):
        tasks.make_task("hub", **options | {"partition": "shards"})
    del options["text"]
    with pytest.raises(InvalidInput, match=r"hub\(predict=...\): got 'next'"):
        tasks.make_task("hub", **options)


PLAY = (
    "ROMEO:\nBut soft, what light\nthrough yonder window breaks?\n\nJULIET:\nAy "
    "me!\n\nROMEO:\nShe speaks.\n"
)


def test_plays_by_role_and_folders_of_texts(tmp_path):
    (tmp_path / "play.txt").write_text(PLAY)
    task = tasks.make_task(
        "language", source=str(tmp_path / "play.txt"), length=16, test_fraction=0.0
    )
    romeo = "But soft, what light through yonder window breaks? She speaks."
    assert (task.name, task.train.sizes.tolist()) == ("play", [-(-(len(romeo) - 1) // 16), 1])
    folder = tmp_path / "clients"
    folder.mkdir()
    for name, text in (("b", "hello"), ("a", "you")):
        (folder / f"{name}.txt").write_text(text)
    assert data.texts_by_client(folder).train == {"a": ["you"], "b": ["hello"]}


def test_shakespeare_in_the_files_of_leaf(tmp_path):
    for part, users in (
        ("train", {"HAMLET": (["To be or", "o be or "], [" ", "n"])}),
        ("test", {"HAMLET": (["ot to be"], ["."])}),
    ):
        (tmp_path / part).mkdir()
        held = {user: {"x": x, "y": y} for user, (x, y) in users.items()}
        document = {
            "users": list(users),
            "num_samples": [len(x) for x, _ in users.values()],
            "user_data": held,
        }
        (tmp_path / part / "all_data_niid_0.json").write_text(json.dumps(document))
    task = tasks.make_task(
        "language", source="shakespeare", folder=str(tmp_path), length=8, vocabulary=12
    )
    assert (task.train.sizes.tolist(), task.test.sizes.tolist()) == ([2], [1])
    assert task.train.arrays["mask"].all()
    with pytest.raises(
        DataError,
        match=r"preprocess.sh.* in data/shakespeare .*`fedax data prepare "
        r"shakespeare` then checks",
    ):
        tasks.make_task("language", source="shakespeare", folder=str(tmp_path / "elsewhere"))


def test_real_plays_by_role(data_folder):
    if not (data_folder / "shakespeare" / "tinyshakespeare.txt.gz").is_file():
        pytest.skip(f"no tinyshakespeare in {data_folder}")
    task = tasks.make_task("language", minimum=10, folder=str(data_folder))
    assert task.train.clients == 151 or task.train.clients > 100
    assert int(task.train.arrays["x"].max()) < 128


def test_copies_of_a_text_are_not_tested_on(tmp_path):
    datasets = pytest.importorskip("datasets", reason="a library of other people")
    rows = {"text": [f"text {i // 4}" for i in range(80)], "label": [i // 4 % 2 for i in range(80)]}
    datasets.Dataset.from_dict(rows).save_to_disk(tmp_path / "a")
    options = {"text": "text", "tokens": "bytes", "length": 9, "test_fraction": 0.25}
    data = fedax.data.hub(str(tmp_path / "a"), "iid", 3, **options)
    trained, tested = (
        [tuple(row) for client in part for row in client["x"].tolist()]
        for part in (data.train, data.test)
    )
    assert len(trained) + len(tested) == 80
    assert tested
    assert not set(trained) & set(tested)
