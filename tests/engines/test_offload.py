"""Clients' memories on the host or on disk: the same bits as on the device, with the cohort's rows
moved and no others."""

import gc

import jax
import numpy as np
import pytest

import fedax
from fedax import InvalidInput
from fedax.core.federation import ClientStates
from fedax.engine.backends.simulation import engine as simulation
from fedax.engine.backends.simulation.host import STORES, RowStore, to_device
from fedax.errors import FedaxError
from marks import quick, slow
from problems import regression, vector

TASK = regression()
CLIENTS = TASK.train.clients
SCHEDULE = fedax.Schedule(cohort=3, steps=2, batch_size=4)
OPTIONS = {
    "schedule": SCHEDULE,
    "rounds": 6,
    "observe_every": 3,
    "observe": [fedax.observe.TrainLoss()],
}
FEEDBACK = fedax.Channel(up=fedax.codecs.TopK(0.5))


def all_of(history):
    """Everything that a run leaves, memories as everybody's rows."""
    kept = (
        history.params,
        history.state,
        history.carry.lost,
        history.model_state,
        history.personal,
        history.metrics,
        history.logged,
    )
    return jax.tree.map(np.asarray, to_device(kept))


def same(one, other):
    mine, theirs = (jax.tree.leaves(all_of(history)) for history in (one, other))
    assert len(mine) == len(theirs)
    assert all(
        a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in zip(mine, theirs, strict=True)
    )
    assert one.bits.up.tolist() == other.bits.up.tolist()
    assert one.outcome == other.outcome


def go(method, place, task=TASK, devices=1, **options):
    engine = fedax.Simulation(memory=place, devices=devices)
    return fedax.run(method, task, engine=engine, personal=True, **OPTIONS | options)


def memory_of(history):
    """The only memory in a run's state."""
    found = jax.tree.leaves(history.state, is_leaf=lambda node: isinstance(node, ClientStates))
    return next(node for node in found if isinstance(node, ClientStates))


METHODS = {
    "SCAFFOLD": fedax.SCAFFOLD(),
    "FedDyn": fedax.FedDyn(),
    "FedADMM": fedax.FedADMM(),
    "Ditto": fedax.Ditto(),
    "FedBC, lam and gamma of each": fedax.FedBC(
        lam=np.linspace(0.1, 1, CLIENTS), gamma=np.linspace(0, 1, CLIENTS), dual_lr=0.1
    ),
    "PFedMe, two phases": fedax.PFedMe(trained="all"),
    "DFedAvgM, everybody": fedax.DFedAvgM(),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", quick(METHODS, "SCAFFOLD"))
@pytest.mark.parametrize("place", ["host", "disk"])
def test_the_same_bits_as_on_the_device(name, place):
    options = {"schedule": fedax.Schedule(steps=2, batch_size=4)} if "everybody" in name else {}
    same(go(METHODS[name], place, **options), go(METHODS[name], "device", **options))


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [slow(fedax.FedAvg()), fedax.FedDANE(mu=0.1)], ids=["one phase", "two phases"]
)
def test_what_messages_lost(method):
    same(go(method, "host", channel=FEEDBACK), go(method, "device", channel=FEEDBACK))


def counted(w, e, *, state, training):
    """Distances from inputs less their running mean, of which clients keep their own and count
    their steps."""
    new = (
        {"count": state["count"] + 1, "mean": (state["mean"] + e["x"].mean(0)) / 2}
        if training
        else state
    )
    losses = ((w + new["mean"])[None] - e["x"]) ** 2
    return (losses.sum(1), new) if training else losses.sum(1)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["host", slow("disk")])
