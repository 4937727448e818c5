"""Everything that is given for each client is matched by the clients' names, or refused with the
names."""

import networkx as nx
import numpy as np
import pandas as pd
import pytest

import fedax
from fedax.core import InvalidInput

NAMES = ["berta", "anna", "client10", "client2"]
VALUES = {"anna": 1.0, "berta": 3.0, "client10": 2.0, "client2": 0.5}
CLIENTS = {name: [float(k), 2.0 * k] for k, name in enumerate(NAMES)}
TASK = fedax.Task(0.0, lambda w, x: (w - x) ** 2 / 2, CLIENTS)
UNNAMED = fedax.Task(0.0, lambda w, x: (w - x) ** 2 / 2, list(CLIENTS.values()))
ORDERED = np.array([VALUES[name] for name in NAMES])
HYPERPARAMETERS = [(fedax.FedProx, "mu"), (fedax.FedBC, "lam"), (fedax.FedBC, "gamma")]


def ran(method, task=TASK):
    return np.asarray(fedax.run(method, task, rounds=2, solver=fedax.SGD(0.05)).params)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name"), HYPERPARAMETERS, ids=lambda part: getattr(part, "__name__", part)
)
def test_values_by_name_are_those_in_order(kind, name):
    expected = ran(kind(**{name: ORDERED}))
    by_name = {client: VALUES[client] for client in sorted(NAMES)}
    for values in (by_name, pd.Series(VALUES), ORDERED.tolist()):
        np.testing.assert_array_equal(ran(kind(**{name: values})), expected)
    by_number = {k: float(value) for k, value in reversed(list(enumerate(ORDERED)))}
    np.testing.assert_array_equal(ran(kind(**{name: by_number}), UNNAMED), expected)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"anna": 1.0, "berta": 1.0, "client2": 1.0}, "client10"),
        (VALUES | {"ana": 1.0}, "'ana'"),
        (VALUES | {"anna": -1.0}, "infinity"),
        ([1.0, 2.0], "2 numbers"),
        (["1.0", "2.0", "3.0", "4.0"], "per client"),
        (pd.Series([1.0] * 4, index=["anna", "anna", "berta", "client2"]), "'anna' twice"),
    ],
)
def test_values_that_do_not_fit_the_clients_are_refused(values, field):
    with pytest.raises(InvalidInput, match=field):
        ran(fedax.FedProx(mu=values))


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
    strange = nx.relabel_nodes(path, {"client10": "carl"})
    with pytest.raises(InvalidInput, match="client10"):
        ran(fedax.DSGD(graph=fedax.Graph.of(strange, order=["carl", *NAMES[:2], NAMES[3]])))
    with pytest.raises(InvalidInput, match="matrix"):
        fedax.Graph.given(frame[NAMES])


LABELLED = [{"x": [[float(k)]], "y": [k % 2]} for k in range(4)]


def of_rows(w, examples):
    return (w - examples["x"][:, 0]) ** 2


@pytest.mark.parametrize("part", ["test", "validation"])
@pytest.mark.parametrize("order", [sorted(NAMES), NAMES[:2]], ids=["sorted", "some"])
def test_parts_of_the_data_are_matched_by_name(part, order):
    data = fedax.FederatedData.from_arrays(LABELLED, classes=2, names=NAMES)
    given = {name: {"x": [[10.0 * NAMES.index(name)]], "y": [0]} for name in order}
    for clients in (data, dict(zip(NAMES, LABELLED, strict=True))):
        task = fedax.Task(0.0, of_rows, fedax.FederatedData.from_arrays(clients, **{part: given}))
        made = getattr(task, part)
        assert made.arrays["x"][:, 0].tolist() == sorted(10.0 * NAMES.index(name) for name in order)
        assert np.asarray(made.sizes).tolist() == [int(name in order) for name in NAMES]
