"""State that no gradient trains: as its policy says, on every engine, against a transcription in
NumPy."""

import functools

import numpy as np
import pytest

import fedax
from fedax.core import InvalidInput
from fedax.experiments.results.models import arrays_of
from marks import quick

SIZES = (7, 12, 5)
RATE = 0.05
KEPT = 0.9
RNG = np.random.default_rng(0)
CLIENTS = [{"x": RNG.normal(size=(n, 3)) + k, "y": RNG.normal(size=n)} for k, n in enumerate(SIZES)]
START = {"scale": np.ones(3), "w": np.full(3, 0.1)}
STATE = {"count": np.zeros((), np.int32), "mean": np.zeros(3)}
# a short minibatch, which is filled again, in two of three clients
SCHEDULE = fedax.Schedule(epochs=2, batch_size=4, order="given")
ENGINES = {
    "in turn": fedax.Simulation(devices=1),
    "in chunks": fedax.Simulation(chunk=2, devices=1),
    "on two devices": fedax.Simulation(devices=2, microbatch=3),
    "eager": fedax.Eager(),
}


def centred(p, e, *, state, training):
    """Inputs less their mean over the minibatch, or less the running mean in evaluation."""
    x = e["x"]
    running = state["mean"]
    new = state
    if training:
        mean = x.mean(0)
        new = {"count": state["count"] + 1, "mean": KEPT * running + (1 - KEPT) * mean}
        running = mean
    losses = (((x - running[None, :]) * p["scale"][None, :]) @ p["w"] - e["y"]) ** 2 / 2
    return (losses, new) if training else losses


def task(policy, **parts):
    data = fedax.FederatedData.from_arrays(CLIENTS, **parts)
    return fedax.Task(START, centred, data, state=STATE, state_policy=policy)


@functools.cache
def history(policy, engine="in turn", method=fedax.FedAvg, rounds=3, **more):
    observe = [fedax.observe.TrainLoss()]
    return fedax.run(
        method(),
        task(policy),
        rounds=rounds,
        observe_every=3,
        solver=fedax.SGD(RATE),
        schedule=SCHEDULE,
        engine=ENGINES[engine],
        observe=observe,
        **more,
    )


def filled(client, begin):
    """A full minibatch from a place on: after the last example the first ones come again."""
    rows = np.arange(begin, begin + 4) % len(client["y"])
    return client["x"][rows], client["y"][rows]


def step(w, scale, running, x, y):
    """One step on a minibatch, with the gradient written out."""
    mean = x.mean(0)
    z = x - mean
    residual = (z * scale) @ w - y
    direction = z.T @ residual / len(y)
    return (
        w - RATE * scale * direction,
        scale - RATE * w * direction,
        KEPT * running + (1 - KEPT) * mean,
    )


def transcription(policy, rounds=3):
    w = START["w"]
    scale = START["scale"]
    shares = np.array(SIZES) / sum(SIZES)
    states = [STATE["mean"]] * 3
    for _ in range(rounds):
        ends = []
        for client, state in zip(CLIENTS, states, strict=True):
            own = (w, scale, state)
            for _ in range(2):
                for begin in range(0, len(client["y"]), 4):
                    own = step(*own, *filled(client, begin))
            ends.append(own)
        w, scale, mean = (
            sum(p * values for p, values in zip(shares, part, strict=True))
            for part in zip(*ends, strict=True)
        )
        states = {"average": [mean] * 3, "local": [end[2] for end in ends], "frozen": states}[
            policy
        ]
    return w, scale, states


