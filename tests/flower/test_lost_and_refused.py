"""Answers that are lost, late, repeated or not what they must be: left out, named, counted, and
without a trace."""

import re
import shutil
import threading
import time

import jax
import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from federation import EVERYONE, average_of, check_same, client_of, federation, run, run_average
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict

import fedax
from fedax.flower.client import disk
from fedax.flower.client.disk import Store, Version
from fedax.flower.protocol.records import LEAVES, NEVER, record_of
from fedax.flower.server import roster
from fedax.flower.server.in_process import LocalGrid
from fedax.utils import files
from problems import vector

LAST = 3


def of_the_last(change):
    """Lets a change spoil what the last client answers."""
    return lambda message, answer: (
        change(message, answer) if client_of(message) == LAST else [answer]
    )


def replaced(answer, up=None, **facts):
    """The answer with other facts, or with other numbers as its upload."""
    record = answer.content["up"] if up is None else record_of(up)
    answer.content = RecordDict(
        {"answer": ConfigRecord(dict(answer.content["answer"]) | facts), "up": record}
    )
    return [answer]


def with_data(answer, array):
    answer.content = RecordDict(dict(answer.content) | {"up": ArrayRecord({LEAVES: array})})
    return [answer]


def failing(code):
    return lambda m, a: [Message(Error(code, "no memory"), reply_to=m)]


SPOILED = {
    "lost": (lambda m, a: [], "no answer within 0.2 seconds"),
    # a ClientApp that crashed
    **{f"lost: {code}": (failing(code), f"error {code}") for code in roster.NO_MESSAGE},
    "error": (failing(7), "error 7: no memory"),
    "shape": (lambda m, a: replaced(a, np.zeros(5)), "40 bytes, expected 32"),
    "huge": (
        lambda m, a: with_data(a, Array("float64", (1 << 40,), "numpy.ndarray", b"junk")),
        "4 bytes, expected 32",
    ),
    "pickled": (lambda m, a: with_data(a, Array("object", (4,), "pickle", b"junk")), "4 bytes"),
    "other order": (
        lambda m, a: replaced(a, order="f" * 32),
        "an answer of client 3 to order ffff",
    ),
    "other client": (lambda m, a: replaced(a, partition=0), "an answer of client 0"),
    "empty": (lambda m, a: [Message(RecordDict(), reply_to=m)], "not an answer"),
}


@pytest.fixture
def _impatient(monkeypatch):
    """Looks for nodes that were gone or refused at once."""
    monkeypatch.setattr(roster, "AGAIN", 0.01)
    monkeypatch.setattr(roster, "REFUSED", 0.01)


@pytest.fixture(scope="module")
def without_the_last():
    """The same rounds of the first three clients alone: streams depend on the client's number, and
    it has the last one."""
    return run_average(clients=3, rounds=2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SPOILED)
def test_left_out_as_if_not_drawn(kind, without_the_last, tmp_path, caplog):
    change, reason = SPOILED[kind]
    engine = average_of(tmp_path, spoil=of_the_last(change))
    history = run_average(engine, rounds=2, on_bad_client="drop")
    check_same(history, without_the_last)
    assert history.outcome.ok
    assert history.logged["dropped"].tolist() == [[LAST], [LAST]]
    assert history.logged["answers"].tolist() == [3, 3]
    column = "absent" if kind.startswith("lost") else "refused"
    assert history.logged[column].tolist() == [1, 1]
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert all(
        text.startswith(f"FedAvg.train, round {t}, client 3: left out: ")
        for t, text in enumerate(messages)
    )
    assert all(re.search(reason, text) for text in messages), messages


@pytest.mark.slow
@pytest.mark.parametrize("spoiled", [{"up": np.full(4, np.nan)}, {"broken": 1 << 62}], ids=str)
def test_not_finite_is_left_out_too(spoiled, without_the_last, tmp_path):
    """An upload, or a memory, of which the client says so."""
    change = of_the_last(lambda m, a: replaced(a, **spoiled))
    engine = average_of(tmp_path, spoil=change)
    history = run_average(engine, rounds=2, on_bad_client="drop")
    check_same(history, without_the_last)
    stopped = run_average(engine)
    assert (stopped.outcome.kind, stopped.outcome.client) == ("non-finite", LAST)


