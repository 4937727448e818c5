"""The rule by which runs decide holds its level with few draws; the bootstrap in its place would
not."""

import numpy as np
import pytest
from scipy import stats

from fedax.results.tables.statistics import (
    LEVEL,
    effect_of,
    holm,
    partial_conjunction,
    ratio_of,
)

COUNTS = (3, 5, 10)
TASKS = 5
PAIRS = 4
SEEDS = 3
TIMES = 4000


def draws_of(rng, count, heavy, shape=()):
    """Means over the seeds of paired differences without effect: the draws of the data differ, and
    the seeds within them.

    All pairs of a task share what the one algorithm does there. Shape (TIMES, *shape, count).
    """
    noise = (lambda size: rng.standard_t(3, size)) if heavy else rng.standard_normal
    own = noise((TIMES, *shape, count)) + noise((TIMES, *shape, count, SEEDS)).mean(-1)
    return own + (noise((TIMES, *shape[:1], 1, count)) if len(shape) > 1 else 0.0)


def paired_t(values):
    """The p-values of `Effect` over the last axis, of which `effect_of` makes one at a time."""
    test = stats.ttest_1samp(values, 0.0, axis=-1)
    ahead = np.where(test.statistic > 0, test.pvalue, 1.0)
    return ahead, np.where(test.statistic < 0, test.pvalue, 1.0)


def rate(p):
    return float((p <= LEVEL).mean())


@pytest.mark.parametrize("heavy", [False, True])
@pytest.mark.parametrize("count", COUNTS)
def test_claims_on_many_tasks_and_pairs_are_seldom_refuted_falsely(count, heavy):
    """All algorithms alike: whatever the sentence claims, that it does not hold is found in at most
    one of twenty studies."""
    values = draws_of(np.random.default_rng(count), count, heavy, (TASKS, PAIRS))
    ahead, behind = paired_t(values)
    for needed in (1, 3, TASKS):
        against = np.minimum(PAIRS * behind.min(-1), 1.0)
        assert rate(partial_conjunction(against, TASKS - needed + 1)) <= LEVEL
        assert rate(partial_conjunction(ahead.max(-1), needed)) <= LEVEL
    assert rate(behind.min((-1, -2))) > 5 * LEVEL, "without the correction"


@pytest.mark.parametrize("count", COUNTS)
def test_claims_are_seldom_confirmed_falsely(count):
    """Far ahead in all comparisons but one; or on so many tasks that one is lacking."""
    values = draws_of(np.random.default_rng(count), count, False, (TASKS, PAIRS))
    for needed in (1, 3, TASKS):
        shifted = values.copy()
        shifted[:, : needed - 1] += 1000.0
        ahead, _ = paired_t(shifted)
        assert rate(partial_conjunction(ahead.max(-1), needed)) <= LEVEL
        shifted[:, needed - 1, 1:] += 1000.0  # one comparison of the last task is lacking
        ahead, _ = paired_t(shifted)
        assert rate(partial_conjunction(ahead.max(-1), needed)) <= LEVEL


def test_the_decision_is_the_paired_t_test():
    """Against SciPy's own test, on differences around its threshold."""
    rng = np.random.default_rng(1)
    seen = set()
    for shift in (-0.9, -0.5, 0.0, 0.5, 0.9):
        for _ in range(20):
            values = rng.normal(shift, 1.0, 6)
            test = stats.ttest_1samp(values, 0.0)
            effect = effect_of(values, "seeds")
            interval = test.confidence_interval()
            np.testing.assert_allclose((effect.low, effect.high), (interval.low, interval.high))
            np.testing.assert_allclose(min(effect.ahead, effect.behind), test.pvalue)
            seen.add(
                "ahead" if effect.ahead <= LEVEL else "behind" if effect.behind <= LEVEL else "open"
            )
    assert seen == {"ahead", "behind", "open"}


def test_infinite_differences_count_by_their_signs():
    """Six of six are one in 64 by chance, doubled; five of five are too few."""
    assert effect_of(np.array([np.inf, 1, 1, 1, 1, 1.0]), "seeds").ahead == 2 / 64
    assert effect_of(np.array([np.inf, 1, 1, 1, 1.0]), "seeds").ahead > LEVEL
    assert effect_of(np.array([-np.inf, 1, 1, 1, 1, 1.0]), "seeds").ahead == 2 * 7 / 64


def test_exact_differences_have_to_agree():
    assert effect_of(np.array([1.0]), "seeds", exact=True)[3:5] == (0.0, 1.0)
    assert effect_of(np.array([-1.0, -np.inf]), "seeds", exact=True)[3:5] == (1.0, 0.0)
    assert effect_of(np.array([-1.0, 1.0]), "seeds", exact=True)[3:5] == (1.0, 1.0)


def test_holm_rejects_what_the_stepwise_rule_rejects():
    """The rule of the paper: in order, stop at the first p above level over how many are left."""
    rng = np.random.default_rng(2)
    for _ in range(50):
        p = rng.uniform(0, 0.05, 6)
        rejected = np.zeros(6, bool)
        for place, position in enumerate(np.argsort(p)):
            if p[position] > LEVEL / (6 - place):
                break
            rejected[position] = True
        assert [value <= LEVEL for value in holm(list(p))] == rejected.tolist()
        assert (min(holm(list(p))) <= LEVEL) == (partial_conjunction(p, 1) <= LEVEL)


@pytest.mark.parametrize("seed", range(20))
def test_the_interval_of_a_ratio_is_where_the_paired_test_does_not_reject(seed):
    """Fieller's interval: a factor m is inside if and only if a - m b is not decided."""
    rng = np.random.default_rng(seed)
    b = rng.normal(2.0, 0.3, 5)
    a = rng.uniform(0.5, 4) * b + rng.normal(0, 0.4, 5)
    effect = ratio_of(a, b, "seeds")
    np.testing.assert_allclose(effect.mean, a.mean() / b.mean())
    for m in np.concatenate(
        [
            rng.uniform(-1, 6, 40),
            [effect.low - 1e-6, effect.low + 1e-6, effect.high - 1e-6, effect.high + 1e-6],
        ]
    ):
        test = effect_of(a - m * b, "seeds")
        assert (test.ahead <= LEVEL) == (m < effect.low)
        assert (test.behind <= LEVEL) == (m > effect.high)


def test_ratios_without_an_interval():
    """A mean below that may be zero, one run, runs that never get there, no chance, no runs."""
    one = np.array([1.0])
    three = np.array([1.0, 2.0, 3.0])
    effects = [
        ratio_of(three, np.array([-1.0, 1.0, 0.5]), "seeds"),
        ratio_of(1.5 * one, one, "seeds"),
        ratio_of(np.full(3, np.inf), three, "seeds"),
        ratio_of(np.array([3.0, 4.0]), np.array([2.0, 2.0]), "seeds", exact=True),
        ratio_of(one[:0], one[:0], "seeds"),
    ]
    means = [effect.mean for effect in effects]
    np.testing.assert_allclose(means, [12.0, 1.5, np.inf, 1.75, np.nan])
    assert all(np.isnan([effect.low, effect.high]).all() for effect in effects)
