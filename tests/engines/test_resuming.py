"""Histories are continued by the run that made them, and the account of privacy holds for all of
its rounds."""

import re

import numpy as np
import pytest

import fedax
from fedax.engine.compilation.identity import hash_arrays
from marks import slow
from problems import SIZES, regression, vector

ONE = fedax.Simulation(devices=1)
POISSON = fedax.Schedule(cohort=2, sampling="poisson", steps=1, batch_size=4, weights="equal")
COMMON = {"solver": fedax.SGD(0.05), "schedule": POISSON, "observe": [], "engine": ONE}


def private(noise=0.5, **more):
    return fedax.Channel(privacy=fedax.Privacy(clip=1.0, noise=noise, delta=1e-3, **more))


def go(method=None, task=None, rounds=2, **options):
    given = COMMON | {"seed": 3} | options
    return fedax.run(method or fedax.FedAvg(), task or regression(), rounds=rounds, **given)


def neighbour():
    """The same data but for one number of one example."""
    clients = [regression().train[k] for k in range(len(SIZES))]
    clients[2] = {name: np.array(values) for name, values in clients[2].items()}
    clients[2]["x"][5, 1] += 0.25
    return fedax.Task(
        {"b": np.zeros(()), "w": np.full(3, 0.1)},
        lambda p, e: (e["x"] @ p["w"] + p["b"] - e["y"]) ** 2 / 2,
        clients,
        l2=0.01,
    )


OTHERS = {
    "seed": {"seed": 4},
    "algorithm": {"method": fedax.FedAvgM()},
    "algorithm.mu": {"method": fedax.FedProx(mu=0.2)},
    "solver.learning_rate": {"solver": fedax.SGD(0.1)},
    "observe": {"observe": [fedax.observe.TrainLoss()]},
    "data.train": {"task": neighbour()},
    "task.clients": {"task": regression((7, 20, 33))},
    "model": {"task": fedax.Task(0.0, lambda w, x: (w - x) ** 2 / 2, [[1.0], [2.0], [3.0]])},
    "channel.privacy": {"channel": private()},
}


def refuses(field, name, **options):
    with pytest.raises(fedax.InvalidInput, match=re.escape(name)) as refusal:
        go(rounds=4, **options)
    assert refusal.value.field == field


@pytest.mark.slow
def test_another_run_is_refused_with_what_differs():
    """The state would be that of two runs."""
    begun = go(fedax.FedProx(mu=0.1))
    for name, other in OTHERS.items():
        refuses("run(resume=...)", name, resume=begun, **{"method": fedax.FedProx(mu=0.1)} | other)


@pytest.mark.slow
def test_other_privacy_is_refused():
    begun = go(channel=private(0.3))
    others = {
        "noise": private(1.3),
        "quantile": private(0.3, quantile=0.5, count_noise=1.0),
        "where": private(0.3, where="client"),
        "delta": fedax.Channel(privacy=fedax.Privacy(clip=1.0, noise=0.3, delta=1e-2)),
    }
    for name, channel in others.items():
        refuses("run(resume=...)", f"channel.privacy.{name}", resume=begun, channel=channel)
    refuses("run(resume=...)", "channel", resume=begun)


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [{}, {"quantile": 0.5, "count_noise": 1.0}], ids=["fixed", "adaptive"]
)
@pytest.mark.parametrize("engine", [ONE, slow(fedax.Eager())], ids=["simulation", "eager"])
def test_a_continued_account_is_that_of_the_whole_run(engine, more):
    channel = private(1.0, **more)
    whole = go(channel=channel, rounds=5, engine=engine)
    half = go(channel=channel, rounds=2, engine=engine)
    ended = go(channel=channel, rounds=5, resume=half, engine=engine)
    # the middle of the run is observed where the first part ended
    assert (
        ended.metrics["epsilon"][-1]
        == whole.metrics["epsilon"][-1]
        > half.metrics["epsilon"][-1]
        > 0
    )
    np.testing.assert_array_equal(vector(ended), vector(whole))
    # a history of a history is one run too
    again = go(channel=channel, rounds=7, resume=ended, engine=engine)
    assert again.metrics["epsilon"][-1] > ended.metrics["epsilon"][-1]


@pytest.mark.slow
def test_a_budget_may_grow_in_a_folder(tmp_path):
    """The rounds are those of the run with the larger budget."""
    spent = go(channel=private(1.0), rounds=3).metrics["epsilon"]
    small, large = (private(1.0, budget=float(spent[k]) + 1e-9) for k in (2, 3))
    kept = {"rounds": 9, "checkpoint": tmp_path}
    for channel, rounds in ((small, 2), (small, 2), (large, 3)):
        ended = go(channel=channel, **kept)
        assert (ended.outcome.kind, len(ended.bits.up)) == ("stopped", rounds)
    np.testing.assert_array_equal(vector(ended), vector(go(channel=large, rounds=9)))
    with pytest.raises(fedax.InvalidInput, match=r"channel\.privacy\.noise"):
        go(channel=private(1.3, budget=9.0), **kept)


@pytest.mark.slow
def test_a_grid_is_continued_in_its_order():
    methods = [fedax.FedProx(mu=mu) for mu in (0.1, 0.2)]
    given = COMMON | {"seed": [3, 4]}
    begun = fedax.run_grid(methods, regression(), rounds=1, **given)
    assert [
        len(h.bits.up)
        for h in fedax.run_grid(methods, regression(), rounds=2, resume=begun, **given)
    ] == [2] * 4
    for others, field in ((begun[::-1], "run(resume=...)"), (begun[:3], "run(resume=...)")):
        with pytest.raises(fedax.InvalidInput) as refusal:
            fedax.run_grid(methods, regression(), rounds=2, resume=others, **given)
        assert refusal.value.field == field


@pytest.mark.slow
def test_a_session_ends_at_its_budget():
    """With the account of a run; the last state stays usable."""
    spent = [0.0, *go(channel=private(1.0), rounds=3, observe=None).metrics["epsilon"][1:]]
    session = fedax.start(
        fedax.FedAvg(),
        regression(),
        schedule=POISSON,
        engine=ONE,
        channel=private(1.0, budget=float(spent[2]) + 1e-9),
    )
    state = session.init()
    for t in (1, 2):
        state, _ = session.step(state)
        assert session.spent(state) == spent[t]
    for _ in range(2):
        with pytest.raises(
            fedax.InvalidInput,
            match=r"Privacy\(budget=...\): got .*which 3 "
            r"rounds spend",
        ):
            session.step(state)
    assert np.isfinite(session.params(state)["w"]).all()


def test_large_data_are_compared_by_blocks(tmp_path):
    """From arrays and from files, at the beginning, the end and between; small data by every
    number."""
    hashed = lambda tree: hash_arrays(tree, sampled=True)  # noqa: E731
    values = np.zeros(3_000_000, np.float32)
    plain = hashed({"x": values})
    np.save(tmp_path / "x.npy", values)
    assert hashed({"x": np.load(tmp_path / "x.npy", mmap_mode="r")}) == plain
    for place in (slice(0, 1), slice(-1, None), slice(1_000_000, 2_000_000)):
        other = values.copy()
        other[place] = 1
        assert hashed({"x": other}) != plain
    assert hashed({"x": np.eye(300)}) != hashed(
        {"x": np.eye(300) + 1e-9 * (np.arange(90000) == 777).reshape(300, 300)}
    )
