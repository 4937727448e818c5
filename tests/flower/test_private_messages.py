"""The messages of deployed clients under privacy: no noise or mask on two contents, an account of
each client, hidden cohorts."""

import os
import re

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from federation import Recorded, changed_record, client_of, numbers
from federation import federation as federate
from flwr.app import RecordDict
from scipy import stats
from scipy.optimize import brentq

import fedax
from fedax import codecs
from fedax.flower.client import disk
from fedax.flower.client.disk import load_secret
from fedax.flower.client.member import HIDE
from fedax.flower.client.worker import Worker
from fedax.flower.protocol.masks import Keys
from fedax.flower.protocol.plan import Assignment
from fedax.flower.protocol.records import digest_of, order_name, record_of
from fedax.flower.server import Flower
from fedax.observe.base import Observer
from fedax.utils import files
from marks import slow

CLIENTS = 4
DIM = 400
CLIP = 0.5
NOISE = 4.0
DELTA = 1e-3
EVERYONE = fedax.Schedule(steps=1, weights="equal")
METHODS = (fedax.FedAvg(),)
LOCAL = fedax.Privacy(clip=CLIP, noise=NOISE, delta=DELTA, where="client")


def linear(w, examples):
    """A step of SGD(1.0) adds the client's example to its model."""
    return -(examples["x"].astype(w.dtype) @ w)


def task(first=9.0, clients=CLIENTS):
    """Client 0 moves along the first coordinate, by up to CLIP; the others stay."""
    rows = [
        {"x": np.eye(1, DIM, dtype=np.float32) * np.float32(first if k == 0 else 0.0)}
        for k in range(clients)
    ]
    return fedax.Task(np.zeros(DIM, np.float32), linear, rows)


def federation(
    folder, privacy, methods=METHODS, *, first=9.0, clients=CLIENTS, schedule=EVERYONE, **options
):
    """An engine with workers whose folders are below `folder`."""
    channel = fedax.Channel(privacy=privacy)
    whole = task(first, clients)
    given = {"whole": whole, "solver": fedax.SGD(1.0), "channel": channel, "deadline": 5.0}
    return federate(folder, *methods, schedule=schedule, **given | options)


def run(engine, privacy, method=None, *, rounds=1, schedule=EVERYONE, clients=CLIENTS, **options):
    given = {
        "solver": fedax.SGD(1.0),
        "schedule": schedule,
        "channel": fedax.Channel(privacy=privacy),
        "observe": [],
    }
    return fedax.run(
        method or fedax.FedAvg(),
        task(clients=clients),
        engine=engine,
        rounds=rounds,
        **given | options,
    )


def orders(engine, client=0):
    return [
        m.content
        for m in engine.grid.messages
        if m.metadata.message_type == "train" and client_of(m) == client
    ]


def upload(answer):
    assert "error" not in answer["answer"], answer["answer"]["error"]
    return numbers(answer["up"], np.float32).astype(float)


def error(answer):
    return answer["answer"].get("error")


def renamed(order, down=None, **fields):
    """An order of its own right: other content, and the name that belongs to it."""
    changed = changed_record(order, "order", **fields)
    changed = RecordDict(dict(changed) | ({} if down is None else {"down": record_of(down)}))
    name = order_name(0, changed["order"], digest_of({"down": changed["down"]}))
    return changed_record(changed, "order", order=name)


def models_of(engine, client=0):
    """The models that the server sent to a client, one per order."""
    return [numbers(order["down"], np.float32).astype(float) for order in orders(engine, client)]


def uploads_of(engine, client=0):
    replies = [
        r
        for r in engine.grid.replies
        if r.metadata.src_node_id == 100 + client and "up" in r.content
    ]
    return [upload(reply.content) for reply in replies]


