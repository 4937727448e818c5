"""Sums under masks: the simulation's mean to a step of the numbers, with clients that leave, and
nothing else for the server."""

import itertools

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from cryptography.fernet import InvalidToken
from federation import (
    EVERYONE,
    average_of,
    changed_record,
    client_of,
    federation,
    run,
    run_average,
)
from flwr.app import RecordDict

import fedax
from fedax import codecs
from fedax.flower.client import member
from fedax.flower.protocol.masks import (
    LEVELS,
    Member,
    combine_shares,
    from_fixed_point,
    open_secrets,
    remove_masks,
    split_secret,
    to_fixed_point,
)
from fedax.flower.protocol.records import Refused
from marks import slow
from problems import vector

LARGEST = 8.0
STEP = LARGEST / LEVELS


def members(count):
    found = [Member(k, bytes([k]) * 32, "session") for k in range(count)]
    return found, {m.number: m.public for m in found}


def test_shares_of_which_enough_give_the_secret():
    """Any three of five, in any order, and all of them; two, or shares of two secrets, give nothing."""
    secret = bytes(range(32))
    shares, others = (split_secret(secret, 3, range(5)) for _ in range(2))
    for chosen in itertools.permutations(shares, 3):
        assert combine_shares({k: shares[k] for k in chosen}) == secret
    assert combine_shares(shares) == secret
    for wrong in ({0: shares[0], 1: shares[1]}, {0: shares[0], 1: shares[1], 2: others[2]}):
        assert combine_shares(wrong) != secret


@pytest.mark.parametrize("gone", [[], [1], [0, 4]])
def test_the_sum_of_those_who_stay(gone):
    """Five members deal; some never send. The sum is exact in whole numbers, and a minority cannot
    open it."""
    everyone, keys = members(5)
    letters = {m.number: m.deal(keys, 3) for m in everyone}
    rng = np.random.default_rng(0)
    uploads = {k: rng.uniform(-LARGEST, LARGEST, 50) for k in range(5) if k not in gone}
    hidden = {k: everyone[k].hide(to_fixed_point(uploads[k], LARGEST), keys) for k in uploads}
    shown = {
        k: everyone[k].shares({j: letters[j][k] for j in keys}, keys, uploads) for k in uploads
    }
    secrets = open_secrets(shown, keys, uploads, 3)
    total = sum(hidden.values(), np.zeros(50, np.uint64))
    found = from_fixed_point(remove_masks(total, keys, uploads, secrets), LARGEST)
    np.testing.assert_allclose(found, sum(uploads.values()), rtol=0, atol=len(uploads) * STEP / 2)
    for k in uploads:  # each alone is spread over all numbers of 64 bits
        assert np.abs(from_fixed_point(hidden[k], LARGEST)).max() > 1e4 * LARGEST
    few = dict(list(shown.items())[:2])
    assert open_secrets(few, keys, uploads, 2) == {}


def test_a_sum_with_a_false_share_changes_nothing(tmp_path, caplog):
    """One share of a client is altered: the round is dropped and says so, or ends the run."""

    def spoil(message, answer):
        if message.content["masks"]["stage"] == member.SHOW and client_of(message) == 2:
            facts = answer.content["answer"]
            facts["shares"] = [facts["shares"][0][::-1], *facts["shares"][1:]]
        return [answer]

    engine = average_of(tmp_path, spoil=spoil, secure=LARGEST)
    ours = run_average(engine, rounds=1, on_bad_client="drop")
    assert np.array_equal(vector(ours), vector(run(fedax.FedAvg(), rounds=0)))
    assert "round 0: the sum of 4 uploads is not opened" in caplog.text
    with pytest.raises(fedax.FedaxError, match="round 0: the sum of 4 uploads is not opened"):
        run_average(engine, rounds=1)


def test_a_key_with_which_none_can_be_exchanged_is_refused(tmp_path):
    """One of a low order, which would fail at all other clients."""

    def spoil(message, answer):
        if message.content["masks"]["stage"] == member.KEYS and client_of(message) == 2:
            facts = answer.content["answer"]
            facts["keys"] = [bytes(32), *facts["keys"][1:]]
        return [answer]

    engine = average_of(tmp_path, spoil=spoil, secure=LARGEST)
    ours = run_average(engine, rounds=1, on_bad_client="drop")
    assert ours.logged["refused"].tolist() == [1]
    assert ours.logged["answers"].tolist() == [3]


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    [fedax.FedAvg(), slow(fedax.SCAFFOLD()), slow(fedax.FedDANE(mu=0.1))],
    ids=lambda a: type(a).__name__,
)
def test_the_mean_is_that_of_the_simulation(algorithm, tmp_path):
    """To the step: an upload is off by at most half of it, and three rounds carry that on."""
    ours = run(algorithm, federation(tmp_path, algorithm, secure=LARGEST))
    np.testing.assert_allclose(vector(ours), vector(run(algorithm)), rtol=0, atol=100 * STEP)
    assert ours.logged["answers"].tolist() == [len(run_phases(algorithm)) * 3] * 3
    assert ours.logged["absent"].tolist() == ours.logged["refused"].tolist() == [0, 0, 0]


def run_phases(algorithm):
    return ["gradient", "train"] if isinstance(algorithm, fedax.FedDANE) else ["train"]


