"""Verdicts on planted results that hold and that do not, and numbers beside the papers'."""

import dataclasses
import math

import numpy as np
import pytest

from fedax import papers
from fedax.core import Outcome
from fedax.papers.cells import compare_cells, summarize_z
from fedax.papers.claims import Claim
from fedax.papers.comparison import Comparison
from fedax.papers.numbers import Results
from samples import OWN, record


def planted(**means):
    """Final accuracies (as fractions) by algorithm: 5 seeds on one draw, the same noise of about
    one point for all."""
    noise = np.array([-0.010, 0.006, 0.0, -0.004, 0.008])
    own = np.random.default_rng(0).normal(0, 0.001, (len(means), 5))
    return Results(
        [
            record(
                name,
                "T",
                seed,
                test_accuracy=np.array([0.1, 0.5, mean + noise[seed] + own[k, seed]]),
            )
            for k, (name, mean) in enumerate(means.items())
            for seed in range(5)
        ]
    )


def judged(results, **claim):
    labels = list(dict.fromkeys(run.label for run in results.records))
    evidence = Claim(text="c", **claim).judge(results, "test_accuracy", "last", algorithms=labels)
    return evidence.verdict


def test_draws_of_the_data_are_the_units_if_there_are_several():
    """Nine differences, clear if they were independent; but one of three draws goes the other
    way."""
    runs = [
        record(label, "T", s, d, losses=(9.0, 5.0 - (label == "A") * (v + 0.01 * s)))
        for label in "AB"
        for d, v in enumerate((1.0, 1.1, -0.3))
        for s in range(3)
    ]
    evidence = Claim(text="c", check="better", a="A", b="B").judge(
        Results(runs), "train_loss", "last"
    )
    assert (evidence.verdict, evidence.direction) == ("undecided", "1 of 1 task")
    assert evidence.text.endswith("in train loss, claimed below 0 (3 draws)")
    np.testing.assert_allclose(evidence.parts["mean"], [-np.mean([1.01, 1.11, -0.29])])
    assert evidence.text.startswith("T: A minus B -0.61 [-2.5")
    one = [run for run in runs if run.draw == 0]
    assert (
        Claim(text="c", check="better", a="A", b="B")
        .judge(Results(one), "train_loss", "last")
        .text.endswith("(3 seeds)")
    )


def test_a_run_without_a_final_value_counts_as_the_worst_of_its_task():
    """The loss that it ended with is lower than the others'."""
    runs = [record("A", seed=s, losses=(2.0, 1.0 + s / 100)) for s in (0, 1, 2)]
    runs += [
        record("B", seed=s, losses=(2.0, 0.5), outcome=Outcome("diverged", 1)) for s in (0, 1, 2)
    ]
    results = Results(runs)
    for a, b, verdict in (("A", "B", "holds"), ("B", "A", "does not hold")):
        claim = Claim(text="c", check="better", a=a, b=b)
        assert claim.judge(results, "train_loss", "last").verdict == verdict
    for check, margin in (("above", 0.0), ("below", 5.0), ("ratio", 0.1)):
        claim = Claim(text="c", check=check, a="B", b="A", margin=margin)
        assert claim.judge(results, "train_loss", "last").verdict != "holds", check


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        ({"check": "better", "a": "Top"}, "holds"),
        ({"check": "better", "a": "Twin"}, "undecided"),
        ({"check": "better", "a": "Low"}, "does not hold"),
        ({"check": "better", "a": "Mid", "b": ["Mid", "Low"]}, "holds"),
        ({"check": "better", "a": "Top", "b": "Mid"}, "holds"),
        ({"check": "better", "a": "Mid", "b": "Top"}, "does not hold"),
        ({"check": "better", "a": "Top", "b": "Mid", "margin": 2.0}, "holds"),
        ({"check": "better", "a": "Top", "b": "Mid", "margin": 4.0}, "does not hold"),
        ({"check": "close", "a": "Top", "b": "Mid", "margin": 1.0}, "does not hold"),
        ({"check": "close", "a": "Mid", "b": "Top", "margin": 1.0}, "does not hold"),
        ({"check": "close", "a": "Top", "b": "Mid", "margin": 4.0}, "holds"),
        ({"check": "close", "a": "Mid", "b": "Twin", "margin": 0.0}, "undecided"),
        ({"check": "order", "a": "Top", "b": ["Mid", "Low"]}, "holds"),
        ({"check": "order", "a": "Top", "b": ["Low", "Mid"]}, "does not hold"),
        ({"check": "ratio", "a": "Top", "b": "Low", "margin": 1.5}, "holds"),
        ({"check": "ratio", "a": "Top", "b": "Low", "margin": 2.5}, "does not hold"),
        ({"check": "below", "a": "Top", "margin": 90.0}, "holds"),
        ({"check": "below", "a": "Top", "margin": 70.0}, "does not hold"),
        ({"check": "above", "a": "Top", "margin": 70.0}, "holds"),
        ({"check": "above", "a": "Top", "margin": 90.0}, "does not hold"),
    ],
)
def test_claims_on_planted_results(claim, verdict):
    """Accuracies 83, 80, 80 and 50 %; deviations of the differences are about 0.14 points."""
    results = planted(Top=0.83, Mid=0.80, Twin=0.80, Low=0.50)
    if claim.get("a") == "Twin":
        claim = claim | {"b": ["Mid", "Low"]}
    assert judged(results, **claim) == verdict