@pytest.mark.slow
def test_fewer_than_the_minimum_change_nothing(tmp_path):
    engine = average_of(tmp_path, spoil=of_the_last(lambda m, a: []), minimum=4)
    history = run_average(engine, rounds=2, on_bad_client="drop")
    assert np.array_equal(vector(history), vector(run(fedax.FedAvg(), rounds=0)))
    assert history.outcome.ok
    assert history.logged["absent"].tolist() == [1, 1]
    with pytest.raises(fedax.FedaxError, match="round 0: client 3: no answer within"):
        run_average(engine)


@pytest.mark.slow
def test_memory_of_a_lost_answer_does_not_count(tmp_path):
    """SCAFFOLD with client 3's answer of round 1 lost: it works with the memory of round 0 in round
    2, as in a simulation in which the client's upload of round 1 is not finite."""

    def lose(message, answer):
        return (
            []
            if message.content["order"]["round"] == 1 and client_of(message) == LAST
            else [answer]
        )

    def break_(message, answer):
        gone = message.content["order"]["round"] == 1 and client_of(message) == LAST
        return replaced(answer, np.full(4, np.inf)) if gone else [answer]

    algorithm = fedax.SCAFFOLD()
    options = {"schedule": EVERYONE, "rounds": 4, "on_bad_client": "drop"}
    lost, broken = (
        run(
            algorithm,
            federation(tmp_path / name, algorithm, schedule=EVERYONE, spoil=spoil),
            **options,
        )
        for name, spoil in (("lost", lose), ("broken", break_))
    )
    assert np.array_equal(vector(lost), vector(broken))
    assert np.abs(vector(lost) - vector(run(algorithm, **options))).max() > 1e-6


@pytest.mark.slow
def test_a_repeated_or_late_order_changes_nothing(tmp_path):
    """Every order is delivered twice at once, and once more two rounds later; answers and disks are
    those of a plain run."""
    algorithm = fedax.SCAFFOLD()
    kept = []

    def again(message, answer):
        worker = engine.grid.workers[message.metadata.dst_node_id]
        assert worker.answer(message.content)["up"] == answer.content["up"]
        kept.append((worker, message.content))
        for late in [order for other, order in kept if other is worker][:-2]:
            worker.answer(late)
        return [answer]

    engine = federation(tmp_path / "again", algorithm, schedule=EVERYONE, spoil=again, run="r")
    history = run(algorithm, engine, schedule=EVERYONE, rounds=4)
    plain = run(
        algorithm,
        federation(tmp_path / "plain", algorithm, schedule=EVERYONE, run="r"),
        schedule=EVERYONE,
        rounds=4,
    )
    assert np.array_equal(vector(history), vector(plain))
    files = [
        {p.relative_to(tmp_path / name): p.read_bytes() for p in (tmp_path / name).rglob("0*-*-*")}
        for name in ("again", "plain")
    ]
    assert files[0] == files[1]
    assert len(files[0]) == 16


@pytest.mark.slow
@pytest.mark.parametrize("has_backup", [False, True], ids=["lost", "rolled back"])
def test_a_disk_without_the_newest_state_is_named(has_backup, tmp_path):
    algorithm = fedax.SCAFFOLD()
    states = tmp_path / "client-3"
    backup = tmp_path / "backup"

    def spoil(message, answer):
        round = message.content["order"]["round"]
        if client_of(message) == LAST and round == 0 and has_backup:
            shutil.copytree(states, backup)
        if client_of(message) == LAST and round == 1:
            shutil.rmtree(states)
            if has_backup:
                backup.rename(states)
        return [answer]

    with pytest.raises(
        fedax.FedaxError, match=r"round 2: client 3: state state-1 of order \w+ is not in"
    ):
        run(
            algorithm,
            federation(tmp_path, algorithm, schedule=EVERYONE, spoil=spoil),
            schedule=EVERYONE,
        )


@pytest.mark.slow
def test_a_client_with_a_full_disk_is_left_out(tmp_path, monkeypatch):
    """Its upload would belong to a state that it does not have."""

    def write(path, *arguments):
        if path.is_relative_to(tmp_path / "client-3"):
            raise fedax.core.WriteFailed(f"{path}: cannot be written: No space left on worker.")
        files.write(path, *arguments)

    monkeypatch.setattr(disk, "write", write)
    engine = federation(tmp_path, fedax.SCAFFOLD(), schedule=EVERYONE)
    options = {"schedule": EVERYONE, "on_bad_client": "drop", "observe": []}
    history = run(fedax.SCAFFOLD(), engine, rounds=2, **options)
    assert history.logged["dropped"].tolist() == [[LAST], [LAST]]
    assert history.logged["refused"].tolist() == [1, 1]