def train_loss(w, scale, running):
    losses = [((client["x"] - running) * scale @ w - client["y"]) ** 2 / 2 for client in CLIENTS]
    return np.concatenate(losses).mean()


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["average", "local", "frozen"])
@pytest.mark.parametrize("engine", quick(ENGINES, "in turn", "on two devices"))
def test_policies_are_what_they_say(policy, engine):
    found = history(policy, engine)
    w, scale, states = transcription(policy)
    np.testing.assert_allclose(found.params["w"], w, rtol=1e-10)
    np.testing.assert_allclose(found.params["scale"], scale, rtol=1e-10)
    if policy == "average":
        np.testing.assert_allclose(found.model_state["mean"], states[0], rtol=1e-10)
        # 2, 3 and 2 minibatches of two epochs; the mean of the counts, 122 / 24, is rounded in
        # every round
        assert int(found.model_state["count"]) == 3 * round((7 * 4 + 12 * 6 + 5 * 4) / 24)
    elif policy == "local":
        kept = found.model_state.all()
        np.testing.assert_allclose(kept["mean"], states, rtol=1e-10)
        assert kept["count"].tolist() == [12, 18, 12]
    else:
        assert found.model_state is None
    seen = np.mean(states, axis=0) if policy == "local" else states[0]
    np.testing.assert_allclose(
        found.metrics["train_loss"][-1], train_loss(w, scale, seen), rtol=1e-10
    )


@pytest.mark.slow
def test_state_counts_as_traffic_where_it_is_sent():
    model, state, count = 6 * 64, 3 * 64 + 32, 3 * 64 + 64  # a count is averaged as a real number
    assert history("average").bits.down[0] == 3 * (model + state)
    assert history("average").bits.up[0] == 3 * (model + count)
    assert history("local").bits.down[0] == history("local").bits.up[0] == 3 * model


def test_own_models_are_looked_at_with_their_own_state():
    """Also those of a method without personal models, if the state is local."""
    observe = [fedax.observe.ClientAccuracy(score="loss", personal=True)]
    found = fedax.run(
        fedax.FedAvg(),
        task("local", test=CLIENTS),
        observe=observe,
        solver=fedax.SGD(RATE),
        schedule=SCHEDULE,
        engine=ENGINES["in turn"],
        rounds=3,
        observe_every=3,
    )
    w, scale, states = transcription("local")
    own = [
        np.mean(((client["x"] - state) * scale @ w - client["y"]) ** 2 / 2)
        for client, state in zip(CLIENTS, states, strict=True)
    ]
    np.testing.assert_allclose(found.metrics["local_loss"][-1], own, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["average", "local"])
@pytest.mark.parametrize("engine", quick(ENGINES, "in turn", "eager"))
def test_fine_tuned_models_are_looked_at_in_the_state_after_it(policy, engine):
    """FedBABU's fine-tuning moves the statistics too: `personal`, what is seen and what is kept."""
    found = fedax.run(
        fedax.FedBABU(head="scale"),
        task(policy, test=CLIENTS),
        solver=fedax.SGD(RATE),
        schedule=SCHEDULE,
        engine=ENGINES[engine],
        rounds=1,
        observe=[fedax.observe.ClientAccuracy(score="loss", personal=True)],
        personal=True,
    )
    w = START["w"]
    scale = START["scale"]
    shares = np.array(SIZES) / sum(SIZES)

    def work(client, w, scale, running, trains_head):
        for begin in [*range(0, len(client["y"]), 4)] * 2:
            w, after, running = step(w, scale, running, *filled(client, begin))
            scale = after if trains_head else scale
        return w, scale, running

    ends = [work(client, w, scale, STATE["mean"], False) for client in CLIENTS]
    w, mean = (sum(p * end[i] for p, end in zip(shares, ends, strict=True)) for i in (0, 2))
    starts = [mean if policy == "average" else end[2] for end in ends]
    tuned = [work(c, w, scale, start, True) for c, start in zip(CLIENTS, starts, strict=True)]
    for values, i in ((found.personal["w"], 0), (found.personal["scale"], 1)):
        np.testing.assert_allclose(values, [end[i] for end in tuned], rtol=1e-10)
    states = [end[2] for end in tuned]
    np.testing.assert_allclose(found.details.personal_state["mean"], states, rtol=1e-10)
    own = [
        np.mean(((client["x"] - running) * scale @ w - client["y"]) ** 2 / 2)
        for client, (w, scale, running) in zip(CLIENTS, tuned, strict=True)
    ]
    np.testing.assert_allclose(found.metrics["local_loss"][-1], own, rtol=1e-10)
    # the run itself goes on from the state before
    kept = found.model_state.all()["mean"] if policy == "local" else [found.model_state["mean"]] * 3
    np.testing.assert_allclose(kept, starts, rtol=1e-10)
    stored = arrays_of(found)["personal"]
    assert any(
        np.array_equal(rows, found.details.personal_state["mean"]) for rows in stored.values()
    )


