"""Models of Flax, Haiku and Equinox with batch norm: a run is what the library itself computes,
minibatch by minibatch."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedax
from fedax.tasks.own_models import by_name
from fedax.tasks.own_models.outputs import accuracy
from fedax.tasks.own_models.signature import _takes_by_name, call_with

RNG, RATE = np.random.default_rng(0), 0.1
SCHEDULE = fedax.Schedule(epochs=1, batch_size=4, order="given")


def clients(sizes):
    return [
        {"x": RNG.normal(size=(n, 6)) + k, "y": RNG.integers(0, 3, n)} for k, n in enumerate(sizes)
    ]


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

    def apply(params, state, x):
        z, new = net.apply({"params": params, **state}, x, True, mutable=["batch_stats"])
        return z, dict(new)

    return fedax.tasks.from_flax(net, cross_entropy, clients((7, 12))), apply  # a short minibatch


def nnx():
    library = pytest.importorskip("flax.nnx", reason="flax is not installed")

    class Net(library.Module):
        def __init__(self, rngs):
            self.a, self.b = library.Linear(6, 5, rngs=rngs), library.Linear(5, 3, rngs=rngs)
            self.norm = library.BatchNorm(5, momentum=0.9, rngs=rngs)

        def __call__(self, x):
            return self.b(jax.nn.relu(self.norm(self.a(x))))

    graph = library.split(Net(library.Rngs(0)))[0]

    def apply(params, state, x):
        model = library.merge(graph, *jax.tree.map(lambda leaf: leaf, (params, state)))
        model.train()
        return model(x), library.split(model, library.Param, ...)[2]

    return fedax.tasks.from_flax(Net, cross_entropy, clients((7, 12))), apply


def haiku():
    hk = pytest.importorskip("haiku", reason="dm-haiku is not installed")

    def net(x, is_training):
        x = hk.BatchNorm(True, True, 0.9)(hk.Linear(5)(x), is_training)
        return hk.Linear(3)(jax.nn.relu(x))

    made = hk.transform_with_state(net)
    task = fedax.tasks.from_haiku(net, cross_entropy, clients((8, 12)))
    return task, lambda params, state, x: made.apply(params, state, None, x, True)


def equinox():
    class Net(eqx.Module):
        a: eqx.nn.Linear
        b: eqx.nn.Linear
        norm: eqx.nn.BatchNorm

        def __init__(self, key):
            self.a, self.b = eqx.nn.Linear(6, 5, key=key), eqx.nn.Linear(5, 3, key=key)
            self.norm = eqx.nn.BatchNorm(5, "batch", mode="batch")

        def __call__(self, x, state):
            x, state = self.norm(self.a(x), state)
            return self.b(jax.nn.relu(x)), state

    task = fedax.tasks.from_equinox(
        eqx.nn.make_with_state(Net)(jax.random.key(0)), cross_entropy, clients((8, 12))
    )

    def apply(params, state, x):
        model = task.assembled(params)
        return jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(x, state)

    return task, apply


@pytest.mark.slow
@pytest.mark.parametrize("library", [linen, nnx, haiku, equinox])
def test_batch_norm_is_the_librarys_own(library):
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        task, apply = library()
        solver, engine = fedax.SGD(RATE), fedax.Simulation("sequential", devices=1)
        options = {"solver": solver, "schedule": SCHEDULE, "engine": engine, "observe_every": 1}
        found = fedax.run(fedax.FedAvg(), task, rounds=1, **options)
        assert set(found.metrics) == {"train_loss", "train_accuracy"}

        def loss(params, state, x, y):
            z, state = apply(params, state, x)
            return optax.softmax_cross_entropy_with_integer_labels(z, y).mean(), state

        gradient, start, ends = (
            jax.jit(jax.grad(loss, has_aux=True)),
            task.start(jax.random.fold_in(jax.random.key(0), 0)),
            [],
        )
        for k in range(2):
            own, (params, state) = task.train.client(k), (start, task.state)
            for begin in range(0, len(own["y"]), 4):
                g, state = gradient(
                    params,
                    state,
                    own["x"][begin : begin + 4].astype(np.float32),
                    own["y"][begin : begin + 4],
                )
                params = jax.tree.map(lambda p, g: p - RATE * g, params, g)
            ends.append((params, state))
        trained = eqx.filter(found.params, eqx.is_inexact_array)
        for kept, *both in zip(
            *map(jax.tree.leaves, ((trained, found.model_state), *ends)), strict=True
        ):
            mean = np.average(np.array(both, float), axis=0, weights=task.train.sizes)
            whole = jnp.issubdtype(kept.dtype, jnp.integer)
            np.testing.assert_allclose(
                kept, np.round(mean) if whole else mean, rtol=2e-5, atol=2e-6
            )


def test_a_class_of_linen_is_refused():
    nn = pytest.importorskip("flax.linen", reason="flax is not installed")

    class Net(nn.Module):
        pass

    with pytest.raises(fedax.InvalidInput, match=r"Write Net\(...\), with parentheses"):
        fedax.tasks.from_flax(Net, cross_entropy, clients((3,)))


@pytest.mark.slow
def test_all_flags_of_training_are_passed_and_unknown_ones_are_named():
    nn = pytest.importorskip("flax.linen", reason="flax is not installed")

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, is_train=False, use_running_average=True, eval_mode=True):
            shift = self.param("shift", nn.initializers.zeros, (6,))
            z = 1.0 * is_train + 2.0 * (not use_running_average) + 4.0 * (not eval_mode)
            return shift.sum() + x.astype(shift.dtype).sum(1) * 0 + z

    with (
        jax.numpy_dtype_promotion("standard"),
        pytest.warns(UserWarning, match="'eval_mode' keeps its default, True"),
    ):
        task = fedax.tasks.from_flax(Net(), lambda z, e: z, clients((3, 2)))
    examples, params = task.train.client(0), task.start(jax.random.key(0))
    for key, expected in ((None, 0.0), (jax.random.key(1), 3.0)):
        losses = task.functions["loss"](params, examples, key)
        np.testing.assert_array_equal(losses, [expected] * 3)


def test_modules_of_equinox_are_told_whether_they_train():
    class Net(eqx.Module):
        shift: jax.Array

        def __call__(self, x, train=False):
            return self.shift * x.sum() + 1.0 * train

    net = Net(np.zeros(()))
    task = fedax.tasks.from_equinox(net, lambda z, e: z, clients((3, 2)))
    examples, params = task.train.client(0), task.start(jax.random.key(0))
    for key, expected in ((None, 0.0), (jax.random.key(1), 1.0)):
        losses = task.functions["loss"](params, examples, key)
        np.testing.assert_array_equal(losses, [expected] * 3)


def flax_modules():
    nnx = pytest.importorskip("flax.nnx", reason="flax is not installed")
    nn = pytest.importorskip("flax.linen", reason="flax is not installed")

    class Linear(nnx.Linear):
        def __init__(self, rngs):
            super().__init__(6, 3, rngs=rngs)

    return nn, nnx, Linear


def equinox_module(key=None):
    return eqx.nn.Linear(6, 3, key=jax.random.key(0))


@pytest.mark.parametrize("form", ["linen", "linen class", "nnx", "nnx class", "nnx maker"])
def test_modules_of_flax_are_refused_elsewhere_by_name(form):
    nn, nnx, linear = flax_modules()
    module = {
        "linen": nn.Dense(3),
        "linen class": nn.Dense,
        "nnx": linear(nnx.Rngs(0)),
        "nnx class": linear,
        "nnx maker": lambda key: linear(nnx.Rngs(0)),
    }[form]
    message = (
        r"from_equinox\(module=...\): got a Flax module, (Dense|Linear); allowed: an Equinox "
        r"module\. Write fedax\.tasks\.from_flax\(...\)\."
    )
    with pytest.raises(fedax.InvalidInput, match=message):
        fedax.tasks.from_equinox(module, cross_entropy, clients((3, 2)))


@pytest.mark.parametrize("maker", ["from_flax", "from_haiku", "from_torch"])
@pytest.mark.parametrize("module", [equinox_module(), eqx.nn.Linear], ids=["module", "class"])
def test_modules_of_equinox_are_refused_elsewhere_by_name(maker, module):
    message = rf"{maker}\(module=...\): got an Equinox module, Linear; .*tasks\.from_equinox\("
    with pytest.raises(fedax.InvalidInput, match=message):
        getattr(fedax.tasks, maker)(module, cross_entropy, clients((3, 2)))


def test_a_function_that_makes_a_module_of_another_library_is_refused():
    pytest.importorskip("flax", reason="flax is not installed")
    with pytest.raises(fedax.InvalidInput, match=r"got an Equinox module, Linear; .*from_equinox"):
        fedax.tasks.from_flax(equinox_module, cross_entropy, clients((3, 2)))


def test_transformed_functions_of_haiku_are_refused_elsewhere():
    hk = pytest.importorskip("haiku", reason="dm-haiku is not installed")
    transformed = hk.transform(lambda x: hk.Linear(3)(x))
    with pytest.raises(fedax.InvalidInput, match=r"got a Haiku model, .*tasks\.from_haiku\("):
        fedax.tasks.from_equinox(transformed, cross_entropy, clients((3, 2)))


@pytest.mark.slow
def test_losses_of_optax_are_told_that_they_get_all_arrays():
    loss = optax.softmax_cross_entropy_with_integer_labels
    message = (
        rf"It gets all arrays .*write lambda outputs, e: {loss.__name__}\(outputs, e\['y'\]\)\."
    )
    data = clients((3, 2))
    with pytest.raises(fedax.InvalidInput, match=message):
        fedax.tasks.from_equinox(equinox_module(), loss, data)
    with pytest.raises(fedax.InvalidInput, match=message):
        fedax.tasks.from_equinox(equinox_module(), cross_entropy, data, scores={"ce": loss})

    def fails(outputs, e):
        raise ValueError("of its own")

    with pytest.raises(fedax.InvalidInput, match="of its own") as error:
        fedax.tasks.from_equinox(equinox_module(), fails, data)
    assert "It gets all arrays" not in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize(("low", "label"), [(-1, -1), (1, 2)])
@pytest.mark.parametrize("part", ["clients", "test", "central"])
def test_labels_that_are_no_columns_have_no_accuracy(part, low, label):
    """The largest of two outputs is 0 or 1, which would never be the label -1 or 2."""

    def examples(low):
        rng = np.random.default_rng(0)
        return [
            {"x": rng.normal(size=(n, 6)).astype(np.float32), "y": np.arange(n) % 2 + low}
            for n in (4, 7)
        ]

    parts = {"clients": examples(0)}
    task = fedax.tasks.from_equinox(eqx.nn.Linear(6, 2, key=KEY), hinge, **parts)
    assert "accuracy" in task.scores
    parts[part] = examples(low)[0] if part == "central" else examples(low)
    message = rf"no score 'accuracy', because of the label {label} with 2 columns"
    with pytest.warns(UserWarning, match=message):
        task = fedax.tasks.from_equinox(eqx.nn.Linear(6, 2, key=KEY), hinge, **parts)
    assert not task.scores
    own = {"accuracy": lambda z, e: (z[:, 0] > 0).astype(z.dtype)}
    task = fedax.tasks.from_equinox(eqx.nn.Linear(6, 2, key=KEY), hinge, scores=own, **parts)
    assert set(task.scores) == {"accuracy"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["uint8", "uint16", "Series", "list"])
def test_labels_of_any_whole_type_are_read(kind):
    def labels(y):
        if kind == "Series":
            return pytest.importorskip("pandas", reason="no pandas").Series(y)
        return y.tolist() if kind == "list" else y.astype(kind)

    def data(highest):
        return {
            name: {"x": np.ones((n, 6), np.float32), "y": labels(highest - np.arange(n) % 3)}
            for name, n in (("anna", 4), ("bert", 5))
        }

    net = equinox_module()
    with jax.numpy_dtype_promotion("standard"):
        assert "accuracy" in fedax.tasks.from_equinox(net, cross_entropy, data(2)).scores
        with pytest.raises(fedax.InvalidInput, match=r"the label 4, .* labels from 0 to 2"):
            fedax.tasks.from_equinox(net, cross_entropy, data(4))


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_more_classes_than_the_type_of_labels_can_count(kind):
    """Class 256 is none that uint8 has, and not label 0."""
    outputs = jnp.zeros((3, 300), jnp.float32).at[jnp.arange(3), jnp.array([256, 0, 7])].set(9.0)
    examples = {"y": jnp.array([0, 0, 7], kind)}
    np.testing.assert_array_equal(accuracy(outputs, examples), [0, 1, 1])
    expected = optax.softmax_cross_entropy_with_integer_labels(outputs, jnp.array([0, 0, 7]))
    np.testing.assert_allclose(by_name.cross_entropy(outputs, examples), expected, rtol=1e-6)


def flax_class():
    nnx = pytest.importorskip("flax.nnx", reason="flax is not installed")

    class Net(nnx.Module):
        def __init__(self, columns=3, *, rngs):
            self.dense = nnx.Linear(6, columns, rngs=rngs)

        def __call__(self, x):
            return self.dense(x)

    return fedax.tasks.from_flax, Net


def equinox_class():
    class Net(eqx.Module):
        dense: eqx.nn.Linear

        def __init__(self, columns=3, *, key):
            self.dense = eqx.nn.Linear(6, columns, key=key)

        def __call__(self, x):
            return self.dense(x)

    return fedax.tasks.from_equinox, Net


@pytest.mark.slow
@pytest.mark.parametrize("library", [flax_class, equinox_class])
@pytest.mark.parametrize("form", ["class", "partial", "function"])
def test_makers_get_random_numbers_by_name(library, form):
    maker, net = library()
    name = "key" if library is equinox_class else "rngs"
    module = {
        "class": net,
        "partial": functools.partial(net, 3),
        "function": lambda numbers: net(**{name: numbers}),
    }[form]
    data = [{"x": client["x"].astype(np.float32), "y": client["y"]} for client in clients((3, 2))]
    with jax.numpy_dtype_promotion("standard"):
        task = maker(module, cross_entropy, data)
        one, other = (jax.tree.leaves(task.start(jax.random.key(seed))) for seed in (0, 1))
    # seeds differ in the starting point
    assert any(not np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_which_makers_get_their_argument_by_name():
    def second(seed, key):
        return seed

    cases = [
        (lambda *, key: key, True),
        (lambda width=3, key=None: key, True),
        (functools.partial(lambda width, key: key, width=3), True),
        (lambda key, /: key, False),
        (lambda seed, key=None: seed, False),
        (functools.partial(second, key="given"), False),
        (equinox_class()[1], True),
    ]
    for maker, by_name_alone in cases:
        assert _takes_by_name(maker, "key") == by_name_alone
    assert call_with(functools.partial(second, key="given"), "key", 5) == 5


KEY = jax.random.key(0)


def hinge(z, e):
    return jnp.maximum(0, 1 - jnp.where(e["y"] > 0, 1, -1) * (z[:, 1] - z[:, 0]))
