"""Comparisons: the test against all sign flips, one rule for everybody, areas, the archive."""

import itertools
import math
import runpy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fedax.algorithms import algorithm_class
from fedax.benchmark.run import COSTS, key_of, make_data, run_method
from fedax.benchmark.spaces import read_spaces, space_of
from fedax.benchmark.standing import (
    ARCHIVE,
    areas,
    compare_methods,
    flip_signs,
)
from fedax.benchmark.task import load_tasks, parse_method

ROOT = Path(__file__).parents[2]
SPACES = read_spaces()


def family(name):
    found = [task for task in load_tasks().values() if task.target.family == name]
    return [task for task in found if task.target.value is not None]


def test_the_test_is_that_of_all_sign_flips_of_the_draws():
    """Two tasks with four and two draws of the data, which count alike: seeds are no draws."""
    gains = {"digits-ring": [0.4, 0.1, 0.3, -0.2], "digits-torus": [0.2, 0.5]}
    cells = [
        (task, draw, seed, mean + noise)
        for task, draws in gains.items()
        for draw, mean in enumerate(draws)
        for seed, noise in enumerate([-0.6, 0.5, 0.1])
    ]
    theirs = pd.DataFrame(cells, columns=["task", "draw", "seed", "gain"])
    levels = dict.fromkeys([*COSTS, "final"], 1.0)
    theirs = theirs.assign(method="DSGD", study=0, everyone=1, edges=None, **levels)
    ours = theirs.assign(method="Mine", rounds=np.exp(-theirs["gain"]))
    tasks = [task for task in family("decentralised") if task.name in gains]
    row = compare_methods(pd.concat([theirs, ours]), tasks).loc["Mine"]
    flat = np.concatenate([np.divide(one, 2 * len(one)) for one in gains.values()])
    flips = np.array(list(itertools.product([-1, 1], repeat=6))) @ flat
    expected = np.mean(np.abs(flips) >= flat.sum() - 1e-12)
    assert row["p_rounds"] == pytest.approx(expected, abs=0.005)
    assert row["gain_rounds"] == pytest.approx((0.15 + 0.35) / 2)
    errors = [np.var(one, ddof=1) / len(one) for one in gains.values()]
    reach = stats.t.ppf(0.975, 4) * math.sqrt(sum(errors)) / 2
    assert row["high_rounds"] == pytest.approx(0.25 + reach)


def test_the_detectable_gain_is_found_with_its_chance():
    draws = np.random.default_rng(1)
    found = []
    for _ in range(4):
        # a family of 35 methods, of which few have the gain, so that Holm begins at 35
        noise = [draws.normal(0, 0.3, (35, 5)) for _ in range(5)]
        gain = flip_signs(noise)["detectable"].iloc[0] * (np.arange(35) < 10)
        p = flip_signs([one + gain[:, None] for one in noise])["p"]
        found += (p <= 0.05).tolist()[:10]
        assert (p[10:] <= 0.05).sum() <= 1
    assert 0.6 <= np.mean(found) <= 0.95


@pytest.mark.parametrize("name", ["networks", "asynchronous"])
def test_a_renamed_scaffold_gets_the_verdicts_of_scaffold(name):
    """Archived and new methods are judged by one rule."""
    results = pd.read_csv(ARCHIVE)
    copy = results[results["method"] == "SCAFFOLD"].assign(method="Copy")
    frame = compare_methods(pd.concat([results, copy]), family(name))
    ours, theirs = (frame.loc[name].to_dict() for name in ("Copy", "SCAFFOLD"))
    assert ours == pytest.approx(theirs, nan_ok=True)