@pytest.mark.slow
def test_no_two_messages_share_noise(tmp_path):
    """Runs, methods, rounds, data and models: whatever differs, the noise of any two messages of a
    client is independent."""
    methods = (fedax.FedAvg(), fedax.FedAvgM())
    found = []
    for first in (9.0, 8.0):
        engine = federation(tmp_path, LOCAL, methods, first=first)
        for method in methods:
            run(engine, LOCAL, method, rounds=2)
        # A model contains the client's earlier noise, and an upload contains the model.
        found += list(np.array(uploads_of(engine)) - np.array(models_of(engine)))
    worker = engine.grid.workers[100]
    order = orders(engine)[0]
    far = renamed(order, down=(np.full(DIM, 3.0, np.float32),))
    found.append(upload(worker.answer(far)) - 3.0)
    noise = np.array(found)[:, 1:]
    assert len(noise) == 9
    assert noise.std(axis=1) == pytest.approx(np.full(9, CLIP * NOISE), rel=0.2)
    assert np.abs(np.corrcoef(noise) - np.eye(9)).max() < 0.3


@pytest.mark.slow
def test_a_repeated_order_gets_the_stored_message(tmp_path):
    """Also from another process, and at no cost; another content under its name is refused, as is a
    name that is not its own."""
    engine = federation(tmp_path, LOCAL)
    run(engine, LOCAL, rounds=2)
    worker = engine.grid.workers[100]
    order = orders(engine)[0]
    sent = upload(worker.answer(order))
    spent = worker.spent(DELTA)
    assert np.array_equal(sent, uploads_of(engine)[0])
    again = Worker(task(), 0, tmp_path / "client-0", list(worker.assignments.values()))
    assert np.array_equal(upload(again.answer(order)), sent)
    assert again.spent(DELTA) == spent
    far = RecordDict(dict(order) | {"down": record_of((np.full(DIM, 3.0, np.float32),))})
    assert "name is not that of its content" in error(worker.answer(far))
    assert "name is not that of its content" in error(
        worker.answer(changed_record(order, "order", round=5))
    )
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    # locks are empty
    assert not [path for path in files if path.stat().st_size and path.stat().st_mode & 0o077]


@pytest.mark.slow
def test_a_resumed_run_gets_the_stored_messages(tmp_path):
    """The server was killed before its checkpoint of the last round: no second noisy message of
    that round, which the server's epsilon would not count."""

    def run_three_rounds():
        engine = federation(tmp_path, LOCAL, run="r", secret=b"x" * 32)
        return engine, run(engine, LOCAL, rounds=3, checkpoint=tmp_path / "checkpoints")

    first, history = run_three_rounds()
    newest = max((tmp_path / "checkpoints").rglob("round-*"), key=lambda path: path.name)
    newest.unlink()
    again, resumed = run_three_rounds()
    for k in range(CLIENTS):
        (order,) = orders(again, k)
        assert order["order"]["round"] == 2
        assert order["order"]["order"] == orders(first, k)[2]["order"]["order"]
        assert np.array_equal(uploads_of(again, k)[0], uploads_of(first, k)[2])
        account = again.grid.workers[100 + k].outbox.account
        assert account.uploads == {NOISE / 2: 3}
    assert np.array_equal(resumed.params, history.params)
    assert again.grid.workers[100].spent(DELTA) == pytest.approx(resumed.metrics["epsilon"][-1])


@pytest.mark.parametrize("damaged", ["floor", "message"])
def test_damaged_files_of_stored_messages_are_named(damaged, tmp_path):
    engine = federation(tmp_path, LOCAL)
    run(engine, LOCAL, rounds=1)
    client = engine.grid.workers[100]
    order = orders(engine)[0]
    (stored,) = (tmp_path / "client-0" / "sent").rglob("*-noisy")
    path = stored.with_name("floor") if damaged == "floor" else stored
    path.write_bytes(b"")
    answer = client.answer(renamed(order, round=1) if damaged == "floor" else order)
    assert "up" not in answer
    assert re.search(rf"{re.escape(str(path))} is damaged", error(answer))
    assert client.outbox.account.uploads == {NOISE / 2: 1}


