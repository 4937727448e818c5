"""Profiles: known heavy work shows up as the part that it is, and the parts add up."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import fedax
from fedax.cli import app
from fedax.core import InvalidInput
from fedax.engine.compilation import fused_loop as kernel
from fedax.engine.driver.options import RunOptions
from fedax.engine.driver.session import Grid
from fedax.engine.profiling.flops import Uncountable, round_flops_counter
from fedax.models import MLP, Softmax
from fedax.ops import LSTM
from fedax.tasks import classification
from problems import vector

DIM = 200


def products(w, count):
    """Some hundred million multiplications, which no compiler can leave out."""
    turn = jnp.asarray(np.random.default_rng(0).normal(size=(DIM, DIM)) / DIM, w.dtype)
    return jax.lax.fori_loop(
        0, count, lambda _, x: jnp.tanh(turn @ x), jnp.tile(w[:, None], (1, DIM))
    )[:, 0]


def task(count):
    """Four clients whose losses cost `count` products of matrices an example."""
    clients = [{"x": np.ones(2) * k} for k in range(4)]
    return fedax.tasks.from_loss(
        lambda w, e: ((products(w, count) if count else w) ** 2).sum() + e["x"],
        np.ones(DIM),
        clients,
    )


class HeavyServer(fedax.Algorithm):
    """Averaging, and then products on the server."""

    def round(self, fed, state):
        return products(fed.average(self.learn, fed.sample(), state), 6)

    def learn(self, client, w):
        return fedax.Upload(client.minimize(start=w))


def kinds(found):
    """Shares by kind of work, whatever its phase."""
    shares = {}
    for part, milliseconds in found.parts.items():
        kind = part.split(": ")[-1]
        shares[kind] = shares.get(kind, 0.0) + milliseconds / found.round_ms
    return shares


OPTIONS = {
    "solver": fedax.SGD(1e-3),
    "schedule": fedax.Schedule(cohort=2, steps=2, batch_size=2),
    "rounds": 3,
}
# devices that wait for each other wait longer on a busy machine
ONE = {"engine": fedax.Simulation(devices=1)}


@pytest.mark.slow
def test_heavy_losses_are_gradients():
    found = fedax.profile(fedax.FedAvg(), task(3), **OPTIONS, **ONE)
    assert found.algorithm == "FedAvg"
    assert found.parts["train: gradients"] > 0.7 * found.round_ms
    assert sum(found.parts.values()) == pytest.approx(found.round_ms)
    assert min(found.round_ms, found.observe_ms, found.compile_s) > 0


@pytest.mark.slow
def test_heavy_servers_are_servers_and_phases_have_their_own_names(monkeypatch):
    monkeypatch.setenv("FEDAX_KERNELS", "0")  # a kernel has one part
    found = fedax.profile(HeavyServer(), task(0), **OPTIONS, **ONE)
    assert kinds(found)["server"] > 0.7
    assert {"learn: gradients", "learn: steps"} <= set(found.parts)


@pytest.mark.slow
@pytest.mark.skipif(not kernel.is_available(), reason=kernel.unavailable_reason())
@pytest.mark.parametrize("devices", [1, 2])
def test_steps_in_a_kernel_are_most_of_the_work(devices):
    data = fedax.data.synthetic(0.5, 0.5, seed=0, test_fraction=0.0)
    softmax, options = (
        classification(data, Softmax(60, 10)),
        {"schedule": fedax.Schedule(cohort=10, epochs=5, batch_size=10)},
    )
    found = fedax.profile(
        fedax.FedAvg(), softmax, rounds=3, engine=fedax.Simulation(devices=devices), **options
    )
    assert found.gradients_rate is None
    assert (
        found.parts["train: steps"]
        / sum(ms for name, ms in found.parts.items() if name != "between devices")
        > 0.5
    )


@pytest.mark.slow
def test_devices_that_wait_have_a_part():
    found = fedax.profile(fedax.FedAvg(), task(0), **OPTIONS, engine=fedax.Simulation(devices=2))
    assert found.devices == 2
    assert found.parts["between devices"] > 0


@pytest.mark.slow
def test_memories_are_memory_and_every_phase_is_there():
    """FedDANE has two phases; SCAFFOLD keeps a vector for each client."""
    two = fedax.profile(fedax.FedDANE(), task(1), **OPTIONS)
    assert {"gradient: gradients", "solve: gradients"} <= set(two.parts)
    assert kinds(fedax.profile(fedax.SCAFFOLD(), task(0), **OPTIONS))["memory"] > 0


@pytest.mark.slow
def test_a_profile_changes_no_run():
    before = vector(fedax.run(fedax.SCAFFOLD(), task(0), **OPTIONS))
    fedax.profile(fedax.SCAFFOLD(), task(0), **OPTIONS)
    np.testing.assert_array_equal(vector(fedax.run(fedax.SCAFFOLD(), task(0), **OPTIONS)), before)


SIZES = (3, 8, 10)


def images(model, loss=None):
    """Three clients with images of 8 x 8 x 2, flat for a library model."""
    rng = np.random.default_rng(0)
    shape = (8, 8, 2) if loss else (128,)
    clients = [{"x": rng.random((n, *shape)), "y": rng.integers(0, 3, n)} for n in SIZES]
    if loss is None:
        return fedax.tasks.classification(fedax.data.FederatedData(clients, classes=3), model)
    return fedax.tasks.from_loss(loss, model, clients)


def counted(task, algorithm=None, **schedule):
    """Multiplications of everybody's products in a round."""
    setting = {
        "solver": fedax.SGD(1e-3),
        "schedule": fedax.Schedule(**({"batch_size": 4} | schedule)),
        "observe": (),
    }
    grid = Grid([algorithm or fedax.FedAvg()], task, [0], RunOptions.of(setting | ONE))
    return round_flops_counter(grid.program)(grid.init()[0], 0) / 2