def on(task, results):
    return [
        record(r.label, task, r.seed, test_accuracy=r.metrics["test_accuracy"])
        for r in results.records
    ]


def test_a_claim_has_to_hold_on_every_task():
    good = planted(A=0.8, B=0.7)
    bad = planted(A=0.6, B=0.7)
    results = Results([*good.records, *on("U", bad)])
    assert judged(results, check="better", a="A", b="B", tasks=["T"]) == "holds"
    evidence = Claim(text="c", check="better", a="A", b="B").judge(results, "test_accuracy", "last")
    assert (evidence.verdict, evidence.direction) == ("does not hold", "1 of 2 tasks")
    assert "U: A minus B -10 [-10." in evidence.text


def test_a_claim_may_be_about_some_of_its_tasks():
    """Ahead on two of three, behind on one, all by ten points."""
    good = planted(A=0.8, B=0.7)
    bad = planted(A=0.6, B=0.7)
    results = Results([*good.records, *on("U", good), *on("V", bad)])
    evidence = [
        Claim(text="c", check="better", a="A", b="B", at_least=count).judge(
            results, "test_accuracy", "last"
        )
        for count in (1, 2, 3)
    ]
    assert [each.verdict for each in evidence] == ["holds", "holds", "does not hold"]
    # the task from which it follows
    assert [each.text[0] for each in evidence] == list("TTV")
    assert judged(results, check="better", a="B", b="A", at_least=2) == "does not hold"


def test_refutations_are_corrected_for_tasks_and_pairs():
    """A is behind B with p = 0.03, and level with four algorithms, or with B on four tasks: alone
    that decides, among them not."""
    noise = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])

    def runs(label, task, ends):
        return [
            record(label, task, seed, test_accuracy=np.array([0.1, 0.3, end / 100]))
            for seed, end in enumerate(ends)
        ]

    ahead = [*runs("A", "T", [50.0] * 5), *runs("B", "T", 52.3 + noise)]
    pairs = Results(ahead + [run for label in "CDEF" for run in runs(label, "T", 50 + noise)])
    level = [
        run
        for task in "UVWX"
        for label, by in (("A", 0), ("B", 1))
        for run in runs(label, task, 50 + by * noise)
    ]
    tasks = Results(ahead + level)
    assert judged(pairs, check="better", a="A", b=["A", "B"]) == "does not hold"
    assert judged(pairs, check="better", a="A") == "undecided"
    assert judged(tasks, check="better", a="A", b="B", tasks=["T"]) == "does not hold"
    assert judged(tasks, check="better", a="A", b="B") == "undecided"
    claim = Claim(text="c", check="better", a="A", b=list("ABCDEF"), metric="test_accuracy")
    recipe = papers.Recipe.parse(OWN).model_copy(update={"ran": "paper", "claim": [claim]})
    only = [dataclasses.replace(run, task="Only") for run in pairs.records]
    first = Comparison(recipe, only).claims().iloc[0]
    assert first["quantity"] == "in points, claimed above 0"
    np.testing.assert_allclose(first["mean"], -2.3)
    assert 0.02 < first["p_against"] < 0.04
    np.testing.assert_allclose(first["p_against_holm"], 5 * first["p_against"])


def test_a_claim_of_which_a_part_ran_cannot_hold():
    good = planted(A=0.8, B=0.7, C=0.6)

    def judge(*tasks, algorithms=(), **claim):
        return Claim(text="c", **claim).judge(good, "test_accuracy", "last", tasks, algorithms)

    whole = judge("T", check="better", a="A", b="B")
    part = judge("T", "U", check="better", a="A", b="B")
    assert (whole.verdict, part.verdict) == ("holds", "undecided")
    assert part.direction == "1 of 2 tasks, 1 of 2 comparisons not run"
    # one task refutes
    assert judge("T", "U", check="better", a="B", b="A").verdict == "does not hold"
    # one task is enough
    assert judge("T", "U", check="better", a="A", b="B", at_least=1).verdict == "holds"
    # U may still save it
    assert judge("T", "U", check="better", a="B", b="A", at_least=1).verdict == "undecided"
    fewer = judge("T", check="better", a="A", algorithms=["A", "B", "C", "D"])
    assert (fewer.verdict, fewer.direction) == (
        "undecided",
        "0 of 1 task, 1 of 3 comparisons not run",
    )
    assert judge("T", check="better", a="A", algorithms=["A", "B", "C"]).verdict == "holds"