@pytest.mark.parametrize("policy", ["average", "local", "frozen"])
def test_states_of_personal_models_without_fine_tuning(policy):
    """Those of the clients, or copies of the shared one; None if training changes none."""
    for method in (fedax.FedAvg, fedax.Ditto):
        found = history(policy, method=method, rounds=1, personal=True)
        if policy == "frozen":
            assert found.details.personal_state is None
            continue
        states = transcription(policy, rounds=1)[2]
        np.testing.assert_allclose(found.details.personal_state["mean"], states, rtol=1e-10)


def test_fedbn_keeps_norms_and_statistics_where_they_are():
    """A client's scale and its running mean stay with it; what is shared is `w` alone."""
    found = history("local", method=lambda: fedax.FedBN(norms="scale"))
    w = START["w"]
    own = [(START["scale"], STATE["mean"])] * 3
    shares = np.array(SIZES) / sum(SIZES)
    for _ in range(3):
        ends = []
        for client, (scale, mean) in zip(CLIENTS, own, strict=True):
            end = (w, scale, mean)
            for begin in [*range(0, len(client["y"]), 4)] * 2:
                end = step(*end, *filled(client, begin))
            ends.append(end)
        w = sum(p * end[0] for p, end in zip(shares, ends, strict=True))
        own = [end[1:] for end in ends]
    scales, means = (np.array(kept) for kept in zip(*own, strict=True))
    np.testing.assert_allclose(found.params["w"], w, rtol=1e-10)
    np.testing.assert_allclose(found.params["scale"], scales.mean(0), rtol=1e-10)
    np.testing.assert_allclose(found.state.clients.all(), scales, rtol=1e-10)
    np.testing.assert_allclose(found.model_state.all()["mean"], means, rtol=1e-10)
    assert found.bits.up[0] == found.bits.down[0] == 3 * 3 * 64


@pytest.mark.parametrize("method", [fedax.FedBN(norms="scale"), fedax.IFCA()])
def test_one_state_is_not_averaged_over_different_models(method):
    with pytest.raises(
        InvalidInput, match=r"\(state_policy=...\): got 'average'; allowed: 'local' or"
    ):
        history("average", method=lambda: method)


def test_parts_trained_alone_train_the_state_too():
    """FedRep's head and body take as many steps each, and both move the running mean."""
    found = history("local", method=lambda: fedax.FedRep(head="w", body="work"), rounds=1)
    assert found.model_state.all()["count"].tolist() == [8, 12, 8]


@pytest.mark.slow
def test_without_a_server_nodes_mix_their_states():
    """On the complete graph, where every node gets the mean of all; its weights are equal."""

    def gossip():
        return fedax.DFedAvgM(topology="complete")

    found = history("average", method=gossip, rounds=1)
    ends = []
    for client in CLIENTS:
        own = (START["w"], START["scale"], STATE["mean"])
        for begin in [*range(0, len(client["y"]), 4)] * 2:
            own = step(*own, *filled(client, begin))
        ends.append(own)
    np.testing.assert_allclose(
        found.params["w"], np.mean([w for w, _, _ in ends], axis=0), rtol=1e-10
    )
    np.testing.assert_allclose(
        found.model_state.all()["mean"], [np.mean([s for _, _, s in ends], axis=0)] * 3, rtol=1e-10
    )
    eager = history("average", "eager", method=gossip, rounds=1)
    np.testing.assert_allclose(
        eager.model_state.all()["mean"], found.model_state.all()["mean"], rtol=1e-10
    )