@pytest.mark.slow
def test_a_memory_belongs_to_the_noise_that_is_sent(tmp_path, monkeypatch):
    """A disk is full just before the message is stored, so another one is made later."""

    def write(path, *arguments):
        if path.name.endswith("-noisy"):
            raise fedax.core.WriteFailed(f"{path}: No space left")
        files.write(path, *arguments)

    channel = fedax.Channel(privacy=LOCAL, up=codecs.TopK(0.5))
    engine = federation(tmp_path, LOCAL, channel=channel)
    monkeypatch.setattr(disk, "write", write)
    with pytest.raises(fedax.FedaxError, match="No space left"):
        run(engine, LOCAL, channel=channel)
    (memory,) = (tmp_path / "client-0").rglob("0*-*-*")
    first = memory.read_bytes()
    monkeypatch.undo()
    run(engine, LOCAL, channel=channel)
    assert memory.read_bytes() != first


@pytest.mark.slow
def test_a_message_that_is_no_longer_stored_is_not_made_again(tmp_path):
    engine = federation(tmp_path, LOCAL)
    run(engine, LOCAL, rounds=1)
    worker = engine.grid.workers[100]
    order = orders(engine)[0]
    later = renamed(order, round=9, floor=9)
    assert error(worker.answer(later)) is None
    assert "of round 0, whose messages are no longer stored" in error(worker.answer(order))
    stored = next((tmp_path / "client-0" / "sent").rglob("*-noisy"))
    stored.write_bytes(stored.read_bytes()[:-1] + b"!")
    assert "damaged" in error(worker.answer(later))


@pytest.mark.slow
def test_a_client_keeps_its_account_and_stops_at_its_budget(tmp_path):
    """Over all runs: the epsilon of as many Gaussian messages, whose input may move by 2 C. Together
    they are one Gaussian number that moves by mu of its deviations."""

    def epsilon(count):
        mu = np.sqrt(count) * 2 / NOISE
        tail = stats.norm.cdf

        def excess(eps):
            return tail(mu / 2 - eps / mu) - np.exp(eps) * tail(-mu / 2 - eps / mu) - DELTA

        return brentq(excess, 0.0, 20.0)

    privacy = fedax.Privacy(
        clip=CLIP, noise=NOISE, delta=DELTA, where="client", budget=epsilon(3) + 1e-6
    )
    engine = federation(tmp_path, privacy)
    history = run(engine, privacy, rounds=2)
    worker = engine.grid.workers[100]
    assert worker.spent(DELTA) == pytest.approx(epsilon(2)) == history.metrics["epsilon"][-1]
    order = orders(engine)[0]
    replies = [worker.answer(renamed(order, round=10 + i)) for i in range(3)]
    assert error(replies[0]) is None
    for reply in replies[1:]:
        assert "up" not in reply
        assert "Privacy(budget=" in error(reply)
    assert worker.spent(DELTA) == pytest.approx(epsilon(3))
    assert worker.spent(DELTA) <= privacy.budget
    with pytest.raises(fedax.FedaxError, match=r"client 0: Privacy\(budget=.*of this client"):
        # the server's budget is another one
        run(federation(tmp_path, privacy, run="another"), LOCAL)
    # the account is of the folder, not of the process; one that cannot be read stops the client
    (tmp_path / "client-0" / "account.json").write_text("{")
    assert "up" not in worker.answer(renamed(order, round=20))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "up", "uploads"),
    [
        (fedax.SCAFFOLD(), None, 1),
        slow(fedax.FedDANE(mu=0.1), None, 2),
        slow(fedax.FedAvg(), codecs.Quantizer(b=8), 1),
        slow(fedax.FedAWARE(), None, 1),
    ],
    ids=["two parts", "two phases", "codec", "gathers"],
)
def test_every_upload_is_counted_once(method, up, uploads, tmp_path):
    """Of several parts, in several phases, behind a codec, with memory, gathered: the account is
    that of the server."""
    channel = fedax.Channel(privacy=LOCAL, up=up)
    engine = federation(tmp_path, LOCAL, [method], channel=channel)
    history = run(engine, LOCAL, method, rounds=2, channel=channel)
    worker = engine.grid.workers[100]
    assert history.outcome.ok
    assert worker.outbox.account.uploads == {NOISE / 2: 2 * uploads}
    assert worker.spent(DELTA) == pytest.approx(history.metrics["epsilon"][-1])


