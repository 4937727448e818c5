"""Models of Flax, Equinox and Haiku with batch norm: a run is what a loop of the library itself
computes over full minibatches."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedax
from fedax.core.scheduling.sampling import Sampling
from marks import slow

pytestmark = pytest.mark.usefixtures("as_users_run")

RATE = 0.1
BATCH = 4
ROUNDS = 2
RNG = np.random.default_rng(0)
SIZES = {"anna": 7, "bert": 9, "cleo": 3}
CLIENTS = {
    name: {
        "x": RNG.normal(size=(n, 6)).astype(np.float32) + n / 9,
        "y": RNG.integers(0, 3, n).astype(np.int32),
    }
    for name, n in SIZES.items()
}
X = CLIENTS["anna"]["x"][:1]
KEY = jax.random.fold_in(jax.random.key(0), 0)
"""Of which a run of seed 0 makes its first model."""


def cross_entropy(z, e):
    return optax.softmax_cross_entropy_with_integer_labels(z, e["y"])


def linen():
    nn = pytest.importorskip("flax.linen", reason="flax is not installed")

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(nn.Dense(5)(x))
            return nn.Dense(3)(nn.relu(x))

    net = Net()
    variables = net.init({"params": KEY}, X, False)

    def apply(params, state, x):
        z, new = net.apply({"params": params, **state}, x, True, mutable=["batch_stats"])
        return z, dict(new)

    model = fedax.models.linen(net, X, train="train")
    return model, variables["params"], {"batch_stats": variables["batch_stats"]}, apply


def nnx():
    library = pytest.importorskip("flax.nnx", reason="flax is not installed")

    class Net(library.Module):
        def __init__(self, rngs):
            self.a = library.Linear(6, 5, rngs=rngs)
            self.b = library.Linear(5, 3, rngs=rngs)
            self.norm = library.BatchNorm(5, momentum=0.9, rngs=rngs)

        def __call__(self, x):
            return self.b(jax.nn.relu(self.norm(self.a(x))))

    graph, params, state = library.split(Net(library.Rngs(KEY)), library.Param, ...)

    def apply(params, state, x):
        module = library.merge(graph, *jax.tree.map(lambda leaf: leaf, (params, state)))
        module.train()
        return module(x), library.split(module, library.Param, ...)[2]

    return fedax.models.nnx(Net), params, state, apply


def haiku():
    hk = pytest.importorskip("haiku", reason="dm-haiku is not installed")

    def net(x, is_training):
        x = hk.BatchNorm(True, True, 0.9)(hk.Linear(5)(x), is_training)
        return hk.Linear(3)(jax.nn.relu(x))

    pure = hk.transform_with_state(net)
    model = fedax.models.haiku(net, X, train="is_training")
    return model, *pure.init(KEY, X, True), lambda p, s, x: pure.apply(p, s, None, x, True)


def equinox():
    class Net(eqx.Module):
        a: eqx.nn.Linear
        b: eqx.nn.Linear
        norm: eqx.nn.BatchNorm

        def __init__(self, key):
            self.a = eqx.nn.Linear(6, 5, key=key)
            self.b = eqx.nn.Linear(5, 3, key=key)
            self.norm = eqx.nn.BatchNorm(5, "batch", mode="batch")

        def __call__(self, x, state):
            x, state = self.norm(self.a(x), state)
            return self.b(jax.nn.relu(x)), state

    make = eqx.nn.make_with_state(Net)
    module, state = make(KEY)
    params, rest = eqx.partition(module, eqx.is_inexact_array)

    def apply(params, state, x):
        module = eqx.combine(params, rest)
        return jax.vmap(module, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(x, state)

    return fedax.models.equinox(make), params, state, apply


@dataclasses.dataclass(frozen=True)
class FirstAndLast(Sampling):
    def draw(self, key, offsets, cohort):
        return jnp.array([0, len(SIZES) - 1], jnp.int32), 2


def loop(params, state, apply):
    """Rounds of two of three clients, each minibatch filled from the client's beginning."""

    @jax.jit
    def step(params, state, x, y):
        def loss(params):
            z, new = apply(params, state, x)
            return optax.softmax_cross_entropy_with_integer_labels(z, y).mean(), new

        gradient, new = jax.grad(loss, has_aux=True)(params)
        return jax.tree.map(lambda p, g: p - RATE * g, params, gradient), new

    for _ in range(ROUNDS):
        ends = []
        for name in ("anna", "cleo"):
            client = CLIENTS[name]
            end = (params, state)
            for begin in range(0, SIZES[name], BATCH):
                rows = np.arange(begin, begin + BATCH) % SIZES[name]
                end = step(*end, client["x"][rows], client["y"][rows])
            ends.append(end)
        weights = np.array([SIZES["anna"], SIZES["cleo"]]) / (SIZES["anna"] + SIZES["cleo"])

        def mean(*leaves, weights=weights):
            value = sum(
                p * np.asarray(leaf, float) for p, leaf in zip(weights, leaves, strict=True)
            )
            is_real = jnp.issubdtype(leaves[0].dtype, jnp.floating)
            return jnp.asarray(value if is_real else np.round(value), leaves[0].dtype)

        params, state = jax.tree.map(mean, *ends)
    return params, state


