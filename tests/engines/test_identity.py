"""A checkpoint is continued by the run that made it, and refused to every other one."""

import dataclasses
import json
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedax
from fedax.core import InvalidInput
from fedax.engine.compilation import identity
from fedax.engine.compilation.identity import describe
from fedax.engine.driver.grid import Grid
from fedax.engine.driver.options import RunOptions
from problems import regression, squares

TASK = regression()


def task_with(loss=squares, start=0.1, **more):
    clients = [
        {name: np.asarray(values) for name, values in TASK.train[k].items()} for k in range(5)
    ]
    return fedax.Task({"b": np.zeros(()), "w": np.full(3, start)}, loss, clients, **more)


class Scaled(fedax.FedAvg):
    """A method of one's own with a plain field."""

    factor: float = eqx.field(static=True, default=1.0)


BASE = """
import fedax

class Base(fedax.Algorithm):
    def scaled(self, x):
        return {base} * x
"""
OWN = """
import fedax

def make():
    held = {closure}

    class Own(Base):
        def round(self, fed, s):
            return s | dict(w=fed.average(self.train, fed.sample(), s["w"]))

        def train(self, client, w):
            move = held * self.scaled(client.minimize(start=w) - w)
            return fedax.Upload(w + move)

        def init(self, fed, w):
            return dict(w=w, key=fed.key("init"))

        def model(self, state):
            return state["w"]

    return Own()

class Code(fedax.codecs.Identity):
    def compress(self, v, key):
        return dict(values={codec} * v)

class Still(fedax.core.Solver):
    def minimize(self, client, problem, start):
        return {solver} * start

class Seen(fedax.observe.Observer):
    def __call__(self, view):
        return dict(seen={observer} * view.w.sum())
"""
PLACES = ("base", "closure", "codec", "solver", "observer")


def own_method(place, value):
    """A method and options of two files of a user, with a factor of `value` at one of the
    places."""
    factors = dict.fromkeys(PLACES, 1.0) | {place: value}
    base = {"__name__": "base"}
    exec(BASE.format(**factors), base)
    own = {"__name__": "own", "Base": base["Base"]}
    exec(OWN.format(**factors), own)
    channel = fedax.Channel(up=own["Code"]())
    return own["make"](), {"channel": channel, "solver": own["Still"](), "observe": [own["Seen"]()]}


@pytest.mark.parametrize("place", PLACES)
def test_a_method_that_changed_is_another_run(place, tmp_path):
    """Wherever the change is: what counts is the program."""

    def go(value, rounds):
        method, options = own_method(place, value)
        kept = {"checkpoint": tmp_path, "checkpoint_every": 1}
        return fedax.run(method, TASK, rounds=rounds, **kept, **options)

    go(1.0, 1)
    with pytest.raises(InvalidInput, match="program of a round"):
        go(0.5, 2)
    assert go(1.0, 2).outcome.ok


def scaled_loss(factor):
    return lambda params, data: factor * squares(params, data)


def dropped(rate):
    def loss(params, data, key):
        kept = 1.0 if key is None else jax.random.bernoulli(key, 1 - rate, (3,)) / (1 - rate)
        return squares({"w": params["w"] * kept, "b": params["b"]}, data)

    return loss


def identity_of(method=None, task=TASK, seed=0, **options):
    """As a checkpoint has it."""
    options = RunOptions.of({"observe": [fedax.observe.TrainLoss()], **options})
    grid = Grid([method or fedax.FedAvg()], task, [seed], options)
    return grid.identity()


def differing(one, other):
    """The names of what differs, whichever side lacks it."""
    return [name for name in {**one, **other} if one.get(name) != other.get(name)]


def rings(clients):
    import networkx as nx

    return fedax.Graph.of(nx.cycle_graph(clients)), fedax.Graph.of(nx.complete_graph(clients))


def module_task(activation):
    """A model whose structure has a function."""
    net = eqx.nn.MLP(2, 1, 4, 1, activation=activation, key=jax.random.key(0))
    loss = lambda net, e: (jax.vmap(net)(e["x"])[:, 0] - e["y"]) ** 2  # noqa: E731
    return fedax.Task(net, loss, [{"x": np.ones((3, 2)), "y": np.ones(3)}])