def test_states_of_models_that_clients_keep(place):
    clients = [{"x": np.full((4, 2), value)} for value in (1.0, 2.0, 5.0)]
    task = fedax.Task(
        np.zeros(2),
        counted,
        clients,
        state={"count": np.zeros((), np.int32), "mean": np.zeros(2)},
        state_policy="local",
    )
    one, other = (
        go(
            fedax.FedAvg(),
            each,
            task,
            schedule=fedax.Schedule(cohort=2, steps=2, batch_size=2),
            keep_best="train_loss",
        )
        for each in (place, "device")
    )
    same(one, other)
    for mine, theirs in zip(
        jax.tree.leaves(one.best.state), jax.tree.leaves(other.best.state), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.slow
def test_a_round_of_nobody_and_clients_that_are_left_out():
    away = fedax.Schedule(cohort=2, steps=2, batch_size=4, conditions={"dropouts": 0.6})
    for devices in (1, 2):
        histories = [
            go(fedax.SCAFFOLD(), place, schedule=away, rounds=12, devices=devices)
            for place in ("host", "device")
        ]
        assert (histories[0].bits.up == 0).any()
        same(*histories)
    with pytest.raises(InvalidInput, match=r"PFedMe.round: has several phases, .*\"device\""):
        go(fedax.PFedMe(trained="all"), "host", schedule=away)
    clients = [{"x": np.full((4, 1), value)} for value in (1e308, 1.0, 2.0, 3.0)]
    broken = fedax.Task(
        np.zeros(1), lambda w, x: ((w[None] - x["x"]) ** 2).sum(1), clients
    )  # whose first has no finite gradient
    histories = [
        go(
            fedax.SCAFFOLD(),
            place,
            broken,
            on_bad_client="drop",
            observe=[],
            schedule=fedax.Schedule(cohort=1, steps=2, batch_size=4),
            rounds=12,
        )
        for place in ("host", "device")
    ]
    assert (histories[0].logged["dropped"] == 0).any()
    same(*histories)
    assert 0 not in memory_of(histories[0]).written()[0]


@pytest.mark.parametrize(("chunk", "devices"), [slow(1, 1), slow(8, 1), slow(1, 2)])
def test_grids_of_settings_and_seeds(chunk, devices):
    """Three seeds on two devices: one of them works on a member twice, in a store of its own."""
    grid = [fedax.SCAFFOLD(lr=lr) for lr in (0.5, 1.0)]
    for methods, seeds in ((grid, [1, 2]), (grid[:1], [1, 2, 3])):
        runs = [
            fedax.run_grid(
                methods,
                TASK,
                seed=seeds,
                **OPTIONS,
                engine=fedax.Simulation(chunk, memory=place, devices=devices),
            )
            for place in ("host", "device")
        ]
        for one, other in zip(*runs, strict=True):
            same(one, other)
        assert len({vector(history).tobytes() for history in runs[0]}) == len(runs[0])


@pytest.mark.slow
def test_a_member_that_ends_early_keeps_its_memory(tmp_path):
    task = fedax.Task(0.0, lambda w, x: (w - x) ** 2 / 2, [[1.0, 2.0], [5.0, 6.0]])
    grid = [fedax.SCAFFOLD(lr=lr) for lr in (1.0, 5.0)]
    settings = {
        "rounds": 20,
        "observe": [fedax.observe.TrainLoss()],
        "stop": fedax.Divergence(window=2),
    }
    settings |= {"solver": fedax.SGD(0.5), "schedule": fedax.Schedule(steps=2)}
    runs = [
        fedax.run_grid(
            grid,
            task,
            **settings,
            checkpoint=tmp_path / place,
            engine=fedax.Simulation(memory=place),
        )
        for place in ("host", "device")
    ]
    assert [history.outcome.kind for history in runs[0]] == ["ok", "diverged"]
    again = fedax.run_grid(
        grid, task, **settings, checkpoint=tmp_path / "host", engine=fedax.Simulation(memory="host")
    )
    for one, other, third in zip(*runs, again, strict=True):
        same(one, other)
        same(one, third)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "then"), [("device", "disk"), ("host", "device"), ("disk", "host")]
)
def test_either_place_continues_what_the_other_began(first, then, tmp_path):
    method = METHODS["FedBC, lam and gamma of each"]
    straight = go(METHODS["FedBC, lam and gamma of each"], "device")
    half = go(method, first, rounds=3, checkpoint=tmp_path)
    same(go(method, then, checkpoint=tmp_path), straight)
    for _ in range(2):  # the history stays as it was
        same(go(method, then, resume=half), straight)