def test_gains_are_logarithms_of_paired_costs():
    """Recomputed in loops from the table: means over tasks of means over seeds, factors up to 4."""
    results = pd.read_csv(ARCHIVE)
    tasks = family("networks")
    frame = compare_methods(results, tasks)
    rows = {(row["task"], row["method"], row["seed"]): row for row in results.to_dict("records")}
    for method, cost in itertools.product(("FedDyn", "Krum", "FedLin"), COSTS):
        means = []
        for task in tasks:
            gains = []
            for seed in range(20):
                theirs, ours = (rows[task.name, m, seed][cost] for m in ("FedAvg", method))
                if math.isinf(ours) or math.isinf(theirs):
                    gain = 0.0 if ours == theirs else math.copysign(math.log(4), theirs - ours)
                else:
                    gain = min(max(math.log(theirs / ours), -math.log(4)), math.log(4))
                gains.append(gain)
            means.append(sum(gains) / 20)
        assert frame.at[method, f"gain_{cost}"] == pytest.approx(sum(means) / len(tasks))


def test_areas_and_intervals_are_those_of_loops():
    random = np.random.default_rng(3)
    costs = random.uniform(1, 9, (5, 7))
    costs[random.random((5, 7)) < 0.2] = np.inf
    costs[:, 6] = np.inf  # a task that nobody solves
    mean, low, high = areas(costs)
    draws = np.random.default_rng(0).integers(0, 7, (10_000, 7))
    for m in range(5):
        found = [costs[m, t] / min(costs[:, t]) for t in range(6)] + [math.inf]
        parts = np.array([min(max((4 - r) / 3, 0), 1) for r in found])
        # the area under the share of tasks within a factor
        fine = np.linspace(1, 4, 3001)[:-1]
        shares = np.mean([np.asarray(found) <= factor for factor in fine], axis=1)
        assert abs(shares.mean() - mean[m]) < 1e-3
        ends = np.percentile(parts[draws].mean(1), [2.5, 97.5])
        assert [low[m], high[m]] == pytest.approx(ends)


def test_a_run_that_diverged_has_the_worst_quality_of_its_task():
    results = pd.read_csv(ARCHIVE)
    tasks = family("convex")
    lost = results["final"].isna() & results["task"].isin([task.name for task in tasks])
    assert lost.any()
    worst = results.groupby("task")["final"].transform("max")
    filled = results.assign(final=results["final"].where(~lost, worst))
    told, expected = (compare_methods(one, tasks)["gain_final"] for one in (results, filled))
    assert told.equals(expected)


RELEASED = {
    f"{name} as released": f"{name}:{options}"
    for name, options in {
        "FedBC": "start=global,dual_momentum=0.5,dual_buffer=shared",
        "FedAWARE": "normalize=unit,startup=all,feedback=true,ids=mixed",
    }.items()
}


def test_the_archive_is_what_would_be_made_now():
    """Tasks, targets, spaces and budget of every row are the standing ones."""
    tasks = load_tasks()
    cells = pd.read_csv(ARCHIVE).groupby(["task", "method"])
    assert len(cells) == 627
    for (name, label), rows in cells:
        task = tasks[name]
        method = parse_method(RELEASED.get(label, label.replace(" ", ":", 1)))
        fixed = task.options_for(method)
        space = space_of(algorithm_class(method.name), task.target.learning_rate, fixed, SPACES)
        assert set(rows["key"]) == {key_of(task, method, space)}, (name, label)
        assert sorted(rows.query("draw == 0")["seed"]) == [*range(20)]


@pytest.mark.slow
@pytest.mark.usefixtures("as_users_run")
def test_a_cell_is_made_again():
    """Tuning, selection and reported runs: other programs round differently, and may select the
    neighbour of a setting."""
    task = load_tasks()["digits-softmax"]
    method = parse_method("scaffold")
    space = space_of(algorithm_class(method.name), task.target.learning_rate, {}, SPACES)
    rows = run_method(task, method, space, make_data(task))
    cell = "task == 'digits-softmax' and method == 'SCAFFOLD' and seed < 5 and draw == 0"
    then = pd.read_csv(ARCHIVE).query(cell)
    for name in (*COSTS, "final", "mean", "worst_tenth"):
        now = rows[name].median()
        before = then[name].median()
        np.testing.assert_allclose(now, before, rtol=0.15, err_msg=name)


@pytest.mark.slow
def test_the_pages_follow_from_the_archive():
    page = runpy.run_path(str(ROOT / "docs" / "benchmark" / "page.py"))
    for path, text in page["write"](page["Bench"].open("full")).items():
        assert path.read_text() == text, "run make generate"
