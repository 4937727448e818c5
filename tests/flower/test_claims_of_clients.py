"""What clients say of themselves is checked: their number, their sizes and their texts."""

import re

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from federation import CLIENTS, EVERYONE, SIZE, Recorded, client_of, federation, run
from flwr.app import Error, Message

import fedax
from fedax.core import FedaxError
from fedax.flower.protocol.records import record_of
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
        pytest.raises(FedaxError, match=r"clients 1 .* did not come"),
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
        pytest.raises(FedaxError, match=r"clients 3 .* did not come"),
    ):
        run(fedax.FedAvg(), engine, schedule=EVERYONE, rounds=1)
    assert "node 103 refused: it says it is client 3, and its key is that of no client" in told(
        caplog
    )


def test_a_client_that_goes_while_it_is_asked_is_named(tmp_path, caplog):
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
        pytest.raises(FedaxError, match=r"clients 1 .* did not come"),
    ):
        run(fedax.FedAvg(), engine, schedule=EVERYONE, rounds=1)
    assert "client 1 refused: error 5" in told(caplog)


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
    with (
        pytest.raises(FedaxError, match=r"clients 2 .* did not come"),
    ):
        run(fedax.FedAvg(), engine, schedule=EVERYONE, rounds=1)
    assert re.search(f"node 102 refused: client 2 claims .*{size} {name}", told(caplog))


def test_sums_that_are_refused_are_left_out_and_counted(tmp_path):
    """They end the run by name, or the metrics say how many clients they are of. The sizes are those
    that the server knows: a measurement holds none."""

    def lie(k, facts):
        if k == 1:
            facts["order"] = "f" * 32

    observed = {"observe": [fedax.observe.TrainLoss()], "schedule": EVERYONE, "rounds": 1}
    engine = lying(tmp_path, "evaluate", lie)
    with pytest.raises(FedaxError, match="measurement of train: client 1"):
        run(fedax.FedAvg(), engine, **observed)
    history = run(fedax.FedAvg(), engine, on_bad_client="drop", **observed)
    assert history.metrics["measured_clients"].tolist() == [3, 3]
    engine.grid.lie = None
    history = run(fedax.FedAvg(), engine, on_bad_client="drop", **observed)
    assert history.metrics["measured_clients"].tolist() == [4, 4]


def test_sums_that_are_not_finite_end_the_run(tmp_path):
    engine = federation(tmp_path, fedax.FedAvg(), schedule=EVERYONE)
    answered = engine.grid.answers

    def answers(message):
        found = answered(message)
        if message.metadata.message_type == "evaluate" and client_of(message) == 1:
            found[0].content["up"] = record_of((np.nan,))
        return found

    engine.grid.answers = answers
    history = run(fedax.FedAvg(), engine, schedule=EVERYONE, observe=[fedax.observe.TrainLoss()])
    assert history.outcome.kind == "non-finite"


@pytest.mark.slow
def test_texts_of_clients_are_one_printable_line(tmp_path, caplog):
    text = "\x1b]0;owned\x07\nWARNING forged \u202eline" + "x" * 1_000_000

    def lie(k, facts):
        if k == 1:
            facts["error"] = text

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