ENGINES = {
    "in turn": fedax.Simulation(devices=1),
    "in chunks": fedax.Simulation(chunk=2, devices=1),
    "on two devices": fedax.Simulation(devices=2, microbatch=3),
    "eager": fedax.Eager(),
}
CASES = [(linen, "in turn"), slow(linen, "in chunks"), slow(linen, "on two devices")]
CASES += [slow(linen, "eager"), slow(nnx, "in turn"), slow(haiku, "in turn")]
CASES += [(equinox, "in turn")]


@pytest.mark.slow
@pytest.mark.parametrize(("library", "engine"), CASES)
def test_a_run_is_the_librarys_own_loop_over_filled_minibatches(library, engine):
    model, params, state, apply = library()
    task = fedax.from_model(model, cross_entropy, CLIENTS)
    found = fedax.run(
        fedax.FedAvg(),
        task,
        solver=fedax.SGD(RATE),
        schedule=fedax.Schedule(
            cohort=2, epochs=1, batch_size=BATCH, order="given", sampling=FirstAndLast()
        ),
        rounds=ROUNDS,
        engine=ENGINES[engine],
        observe_every=ROUNDS,
    )
    assert set(found.metrics) == {"train_loss", "train_accuracy"}
    expected = loop(params, state, apply)
    trained = eqx.filter(found.params, eqx.is_inexact_array)
    for one, other in zip(
        *(jax.tree.leaves(pair) for pair in ((trained, found.model_state), expected)), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_shuffled_minibatches_are_filled_with_examples_of_the_client_alone():
    """Each is full, has every example of its epoch, and those of nobody else."""
    seen = []

    def apply(w, state, x, key):
        if key is not None:
            jax.debug.callback(lambda rows: seen.append(np.asarray(rows)[:, 0]), x)
        return w * x[:, 0], state

    model = fedax.models.Model(lambda key: (jnp.ones(()), jnp.zeros(())), apply)
    clients = [np.full((n, 1), 10.0 * n, np.float32) + np.arange(n)[:, None] for n in (7, 3)]
    task = fedax.from_model(model, lambda z, e: z, clients)
    schedule = fedax.Schedule(epochs=2, batch_size=4)
    engine = fedax.Simulation(devices=1)
    fedax.run(fedax.FedAvg(), task, schedule=schedule, rounds=1, engine=engine, observe=[])
    jax.effects_barrier()
    assert {rows.shape for rows in seen} == {(4,)}
    of_large = [rows for rows in seen if rows[0] >= 70]
    of_small = [rows for rows in seen if rows[0] < 70]
    assert (len(of_large), len(of_small)) == (4, 2)
    assert all(set(rows) == {30.0, 31.0, 32.0} for rows in of_small)
    assert sorted({*np.concatenate(of_large)}) == [70.0 + i for i in range(7)]


@pytest.mark.parametrize("name", ["train", "deterministic"])
def test_the_argument_that_is_named_says_whether_a_module_trains(name):
    nn = pytest.importorskip("flax.linen", reason="flax is not installed")

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, train=None, deterministic=None):
            shift = self.param("shift", nn.initializers.zeros, ())
            flag = train if name == "train" else not deterministic
            return shift * x.sum(1) + 1.0 * flag

    task = fedax.from_model(fedax.models.linen(Net(), X, train=name), lambda z, e: z, CLIENTS)
    params = task.start(jax.random.key(0))
    for key, expected in ((None, 0.0), (jax.random.key(1), 1.0)):
        losses = task.functions["loss"](params, task.train[0], key)
        np.testing.assert_array_equal(losses, np.full(7, expected))