def test_operations_of_dense_models_are_those_of_the_closed_form():
    """Kernels take part in the outputs and in their gradient, and all but the first in the gradient
    of their inputs."""
    assert counted(images(Softmax(128, 3)), epochs=2) == 2 * sum(SIZES) * 2 * 128 * 3
    assert counted(images(MLP((128, 5, 3))), steps=3) == (3 + 3 + 3 + 4 + 4 + 4 + 4 + 4 + 2) * (
        2 * 128 * 5 + 3 * 5 * 3
    )


@pytest.mark.slow
def test_full_gradients_and_losses_are_counted_beside_the_steps():
    one = 2 * 128 * 3
    assert (
        counted(images(Softmax(128, 3)), fedax.FedDANE(), epochs=2)
        == (1 + 1 + 2) * sum(SIZES) * one
    )
    # two losses are one gradient
    assert counted(images(Softmax(128, 3)), fedax.IFCA(), epochs=2) == 3 * sum(SIZES) * one


@pytest.mark.slow
def test_operations_of_convolutions_are_the_same_in_every_form():
    """Along 8 pixels 3 places meet 22 numbers with zeros around them; with stride 2 and none, 3
    outputs meet 9."""
    kernels = np.ones((3, 3, 2, 4)) / 10, np.ones((3, 3, 4, 5)) / 10

    def loss(convolve):
        def of(kernels, example):
            h = jax.nn.relu(convolve(example["x"], kernels[0], 1, "SAME"))
            return jnp.sum(convolve(h, kernels[1], 2, "VALID") ** 2, (1, 2, 3))

        return of

    def by_xla(x, kernel, stride, padding):
        return jax.lax.conv_general_dilated(
            x, kernel, (stride,) * 2, padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def by_layers(x, kernel, stride, padding):
        return fedax.ops.convolve(x, kernel, stride=stride, padding=padding)

    expected = sum(SIZES) * (2 * 22 * 22 * 2 * 4 + 3 * 9 * 9 * 4 * 5)
    assert counted(images(kernels, loss(by_xla))) == expected
    assert counted(images(kernels, loss(by_layers))) == expected


@pytest.mark.parametrize("hidden", [4, 16])  # in a loop, and from 16 on in the extension
def test_operations_of_recurrences_are_the_same_in_every_form(hidden):
    """Eight steps of 16 numbers: inputs twice, the state forward, backward and for the kernel's
    gradient."""
    layer = LSTM.init(jax.random.key(0), 16, hidden)

    def loss(layer, example):
        return jnp.sum(layer(example["x"].reshape(-1, 8, 16).transpose(1, 0, 2))[-1] ** 2, 1)

    assert counted(images(layer, loss)) == sum(SIZES) * 8 * 4 * hidden * (2 * 16 + 3 * hidden)


def test_products_that_nobody_can_count_are_not_guessed():
    def in_a_loop(w, e):
        x = e["x"].reshape(-1, 128)
        return w * jax.lax.while_loop(lambda v: v.max() > 1, lambda v: jnp.eye(128) @ v, x.T).sum(0)

    def outside(w, e):
        x = e["x"].sum((1, 2, 3))
        return w * jax.pure_callback(
            lambda x: x, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="sequential"
        )

    for loss in (in_a_loop, outside):
        with pytest.raises(Uncountable):
            counted(images(1.0, loss))


@pytest.mark.slow
def test_profiles_set_counted_products_beside_the_peak(monkeypatch):
    monkeypatch.setenv("FEDAX_KERNELS", "0")  # a kernel has one part
    found = fedax.profile(
        fedax.FedAvg(), images(Softmax(128, 3)), solver=fedax.SGD(1e-3), rounds=2, **ONE
    )
    assert found.operations == 2 * 2 * sum(SIZES) * 128 * 3
    assert found.rate == pytest.approx(found.operations / found.round_ms / 1e6)
    assert 0 < found.fraction < found.gradients_fraction < 1
    assert dataclasses.replace(found, operations=None).fraction is None


def test_what_cannot_be_profiled_is_refused():
    with pytest.raises(
        InvalidInput,
        match=r"profile\(engine=...\): got Eager; allowed: "
        r"Simulation",
    ):
        fedax.profile(fedax.FedAvg(), task(0), engine=fedax.Eager(), **OPTIONS)
    with pytest.raises(InvalidInput, match=r"rounds=...\): got 0; allowed: whole numbers >= 1"):
        fedax.profile(fedax.FedAvg(), task(0), **(OPTIONS | {"rounds": 0}))


@pytest.mark.slow
def test_the_command_prints_a_table(tmp_path):
    file = tmp_path / "a.toml"
    lines = ['name = "a"', "rounds = 4", "[task]", 'name = "synthetic"', "clients = 3"]
    file.write_text(
        "\n".join(
            [*lines, "[[algorithm]]", 'name = "fedavg"', "[[algorithm]]", 'name = "scaffold"', ""]
        )
    )
    done = CliRunner().invoke(app, ["profile", str(file), "--rounds", "2"])
    assert done.exit_code == 0, done.output
    for words in (
        "FedAvg",
        "SCAFFOLD",
        "train: gradients",
        "one observation",
        "compiling",
        "products of the round",
        "GFLOP/s",
    ):
        assert words in done.output