@pytest.mark.slow
def test_an_upload_without_noise_is_in_the_account(tmp_path):
    """A client that takes part in a run without privacy too has given everything away."""
    whole = task()
    plain = Assignment(fedax.FedAvg(), fedax.SGD(1.0), EVERYONE, None)
    private = Assignment(fedax.FedAvg(), fedax.SGD(1.0), EVERYONE, fedax.Channel(privacy=LOCAL))
    workers = [Worker(whole, k, tmp_path / f"client-{k}", [plain, private]) for k in range(CLIENTS)]
    engine = Flower(Recorded(workers), deadline=5.0)
    run(engine, LOCAL)
    assert 0 < workers[0].spent(DELTA) < np.inf
    given = {
        "solver": fedax.SGD(1.0),
        "schedule": EVERYONE,
        "observe": [],
        "rounds": 1,
        "engine": engine,
    }
    fedax.run(fedax.FedAvg(), task(), **given)
    assert workers[0].spent(DELTA) == np.inf


def proved(shift, delta):
    """The largest epsilon that a threshold on a Gaussian number of width 1 proves, which one of the
    inputs moves by `shift`."""
    points = np.linspace(-12, 12, 24001)
    more = stats.norm.sf(points - shift) - delta
    less = stats.norm.sf(points)
    return float(np.log(more[more > 0] / less[more > 0]).max(initial=0.0))


@pytest.mark.slow
@pytest.mark.parametrize("secure", [False, True], ids=["open", "secure"])
def test_the_best_attack_on_the_messages_is_at_most_epsilon(secure, tmp_path):
    """One client's two opposite inputs, known but for that. In the open every message; under masks
    the sum of all clients."""
    rounds = 3
    options = {"secure": 64.0} if secure else {}
    quiet = fedax.Privacy(clip=CLIP, noise=0.0, delta=DELTA, where="client")
    ends = [
        run(federation(tmp_path / str(first), quiet, first=first), quiet).params.astype(float)[0]
        * CLIENTS
        for first in (9.0, -9.0)
    ]
    assert ends[0] - ends[1] == pytest.approx(2 * CLIP, rel=1e-4)
    engine = federation(tmp_path / "noisy", LOCAL, **options)
    history = run(engine, LOCAL, rounds=rounds)
    if secure:
        # of a round's sum
        noise = np.asarray(history.params, float)[1:] * CLIENTS / np.sqrt(rounds)
        assert noise.std() == pytest.approx(CLIP * NOISE * np.sqrt(CLIENTS), rel=0.2)
    else:
        noise = (uploads_of(engine)[0] - models_of(engine)[0])[1:]
        assert noise.std() == pytest.approx(CLIP * NOISE, rel=0.2)
    bound = proved(np.sqrt(rounds) * 2 * CLIP / noise.std(), DELTA)
    reported = history.metrics["epsilon"][-1]
    # the account of single messages is exact; their noise is known from DIM entries
    assert bound < 0.7 * reported if secure else bound == pytest.approx(reported, rel=0.2)
    assert engine.grid.workers[100].spent(DELTA) == pytest.approx(reported)


@pytest.mark.parametrize("privacy", [LOCAL, None], ids=["noise", "plain"])
def test_no_mask_hides_two_contents(privacy, tmp_path):
    """A factor, a list of members, a largest entry or a first memory that differs: refused. The
    same order: the same message."""
    engine = federation(tmp_path, privacy, secure=64.0)
    run(engine, privacy, rounds=1)
    worker = engine.grid.workers[100]
    hide = next(content for content in orders(engine) if content["masks"]["stage"] == HIDE)
    sent = worker.answer(hide)["up"]
    assert worker.answer(hide)["up"] == sent
    fewer = {name: list(hide["masks"][name])[:3] for name in ("members", *Keys._fields)}
    for change in ({"factor": 2.0}, {"factor": 0.5}, {"largest": 32.0}, {"threshold": 4}, fewer):
        answer = worker.answer(changed_record(hide, "masks", **change))
        assert "answered before with another content" in error(answer)
        assert "up" not in answer
    # has keys and masks of its own
    other = worker.answer(changed_record(hide, "masks", session="another"))
    assert "up" not in other or other["up"] != sent


