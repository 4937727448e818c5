"""Arguments of another kind, copies and pickles of objects, and a run inside a transformation of JAX."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.core import InvalidInput

TASK = fedax.Task(0.0, lambda w, x: (w - x) ** 2, [[1.0, 2.0], [3.0]])


@pytest.mark.parametrize(
    ("graph", "message"), [("ring", "A name is written as topology="), (np.eye(3), "got array")]
)
def test_graphs_of_another_kind_are_refused(graph, message):
    with pytest.raises(InvalidInput, match=message):
        fedax.DSGD(graph=graph)


def test_objects_are_copied_and_pickled():
    for value in (
        fedax.FedProx(mu=0.5),
        fedax.Schedule(cohort=2),
        fedax.Divergence(2.0),
        fedax.EarlyStopping(patience=3),
    ):
        assert jax.tree.structure(pickle.loads(pickle.dumps(value))) == jax.tree.structure(value)
    doubled = jax.tree.map(lambda leaf: 2 * leaf, fedax.FedProx(mu=0.5))
    assert doubled.mu == 1.0


@pytest.mark.parametrize("owner", ["method", "solver"])
@pytest.mark.parametrize("transformation", [jax.jit, jax.vmap, jax.grad, jax.jacfwd])
def test_a_run_inside_a_transformation_is_refused(transformation, owner):
    def trained(value):
        if owner == "solver":
            return fedax.run(fedax.FedAvg(), TASK, solver=fedax.SGD(value), rounds=1).params
        return fedax.run(fedax.FedProx(mu=value), TASK, rounds=1).params

    given = jnp.ones(2) if transformation is jax.vmap else 1.0
    with pytest.raises(
        InvalidInput,
        match=r"run: called inside jax.jit, jax.vmap or jax.grad. "
        r"Call it outside",
    ):
        transformation(trained)(given)


def test_a_run_by_hand_inside_jit_is_refused():
    with pytest.raises(InvalidInput, match="start: called inside"):
        jax.jit(lambda: fedax.start(fedax.FedAvg(), TASK).state.round)()
