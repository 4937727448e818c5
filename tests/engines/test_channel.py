"""Codecs on the way up and down, for algorithms that know nothing of them."""

import numpy as np
import pytest

import fedax
from fedax.communication.codecs import Identity, Quantizer, TopK
from problems import regression, vector
from transcription import LR, ROUNDS, SCHEDULE, SEED, P, World

pytestmark = pytest.mark.slow

ONE = fedax.Simulation(devices=1)


def run(method, channel, engine=ONE, rounds=ROUNDS, schedule=SCHEDULE):
    return fedax.run(
        method,
        regression(),
        channel=channel,
        engine=engine,
        solver=fedax.SGD(LR),
        schedule=schedule,
        rounds=rounds,
        seed=SEED,
        observe_every=rounds,
    )


def top(v, k):
    kept = np.zeros_like(v)
    largest = np.argsort(-np.abs(v), kind="stable")[:k]
    kept[largest] = v[largest].astype(np.float32)
    return kept


def test_quantized_both_ways_against_numpy():
    """The model goes down on a grid; what was learned from there comes up on a grid."""
    world = World()
    s = float(np.float32(0.02))

    def grid(v):
        return np.clip(np.floor(v / s), -128, 127) * s

    w = world.start
    for cohort in world.cohorts():
        sent = grid(w)
        w = np.average(
            [sent + grid(world.sgd(k, sent)[0] - sent) for k in cohort], axis=0, weights=P[cohort]
        )
    codec = Quantizer(b=8, step=s, rounding="floor")
    history = run(fedax.FedAvg(), fedax.Channel(up=codec, down=codec))
    np.testing.assert_allclose(vector(history), w, rtol=0, atol=1e-12)
    assert history.bits.up.tolist() == history.bits.down.tolist() == [3 * (32 + 4 * 8)] * ROUNDS
    assert history.algorithm == "FedAvg"


def test_top_k_with_feedback_against_numpy():
    """The rest of a message goes into the same client's next one, whenever it takes part again."""
    world = World()
    lost = np.zeros((5, 4))
    w = world.start
    for cohort in world.cohorts():
        messages = []
        for k in cohort:
            v = world.sgd(k, w)[0] - w + lost[k]
            messages.append(top(v, 2))
            lost[k] = v - messages[-1]
        w = w + np.average(messages, axis=0, weights=P[cohort])
    history = run(fedax.FedAvg(), fedax.Channel(up=TopK(0.5)))
    np.testing.assert_allclose(vector(history), w, rtol=0, atol=1e-12)
    assert history.bits.up.tolist() == [3 * 2 * (32 + 2)] * ROUNDS
    assert history.bits.down.tolist() == [3 * 4 * 64] * ROUNDS
    assert not np.allclose(
        vector(run(fedax.FedAvg(), fedax.Channel(up=TopK(0.5, feedback=False)))), w
    )


@pytest.mark.parametrize(
    "kind",
    [fedax.FedDANE, fedax.DFedAvgM],
    ids=lambda kind: kind.__name__,
)
def test_coded_runs_agree_on_all_engines(kind):
    """Memory of the algorithm and of the channel side by side, several vectors, several phases;
    random rounding downwards."""
    channel = fedax.Channel(up=TopK(0.5), down=Quantizer(b=8))
    one, mesh, eager = (
        run(kind(), channel, e, 3)
        for e in (ONE, fedax.Simulation(chunk=2, devices=2), fedax.Eager())
    )
    for other in (mesh, eager):
        np.testing.assert_allclose(vector(one), vector(other), rtol=0, atol=1e-12)
        assert one.bits.up.tolist() == other.bits.up.tolist()
        assert one.bits.down.tolist() == other.bits.down.tolist()
    exact = run(kind(), None, rounds=3)
    vectors = sum(phase.up.vectors for phase in fedax.footprint(kind()).phases)
    assert not np.allclose(vector(one), vector(exact), rtol=0, atol=1e-6)
    senders = 10 if kind is fedax.DFedAvgM else 3
    assert (exact.bits.up - one.bits.up).tolist() == [senders * vectors * (4 * 64 - 2 * 34)] * 3


def test_an_identity_changes_nothing():
    plain = run(fedax.FedDANE(), None)
    same = run(fedax.FedDANE(), fedax.Channel(up=Identity(), down=Identity()))
    np.testing.assert_allclose(vector(same), vector(plain), rtol=0, atol=1e-12)
    assert same.bits.up.tolist() == plain.bits.up.tolist()
    assert same.bits.down.tolist() == plain.bits.down.tolist()
