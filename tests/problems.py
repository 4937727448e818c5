"""Small federated problems with known answers, for laws and closed forms."""

import dataclasses
import inspect
from typing import Any

import equinox as eqx
import jax
import numpy as np

import fedax
from fedax.algorithms import algorithm_classes
from fedax.algorithms.server.on_classes import has_classes
from fedax.conformance.method import SIZES as SIZES
from fedax.conformance.method import regression as regression
from fedax.conformance.method import squares as squares
from fedax.conformance.method import state_arrays as state_arrays
from fedax.conformance.method import vector as vector
from fedax.core import Algorithm, Which, hyper


def compiled_rounds():
    """The HLO texts of the compiled rounds in this process."""
    programs = jax.local_devices()[0].client.live_executables()
    modules = [module for program in programs for module in program.hlo_modules()]
    return [module.to_string() for module in modules if module.name.startswith("jit__run_rounds")]


def quadratic(curvatures, centres, sizes=None):
    """f_k(w) = (w - b_k)' A_k (w - b_k) / 2, on `sizes[k]` equal examples."""
    sizes = sizes or [1] * len(centres)
    clients = [
        {
            "a": np.repeat(np.asarray(a, float)[None], n, 0),
            "b": np.repeat(np.asarray(b, float)[None], n, 0),
        }
        for a, b, n in zip(curvatures, centres, sizes, strict=True)
    ]

    task = fedax.Task(np.zeros(len(centres[0])), _quadratic_loss, clients)
    # no owner: all tests on quadratics share their programs
    return dataclasses.replace(task, owner=None)


def _quadratic_loss(w, examples):
    off = w[None, :] - examples["b"]
    return jax.numpy.einsum("ni,nij,nj->n", off, examples["a"], off) / 2


def random_quadratic(clients=4, dim=3, seed=0, low=0.5, high=2.0):
    """Curvatures with eigenvalues in [low, high] and spread centres."""
    rng = np.random.default_rng(seed)
    curvatures = []
    centres = []
    for _ in range(clients):
        basis, _ = np.linalg.qr(rng.normal(size=(dim, dim)))
        curvatures.append(basis @ np.diag(rng.uniform(low, high, dim)) @ basis.T)
        centres.append(rng.normal(size=dim))
    return np.array(curvatures), np.array(centres)


# one method of each kind
WATCHED = {"FedAvg", "SCAFFOLD", "FedDANE", "FedAWARE", "PerFedBC", "Ditto", "DFedAvgM", "GTAdam"}


def all_algorithms() -> list[type[Algorithm]]:
    return list(algorithm_classes().values())


class OwnBias(fedax.FedBN):
    """FedBN, whose norms are the leaf `b`: models of the laws have none of that name."""

    norms: Which = hyper("b", leaves=True, doc="leaves that stay at each client")


OwnBias.__name__ = "FedBN"


def some_features(params, examples, key):
    """Two features of any model and any examples."""
    inputs = next(iter(examples.values()))
    row = inputs.reshape(len(inputs), -1).mean(1)
    total = sum(leaf.sum() for leaf in jax.tree.leaves(params))
    return jax.numpy.stack([row * total, row**2 + total**2], axis=1)


class WithFeatures(fedax.MOON):
    """MOON, whose tasks need predictions or features: those of the laws have neither."""

    features: Any = eqx.field(static=True, default=some_features)


WithFeatures.__name__ = "MOON"


def without_classes(kind: type[Algorithm]) -> type[Algorithm]:
    """A method on classes that takes tasks without them, where it trains on their own loss, as
    FedRoD does: the tasks of the laws have no classes."""

    class Fitting(kind):
        def check_model(self, task, layout):
            if has_classes(task):
                super().check_model(task, layout)

        def train(self, client, w):
            if has_classes(client.task):
                return super().train(client, w)
            return fedax.Upload(client.minimize(start=w))

    Fitting.__name__ = kind.__name__
    return Fitting


CLASSIFIERS = {kind: without_classes(kind) for kind in (fedax.FedLC, fedax.FedNTD)}
"""Methods that need classes."""
FITTING = {fedax.FedBN: OwnBias, fedax.MOON: WithFeatures} | CLASSIFIERS


def kinds_of_laws() -> list[type[Algorithm]]:
    """All algorithms, each with defaults that fit the models of the laws."""
    return [FITTING.get(kind, kind) for kind in all_algorithms()]


def is_preset(kind):
    """Whether a method is another one with another server optimizer: the same round, and the same
    work of clients."""
    inherited = any(
        named(kind) != named(other) and issubclass(kind, other) and kind.round is other.round
        for other in all_algorithms()
    )
    own = [f for f in vars(kind).values() if inspect.isfunction(f)]
    return inherited and not any("client" in inspect.signature(f).parameters for f in own)


def named(kind):
    return kind.__name__
