"""Ranks that disagree, fail, stop and resume. They are threads here; `tests/faults` has real
ones."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from threads import on_ranks

import fedax
from fedax.core import InvalidInput, RankFailed
from marks import quick
from problems import vector

SIZES = (7, 12, 9, 4)


def squares(params, examples):
    return (examples["x"] @ params["w"] + params["b"] - examples["y"]) ** 2 / 2


def doubled(params, examples):
    return (examples["x"] @ params["w"] + params["b"] - examples["y"]) ** 2


def task(rank=None, loss=squares, start=0.1, move=0.0, test=True, l2=0.01, validation=False):
    """Everybody's examples, or one rank's own."""
    rng = np.random.default_rng(0)
    clients = [
        {"x": rng.normal(size=(n, 3)), "y": rng.normal(size=n) + k + move}
        for k, n in enumerate(SIZES)
    ]
    kept = clients if rank is None else [clients[rank]]
    data = fedax.FederatedData.from_arrays(
        kept, test=kept if test else None, validation=kept if validation else None
    )
    return fedax.Task({"b": 0.0, "w": np.full(3, start)}, loss, data, l2=l2)


def schedule(cohort=3, epochs=2):
    return fedax.Schedule(cohort=cohort, epochs=epochs, batch_size=4)


def go(comm=None, algorithm=None, given=None, **options):
    engine = fedax.Simulation(devices=1) if comm is None else fedax.MPI(comm)
    own = {
        "solver": fedax.SGD(0.05),
        "schedule": schedule(),
        "rounds": 7,
        "seed": 3,
        "observe": [fedax.observe.TrainLoss()],
        "observe_every": 3,
    }
    return fedax.run(algorithm or fedax.SCAFFOLD(), given or task(), engine=engine, **own | options)


ODD = {
    "learning rate": ("solver.learning_rate", lambda: {"solver": fedax.SGD(0.06)}),
    "algorithm": ("algorithm", lambda: {"algorithm": fedax.FedAvg()}),
    "seed": ("seed", lambda: {"seed": 4}),
    "rounds": ("rounds", lambda: {"rounds": 8}),
    "data": ("data.train", lambda: {"given": task(move=1.0)}),
    "loss": ("program of a round", lambda: {"given": task(loss=doubled)}),
    "clients": ("task.clients", lambda: {"given": task(2)}),
    "cadence": ("observe_every", lambda: {"observe_every": 2}),
    "checkpoints": ("checkpoint_every", lambda: {"checkpoint": "nowhere"}),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("words", [words for words, _ in ODD.values()], ids=ODD)
def test_ranks_that_disagree_are_told_before_round_0(words, request):
    odd = next(options for known, options in ODD.values() if known is words)()
    heard = []
    found = on_ranks(
        4, lambda comm: go(comm, progress=heard.append, **odd if comm.rank == 2 else {})
    )
    assert [type(error) for error in found] == [InvalidInput] * 4, found
    assert len({str(error) for error in found}) == 1
    assert re.search(f"MPI engine: the ranks disagree about.*{words}", str(found[0])), found[0]
    assert heard == []


@pytest.mark.slow
def test_ranks_have_their_own_validation_sets():
    options = {"observe": [fedax.observe.ValidationLoss()], "keep_best": "validation_loss"}

    alone = go(given=task(validation=True), **options)
    for history in on_ranks(
        4, lambda comm: go(comm, given=task(comm.rank, validation=True), **options)
    ):
        assert history.best.round == alone.best.round
        values = (h.metrics["validation_loss"] for h in (history, alone))
        np.testing.assert_allclose(*values, rtol=1e-6)


@pytest.mark.parametrize("rank", [0, 2])
def test_what_one_rank_refuses_all_refuse(rank):
    found = on_ranks(4, lambda comm: go(comm, seed=-1 if comm.rank == rank else 3))
    kinds = [InvalidInput if r == rank else RankFailed for r in range(4)]
    assert [type(error) for error in found] == kinds, found
    assert all(
        f"rank {rank}: InvalidInput: run(seed=...): got -1" in str(found[r])
        for r in range(4)
        if r != rank
    )
    assert "Traceback" in found[3].__notes__[0]


def test_statistics_of_gradients_do_not_overflow_in_half_precision():
    """The gradient is 300 on every rank."""
    given = fedax.Task(np.float16(0), lambda w, x: w * jnp.float16(x), np.full((4, 1), 300))
    found = on_ranks(
        4,
        lambda comm: go(comm, given=given, observe=[fedax.observe.Dissimilarity()], rounds=0),
    )
    assert found[0].last("dissimilarity") == 1


@pytest.mark.slow
def test_one_rank_stops_all():
    def work(comm):
        return go(comm, progress=lambda progress: comm.rank == 1 and progress.round == 3)

    found = on_ranks(4, work)
    assert [(history.outcome.kind, history.outcome.round) for history in found] == [
        ("interrupted", 3)
    ] * 4


def bits(history):
    return [
        np.asarray(leaf).tobytes()
        for leaf in jax.tree.leaves(
            (history.params, history.personal, history.metrics, history.logged, history.bits.up)
        )
    ]


class Killed(RuntimeError):
    pass


def kill_at(round):
    def hook(progress):
        if progress.round == round:
            raise Killed

    return hook


METHODS = {
    "SCAFFOLD": fedax.SCAFFOLD,
    "DFedAvgM": fedax.DFedAvgM,
    "with feedback": fedax.FedAvg,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", quick(METHODS, "SCAFFOLD"))
def test_ranks_continue_to_the_bit(name, tmp_path):
    """Every rank gets its own client's memory back, wherever it lies now; only rank 0 has seen the
    folder."""
    options = {"personal": True, "checkpoint_every": 2, "algorithm": METHODS[name]()}
    if name == "with feedback":
        options["channel"] = fedax.Channel(up=fedax.codecs.TopK(0.5))

    def work(comm, folder=None, **more):
        folders = (
            {}
            if folder is None
            else {"checkpoint": folder if comm.rank == 0 else tmp_path / "elsewhere"}
        )
        return go(comm, given=task(comm.rank), **options, **folders, **more)

    straight = on_ranks(4, work)
    stopped = on_ranks(4, lambda comm: work(comm, tmp_path / "a", progress=kill_at(6)))
    assert [type(error) for error in stopped] == [Killed] * 4, stopped
    assert sorted(p.name for p in (tmp_path / "a").glob("*-*")) == [
        "round-000000002",
        "round-000000004",
    ]
    again = on_ranks(4, lambda comm: work(comm, tmp_path / "a"))
    assert [bits(history) for history in again] == [bits(history) for history in straight]
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.slow
def test_an_engine_continues_what_the_other_began(tmp_path):
    """Checkpoints hold everybody's memory: ranks go on where the simulation was, and the other way
    round."""
    straight = go(personal=True)
    on_ranks(
        4, lambda comm: go(comm, checkpoint=tmp_path / "a", checkpoint_every=2, progress=kill_at(6))
    )
    heard = []
    one = go(
        checkpoint=tmp_path / "a",
        checkpoint_every=2,
        progress=lambda p: heard.append(p.round),
        personal=True,
    )
    assert heard == [6, 7]
    with pytest.raises(Killed):
        go(checkpoint=tmp_path / "b", checkpoint_every=2, progress=kill_at(6))
    several = on_ranks(
        4, lambda comm: go(comm, checkpoint=tmp_path / "b", checkpoint_every=2, personal=True)
    )
    for history in (one, *several):
        for a, b in zip(
            *(jax.tree.leaves((h.params, h.personal, h.metrics)) for h in (history, straight)),
            strict=True,
        ):
            np.testing.assert_allclose(a, b, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [fedax.SCAFFOLD(), fedax.FedAWARE(), fedax.FedDANE(mu=0.1)],
    ids=lambda method: type(method).__name__,
)
def test_ranks_leave_out_the_clients_that_the_simulation_does(method):
    """Client 1 cannot compute its loss; means, rows and second phases go on without it, and so does
    what it would remember."""

    def marked(params, examples):
        return jnp.where(examples["bad"] > 0, jnp.nan, 1.0) * squares(params, examples)

    def broken(rank=None):
        clients = [
            {**task().train[k], "bad": np.full(n, float(k == 1))} for k, n in enumerate(SIZES)
        ]
        return fedax.Task(
            {"b": 0.0, "w": np.zeros(3)}, marked, clients if rank is None else [clients[rank]]
        )

    options = {"on_bad_client": "drop", "rounds": 4, "observe": [], "algorithm": method}
    one = go(given=broken(), **options)
    assert {*np.unique(one.logged["dropped"])} == {-1, 1}
    several = on_ranks(4, lambda comm: go(comm, given=broken(comm.rank), **options))
    for history in several:
        assert history.logged["dropped"].tolist() == one.logged["dropped"].tolist()
        assert history.bits.up.tolist() == one.bits.up.tolist()
        np.testing.assert_allclose(vector(history), vector(one), rtol=1e-10, atol=1e-12)