@pytest.mark.slow
@pytest.mark.parametrize("sampling", ["poisson", "uniform"])
def test_cohorts_that_epsilon_counts_on_come_from_a_secret(sampling, tmp_path):
    """Whoever knows the seed predicts the cohorts of a run without privacy, and none of a private
    one. A secret repeats them."""
    schedule = fedax.Schedule(cohort=4, sampling=sampling, steps=1, weights="equal")
    clients = 8
    rounds = 5
    privacy, off = (fedax.Privacy(clip=CLIP, noise=noise, delta=DELTA) for noise in (1.0, 0.0))

    def cohorts(name, secret, privacy):
        engine = federation(
            tmp_path / name, privacy, schedule=schedule, clients=clients, secret=secret
        )
        run(engine, privacy, rounds=rounds, schedule=schedule, clients=clients, seed=5)
        sent = [m for m in engine.grid.messages if m.metadata.message_type == "train"]
        return [
            frozenset(client_of(m) for m in sent if m.content["order"]["round"] == t)
            for t in range(rounds)
        ]

    predicted = cohorts("public", b"y", off)
    assert predicted == cohorts("public too", b"x", off)
    hidden = cohorts("one", b"x" * 32, privacy)
    assert hidden == cohorts("again", b"x" * 32, privacy)
    assert sum(a == b for a, b in zip(hidden, predicted, strict=True)) <= 2
    assert sum(a == b for a, b in zip(hidden, cohorts("two", b"y" * 32, privacy), strict=True)) <= 2


@pytest.mark.slow
def test_the_server_s_noise_is_no_multiple_of_another(tmp_path):
    """Two widths on the same sum: with the same numbers their weighted difference would be the sum
    without noise."""
    found = []
    for noise in (1.0, 2.0):
        privacy = fedax.Privacy(clip=CLIP, noise=noise, delta=DELTA)
        history = run(federation(tmp_path / str(noise), privacy, secret=b"one secret"), privacy)
        found.append(np.asarray(history.params, float)[1:])
    assert abs(np.corrcoef(found)[0, 1]) < 0.25
    assert found[1].std() == pytest.approx(2 * found[0].std(), rel=0.3)


class Who(Observer):
    """The clients that worked."""

    def __call__(self, view):
        return {"who": view.cohort().ids.sum()}


def test_who_was_drawn_is_not_for_observers(tmp_path):
    schedule = fedax.Schedule(cohort=2, sampling="poisson", steps=1, weights="equal")
    privacy = fedax.Privacy(clip=CLIP, noise=1.0, delta=DELTA)
    engine = federation(tmp_path, privacy, schedule=schedule)
    with pytest.raises(fedax.InvalidInput, match="who was drawn, which privacy by sampling hides"):
        run(engine, privacy, schedule=schedule, observe=[Who()])


@pytest.mark.skipif(os.name != "posix", reason="modes of files")
def test_the_server_s_secret_is_its_owner_s_alone(tmp_path):
    path = tmp_path / "keys" / "noise.key"
    secret = load_secret(path)
    assert (path.stat().st_mode & 0o777, len(secret)) == (0o600, 32)
    assert load_secret(path) == secret
    path.chmod(0o644)
    with pytest.raises(fedax.InvalidInput, match="0644"):
        load_secret(path)
    path.chmod(0o600)
    path.write_bytes(secret[:5])
    with pytest.raises(fedax.InvalidInput, match="5 bytes"):
        load_secret(path)
