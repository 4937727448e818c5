"""Arguments of another kind, copies and pickles of objects, and a run inside a transformation of JAX."""

import pickle

import jax

import fedax


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