@pytest.mark.parametrize("memory", ["device", "host"])
def test_a_session_takes_over_the_states_that_it_steps(memory):
    """It makes the rounds of `run`; a state that was stepped is refused, not stepped wrongly."""
    session = fedax.start(
        fedax.PFedMe(), TASK, schedule=SCHEDULE, engine=fedax.Simulation(memory=memory)
    )
    before = state = session.init()
    for _ in range(3):
        state, _ = session.step(before := state)
    straight = go(fedax.PFedMe(), "device", rounds=3)
    for one, other in zip(*map(jax.tree.leaves, (session.params(state), straight.params))):
        np.testing.assert_array_equal(one, other)
    for use in (session.step, session.params):
        with pytest.raises((RuntimeError, ValueError), match="deleted"):
            use(before)


@pytest.mark.slow
def test_rounds_move_their_cohorts_and_a_store_grows_by_those_who_worked(monkeypatch):
    moved = []
    for name in ("read", "write"):
        original = getattr(RowStore, name)
        monkeypatch.setattr(RowStore, name, lambda self, version, ids, *rows, original=original: (
            moved.append(len(ids)), original(self, version, ids, *rows))[1])  # fmt: skip
    clients = 100_000
    dim = 7
    examples = fedax.FederatedData.from_arrays(
        fedax.core.Ragged.flat({"x": np.ones((clients, dim))}, np.ones(clients, int))
    )
    task = fedax.Task(
        lambda key: np.zeros(dim),
        lambda w, data, key: ((w[None] - data["x"]) ** 2).sum(1),
        examples,
    )
    engine = fedax.Simulation(memory="host", devices=1)
    for method in (
        fedax.SCAFFOLD(),
        fedax.FedBC(),
    ):  # whose weights are looked at by observers that ask for them, and no others
        history = fedax.run(
            method,
            task,
            observe=[fedax.observe.TrainLoss()],
            engine=engine,
            schedule=fedax.Schedule(cohort=10, steps=1, batch_size=1),
            rounds=3,
            observe_every=3,
        )
        store = memory_of(history).store
        assert 0 < store.exists.sum() <= 30
        assert moved == 2 * 3 * [10]
        assert len(memory_of(history).written()[0]) == store.exists.sum()
        moved.clear()


@pytest.mark.slow
def test_stores_end_with_those_who_hold_them():
    gc.collect()
    before = len(STORES)
    history = go(fedax.SCAFFOLD(), "disk")
    gc.collect()
    assert len(STORES) == before + 1
    del history
    gc.collect()
    assert len(STORES) == before


@pytest.mark.parametrize("place", ["host", "disk"])
def test_rows_are_written_once_and_read_in_their_order(place):
    store = RowStore(1000, [jax.ShapeDtypeStruct((3,), np.uint8)], place)

    def rows(*values):
        return [np.array([[value] * 3 for value in values], np.uint8)]

    def seen(store, version):
        exists, found = store.read(version, np.array([5, 7, 8]))
        return [int(row[0]) if is_there else None for is_there, row in zip(exists, found)]

    assert store.write(0, np.array([5, 7, 1000, -1]), rows(1, 2, 9, 9)) == 1
    copy = store.copy("host")
    assert store.write(1, np.array([8, 7, 7]), rows(3, 1, 4)) == 2
    # another device makes the same calls
    assert store.write(0, np.array([5, 7, 1000, -1]), rows(1, 2, 9, 9)) == 1
    assert store.write(1, np.array([8, 7, 7]), rows(3, 1, 4)) == 2
    assert (seen(store, 2), seen(copy, 0)) == ([1, 4, 3], [1, 2, None])
    assert np.flatnonzero(store.exists).tolist() == [5, 7, 8]
    with pytest.raises(FedaxError, match="read after later ones were written"):
        store.read(1, np.array([5]))


def test_runs_on_the_same_task_share_their_programs(monkeypatch):
    go(fedax.SCAFFOLD(), "host")
    monkeypatch.setattr(simulation, "one_round", lambda *arguments: pytest.fail("traced again"))
    go(fedax.SCAFFOLD(), "host", seed=3)
