"""Everything that is given for each client is matched by the clients' names, or refused with the
names."""

import itertools

import jax
import networkx as nx
import numpy as np
import pandas as pd
import pytest

import fedax
from fedax.core import InvalidInput
from fedax.examples.client_names import ClientNames

NAMES = ["berta", "anna", "client10", "client2"]
VALUES = {"anna": 1.0, "berta": 3.0, "client10": 2.0, "client2": 0.5}
CLIENTS = {name: [float(k), 2.0 * k] for k, name in enumerate(NAMES)}
TASK = fedax.Task(0.0, lambda w, x: (w - x) ** 2 / 2, CLIENTS)
UNNAMED = fedax.Task(0.0, lambda w, x: (w - x) ** 2 / 2, list(CLIENTS.values()))
ORDERED = np.array([VALUES[name] for name in NAMES])
HYPERPARAMETERS = [
    (fedax.FedProx, "mu"),
    (fedax.FedDANE, "mu"),
    *((fedax.FedBC, name) for name in ("lam", "gamma", "lam_min", "lam_max")),
]


def ran(method, task=TASK):
    return np.asarray(fedax.run(method, task, rounds=2, solver=fedax.SGD(0.05)).params)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name"), HYPERPARAMETERS, ids=lambda part: getattr(part, "__name__", part)
)
def test_values_by_name_are_those_in_order(kind, name):
    expected = ran(kind(**{name: ORDERED}))
    for order in list(itertools.permutations(NAMES))[::7]:
        by_name = {client: VALUES[client] for client in order}
        np.testing.assert_array_equal(ran(kind(**{name: by_name})), expected)
    np.testing.assert_array_equal(ran(kind(**{name: pd.Series(VALUES)})), expected)
    np.testing.assert_array_equal(ran(kind(**{name: ORDERED.tolist()})), expected)
    by_number = {k: float(value) for k, value in reversed(list(enumerate(ORDERED)))}
    np.testing.assert_array_equal(
        ran(kind(**{name: by_number}), UNNAMED), ran(kind(**{name: ORDERED}), UNNAMED)
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"anna": 1.0, "berta": 1.0, "client2": 1.0},
            r"no value for .'client10'.; allowed: a value for each client",
        ),
        (VALUES | {"ana": 1.0}, "got 'ana'; allowed: names of clients: .*Did you mean 'anna'"),
        (VALUES | {"anna": -1.0}, "numbers in .0, infinity"),
        ({}, "one or one per client"),
        ([1.0, 2.0], r"got 2 numbers; allowed: one number, or 4"),
        (["1.0", "2.0", "3.0", "4.0"], "one or one per client"),
        ([True, False, True, False], "one or one per client"),
        (
            pd.Series([1.0, 2.0, 3.0, 4.0], index=["anna", "anna", "berta", "client2"]),
            "a name twice",
        ),
        (pd.DataFrame({"mu": [1.0, 2.0, 3.0, 4.0]}), "one or one per client"),
    ],
)
def test_values_that_do_not_fit_the_clients_are_refused(values, message):
    with pytest.raises(InvalidInput, match=message):
        ran(fedax.FedProx(mu=values))


@pytest.mark.slow
def test_values_by_name_in_grids_sessions_and_footprints():
    grid = [
        fedax.FedProx(mu=VALUES),
        fedax.FedProx(mu=ORDERED),
        fedax.FedProx(mu=pd.Series(VALUES)),
    ]
    first, *others = fedax.run_grid(grid, TASK, rounds=2, solver=fedax.SGD(0.05))
    assert all(np.array_equal(first.params, other.params) for other in others)
    session = fedax.start(fedax.FedProx(mu=VALUES), TASK, solver=fedax.SGD(0.05))
    state, _ = session.step(session.init())
    assert np.isfinite(jax.tree.leaves(session.params(state))[0])
    assert fedax.footprint(fedax.FedProx(mu=VALUES), TASK) == fedax.footprint(
        fedax.FedProx(mu=ORDERED), TASK
    )


