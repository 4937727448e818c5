"""The Flower engine with all clients in this process, against the simulation."""

import dataclasses
import subprocess
import sys

import jax
import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from federation import EVERYONE, SCHEDULE, SIZE, SOLVER, check_same, federation, run, task

import fedax
from fedax import codecs
from fedax.flower import Assignment, in_process
from fedax.flower.server import program
from marks import quick
from problems import vector

METHODS = {
    "FedAvg": (fedax.FedAvg(), None),
    "FedDANE": (fedax.FedDANE(mu=0.1), None),
    "SCAFFOLD": (fedax.SCAFFOLD(), None),
    "FedBC": (fedax.FedBC(dual_lr=0.1), None),
    "FedAWARE": (fedax.FedAWARE(), None),
    "FedAWARE, mixed": (fedax.FedAWARE(startup="all", feedback=True, ids="mixed"), None),
    "FedAvg, mixed": (fedax.FedAvg(ids="mixed"), None),
    "Coded": (fedax.FedAvg(), fedax.Channel(up=codecs.Quantizer(b=8), down=codecs.Quantizer(b=8))),
    "Feedback": (fedax.FedAvg(), fedax.Channel(up=codecs.TopK(0.5))),
    "Attacked": (fedax.FedAvg(), fedax.Channel(attack=fedax.attacks.SignFlip(share=0.5))),
}
OBSERVERS = [
    fedax.observe.TrainLoss(),
    fedax.observe.TestLoss(),
    fedax.observe.ClientAccuracy("loss", True),
]


@pytest.fixture(params=quick(METHODS, "FedAvg", "SCAFFOLD", "Attacked"))
def method(request):
    return METHODS[request.param]


@pytest.mark.slow
def test_same_trajectory_as_the_simulation(method, tmp_path):
    algorithm, channel = method
    watched = {"observe": OBSERVERS, "channel": channel}
    ours = run(algorithm, federation(tmp_path, algorithm, channel=channel), **watched)
    theirs = run(algorithm, **watched)
    check_same(ours, theirs)
    assert np.abs(vector(ours) - vector(run(algorithm, rounds=0))).max() > 1e-3
    for name, values in theirs.metrics.items():
        np.testing.assert_allclose(ours.metrics[name], values, rtol=0, atol=1e-12)
    assert np.array_equal(ours.bits.down, theirs.bits.down)
    # what was sent takes whole bytes: two entries of a TopK message have 2 (32 + 2) bits, in nine
    # bytes
    padding = 3 * (72 - 68) if channel is not None and isinstance(channel.up, codecs.TopK) else 0
    assert np.array_equal(ours.bits.up, theirs.bits.up + padding)


