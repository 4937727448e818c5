"""Methods that would need more memory than there is say so before anything is allocated."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.core import InvalidInput, Ragged, Task
from fedax.data import FederatedData

CLIENTS = 1_000_000


def many(dim):
    """A million clients with an example each."""
    train = Ragged({"x": np.zeros(CLIENTS)}, np.arange(CLIENTS + 1, dtype=np.int32), CLIENTS, 1)
    data = FederatedData.from_arrays(train)
    return Task(lambda key: jnp.zeros(dim), lambda w, batch, key: (batch["x"] - w[0]) ** 2, data)


@pytest.mark.parametrize(
    ("method", "dim", "what"),
    [
        (
            fedax.FedAWARE(),
            1,
            "FedAWARE: got 1,000,000 clients, whose vectors and inner products take",
        ),
        (
            fedax.AFL(),
            1_000_000,
            r"gather\(train\): got 1,000,000 clients, whose uploads "
            r"together take",
        ),
    ],
    ids=["FedAWARE", "AFL"],
)
def test_more_than_the_machine_has_is_refused(method, dim, what):
    with pytest.raises(
        InvalidInput,
        match=what + r" [\d,.]+ GiB; allowed: at most [\d,.]+ GiB, "
        r"the memory of this machine",
    ):
        fedax.run(
            method,
            many(dim),
            rounds=1,
            schedule=fedax.Schedule(steps=1),
            engine=fedax.Simulation(devices=1),
        )


def test_memories_that_do_not_fit_are_refused_with_the_way_out():
    with pytest.raises(
        InvalidInput,
        match=r"memory of the clients: got 1,000,000 "
        r'clients.*Simulation\(memory="disk"\)',
    ):
        fedax.run(
            fedax.SCAFFOLD(), many(1_000_000), rounds=1, schedule=fedax.Schedule(cohort=2, steps=1)
        )
