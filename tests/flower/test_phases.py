"""Work functions that run several times in a round: client and server use the same phase."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

import fedax
from fedax.communication.codecs import TopK
from fedax.core import Algorithm, ClientStates, Upload, Vector
from fedax.flower.protocol.plan import Assignment
from fedax.flower.server.in_process import in_process

pytestmark = pytest.mark.slow

OPTIONS = {"solver": fedax.SGD(0.25), "schedule": fedax.Schedule(steps=2), "rounds": 3}
ROWS = [np.float32([[1, 2], [2, 3]]), np.float32([[5, 1], [6, 7], [1, 1]])]


def make_task():
    def loss(w, x):
        return ((w[None] - x) ** 2 / 2).sum(-1)

    return fedax.Task(np.zeros(2, np.float32), loss, ROWS)


def scaled_step(client, x, scale):
    return Upload(scale * client.minimize(start=x))


def bind_by_closure(fed):
    scale = 0.5**fed.round
    return lambda client, x: scaled_step(client, x, scale)


def bind_by_inner_closure(fed):
    inner = bind_by_closure(fed)
    return lambda client, x: inner(client, x)


def bind_by_default(fed):
    return lambda client, x, scale=0.5**fed.round: scaled_step(client, x, scale)


def bind_by_keyword(fed):
    return functools.partial(scaled_step, scale=0.5**fed.round)


def bind_the_round(fed):
    return lambda client, x: scaled_step(client, x, 0.5**fed.round)


class Decaying(Algorithm[Any]):
    """Its work function has bound a number of the round."""

    bind: Callable[..., Any] = eqx.field(static=True)

    def round(self, fed, w):
        return fed.average(self.bind(fed), fed.sample(), w)


class State(eqx.Module):
    x: Vector
    clients: ClientStates
    count: ClientStates


class Repeating(Algorithm[Any]):
    """Runs `train` without a state, with two states of other shapes and with another structure of
    equal arrays, two functions of one name, and functions with two values that they have bound."""

    def init(self, fed, w):
        return State(
            w, fed.client_states(jnp.zeros_like(w)), fed.client_states(jnp.zeros((), w.dtype))
        )

    def model(self, state):
        return state.x

    def train(self, client, x, memory=None):
        if isinstance(x, dict):
            return Upload(x["b"] - 0.5 * x["a"])
        if isinstance(x, tuple):
            return Upload(x[0] + client.minimize(start=x[1]))
        y = client.minimize(start=x)
        if memory is None:
            return Upload(y)
        change = y - x if memory.ndim else (y - x).sum()
        return Upload(y + 0.25 * memory, state=memory + change)

    def round(self, fed, state):
        cohort = fed.sample()
        x = fed.average(self.train, cohort, state.x)
        x, memory = fed.average(self.train, cohort, x, states=state.clients)
        x, count = fed.average(self.train, cohort, x, states=state.count)
        x = fed.average(self.train, cohort, (0.5 * x, x))
        x = fed.average(self.train, cohort, {"a": 0.5 * x, "b": x})
        x = fed.average(lambda client, x: Upload(client.minimize(start=x)), cohort, x)
        x = fed.average(lambda client, x: Upload(0.5 * x), cohort, x)
        for scale in (0.5, 2.0):

            def scaled(client, x, scale=scale):
                return Upload(scale * client.minimize(start=x))

            x = fed.average(scaled, cohort, x)
            x = fed.average(functools.partial(scaled_step, scale=scale), cohort, x)
        return State(x, memory, count)


def deploy(algorithm, folder, channel=None):
    """Runs an algorithm over Flower."""
    with jax.enable_x64(False):
        task = make_task()
        assignment = Assignment(algorithm, OPTIONS["solver"], OPTIONS["schedule"], channel)
        engine = in_process(task, folder, [assignment], deadline=20.0)
        return fedax.run(algorithm, task, **OPTIONS, channel=channel, engine=engine)


def both(algorithm, folder, channel=None):
    """The parameters of a simulation, and those of the same rounds over Flower."""
    with jax.enable_x64(False):
        alone = fedax.run(algorithm, make_task(), **OPTIONS, channel=channel)
    deployed = deploy(algorithm, folder, channel)
    assert deployed.params.dtype == np.float32
    return np.asarray(alone.params), np.asarray(deployed.params)


def test_every_run_of_a_function_has_its_phase(tmp_path):
    alone, deployed = both(Repeating(), tmp_path)
    np.testing.assert_allclose(deployed, alone, rtol=1e-5)


@pytest.mark.parametrize(
    "bind",
    [bind_by_closure, bind_by_inner_closure, bind_by_default, bind_by_keyword, bind_the_round],
)
def test_a_function_that_binds_a_number_of_the_round_is_refused(bind, tmp_path):
    with pytest.raises(fedax.InvalidInput, match="must be an argument of the work function"):
        deploy(Decaying(bind=bind), tmp_path)


def test_a_state_of_the_method_and_one_of_the_codec(tmp_path):
    channel = fedax.Channel(up=TopK(0.5))
    assert channel.has_memory
    alone, deployed = both(fedax.SCAFFOLD(), tmp_path, channel)
    np.testing.assert_allclose(deployed, alone, rtol=1e-5)
