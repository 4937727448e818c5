"""What clients say of themselves is checked: their number, their sizes, the examples behind a
measurement, and their texts."""

import logging

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from federation import CLIENTS, EVERYONE, SIZE, Recorded, client_of, federation, run
from flwr.app import Error, Message

import fedax
from fedax.core import FedaxError
from fedax.flower.server.roster import NODE_UNAVAILABLE
from problems import vector


class Lying(Recorded):
    """A grid on which answers of one kind are changed: `lie(client, facts)` changes the facts of an
    answer in place."""

    kind, lie = "query", None

    def answers(self, message):
        found = super().answers(message)
        for answer in found:
            if self.lie and message.metadata.message_type == self.kind and not answer.has_error():
                self.lie(client_of(message), answer.content["answer"])
        return found


def lying(tmp_path, kind, lie, **options):
    engine = federation(tmp_path, fedax.FedAvg(), schedule=EVERYONE, **options)
    engine.grid.__class__ = Lying
    engine.grid.kind, engine.grid.lie = kind, lie
    return engine


def told(caplog):
    return " | ".join(record.getMessage() for record in caplog.records)


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
    with (
        caplog.at_level(logging.WARNING, logger="fedax.flower"),
        pytest.raises(FedaxError, match=r"client 1 .* did not come"),
    ):
        run(fedax.FedAvg(), engine, schedule=EVERYONE, rounds=1)
    assert (
        f"client 1 refused: it says it is client {claimed}, and its key is that of client 1"
        in told(caplog)
    )
    assert engine.roster.nodes == {0: 100, 2: 102, 3: 103}


def test_a_key_of_nobody_is_refused(tmp_path, caplog):
    known = {node: k for node, k in registered().items() if k != 3}
    engine = lying(tmp_path, "query", None, registered=lambda: known, patience=0.0)
    with (
        caplog.at_level(logging.WARNING, logger="fedax.flower"),
        pytest.raises(FedaxError, match=r"client 3 .* did not come"),
    ):
        run(fedax.FedAvg(), engine, schedule=EVERYONE, rounds=1)
    assert "node 103 refused: it says it is client 3, and its key is that of no client" in told(
        caplog
    )


def test_a_client_that_goes_while_it_is_asked_is_named(tmp_path, caplog):
    """The log has the client of the key, and words in place of Flower's number of the error."""

    engine = federation(
        tmp_path, fedax.FedAvg(), schedule=EVERYONE, registered=registered, patience=0.0
    )
    answered = engine.grid.answers

    def answers(message):
        return (
            [Message(Error(NODE_UNAVAILABLE, ""), reply_to=message)]
            if client_of(message) == 1
            else answered(message)
        )

    engine.grid.answers = answers
    with (
        caplog.at_level(logging.WARNING, logger="fedax.flower"),
        pytest.raises(FedaxError, match=r"client 1 .* did not come"),
    ):
        run(fedax.FedAvg(), engine, schedule=EVERYONE, rounds=1)
    assert "client 1 refused: it went offline before it answered (error 5)" in told(caplog)


@pytest.mark.parametrize("name", ["train", "test"])
@pytest.mark.parametrize("size", [2**31 - 1, 2**40, SIZE * 10**6])
def test_claimed_sizes_that_cannot_be_counted_name_the_client(tmp_path, caplog, name, size):
    def lie(k, facts):
        if k == 2:
            facts[name] = size

    most = {"most_examples": 1000} if size < 2**29 else {}
    engine = lying(tmp_path, "query", lie, patience=0.0, **most)
    with (
        caplog.at_level(logging.WARNING, logger="fedax.flower"),
        pytest.raises(FedaxError, match=r"client 2 .* did not come"),
    ):
        run(fedax.FedAvg(), engine, schedule=EVERYONE, rounds=1)
    allowed = most.get("most_examples", (2**31 - 1) // CLIENTS)
    assert f"node 102 refused: client 2 claims {size} examples; allowed: at most {allowed}" in told(
        caplog
    )


@pytest.mark.parametrize("count", [-3, SIZE + 1, 10**12])
def test_measured_counts_are_those_that_the_server_knows(tmp_path, count):
    """A client whose sums are refused ends the run by name, or the metrics say how many they are
    of."""

    def lie(k, facts):
        if k == 1:
            facts["count"] = count

    observed = {"observe": [fedax.observe.TrainLoss()], "schedule": EVERYONE, "rounds": 1}
    engine = lying(tmp_path, "evaluate", lie)
    reason = f"client 1: sums over {count} examples, expected {SIZE}, which it said it has"
    with pytest.raises(FedaxError, match=f"measurement of train: {reason}"):
        run(fedax.FedAvg(), engine, **observed)
    history = run(fedax.FedAvg(), engine, on_bad_client="drop", **observed)
    assert history.metrics["measured_clients"].tolist() == [3, 3]
    engine.grid.lie = None
    history = run(fedax.FedAvg(), engine, on_bad_client="drop", **observed)
    assert history.metrics["measured_clients"].tolist() == [4, 4]


@pytest.mark.slow
def test_texts_of_clients_are_one_printable_line(tmp_path, caplog):
    text = "\x1b]0;owned\x07\nWARNING forged \u202eline" + "x" * 1_000_000

    def lie(k, facts):
        if k == 1:
            facts["error"] = text

    with caplog.at_level(logging.WARNING, logger="fedax.flower"):
        history = run(
            fedax.FedAvg(),
            lying(tmp_path, "train", lie),
            schedule=EVERYONE,
            rounds=1,
            on_bad_client="drop",
        )
    assert np.isfinite(vector(history)).all()
    (line,) = [
        record.getMessage()
        for record in caplog.records
        if "client 1: left out" in record.getMessage()
    ]
    assert not {"\x1b", "\n", "\x07", "\u202e"} & set(line)
    assert len(line) < 1000
