"""Examples on the host: the same numbers, to the bit, as with all of them on the devices."""

import jax
import numpy as np
import pytest

import fedax
from fedax.data import store, stored
from fedax.engine.backends.simulation.host import HostExamples
from marks import quick
from parts import with_unseen, with_validation

SCHEDULE = fedax.Schedule(cohort=4, epochs=1, batch_size=7)


@pytest.fixture(scope="module")
def data():
    return fedax.data.digits("power_law", clients=12, test_fraction=0.3)


@pytest.fixture(scope="module")
def folder(data, tmp_path_factory):
    return store(tmp_path_factory.mktemp("stored") / "digits", data)


def task_of(data):
    return fedax.classification(data, fedax.models.Softmax(64, 10))


def same(one, other):
    for mine, theirs in zip(
        jax.tree.leaves(one.params), jax.tree.leaves(other.params), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)
    assert one.metrics.keys() == other.metrics.keys()
    for name, values in one.metrics.items():
        np.testing.assert_array_equal(values, other.metrics[name])


OBSERVED = (
    fedax.observe.TrainLoss(),
    fedax.observe.TestAccuracy(),
    fedax.observe.ClientAccuracy(),
    fedax.observe.AUC(),
    fedax.observe.Dissimilarity(),
)


METHODS = {
    "SCAFFOLD": fedax.SCAFFOLD(),
    "FedDANE": fedax.FedDANE(mu=0.1),
    "PerFedAvg": fedax.PerFedAvg(),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", quick(METHODS, "SCAFFOLD"))
def test_files_and_devices_give_the_same_bits(data, folder, name):
    runs = [
        fedax.run(METHODS[name], task_of(each), schedule=SCHEDULE, rounds=3, observe=OBSERVED)
        for each in (data, stored(folder))
    ]
    same(*runs)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [1, 3])
def test_arrays_in_memory_may_stay_on_the_host(data, chunk):
    runs = [
        fedax.run(
            fedax.FedBC(),
            task_of(data),
            schedule=SCHEDULE,
            rounds=2,
            engine=fedax.Simulation(chunk=chunk, devices=2, data=place),
        )
        for place in ("device", "host")
    ]
    same(*runs)


@pytest.mark.slow
def test_own_models_validation_and_unseen_clients_read_from_the_host(data):
    task = with_unseen(with_validation(task_of(data), 0.2), 0.25)
    observed = (
        fedax.observe.ClientAccuracy(personal=True),
        fedax.observe.Unseen(),
        fedax.observe.ValidationLoss(),
    )
    runs = [
        fedax.run(
            fedax.PFedMe(),
            task,
            schedule=SCHEDULE,
            rounds=2,
            observe=observed,
            personal=True,
            engine=fedax.Simulation(data=place),
        )
        for place in ("device", "host")
    ]
    same(*runs)
    for mine, theirs in zip(*(jax.tree.leaves(run.personal) for run in runs), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.slow
def test_rounds_read_their_cohorts_and_no_one_else(data, monkeypatch):
    """A round of four clients asks for four, each once; nothing is read for everybody."""
    asked = []
    monkeypatch.setattr(HostExamples, "read", lambda self, begin, count, places, own=HostExamples.read: (
        asked.append((begin, count)), own(self, begin, count, places))[1])  # fmt: skip
    engine = fedax.Simulation(data="host", devices=1)
    fedax.run(fedax.FedAvg(), task_of(data), schedule=SCHEDULE, rounds=3, observe=[], engine=engine)
    assert len(asked) == 3 * 4
    assert {count for _, count in asked} <= set(data.sizes.tolist())


@pytest.mark.slow
def test_a_program_does_not_keep_the_examples(data):
    """Data of the same form share programs; those of a run that is over are let go."""
    engine = fedax.Simulation(data="host", devices=1)
    before = len(_sets())
    for factor in (1.0, 2.0):
        changed = fedax.FederatedData.from_arrays(
            [{"x": c["x"] * factor, "y": c["y"]} for c in data.train], classes=10
        )
        fedax.run(
            fedax.FedAvg(), task_of(changed), schedule=SCHEDULE, rounds=1, observe=[], engine=engine
        )
    assert len(_sets()) == before


def _sets():
    import gc

    from fedax.engine.backends.simulation import host as shelf

    gc.collect()
    return dict(shelf._SETS)


def test_data_in_files_stay_there(data, folder):
    engine = fedax.Simulation()
    session = [
        fedax.start(fedax.FedAvg(), task_of(each), engine=engine) for each in (data, stored(folder))
    ]
    assert [bool(each._program.host_examples) for each in session] == [False, True]