@pytest.mark.slow
def test_nodes_of_a_graph_are_the_clients_of_their_names():
    path = nx.path_graph(sorted(NAMES))
    expected = ran(fedax.DSGD(graph=fedax.Graph.of(path, order=NAMES)))
    frame = pd.DataFrame(nx.to_numpy_array(path) / 3, index=sorted(NAMES), columns=sorted(NAMES))
    frame += np.diag(1 - frame.sum(axis=1))
    for graph in (fedax.Graph.of(path, order=sorted(NAMES)), fedax.Graph.given(frame)):
        np.testing.assert_allclose(ran(fedax.DSGD(graph=graph)), expected, rtol=1e-12)
        np.testing.assert_allclose(
            ran(fedax.DSGD(graph=fedax.Graph.sequence([graph, graph]))), expected, rtol=1e-12
        )
    with pytest.raises(
        InvalidInput,
        match=r"got no node for .'client10'.; allowed: a node for "
        r"each client, by the names",
    ):
        ran(
            fedax.DSGD(
                graph=fedax.Graph.of(
                    nx.relabel_nodes(path, {"client10": "carl"}),
                    order=["carl", *NAMES[:2], NAMES[3]],
                )
            )
        )
    with pytest.raises(InvalidInput, match="a frame whose index and columns differ"):
        fedax.Graph.given(frame[NAMES])
    with pytest.raises(InvalidInput, match="the numbers from 0 in order"):
        fedax.Graph.given(pd.DataFrame(np.eye(2), index=[1, 0], columns=[1, 0]), connected=False)


LABELLED = [{"x": [[float(k)]], "y": [k % 2]} for k in range(4)]


def of_rows(w, examples):
    return (w - examples["x"][:, 0]) ** 2


@pytest.mark.parametrize("part", ["test", "validation"])
@pytest.mark.parametrize("order", [NAMES, sorted(NAMES), NAMES[:2]], ids=["same", "sorted", "some"])
def test_parts_of_the_data_are_matched_by_name(part, order):
    data = fedax.FederatedData.from_arrays(LABELLED, classes=2, names=NAMES)
    given = {name: {"x": [[10.0 * NAMES.index(name)]], "y": [0]} for name in order}
    for clients in (data, dict(zip(NAMES, LABELLED, strict=True))):
        task = fedax.Task(0.0, of_rows, fedax.FederatedData.from_arrays(clients, **{part: given}))
        made = getattr(task, part)
        assert made.arrays["x"][:, 0].tolist() == sorted(10.0 * NAMES.index(name) for name in order)
        assert np.asarray(made.sizes).tolist() == [int(name in order) for name in NAMES]
    for clients, message in (
        (data, f"{part}: got 'carl'"),
        (LABELLED, f"{part}: got '.*'; allowed: numbers of clients"),
    ):
        with pytest.raises(InvalidInput, match=message):
            fedax.Task(
                0.0,
                of_rows,
                fedax.FederatedData.from_arrays(clients, **{part: given | {"carl": given["anna"]}}),
            )
    numbered = {3: {"x": [[30.0]], "y": [0]}, 0: {"x": [[0.0]], "y": [0]}}
    made = getattr(
        fedax.Task(0.0, of_rows, fedax.FederatedData.from_arrays(LABELLED, **{part: numbered})),
        part,
    )
    assert made.arrays["x"][:, 0].tolist() == [0.0, 30.0]
    assert np.asarray(made.sizes).tolist() == [1, 0, 0, 1]


@pytest.mark.parametrize("names", [set(NAMES), frozenset(NAMES), "abcd"])
def test_names_without_an_order_are_refused(names):
    with pytest.raises(InvalidInput, match="a list with the name of each client, in their order"):
        ClientNames(names)


FRAME = pd.DataFrame({"a": [1.0, 2.0], "b": [10.0, 20.0]})


@pytest.mark.parametrize("pair", [("a ", " a"), ("caf\u00e9", "cafe\u0301")])
def test_names_that_look_the_same_are_refused(pair):
    message = "which look the same"
    with pytest.raises(InvalidInput, match=message):
        fedax.Task(0.0, of_rows, dict(zip(pair, LABELLED[:2], strict=True)))
    with pytest.raises(InvalidInput, match=message):
        fedax.FederatedData.from_arrays(LABELLED[:2], classes=2, names=list(pair))
