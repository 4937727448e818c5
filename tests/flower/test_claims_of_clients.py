"""What clients say of themselves is checked: their number, their sizes and their texts."""

import re

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from federation import CLIENTS, SIZE, average_of, client_of, federation, run, run_average
from flwr.app import Error, Message

import fedax
from fedax.core import FedaxError
from fedax.flower.protocol.records import record_of
from fedax.flower.server.roster import NODE_UNAVAILABLE
from fedax.results.doubts import find_doubts
from fedax.results.record import Record


def lying(tmp_path, kind, lie, **options):
    """A federation in which `lie(client, facts)` changes the facts of an answer in place."""

    def spoil(message, answer):
        lie(client_of(message), answer.content["answer"])
        return [answer]

    return average_of(tmp_path, spoil=spoil, kind=kind, **options)


def registered():
    return {100 + k: k for k in range(CLIENTS)}


@pytest.mark.parametrize("claimed", [0, 2, 3])
def test_a_key_is_bound_to_its_client(tmp_path, caplog, claimed):
    """The holder of client 1's key says it is another one: it is refused, and the other one is not
    shut out."""

    def lie(k, facts):
        if k == 1:
            facts["partition"] = claimed

    engine = lying(tmp_path, "query", lie, registered=registered, patience=0.0)
    with pytest.raises(FedaxError, match=r"clients 1 .* did not come"):
        run_average(engine, rounds=1)
    assert (
        f"client 1 refused: it says it is client {claimed}, and its key is that of client 1"
        in caplog.text
    )
    assert engine.roster.nodes == {0: 100, 2: 102, 3: 103}


def test_a_key_of_nobody_is_refused(tmp_path, caplog):
    known = {node: k for node, k in registered().items() if k != 3}
    engine = federation(tmp_path, fedax.FedAvg(), registered=lambda: known, patience=0.0)
    with pytest.raises(FedaxError, match=r"clients 3 .* did not come"):
        run_average(engine, rounds=1)
    reason = "node 103 refused: it says it is client 3, and its key is that of no client"
    assert reason in caplog.text


def test_a_client_that_goes_while_it_is_asked_is_named(tmp_path, caplog):
    def spoil(message, answer):
        gone = Message(Error(NODE_UNAVAILABLE, ""), reply_to=message)
        return [gone if client_of(message) == 1 else answer]

    engine = average_of(tmp_path, registered=registered, patience=0.0, spoil=spoil, kind="query")
    with pytest.raises(FedaxError, match=r"clients 1 .* did not come"):
        run_average(engine, rounds=1)
    assert "client 1 refused: error 5" in caplog.text


@pytest.mark.parametrize(
    ("name", "size", "most"),
    [
        ("train", 2**31 - 1, None),
        ("test", 2**40, None),
        ("train", SIZE + 1, SIZE),
        ("test", -1, None),
    ],
)
def test_claimed_sizes_that_cannot_be_counted_name_the_client(tmp_path, caplog, name, size, most):
    def lie(k, facts):
        if k == 2:
            facts[name] = size

    engine = lying(tmp_path, "query", lie, patience=0.0, most_examples=most)
    with pytest.raises(FedaxError, match=r"clients 2 .* did not come"):
        run_average(engine, rounds=1)
    assert re.search(f"node 102 refused: client 2 claims .*{size} {name}", caplog.text)


def test_sums_that_are_refused_are_left_out_and_counted(tmp_path):
    """They end the run by name, or the metrics say how many clients they are of. The sizes are those
    that the server knows: a measurement holds none."""

    def lie(k, facts):
        if k == 1:
            facts["order"] = "f" * 32

    observed = {"observe": [fedax.observe.TrainLoss()], "rounds": 1}
    engine = lying(tmp_path, "evaluate", lie)
    with pytest.raises(FedaxError, match="measurement of train: client 1"):
        run_average(engine, **observed)
    history = run_average(engine, on_bad_client="drop", **observed)
    assert history.metrics["measured_clients"].tolist() == [3, 3]
    assert find_doubts([Record.of(history)])[-1] == ": 3 clients answered all last measurements."


def test_a_client_without_examples_of_a_split_is_not_missing(tmp_path):
    engine = lying(tmp_path, "query", lambda k, facts: facts.update(test=k * SIZE))
    observed = [fedax.observe.TrainLoss(), fedax.observe.TestLoss()]
    history = run_average(engine, on_bad_client="drop", observe=observed, rounds=1)
    assert history.metrics["measured_clients"].tolist() == [4, 4]


def test_sums_that_are_not_finite_end_the_run_or_are_left_out(tmp_path):
    spoiled = {1}

    def spoil(message, answer):
        if client_of(message) in spoiled:
            answer.content["up"] = record_of(np.full(2, np.nan))
        return [answer]

    schedule = fedax.Schedule(weights="equal")
    observed = {"schedule": schedule, "observe": [fedax.observe.Objective()]}
    engine = federation(tmp_path, fedax.FedAvg(), schedule=schedule, spoil=spoil, kind="evaluate")
    assert run(fedax.FedAvg(), engine, **observed).outcome.kind == "non-finite"
    history = run(fedax.FedAvg(), engine, on_bad_client="drop", **observed)
    assert history.outcome.ok
    assert history.metrics["measured_clients"].tolist() == [3, 3]
    spoiled |= {0, 2, 3}
    with pytest.raises(FedaxError, match="measurement of train: no client has answered"):
        run(fedax.FedAvg(), engine, on_bad_client="drop", **observed)


@pytest.mark.parametrize("field", ["error", "order"])
def test_texts_of_clients_are_one_printable_line(field, tmp_path, caplog):
    text = "\x1b]0;owned\x07\nWARNING forged \u202eline" + "x" * 1_000_000

    def lie(k, facts):
        if k == 1:
            facts[field] = text

    engine = lying(tmp_path, "train", lie)
    run_average(engine, rounds=1, on_bad_client="drop", observe=[])
    (line,) = [record.getMessage() for record in caplog.records]
    assert "client 1: left out" in line
    assert not {"\x1b", "\n", "\x07", "\u202e"} & set(line)
    assert len(line) < 1000