def dropouts():
    nn = pytest.importorskip("flax.linen", reason="flax is not installed")
    library = pytest.importorskip("flax.nnx", reason="flax is not installed")
    hk = pytest.importorskip("haiku", reason="dm-haiku is not installed")

    class Linen(nn.Module):
        @nn.compact
        def __call__(self, x, deterministic):
            return nn.Dropout(0.5)(nn.Dense(40)(x), deterministic=deterministic).sum(1)

    class Nnx(library.Module):
        def __init__(self, rngs):
            self.dense = library.Linear(6, 40, rngs=rngs)
            self.dropout = library.Dropout(0.5, rngs=rngs)

        def __call__(self, x):
            return self.dropout(self.dense(x)).sum(1)

    class Equinox(eqx.Module):
        dense: eqx.nn.Linear
        dropout: eqx.nn.Dropout

        def __init__(self, key):
            self.dense = eqx.nn.Linear(6, 40, key=key)
            self.dropout = eqx.nn.Dropout(0.5)

        def __call__(self, x, key=None):
            return self.dropout(self.dense(x), key=key).sum()

    def function(x, is_training):
        z = hk.Linear(40)(x)
        return (hk.dropout(hk.next_rng_key(), 0.5, z) if is_training else z).sum(1)

    return {
        "linen": fedax.models.linen(Linen(), X, train="deterministic"),
        "nnx": fedax.models.nnx(Nnx),
        "equinox": fedax.models.equinox(Equinox, key="key"),
        "haiku": fedax.models.haiku(function, X, train="is_training"),
    }


@pytest.mark.parametrize("library", ["linen", "nnx", "equinox", "haiku"])
def test_dropout_draws_from_the_key_of_a_step_alone(library):
    task = fedax.from_model(dropouts()[library], lambda z, e: z, CLIENTS)
    assert task.state is None
    params = task.start(jax.random.key(0))
    examples = task.train[0]
    loss = task.functions["loss"]
    evaluated = [loss(params, examples, None) for _ in range(2)]
    np.testing.assert_array_equal(*evaluated)
    first, again, other = (loss(params, examples, jax.random.key(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.isclose(first, other).any()
    assert not np.isclose(first, evaluated[0]).any()
    # seeds differ in the starting point
    starts = [jax.tree.leaves(task.start(jax.random.key(seed))) for seed in (0, 1)]
    assert not all(map(np.array_equal, *starts))


def test_several_inputs_are_several_arguments():
    class Net(eqx.Module):
        weight: jax.Array

        def __call__(self, x, shift):
            return self.weight * x.sum() + shift

    clients = [{"x": np.ones((n, 2), np.float32), "z": np.full(n, 3.0, np.float32)} for n in (2, 3)]
    model = fedax.models.equinox(lambda key: Net(jnp.ones(())))
    task = fedax.from_model(model, lambda z, e: z, clients, inputs=("x", "z"))
    params = task.start(jax.random.key(0))
    np.testing.assert_array_equal(task.functions["loss"](params, task.train[0], None), 5.0)
    task = fedax.from_model(
        model, lambda z, e: z, clients, inputs=lambda e: (2 * e["x"], e["z"]), frozen=None
    )
    np.testing.assert_array_equal(task.functions["loss"](params, task.train[0], None), 7.0)


@pytest.mark.parametrize(
    ("part", "low", "columns", "scored"),
    [
        ("train", 0, 3, True),
        ("test", 1, 3, False),
        ("central", 1, 3, False),
        ("train", 0, 1, False),
    ],
)
def test_a_classifier_has_accuracy_and_probabilities_by_default(part, low, columns, scored):
    """One whose labels are all numbers of columns."""

    def examples(low):
        return [
            {"x": c["x"], "y": np.arange(len(c["y"]), dtype=np.int32) % 3 + low} for c in others
        ]

    others = list(CLIENTS.values())
    data = {"train": examples(0), "test": examples(0), "central": examples(0)[0]}
    data[part] = examples(low)[0] if part == "central" else examples(low)
    federated = fedax.FederatedData.from_arrays(
        data["train"], classes=4, test=data["test"], central=data["central"]
    )
    model = fedax.models.equinox(lambda key: eqx.nn.Linear(6, columns, key=key))
    task = fedax.from_model(model, lambda z, e: z.sum(1), federated)
    assert ("accuracy" in task.scores) == scored
    rows = task.predict(task.start(jax.random.key(0)), X)
    assert (abs(rows.sum() - 1) < 1e-6) == scored


def test_the_models_own_frozen_leaves_stay():
    base = fedax.models.MLP((6, 4, 3))
    model = fedax.models.Model(base.init, base.apply, lambda name, leaf: name.startswith("0"))
    frozen = fedax.from_model(model, cross_entropy, CLIENTS, frozen="1.bias")
    assert [leaf.shape for leaf in jax.tree.leaves(frozen.start(jax.random.key(0)))] == [(4, 3)]