@pytest.mark.parametrize("size", [0, 300], ids=["empty", "cut off"])
def test_a_damaged_memory_is_named(size, tmp_path):
    memory = {"a": np.arange(40, dtype=np.float32)}
    store = Store(tmp_path)
    version = Version(3, "b" * 32, NEVER)
    store.keep("state-1", version, record_of(memory), 0)
    np.testing.assert_array_equal(store.read("state-1", version.name, memory)["a"], memory["a"])
    (path,) = tmp_path.rglob("0*-*-*")
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(fedax.FedaxError, match="is damaged"):
        store.read("state-1", version.name, memory)


@pytest.mark.slow
@pytest.mark.parametrize("field", ["run", "slots", "order"])
def test_an_order_writes_nowhere_else(field, tmp_path):
    """A server that asks for a path in place of a name is refused, and nothing is written."""
    algorithm = fedax.SCAFFOLD()
    engine = federation(tmp_path / "d", algorithm, schedule=EVERYONE)
    run(algorithm, engine, schedule=EVERYONE, rounds=1)
    order = next(m.content for m in engine.grid.messages if m.metadata.message_type == "train")
    path = "../../../elsewhere"
    facts = dict(order["order"]) | {field: [path] if field == "slots" else path}
    answer = engine.grid.workers[100].answer(
        RecordDict(dict(order) | {"order": ConfigRecord(facts)})
    )
    assert "up" not in answer
    assert {path.name for path in tmp_path.iterdir()} == {"d"}


@pytest.mark.slow
def test_a_node_that_comes_back_as_another_one(tmp_path):
    """A client that was restarted, under a new number of its node, goes on with its memory."""
    algorithm = fedax.SCAFFOLD()

    def restart(message, answer):
        if message.content["order"]["round"] == 1 and client_of(message) == LAST:
            engine.grid.workers[200] = engine.grid.workers.pop(103)
        return [answer]

    engine = federation(tmp_path, algorithm, schedule=EVERYONE, spoil=restart)
    history = run(algorithm, engine, schedule=EVERYONE, rounds=4)
    check_same(history, run(algorithm, schedule=EVERYONE, rounds=4))


@pytest.mark.slow
@pytest.mark.usefixtures("_impatient")
def test_a_node_that_is_gone_for_a_moment_is_asked_again(tmp_path):
    """Flower says at once that a node is gone; until the deadline the order is sent again, and
    nobody is left out."""
    gone = []

    def away(message, answer):
        if len(gone) < 3 and client_of(message) == LAST:
            gone.append(message)
            return [Message(Error(roster.NODE_UNAVAILABLE, "gone"), reply_to=message)]
        return [answer]

    engine = average_of(tmp_path, spoil=away, deadline=20.0)
    history = run_average(engine, rounds=2)
    assert len(gone) == 3
    check_same(history, run_average(rounds=2))