LINE = np.array([[2, 1, 0], [1, 1, 1], [0, 1, 2]]) / 3
EXCHANGING = {
    "DSGD": (fedax.DSGD, 1),
    "BEER": (fedax.BEER, 1),
    "DFedSAM": (functools.partial(fedax.DFedSAM, gossips=3), 3),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", quick(EXCHANGING, "DSGD", "DFedSAM"))
def test_the_state_goes_with_every_message_to_neighbours(name):
    """Four of them along the line in an exchange, whichever half of it trains."""
    make, exchanges = EXCHANGING[name]
    sent = [
        history(policy, method=lambda: make(graph=fedax.Graph.given(LINE)), rounds=2).bits.up
        for policy in ("average", "local")
    ]
    assert (sent[0] - sent[1]).tolist() == [4 * exchanges * (3 * 64 + 64)] * 2


@pytest.mark.parametrize("engine", quick(ENGINES, "in turn", "eager"))
def test_dsgd_mixes_the_states_of_the_round_before(engine):
    """It trains after it has mixed, from the mean of the neighbours' states."""

    def gossip():
        return fedax.DSGD(graph=fedax.Graph.given(LINE))

    found = history("average", engine, method=gossip, rounds=3)
    nodes = [(START["w"], START["scale"], STATE["mean"])] * 3
    for _ in range(3):
        mixed = [
            tuple(sum(w * node[i] for w, node in zip(row, nodes, strict=True)) for i in range(3))
            for row in LINE
        ]
        ends = []
        for client, before, (w, scale, running) in zip(CLIENTS, nodes, mixed, strict=True):
            own = (*before[:2], running)
            for begin in [*range(0, len(client["y"]), 4)] * 2:
                own = step(*own, *filled(client, begin))
            ends.append((w + own[0] - before[0], scale + own[1] - before[1], own[2]))
        nodes = ends
    means = [mean for _, _, mean in nodes]
    np.testing.assert_allclose(found.model_state.all()["mean"], means, rtol=1e-10)
    np.testing.assert_allclose(found.params["w"], np.mean([n[0] for n in nodes], 0), rtol=1e-10)


def test_gathering_methods_average_the_state_too():
    found = history("average", method=fedax.FedMGDA, rounds=1)
    np.testing.assert_allclose(
        found.model_state["mean"], transcription("average", rounds=1)[2][0], rtol=1e-10
    )


@pytest.mark.slow
def test_loops_of_a_method_train_the_state():
    """pFedMe's inner steps: each is a step of the state, so that three of them are as many steps
    again."""
    found = history("local", method=lambda: fedax.PFedMe(inner_steps=3), rounds=1)
    assert found.model_state.all()["count"].tolist() == [12, 18, 12]
    state = STATE["mean"]
    for begin in [0, 0, 0, 4, 4, 4] * 2:
        state = KEPT * state + (1 - KEPT) * filled(CLIENTS[0], begin)[0].mean(0)
    np.testing.assert_allclose(found.model_state.all()["mean"][0], state, rtol=1e-10)


@pytest.mark.slow
def test_minibatches_of_drawn_sizes_are_alike_on_all_engines():
    """Drawn ones are repeated up to the largest."""
    found = [
        fedax.run(
            fedax.FedAvg(),
            task("local"),
            solver=fedax.SGD(RATE),
            schedule=fedax.Schedule(epochs=2, batch_size=(2, 4)),
            rounds=2,
            engine=engine,
        )
        for engine in ENGINES.values()
    ]
    for history in found[1:]:
        np.testing.assert_allclose(history.params["w"], found[0].params["w"], rtol=1e-10)
        np.testing.assert_allclose(
            history.model_state.all()["mean"], found[0].model_state.all()["mean"], rtol=1e-10
        )


def test_a_loss_that_couples_examples_sees_whole_minibatches():
    """One with the state `()`: no piece of a minibatch is shorter than it, however few examples may
    pass at once."""
    widths = set()

    def loss(w, x, *, state, training):
        if training:
            widths.add(len(x))
            return (w - x + x.mean()) ** 2, state
        return (w - x) ** 2

    clients = [np.arange(float(n)) for n in SIZES]
    coupled = fedax.Task(0.0, loss, clients, state=())
    widths.clear()
    fedax.run(
        fedax.FedAvg(),
        coupled,
        solver=fedax.SGD(RATE),
        schedule=fedax.Schedule(batch_size=4),
        engine=fedax.Simulation(microbatch=2, devices=1),
        rounds=1,
    )
    assert widths == {4}


@pytest.mark.parametrize(
    "new",
    [
        lambda state: {"mean": state["mean"]},
        lambda state: state | {"mean": state["mean"][:2]},
    ],
)
def test_a_state_keeps_its_form(new):
    def loss(p, e, *, state, training):
        values = centred(p, e, state=state, training=False)
        return (values, new(state)) if training else values

    task = fedax.Task(START, loss, CLIENTS, state=STATE)
    with pytest.raises(TypeError, match="carry output must have"):
        fedax.run(fedax.FedAvg(), task, rounds=1, schedule=fedax.Schedule(batch_size=2, steps=2))


@pytest.mark.slow
def test_frozen_leaves_are_left_alone():
    """As a loss that holds them itself: the same run, fewer bits; and the whole model comes
    back."""

    def loss(p, e):
        return ((e["x"] * p["scale"][None, :]) @ p["w"] - e["y"]) ** 2 / 2

    def alone(w, e):
        return loss({"scale": START["scale"], "w": w}, e)

    options = {
        "solver": fedax.SGD(RATE),
        "schedule": SCHEDULE,
        "rounds": 2,
        "engine": ENGINES["in turn"],
    }
    frozen = fedax.run(fedax.FedAvg(), fedax.Task(START, loss, CLIENTS, frozen="scale"), **options)
    by_hand = fedax.run(fedax.FedAvg(), fedax.Task(START["w"], alone, CLIENTS), **options)
    assert np.array_equal(frozen.params["w"], by_hand.params)
    assert np.array_equal(frozen.params["scale"], START["scale"])
    assert frozen.bits.up[0] == by_hand.bits.up[0] == 3 * 3 * 64


@pytest.mark.parametrize("policy", ["average", "local"])
def test_a_saved_model_comes_back_with_its_state(policy, tmp_path):
    """Loaded into a run, it is looked at as it was; of states that clients keep, the mean is
    saved."""
    found = history(policy)
    path = tmp_path / "model.safetensors"
    found.save(path)
    _, _, states = transcription(policy)
    state = fedax.load_state(path, like=task(policy))
    np.testing.assert_allclose(state["mean"], np.mean(states, axis=0), rtol=1e-10)
    assert state["count"].dtype == np.int32
    assert fedax.load_params(path, like=task(policy)).keys() == START.keys()
    again = fedax.run(
        fedax.FedAvg(),
        task(policy),
        params=path,
        rounds=0,
        observe=[fedax.observe.TrainLoss()],
        engine=ENGINES["in turn"],
    )
    assert again.metrics["train_loss"][0] == pytest.approx(
        found.metrics["train_loss"][-1], rel=1e-12
    )
    with pytest.raises(InvalidInput, match=r"state: mean: got shape \(3,\); allowed: shape \(2,\)"):
        fedax.load_state(path, like={"mean": np.zeros(2), "count": STATE["count"]})
