"""Profiles: known heavy work shows up as the part that it is, and the parts add up."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import fedax
from fedax.cli.commands import app
from fedax.core import InvalidInput
from problems import vector

DIM = 200


def products(w, count):
    """Some hundred million multiplications, which no compiler can leave out."""
    turn = jnp.asarray(np.random.default_rng(0).normal(size=(DIM, DIM)) / DIM, w.dtype)
    return jax.lax.fori_loop(0, count, lambda _, x: jnp.tanh(turn @ x), jnp.tile(w[:, None], (1, DIM)))[:, 0]


def task(count):
    """Four clients whose losses cost `count` products of matrices an example."""
    clients = [{"x": np.ones(2) * k} for k in range(4)]
    return fedax.tasks.from_loss(
        lambda w, e: ((products(w, count) if count else w) ** 2).sum() + e["x"], np.ones(DIM), clients
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


OPTIONS = {"solver": fedax.SGD(1e-3), "schedule": fedax.Schedule(cohort=2, steps=2, batch_size=2), "rounds": 3}
ONE = {"engine": fedax.Simulation(devices=1)}  # devices that wait for each other wait longer on a busy machine


@pytest.mark.thorough
def test_heavy_losses_are_gradients():
    found = fedax.profile(fedax.FedAvg(), task(3), **OPTIONS, **ONE)
    assert found.algorithm == "FedAvg"
    assert found.parts["train: gradients"] > 0.7 * found.round_ms
    assert sum(found.parts.values()) == pytest.approx(found.round_ms)
    assert min(found.round_ms, found.observe_ms, found.compile_s) > 0


@pytest.mark.thorough
def test_heavy_servers_are_servers_and_phases_have_their_own_names():
    found = fedax.profile(HeavyServer(), task(0), **OPTIONS, **ONE)
    assert kinds(found)["server"] > 0.7
    assert {"learn: gradients", "learn: steps"} <= set(found.parts)


@pytest.mark.thorough
def test_devices_that_wait_have_a_part():
    found = fedax.profile(fedax.FedAvg(), task(0), **OPTIONS, engine=fedax.Simulation(devices=2))
    assert found.devices == 2
    assert found.parts["between devices"] > 0


@pytest.mark.thorough
def test_memories_are_memory_and_every_phase_is_there():
    """FedDANE has two phases; SCAFFOLD keeps a vector for each client."""
    two = fedax.profile(fedax.FedDANE(), task(1), **OPTIONS)
    assert {"gradient: gradients", "solve: gradients"} <= set(two.parts)
    assert kinds(fedax.profile(fedax.SCAFFOLD(), task(0), **OPTIONS))["memory"] > 0


@pytest.mark.thorough
def test_a_profile_changes_no_run():
    before = vector(fedax.run(fedax.SCAFFOLD(), task(0), **OPTIONS))
    fedax.profile(fedax.SCAFFOLD(), task(0), **OPTIONS)
    np.testing.assert_array_equal(vector(fedax.run(fedax.SCAFFOLD(), task(0), **OPTIONS)), before)


def test_what_cannot_be_profiled_is_refused():
    with pytest.raises(InvalidInput, match=r"profile\(engine=...\): got Eager; allowed: Simulation"):
        fedax.profile(fedax.FedAvg(), task(0), engine=fedax.Eager(), **OPTIONS)
    with pytest.raises(InvalidInput, match=r"rounds=...\): got 0; allowed: whole numbers >= 1"):
        fedax.profile(fedax.FedAvg(), task(0), **(OPTIONS | {"rounds": 0}))


@pytest.mark.thorough
def test_the_command_prints_a_table_and_draws_a_picture(tmp_path):
    file = tmp_path / "a.toml"
    lines = ['name = "a"', "rounds = 4", "[task]", 'name = "synthetic"', "clients = 3"]
    file.write_text("\n".join([*lines, "[[algorithm]]", 'name = "fedavg"', "[[algorithm]]", 'name = "scaffold"', ""]))
    picture = tmp_path / "pictures" / "profile.html"
    done = CliRunner().invoke(app, ["profile", str(file), "--rounds", "2", "--picture", str(picture)])
    assert done.exit_code == 0, done.output
    for words in ("FedAvg", "SCAFFOLD", "train: gradients", "one observation", "compiling"):
        assert words in done.output
    assert "milliseconds of a round" in picture.read_text(encoding="utf-8")