def test_without_chance_a_single_run_decides():
    """Final losses 0.5 and 1.0."""
    results = Results([record("A"), record("B", losses=(2.0, 1.5, 1.0)), record("Twin")])
    cases = [
        ({"check": "better", "a": "A", "b": "B"}, "holds"),
        ({"check": "better", "a": "B", "b": "A"}, "does not hold"),
        ({"check": "order", "a": "A", "b": "B"}, "holds"),
        ({"check": "close", "a": "A", "b": "B", "margin": 0.4}, "does not hold"),
        ({"check": "close", "a": "A", "b": "B", "margin": 0.6}, "holds"),
        ({"check": "ratio", "a": "B", "b": "A", "margin": 1.9}, "holds"),
        ({"check": "below", "a": "B", "margin": 0.6, "read": "last_over_half"}, "does not hold"),
        ({"check": "below", "a": "A", "margin": 0.6, "read": "last_over_half"}, "holds"),
        ({"check": "better", "a": "A", "b": "Twin"}, "undecided"),
    ]
    for claim, verdict in cases:
        assert (
            Claim(text="c", exact=True, **claim).judge(results, "train_loss", "last").verdict
            == verdict
        )
        assert Claim(text="c", **claim).judge(results, "train_loss", "last").verdict == "undecided"


def test_bits_until_an_accuracy_count_what_was_sent():
    """At 2 gigabits a round, 80 % in round 2 are 4; who sends half as much and is as fast is
    better; never is worst."""
    curves = {"A": ([0.1, 0.5, 0.8], 2e9), "B": ([0.1, 0.5, 0.8], 1e9), "C": ([0.1, 0.5, 0.7], 1e6)}
    runs = [
        dataclasses.replace(
            record(name, seed=s, test_accuracy=np.array(curve)), bits=np.arange(3) * each
        )
        for name, (curve, each) in curves.items()
        for s in (0, 1)
    ]
    results = Results(runs)
    for name, expected in (("A", 4.0), ("C", math.inf)):
        assert list(results.of("T", name, "test_accuracy", "gigabits_to_80")) == [expected] * 2
    for a, b, verdict in (("B", "A", "holds"), ("A", "B", "does not hold"), ("B", "C", "holds")):
        claim = Claim(text="c", check="better", a=a, b=b, read="gigabits_to_80", exact=True)
        assert claim.judge(results, "test_accuracy", "last").verdict == verdict
    ratio = Claim(
        text="c", check="ratio", a="A", b="B", margin=2.0, read="gigabits_to_80", exact=True
    )
    text = "T: A over B 2 in gigabits until 80, claimed at least 2 (2 seeds)"
    assert ratio.judge(results, "test_accuracy", "last").text == text


def cells_of(results, targets, *arguments, **options):
    return compare_cells(results, targets, *arguments, **options).to_dict("records")


def test_numbers_beside_the_papers():
    (cell,) = cells_of(
        planted(A=0.80),
        {
            ("test_accuracy", "T", "A"): [83.0, 0.3],
            ("test_accuracy", "T", "absent"): [1.0, 1.0],
        },
        "last",
        paper_runs=4,
    )
    ours = [100 * r.metrics["test_accuracy"][-1] for r in planted(A=0.80).records]
    assert (cell["algorithm"], cell["runs"], cell["units"]) == ("A", 5, 5)
    assert [cell[f"paper_{name}"] for name in ("mean", "deviation", "runs")] == [83.0, 0.3, 4]
    np.testing.assert_allclose(cell["ours_mean"], np.mean(ours))
    np.testing.assert_allclose(cell["ours_deviation"], np.std(ours, ddof=1))
    np.testing.assert_allclose(cell["difference"], np.mean(ours) - 83)
    np.testing.assert_allclose(cell["joint_error"], 0.3 * np.sqrt(1 / 4 + 1 / 5))
    np.testing.assert_allclose(cell["z"], (np.mean(ours) - 83) / (0.3 * np.sqrt(9 / 20)))