RING, COMPLETE = rings(5)
OTHERS = {
    "module": [{"task": module_task(activation)} for activation in (jax.nn.relu, jnp.tanh)],
    "server optimizer": [
        {"method": fedax.FedAvg(server=optax.sgd(1.0))},
        {"method": fedax.FedAvg(server=optax.sgd(1.0, momentum=0.5))},
    ],
    "its learning rate": [
        {"method": fedax.FedAvg(server=optax.sgd(1.0))},
        {"method": fedax.FedAvg(server=optax.sgd(0.5))},
    ],
    "solver": [{"solver": fedax.Optax(optax.sgd(0.1))}, {"solver": fedax.Optax(optax.adam(0.1))}],
    "its schedule": [
        {"solver": fedax.Optax(optax.sgd(optax.exponential_decay(0.1, 10, rate)))}
        for rate in (0.9, 0.8)
    ],
    "hyperparameter": [{"method": fedax.FedProx(mu=0.1)}, {"method": fedax.FedProx(mu=0.2)}],
    "per-client hyperparameter": [{"method": fedax.FedProx(mu=np.full(5, x))} for x in (0.1, 0.2)],
    "graph": [{"method": fedax.DFedAvgM(graph=RING)}, {"method": fedax.DFedAvgM(graph=COMPLETE)}],
    "codec": [
        {"method": fedax.QuantizedDFedAvgM(code=code)}
        for code in (fedax.codecs.Sign(), fedax.codecs.TopK(0.5))
    ],
    "plain field": [{"method": Scaled(factor=1.0)}, {"method": Scaled(factor=2.0)}],
    "loss": [{"task": task_with()}, {"task": task_with(lambda p, d: squares(p, d) ** 2)}],
    "what a loss holds": [{"task": task_with(scaled_loss(factor))} for factor in (1.0, 2.0)],
    "array that a loss holds": [
        {"task": task_with(scaled_loss(jnp.full(3, x).sum()))} for x in (1.0, 2.0)
    ],
    "score": [
        {"task": task_with(scores={"a": squares})},
        {"task": task_with(scores={"a": scaled_loss(2.0)})},
    ],
    "start": [{"task": task_with(start=0.1)}, {"task": task_with(start=0.2)}],
    "l2": [{"task": task_with()}, {"task": task_with(l2=0.5)}],
    "schedule": [{"schedule": fedax.Schedule(order="given")}, {"schedule": fedax.Schedule()}],
    "seed": [{"seed": 0}, {"seed": 1}],
    "removed channel": [{"channel": fedax.Channel(up=fedax.codecs.Sign())}, {}],
    "dropout": [{"task": task_with(dropped(rate))} for rate in (0.1, 0.2)],
    "removed stop": [{"stop": fedax.Divergence(1.0, 5)}, {}],
    "observer": [
        {"observe": [kind()]} for kind in (fedax.observe.TrainLoss, fedax.observe.Dissimilarity)
    ],
}


def programs_with(values):
    """Functions that hold an array in themselves, or in a jitted function that they call."""
    held = jax.jit(lambda x: x * values)
    return {
        "plain": lambda x: x * values,
        "jit": held,
        "scan": lambda x: jax.lax.scan(lambda c, _: (held(c), None), x, length=3)[0],
        "vmap": lambda x: jax.vmap(held)(x[None]),
    }


@pytest.mark.parametrize("kind", ["plain", "jit", "scan", "vmap"])
@pytest.mark.parametrize("array", [np.asarray, jnp.asarray])
def test_what_a_function_holds_is_in_the_hash_of_its_program(kind, array):
    hashes = {
        identity.hash_program(programs_with(array(np.full(40, x)))[kind], jnp.ones(40))
        for x in (1.0, 2.0, 2.0)
    }
    assert len(hashes) == 2


def test_one_number_of_large_data_is_another_run():
    def with_number(value):
        values = np.zeros((2, 500_000))
        values[1, 400_000] = value
        return fedax.Task(0.0, lambda w, x: (w - x) ** 2, list(values))

    assert differing(identity_of(task=with_number(0.0)), identity_of(task=with_number(1.0))) == [
        "data.train"
    ]


@pytest.mark.parametrize("pair", OTHERS.values(), ids=OTHERS)
def test_another_run_has_another_identity(pair):
    first, second = (identity_of(**options) for options in pair)
    assert first == identity_of(**pair[0])
    assert differing(first, second)


def test_other_versions_are_another_run(monkeypatch):
    before = identity_of()
    versions = {name: before[f"versions.{name}"] for name in identity._PACKAGES}
    monkeypatch.setattr(identity, "version", (versions | {"optax": "0.0.1"}).get)
    after = identity_of()
    assert differing(before, after) == ["versions.optax"]
    assert after["versions.optax"] == "0.0.1"


PROGRAM = """
import sys, json
sys.path[:0] = sys.argv[1:]
import jax
jax.config.update("jax_platforms", "cpu"); jax.config.update("jax_enable_x64", True)
import test_identity as t
options = [pair[0] for pair in t.OTHERS.values()]
print(json.dumps([t.identity_of(**o) for o in options]))
"""


@pytest.mark.slow
def test_other_processes_agree():
    """Nothing of an address, a hash seed or an order of definition gets in."""
    found = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM, *sys.path], capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]
    first, second = (json.loads(text.splitlines()[-1]) for text in found)
    assert first == second


def test_records_count_with_all_their_fields():
    @dataclasses.dataclass
    class Record:
        a: int
        b: tuple

    assert (
        describe(Record(1, (2.0, "x")), "r")
        == describe(Record(1, (2.0, "x")), "r")
        != describe(Record(1, (2.5, "x")), "r")
    )