@pytest.mark.slow
def test_a_wait_for_clients_at_the_start_is_logged(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(roster, "NOTICES", (0.0, 60.0))
    engine = federation(tmp_path, fedax.FedAvg(), patience=1.2)
    with_dead_clients(engine, {1, LAST})
    missing = pytest.raises(
        fedax.FedaxError,
        match=r"clients 1, 3 \(2 of 4 are there\) did not come within 1\.2 seconds",
    )
    with missing:
        run(fedax.FedAvg(), engine, rounds=0)
    assert [r.getMessage() for r in caplog.records] == [
        "waiting up to 1 seconds for clients 1, 3 (2 of 4 are there)"
    ]


def with_dead_clients(engine, dead, rounds=0, back_at=None, back=()):
    """Takes the nodes of some clients away from some round on; those of `back` come back at a
    listing of the nodes.

    As Flower does, the grid no longer lists them, and answers an order to them with an error.
    """
    listed = engine.grid.get_node_ids
    answered = engine.grid.answers
    state = {"round": 0, "asked": [], "listings": 0}

    def is_dead(node):
        return node - 100 in dead and state["round"] >= rounds

    def answers(message):
        state["round"] = max(state["round"], dict(message.content.get("order", {})).get("round", 0))
        node = message.metadata.dst_node_id
        if is_dead(node):
            state["asked"].append((state["round"], node - 100))
            return [Message(Error(roster.NODE_UNAVAILABLE, "gone"), reply_to=message)]
        return answered(message)

    def get_node_ids():
        state["listings"] += 1
        if state["listings"] == back_at:
            dead.difference_update(back)
        return [node for node in listed() if not is_dead(node)]

    engine.grid.answers = answers
    engine.grid.get_node_ids = get_node_ids
    return state


@pytest.mark.slow
@pytest.mark.parametrize("secure", [{}, {"secure": 8.0}], ids=["open", "secure"])
def test_a_dead_client_is_not_waited_for(secure, tmp_path, caplog):
    """With a deadline of ten minutes, a client that dies in round 1 costs no time, and no order
    from round 2 on."""
    options = {"schedule": EVERYONE, "dtype": np.float32}
    watch = {"observe": [fedax.observe.TrainLoss()], "observe_every": 1}
    with jax.enable_x64(False):
        engine = federation(tmp_path, fedax.FedAvg(), deadline=600.0, **options, **secure)
        state = with_dead_clients(engine, {LAST}, rounds=1)
        begun = time.monotonic()
        history = run(fedax.FedAvg(), engine, rounds=5, on_bad_client="drop", **options, **watch)
    assert time.monotonic() - begun < 120
    assert history.outcome.ok
    assert history.logged["dropped"].tolist() == [[-1], [LAST], [LAST], [LAST], [LAST]]
    assert {t for t, _ in state["asked"]} <= {1}
    assert np.isfinite(history.metrics["train_loss"]).all()
    assert "FedAvg.train, round 4, client 3: left out: offline" in caplog.text


@pytest.mark.slow
@pytest.mark.usefixtures("_impatient")
def test_a_wait_is_logged_and_ends_when_the_client_is_back(tmp_path, caplog):
    """With on_bad_client="stop" all are needed: the wait is in the log, and the result is that of a
    run without it."""
    engine = average_of(tmp_path, deadline=60.0)
    run_average(engine, rounds=0)  # every client comes once
    with_dead_clients(engine, {LAST}, back_at=4, back=[LAST])
    history = run_average(engine, rounds=2, observe=[])
    (wait,) = [r.getMessage() for r in caplog.records]
    assert re.fullmatch(
        r"FedAvg\.train, round 0: client 3 offline; waiting up to \d+ seconds", wait
    )
    check_same(history, run_average(rounds=2))


@pytest.mark.slow
@pytest.mark.parametrize("jump", [-1e6, 1e6], ids=["back", "forward"])
@pytest.mark.usefixtures("_impatient")
def test_deadlines_do_not_follow_the_clock(jump, tmp_path, monkeypatch):
    """The system's clock is set while a client is away. It is waited for, and later, when its answer
    is lost, no longer than the deadline."""
    clock = time.time

    def spoil(message, answer):
        monkeypatch.setattr(time, "time", lambda: clock() + jump)
        is_lost = client_of(message) == LAST and message.content["order"]["round"] == 1
        return [] if is_lost else [answer]

    engine = average_of(tmp_path, spoil=spoil, deadline=5.0)
    run_average(engine, rounds=0)
    with_dead_clients(engine, {LAST}, back_at=4, back=[LAST])
    with pytest.raises(fedax.FedaxError, match="round 1: client 3: no answer within 5 seconds"):
        run_average(engine, rounds=2, observe=[])


@pytest.mark.slow
@pytest.mark.usefixtures("_impatient")
def test_fewer_than_the_minimum_are_waited_for(tmp_path, caplog):
    """Rounds are not used up while everybody is away: two of four are needed, and one is there."""
    engine = average_of(tmp_path, deadline=60.0, minimum=2)
    run_average(engine, rounds=0)
    with_dead_clients(engine, {1, 2, LAST}, back_at=4, back=[1])
    history = run_average(engine, rounds=2, on_bad_client="drop", observe=[])
    assert history.logged["answers"].tolist() == [2, 2]
    assert history.logged["absent"].tolist() == [2, 2]
    assert "round 0: client 1, 2, 3 offline; waiting up to" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        SPOILED["error"][0],
        SPOILED["shape"][0],
        lambda m, a: replaced(a, np.full(4, np.nan)),
    ],
    ids=["error", "refused", "not finite"],
)
@pytest.mark.usefixtures("_impatient")
def test_answers_that_cannot_be_used_are_no_quorum(change, tmp_path):
    """Three of four are needed, one of which answers something else, and one comes back later."""

    def spoil(message, answer):
        return change(message, answer) if client_of(message) == 0 else [answer]

    engine = average_of(tmp_path, spoil=spoil, deadline=60.0, minimum=3)
    run_average(engine, rounds=0)
    with_dead_clients(engine, {LAST}, back_at=4, back=[LAST])
    history = run_average(engine, rounds=1, on_bad_client="drop", observe=[])
    assert history.logged["answers"].tolist() == [3]
    assert history.logged["dropped"].tolist() == [[0]]