def beside(ours, paper, runs, metric="test_accuracy", scatter=0.0):
    """The cell of five runs with a mean and a deviation, beside a number of the paper."""
    values = ours + scatter * np.array([-1.0, -1.0, 0.0, 1.0, 1.0])
    scale = 100.0 if metric == "test_accuracy" else 1.0
    records = [
        record("A", seed=s, **{metric: np.array([0.0, 0.0, value / scale])})
        for s, value in enumerate(values)
    ]
    (cell,) = cells_of(Results(records), {(metric, "T", "A"): paper}, "last", paper_runs=runs)
    return cell


@pytest.mark.parametrize("scatter", [0.0, 1.0, 30.0])
def test_a_method_that_scatters_more_is_not_nearer(scatter):
    """The error is that of two means of five runs, with the paper's deviation."""
    z = beside(82.0, [80.0, 1.0], 5, scatter=scatter)["z"]
    np.testing.assert_allclose(z, 2 / np.sqrt(2 / 5), rtol=1e-5)
    loss = beside(1.2, [1.0, 0.1], 5, "test_loss", scatter)["z"]
    np.testing.assert_allclose(loss, 0.2 / (0.1 * np.sqrt(2 / 5)), rtol=1e-5)
    # without the paper's deviation, or the number of its runs, there is none
    for paper, runs in (([80.0], 5), ([80.0, 1.0], None), ([80.0, 0.0], 5)):
        assert math.isnan(beside(82.0, paper, runs, scatter=scatter)["z"])


def test_z_is_summed_up_by_method():
    """Two methods on two tasks, one run each, of which the paper has means of one run with the
    deviation sqrt(1/2), so that z is the difference. The tail of chi-square with two degrees of
    freedom is exp(-x/2)."""
    ours = {"U": {"A": 81.0, "B": 75.0}, "V": {"A": 78.0, "B": 70.0}}
    paper = {"U": {"A": 80.0, "B": 70.0}, "V": {"A": 80.0, "B": 70.0}}
    runs = [
        record(label, task, test_accuracy=np.array([0.0, value / 100]))
        for task, values in ours.items()
        for label, value in values.items()
    ]
    targets = {
        ("test_accuracy", task, label): [value, 0.5**0.5]
        for task, values in paper.items()
        for label, value in values.items()
    }
    cells = compare_cells(Results(runs), targets, "last", 1)
    a, b = summarize_z(cells).to_dict("records")
    assert [a[name] for name in ("algorithm", "cells", "fewest")] == ["A", 2, 1]
    np.testing.assert_allclose(
        [a[name] for name in ("difference", "rms", "p")],
        [-0.5, np.sqrt(5 / 2), np.exp(-5 / 2)],
        rtol=1e-4,
    )
    # A's numbers against 70, and B's against 80
    np.testing.assert_allclose(a["rms_of_others"], np.sqrt((11**2 + 8**2) / 2), rtol=1e-4)
    np.testing.assert_allclose(b["rms_of_others"], np.sqrt((5**2 + 10**2) / 2), rtol=1e-4)


def test_a_broken_run_has_no_number_but_the_best_that_it_observed():
    """Nothing stands in a cell for what was not observed."""
    runs = [record("A", seed=s, test_accuracy=np.array([0.1, 0.5, 0.8])) for s in (0, 1, 2)]
    broken = np.array([0.1, 0.4, np.nan])
    runs += [record("A", seed=3, test_accuracy=broken, outcome=Outcome("non-finite", 2, 0))]
    targets = {("test_accuracy", "T", "A"): [80.0]}
    for reading, mean in (("last", np.nan), ("best", np.nan), ("best_observed", 70.0)):
        (cell,) = cells_of(Results(runs), targets, reading)
        np.testing.assert_allclose(cell["ours_mean"], mean, err_msg=reading)
        assert (cell["runs"], cell["diverged"]) == (4, 1)


def test_a_claim_may_compare_tasks():
    """The metric of one method on three tasks, 1, 2 and 4, with deviations of a hundredth; then
    with the last two exchanged."""
    runs = [
        record("A", task, seed, dissimilarity=np.array([0.0, value + seed / 100 * (-1) ** k]))
        for k, (task, value) in enumerate([("T", 1.0), ("U", 2.0), ("V", 4.0)])
        for seed in range(3)
    ]
    rises = {"check": "rises", "a": "A", "metric": "dissimilarity"}
    assert judged(Results(runs), tasks=["T", "U", "V"], **rises) == "holds"
    assert judged(Results(runs), tasks=["T", "V", "U"], **rises) == "does not hold"
    assert judged(Results(runs), tasks=["T"], **rises) == "not run"
    evidence = Claim(text="c", tasks=["T", "U", "V"], **rises).judge(
        Results(runs), "test_accuracy", "last"
    )
    assert evidence.direction == "2 of 2 tasks"
    assert evidence.text.startswith("T to U: A ")
    assert "in dissimilarity, claimed above 0" in evidence.text
