"""Privacy over Flower: as in a simulation, but with noise that nobody else can tell."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from federation import check_same, federation, run

import fedax
from problems import vector

pytestmark = pytest.mark.slow

SCHEDULE = fedax.Schedule(cohort=3, epochs=2, batch_size=3, weights="equal")


def both(folder, privacy, rounds=2, algorithm=None, **options):
    """The deployed run and the simulated one."""
    algorithm = algorithm or fedax.FedAvg()
    channel = fedax.Channel(privacy=privacy)
    engine = federation(folder, algorithm, schedule=SCHEDULE, channel=channel, **options)
    given = {"schedule": SCHEDULE, "channel": channel, "rounds": rounds, "observe": []}
    return run(algorithm, engine, **given), run(algorithm, **given)


@pytest.mark.parametrize(
    ("privacy", "options"),
    [
        (fedax.Privacy(clip=0.05, noise=0.0, quantile=0.5), {}),
        (fedax.Privacy(clip=0.05, noise=0.0, where="client"), {}),
        (fedax.Privacy(clip=0.05, noise=0.0, where="client"), {"secure": 0.25}),
    ],
    ids=["server", "client", "secure"],
)
def test_clipping_is_that_of_the_simulation(privacy, options, tmp_path):
    ours, theirs = both(tmp_path, privacy, **options)
    check_same(ours, theirs)
    assert (
        np.abs(vector(ours) - vector(run(fedax.FedAvg(), schedule=SCHEDULE, rounds=2))).max() > 1e-3
    )


def test_noise_at_the_server_comes_from_its_secret(tmp_path):
    """Another secret, other noise; the same, the same: that of a run that is continued. Clients
    know the seed alone."""
    private = fedax.Privacy(clip=0.05, noise=1.0, delta=1e-3)
    runs = [
        both(tmp_path / str(i), private, 1, secret=secret)
        for i, secret in enumerate((b"a", b"b", b"a"))
    ]
    ours = [vector(deployed) for deployed, _ in runs]
    assert np.array_equal(ours[0], ours[2])
    assert np.abs(ours[0] - ours[1]).max() > 1e-3
    assert np.abs(ours[0] - vector(runs[0][1])).max() > 1e-3
    assert runs[0][0].metrics["epsilon"][-1] == runs[0][1].metrics["epsilon"][-1] > 0


def test_a_round_done_anew_with_other_uploads_has_other_noise(tmp_path):
    """Otherwise the difference of both would be an upload without noise."""
    private = fedax.Privacy(clip=0.05, noise=1.0, delta=1e-3)

    def lose(message, answer):
        return [] if message.metadata.dst_node_id == lost else [answer]

    channel = fedax.Channel(privacy=private)
    found = []
    for lost in (None, 101, 102, 103):
        engine = federation(
            tmp_path / str(lost),
            fedax.FedAvg(),
            schedule=SCHEDULE,
            channel=channel,
            spoil=lose,
            secret=b"a",
        )
        given = {
            "schedule": SCHEDULE,
            "channel": channel,
            "rounds": 1,
            "observe": [],
            "on_bad_client": "drop",
        }
        found.append(vector(run(fedax.FedAvg(), engine, **given)))
    moved = [
        np.linalg.norm(other - found[0])
        for other in found[1:]
        if not np.array_equal(other, found[0])
    ]
    assert moved
    # the largest difference of two means without noise is one bound over three clients
    assert max(moved) > 0.05 / 3