def with_greetings(engine, node, is_silent):
    """Lists the questions to a node which client it is, which a silent node does not answer."""
    answered = engine.grid.answers
    asked = []

    def answers(message):
        if message.metadata.dst_node_id == node and message.metadata.message_type == "query":
            asked.append(message)
            if is_silent:
                return []
        return answered(message)

    engine.grid.answers = answers
    return asked


def test_a_new_node_that_does_not_answer_holds_up_no_round(tmp_path, monkeypatch):
    """A stranger's, or one that is just starting: the round ends at its own deadline."""
    monkeypatch.setattr(roster, "HELLO", 15.0)
    engine = average_of(tmp_path, deadline=0.5)
    run_average(engine, rounds=1, observe=[])
    with_dead_clients(engine, {LAST})
    engine.grid.workers[300] = engine.grid.workers[101]
    asked = with_greetings(engine, 300, True)
    order = RecordDict({"order": ConfigRecord({"kind": "hello"})})
    begun = time.monotonic()
    assert [
        answer for answer in engine.roster.answers({LAST: order}, roster.TRAIN, "a phase") if answer
    ] == []
    assert time.monotonic() - begun < 10
    assert len(asked) == 1


def test_a_refused_node_is_not_asked_at_every_look(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(roster, "AGAIN", 0.01)
    engine = average_of(tmp_path, deadline=0.5)
    run_average(engine, rounds=0)
    state = with_dead_clients(engine, {LAST})
    engine.grid.workers[300] = engine.grid.workers[101]
    asked = with_greetings(engine, 300, False)
    order = RecordDict({"order": ConfigRecord({"kind": "hello"})})
    list(engine.roster.answers({LAST: order}, roster.TRAIN, "a phase"))
    assert state["listings"] > 4
    assert len(asked) == 1
    assert caplog.text.count("node 300 refused: client 1 is there already") == 1


class Slow:
    """A grid from which one answer does not come at first, and another one cannot be read."""

    def __init__(self):
        self.asked = []
        self.over = threading.Event()
        self.answer = LocalGrid([]).make_message(100, RecordDict(), "train", "", 1.0)

    def pull_messages(self, names):
        (name,) = names
        self.asked.append(name)
        if name == "half":
            self.over.wait()
        if name == "senseless":
            raise ValueError("no answer")
        return [] if name == "later" else [self.answer]


def test_half_an_answer_does_not_hold_up_the_others(monkeypatch, caplog):
    monkeypatch.setattr(roster, "PULL", 0.2)
    grid = Slow()
    link = roster.Link(grid)
    assert link.pull(["whole", "half", "senseless", "later"]) == [("whole", grid.answer)]
    assert link.pull(["half", "senseless"]) == []
    assert sorted(grid.asked) == ["half", "later", "senseless", "whole"]
    assert [r.getMessage() for r in caplog.records] == ["an answer cannot be read: no answer"]
    grid.over.set()
    assert link.pull(["half", "later"]) == [("half", grid.answer)]


def test_a_state_that_changes_is_refused_with_what_to_do(tmp_path):
    def loss(w, x, *, key, state):
        return (w - x) ** 2, state

    task = fedax.Task(0.0, loss, [np.ones(2)], state={"mean": np.zeros(1)})
    engine = federation(tmp_path, fedax.FedAvg(), whole=task)
    with pytest.raises(fedax.InvalidInput, match="Replace batch norm by group norm"):
        fedax.run(fedax.FedAvg(), task, engine=engine)