@pytest.mark.slow
def test_fifty_clients_in_float32_to_1e_5(tmp_path):
    algorithm = fedax.FedDANE(mu=0.1)
    with jax.enable_x64(False):
        assignment = Assignment(algorithm, SOLVER, EVERYONE)
        engine = in_process(task(50, np.float32), tmp_path, [assignment])
        options = {"clients": 50, "dtype": np.float32, "schedule": EVERYONE}
        ours, theirs = (run(algorithm, given, **options) for given in (engine, None))
    assert vector(ours).dtype == np.float32
    np.testing.assert_allclose(vector(ours), vector(theirs), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_no_example_is_in_any_message(tmp_path):
    """Each message of a run, hellos and measurements included, is searched for the bytes of every
    number of every example."""
    algorithm = fedax.SCAFFOLD()
    engine = federation(tmp_path, algorithm)
    run(algorithm, engine, observe=OBSERVERS)
    sent = b"".join(
        message.content.deflate() + bytes_of(message)
        for message in engine.grid.messages + engine.grid.replies
    )
    planted = np.concatenate([values.ravel() for values in task().train.arrays.values()])
    assert len(sent) > 5000
    assert [number for number in planted if np.asarray(number).tobytes() in sent] == []
    # the search finds what is there: the initial model
    assert vector(run(algorithm, rounds=0)).tobytes()[-8:] in sent


def bytes_of(message):
    return b"".join(
        array.data for record in message.content.array_records.values() for array in record.values()
    )


@pytest.mark.slow
def test_the_run_may_be_continued_by_another_server(tmp_path):
    """The clients' memories are those of the checkpoint, whatever rounds came after it, and old
    ones are dropped. So they are in a run that its history continues."""
    algorithm = fedax.SCAFFOLD()
    engine = federation(tmp_path / "a", algorithm)
    straight = run(algorithm, engine, rounds=6, resume=run(algorithm, engine))
    options = {
        "checkpoint": tmp_path / "checkpoints",
        "checkpoint_every": 2,
        "rounds": 6,
        "observe_every": 6,
    }

    def broken_off(message, answer):
        if message.content["order"]["round"] == 5:
            raise ConnectionError("the server is gone")
        return [answer]

    engine = federation(tmp_path / "b", algorithm, spoil=broken_off, run="r")
    with pytest.raises(ConnectionError, match="the server is gone"):
        run(algorithm, engine, **options)
    rounds = {int(path.name[:9]) for path in (tmp_path / "b").rglob("0*-*-*")}
    assert 4 in rounds
    again = federation(tmp_path / "b", algorithm, run="r")
    assert np.array_equal(vector(run(algorithm, again, **options)), vector(straight))
    assert {
        m.content["order"]["round"]
        for m in again.grid.messages
        if m.metadata.message_type == "train"
    } == {5}


@pytest.mark.slow
def test_a_checkpoint_follows_every_round(tmp_path):
    """Whatever `checkpoint_every` says."""

    def kill(message, answer):
        if message.content["order"]["round"] == 2:
            raise RuntimeError("killed")
        return [answer]

    options = {"rounds": 6, "checkpoint": tmp_path / "kept", "checkpoint_every": 6}
    with pytest.raises(RuntimeError, match="killed"):
        run(fedax.FedAvg(), federation(tmp_path / "d", fedax.FedAvg(), spoil=kill), **options)
    assert list((tmp_path / "kept").glob("round-*"))


@pytest.mark.slow
@pytest.mark.parametrize("resumes", [False, True], ids=["checkpoints", "history"])
def test_versions_of_memories_are_dropped(resumes, tmp_path, monkeypatch):
    algorithm = fedax.SCAFFOLD()
    engine = federation(tmp_path, algorithm)
    options = {"checkpoint": tmp_path / "checkpoints", "checkpoint_every": 1}
    if resumes:
        monkeypatch.setattr(program, "REMEMBERED", 1)
        options = {"resume": run(algorithm, engine, rounds=2), "observe_every": 1}
    run(algorithm, engine, rounds=8, **options)
    for k in range(4):
        rounds = sorted(int(path.name[:9]) for path in (tmp_path / f"client-{k}").rglob("0*-*-*"))
        assert sum(t < 5 for t in rounds) <= 1  # checkpoints 6 and 7 are the last before round 7


@pytest.mark.slow
def test_several_seeds_have_memories_of_their_own(tmp_path):
    algorithm = fedax.SCAFFOLD()
    options = {"solver": SOLVER, "schedule": SCHEDULE, "rounds": 2}
    ours = fedax.run_grid(
        [algorithm], task(), seed=[1, 2], engine=federation(tmp_path, algorithm), **options
    )
    for seed, history in zip((1, 2), ours, strict=True):
        alone = run(algorithm, rounds=2, seed=seed)
        check_same(history, alone)


OTHER = dataclasses.replace(task(), l2=0.0)


@pytest.mark.parametrize(
    ("mu", "options"), [(0.1, {}), (0.2, {"clients": 3}), (0.2, {"whole": OTHER})]
)
def test_an_unknown_run_is_refused_by_the_clients(mu, options, tmp_path):
    engine = federation(tmp_path, fedax.FedProx(mu=mu), **options)
    with pytest.raises(
        fedax.FedaxError,
        match=r"FedProx, measurement of train: client \d: .*not among "
        r"its assignments",
    ):
        run(fedax.FedProx(mu=0.2), engine)


@pytest.mark.slow
def test_flower_is_imported_on_demand():
    code = (
        "import sys, fedax; fedax.Flower; print([name for name in ('flwr', 'grpc', "
        "'fastapi') if name in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )


@pytest.mark.slow
def test_own_leaves_of_the_global_model_are_the_initial_ones(tmp_path):
    algorithm = fedax.FedPer(head="b")
    ours = run(algorithm, federation(tmp_path, algorithm)).params
    theirs = run(algorithm).params
    assert ours["b"] == 0 != theirs["b"]
    np.testing.assert_allclose(ours["w"], theirs["w"], rtol=1e-12)


@pytest.mark.slow
def test_labels_are_flipped_at_clients_with_names(tmp_path):
    """Each has its own value of a hyperparameter."""
    rows = {"x": np.ones(SIZE), "y": np.arange(SIZE)}
    data = fedax.FederatedData.from_arrays(dict.fromkeys("abc", rows))
    labelled = fedax.Task(0.1, lambda w, rows: (w - rows["y"].astype(float)) ** 2, data)
    method = fedax.FedProx(mu={"b": 0.5, "a": 0.0, "c": 1.0})
    channel = fedax.Channel(attack=fedax.attacks.LabelFlip(share=0.5, classes=9))
    engine = federation(tmp_path, method, whole=labelled, channel=channel)
    options = {"solver": SOLVER, "schedule": SCHEDULE, "channel": channel, "rounds": 2}
    ours, theirs = (
        fedax.run(method, labelled, engine=given, **options) for given in (engine, None)
    )
    check_same(ours, theirs)


def test_clients_on_their_own_machines_do_not_collude(tmp_path):
    """The server cannot let them, and says so before it asks anybody."""
    channel = fedax.Channel(attack=fedax.attacks.ALIE(share=0.4))
    engine = federation(tmp_path, fedax.FedAvg(), channel=channel)
    with pytest.raises(fedax.InvalidInput, match="Simulation, Eager or MPI, for this one"):
        run(fedax.FedAvg(), engine, channel=channel)