@pytest.mark.slow
@pytest.mark.parametrize("stage", [member.KEYS, member.DEAL, member.HIDE, member.SHOW])
def test_clients_that_leave(stage, tmp_path):
    """Client 3 leaves in round 1 at some stage. Once its upload is in the sum it counts, even if it
    opens nothing."""

    def lose(message, answer):
        content = message.content
        at = content["order"]["round"] == 1 and client_of(message) == 3
        return [] if at and (stage == "open" or content["masks"]["stage"] == stage) else [answer]

    algorithm = fedax.SCAFFOLD()
    options = {"schedule": EVERYONE, "on_bad_client": "drop", "rounds": 3}
    engine = federation(
        tmp_path / "secure", algorithm, schedule=EVERYONE, spoil=lose, secure=LARGEST, deadline=3.0
    )
    ours = run(algorithm, engine, **options)
    assert ours.logged["absent"].tolist() == [0, 1, 0]
    assert ours.logged["answers"].tolist() == [4, 4 if stage == member.SHOW else 3, 4]
    if stage == member.SHOW:
        theirs = run(algorithm, **options)
    else:
        stage = "open"
        theirs = run(
            algorithm,
            federation(tmp_path / "open", algorithm, schedule=EVERYONE, spoil=lose),
            **options,
        )
    np.testing.assert_allclose(vector(ours), vector(theirs), rtol=0, atol=100 * STEP)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "channel", "reason"),
    [
        (fedax.FedAWARE(), None, r"FedAWARE.\w+ gathers single uploads"),
        (fedax.FedBC(), None, r"FedBC.\w+ have weights of their own"),
        (
            fedax.FedAvg(),
            fedax.Channel(up=codecs.Quantizer(b=8)),
            "are coded, and codes do not add up",
        ),
        (
            fedax.FedAvg(),
            fedax.Channel(privacy=fedax.Privacy(delta=1e-3)),
            'clips single uploads.*where="client"',
        ),
    ],
    ids=["gathers", "weighs", "codes", "clips"],
)
def test_refused_with_the_reason(algorithm, channel, reason, tmp_path):
    schedule = fedax.Schedule(cohort=3, steps=1, weights="equal")
    engine = federation(tmp_path, algorithm, schedule=schedule, channel=channel, secure=LARGEST)
    with pytest.raises(fedax.InvalidInput, match=f"secure=.*{reason}"):
        run(algorithm, engine, schedule=schedule, channel=channel)


@pytest.mark.parametrize("stage", [member.KEYS, member.DEAL, member.HIDE, member.SHOW])
def test_a_sum_of_two_is_not_opened(stage, tmp_path):
    """One of a cohort of three leaves: nobody is asked for a share, unless it was to open the sum
    itself, and the round changes nothing."""
    sent = []

    def lose(message, answer):
        sent.append(message)
        is_lost = client_of(message) == client_of(sent[0])
        return [] if is_lost and message.content["masks"]["stage"] == stage else [answer]

    engine = federation(tmp_path, fedax.FedAvg(), spoil=lose, secure=LARGEST)
    history = run(fedax.FedAvg(), engine, rounds=1, on_bad_client="drop")
    assert np.array_equal(vector(history), vector(run(fedax.FedAvg(), rounds=0)))
    asked = [message.content["masks"]["stage"] for message in sent]
    assert (member.SHOW in asked) == (stage == member.SHOW)


def test_a_sum_of_two_is_refused(tmp_path):
    schedule = fedax.Schedule(cohort=2, steps=1)
    with pytest.raises(
        fedax.InvalidInput,
        match=r"FedAvg.train, round 0, its clients: got 2; "
        r"allowed: whole numbers >= 3",
    ):
        run(
            fedax.FedAvg(),
            federation(tmp_path, fedax.FedAvg(), schedule=schedule, secure=LARGEST),
            schedule=schedule,
        )


@pytest.mark.slow
def test_entries_that_do_not_fit(tmp_path):
    engine = federation(tmp_path, fedax.FedAvg(), secure=1e-3)
    with pytest.raises(
        fedax.FedaxError,
        match=r"not finite, or above 0.001, the most that fits "
        r"under its mask",
    ):
        run(fedax.FedAvg(), engine)


@pytest.mark.slow
def test_a_client_shows_no_more_than_it_should(tmp_path):
    """No open upload; no secrets of others than before; no upload for a name that is not its
    content's."""
    engine = federation(tmp_path, fedax.FedAvg(), secure=LARGEST)
    run(fedax.FedAvg(), engine, rounds=1)
    sent = [m for m in engine.grid.messages if m.metadata.message_type == "train"]
    asked = {
        m.content["masks"]["stage"]: m.content for m in sent if client_of(m) == client_of(sent[0])
    }
    worker = engine.grid.workers[sent[0].metadata.dst_node_id]

    def error(content):
        return worker.answer(content)["answer"]["error"]

    hide = asked[member.HIDE]
    show = asked[member.SHOW]
    opened = RecordDict({name: record for name, record in hide.items() if name != "masks"})
    assert "answers under masks alone" in error(opened)
    assert "whose name is not that of its content" in error(changed_record(hide, "order", round=7))
    fewer = changed_record(show, "masks", there=show["masks"]["there"][1:])
    assert "of other members than were asked for before" in error(fewer)
    assert len(worker.answer(show)["answer"]["shares"]) == 3  # the same question is answered again


def test_letters_and_keys_that_are_wrong():
    everyone, keys = members(3)
    letters = {m.number: m.deal(keys, 3) for m in everyone}
    received = {k: letters[k][1] for k in keys}
    for wrong in (letters[2][1], letters[1][0]):  # of another pair, and of the other direction
        with pytest.raises(InvalidToken):
            everyone[1].shares(received | {0: wrong}, keys, keys)
    for members_keys, threshold in ((keys, 2), (keys | {2: keys[1]}, 3)):
        with pytest.raises(Refused):
            everyone[0].deal(members_keys, threshold)
