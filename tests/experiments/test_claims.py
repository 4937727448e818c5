"""Verdicts on planted results that hold and that do not, and recipes from file to report."""

import csv
import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from fedax.core import InvalidInput, Outcome, SpecError, UnknownName
from fedax.experiments import recipes
from fedax.experiments.claims import Beside, Claim, Results, Run, beside, decide, decide_close
from fedax.experiments.directory import RunDirectory
from fedax.experiments.display import Display
from fedax.experiments.runner import reproduce, resume
from fedax.report.reading import read_curve
from samples import OWN, record


def planted(**means):
    """Final accuracies (as fractions) by algorithm: 5 seeds on one draw, the same noise of about one point for all."""
    noise = np.array([-0.010, 0.006, 0.0, -0.004, 0.008])
    own = np.random.default_rng(0).normal(0, 0.001, (len(means), 5))
    return Results(
        [
            record(name, "T", seed, test_accuracy=np.array([0.1, 0.5, mean + noise[seed] + own[k, seed]]))
            for k, (name, mean) in enumerate(means.items())
            for seed in range(5)
        ]
    )


def judged(results, **claim):
    return Claim(text="c", **claim).judge(results, "test_accuracy", "last").verdict


def test_the_decision_is_the_paired_t_test():
    """Against SciPy's own test, on differences around its threshold."""
    rng, seen = np.random.default_rng(1), set()
    for shift in (-0.9, -0.5, 0.0, 0.5, 0.9):
        for _ in range(20):
            values = rng.normal(shift, 1.0, 6)
            test = stats.ttest_1samp(values, 0.0)
            expected = "undecided" if test.pvalue > 0.05 else "holds" if values.mean() > 0 else "does not hold"
            assert decide({Run(0, i): float(v) for i, v in enumerate(values)}).verdict == expected
            seen.add(expected)
    assert len(seen) == 3


def test_draws_of_the_data_are_the_units_if_there_are_several():
    """Nine differences, clear if they were independent; but one of three draws goes the other way."""
    values = {Run(d, s): v + 0.01 * s for d, v in enumerate((1.0, 1.1, -0.3)) for s in range(3)}
    assert stats.ttest_1samp(list(values.values()), 0.0).pvalue < 0.05
    assert decide(values).verdict == "undecided"
    assert "(3 draws)" in decide(values).text


def test_too_little_is_undecided():
    assert decide({}).verdict == decide({Run(0, 0): 9.0}).verdict == "undecided"


def test_diverged_runs_count_as_worst():
    assert decide({Run(0, 0): math.inf, Run(0, 1): 0.1}).verdict == "holds"
    assert decide({Run(0, 0): math.inf, Run(0, 1): -0.1}).verdict == "undecided"
    assert decide({Run(0, 0): -math.inf, Run(0, 1): -0.1}).verdict == "does not hold"
    assert decide({Run(0, 0): math.nan, Run(1, 0): 0.1}).verdict in ("undecided", "holds")
    runs = [record("A", seed=s, losses=(2.0, 1.0)) for s in (0, 1)]
    runs += [record("B", seed=s, losses=(2.0, 0.5), outcome=Outcome("diverged", 1)) for s in (0, 1)]
    results = Results(runs)
    claim = Claim(text="c", check="better", a="A", b="B")
    assert claim.judge(results, "train_loss", "last").verdict == "holds"
    assert Claim(text="c", check="diverges", a="B").judge(results, "train_loss", "last").verdict == "holds"
    assert Claim(text="c", check="diverges", a="A").judge(results, "train_loss", "last").verdict == "does not hold"


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        ({"check": "best", "a": "Top"}, "holds"),
        ({"check": "best", "a": "Twin"}, "undecided"),
        ({"check": "best", "a": "Low"}, "does not hold"),
        ({"check": "best", "a": "Mid", "among": ["Mid", "Low"]}, "holds"),
        ({"check": "better", "a": "Top", "b": "Mid"}, "holds"),
        ({"check": "better", "a": "Mid", "b": "Top"}, "does not hold"),
        ({"check": "better", "a": "Top", "b": "Mid", "margin": 2.0}, "holds"),
        ({"check": "better", "a": "Top", "b": "Mid", "margin": 4.0}, "does not hold"),
        ({"check": "close", "a": "Top", "b": "Mid", "margin": 1.0}, "does not hold"),
        ({"check": "close", "a": "Top", "b": "Mid", "margin": 4.0}, "holds"),
        ({"check": "close", "a": "Mid", "b": "Twin", "margin": 0.0}, "undecided"),
        ({"check": "order", "among": ["Top", "Mid", "Low"]}, "holds"),
        ({"check": "order", "among": ["Top", "Low", "Mid"]}, "does not hold"),
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
        claim = claim | {"among": ["Mid", "Low"]}
    assert judged(results, **claim) == verdict


def test_a_claim_has_to_hold_on_every_task():
    good, bad = planted(A=0.8, B=0.7).records, planted(A=0.6, B=0.7).records
    other = [record(r.label, "U", r.seed, test_accuracy=r.metrics["test_accuracy"]) for r in bad]
    results = Results([*good, *other])
    assert judged(results, check="better", a="A", b="B", tasks=["T"]) == "holds"
    evidence = Claim(text="c", check="better", a="A", b="B").judge(results, "test_accuracy", "last")
    assert evidence.verdict == "does not hold"
    assert evidence.text.startswith("U: -10 ± ")


def test_without_chance_a_single_run_decides():
    """Final losses 0.5 and 1.0."""
    results = Results([record("A"), record("B", losses=(2.0, 1.5, 1.0))])
    cases = [
        ({"check": "better", "a": "A", "b": "B"}, "holds"),
        ({"check": "better", "a": "B", "b": "A"}, "does not hold"),
        ({"check": "order", "among": ["A", "B"]}, "holds"),
        ({"check": "close", "a": "A", "b": "B", "margin": 0.4}, "does not hold"),
        ({"check": "close", "a": "A", "b": "B", "margin": 0.6}, "holds"),
        ({"check": "ratio", "a": "B", "b": "A", "margin": 1.9}, "holds"),
        ({"check": "below", "a": "B", "margin": 0.6, "read": "last_over_half"}, "does not hold"),
        ({"check": "below", "a": "A", "margin": 0.6, "read": "last_over_half"}, "holds"),
        ({"check": "better", "a": "A", "b": "A"}, "undecided"),
    ]
    for claim, verdict in cases:
        assert Claim(text="c", exact=True, **claim).judge(results, "train_loss", "last").verdict == verdict
        assert Claim(text="c", **claim).judge(results, "train_loss", "last").verdict == "undecided"


def test_a_claim_about_a_task_that_has_not_run_is_undecided():
    results = planted(A=0.8, B=0.7)
    assert judged(results, check="better", a="A", b="B", tasks=[]) == "undecided"


def test_closeness_needs_both_sides():
    off = {Run(0, i): 5.0 + 0.1 * i for i in range(4)}
    assert decide_close(off, 6.0).verdict == "holds"
    assert decide_close(off, 3.0).verdict == "does not hold"
    assert decide_close({run: -v for run, v in off.items()}, 3.0).verdict == "does not hold"


def test_reading_curves():
    curve, rounds = np.array([9.0, 3.0, 1.0, 2.0]), np.array([0, 10, 20, 30])
    reads = {
        "last": 2.0,
        "best": 1.0,
        "mean_last_2": 1.5,
        "mean_last_99": 2.0,
        "rounds_to_3": 10.0,
        "rounds_to_0.5": math.inf,
        "gigabits_to_3": 10.0,
        "last_over_half": 2.0,
    }
    assert {read: read_curve(curve, rounds, read, False) for read in reads} == reads
    assert read_curve(np.array([np.nan, 1.0]), rounds[:2], "best", True) == 1.0
    for wrong in ("first", "mean_last_0", "mean_last_x", "rounds_to_"):
        with pytest.raises(InvalidInput, match="read: got"):
            read_curve(curve, rounds, wrong, False)
    with pytest.raises(UnknownName, match="Did you mean 'test_accuracy'"):
        planted(A=0.5).of("T", "A", "test_acuracy", "last")


def test_bits_until_an_accuracy_count_what_was_sent():
    """At 2 gigabits a round, 80 % in round 2 are 4; who sends half as much and is as fast is better; never is worst."""
    curves = {"A": ([0.1, 0.5, 0.8], 2e9), "B": ([0.1, 0.5, 0.8], 1e9), "C": ([0.1, 0.5, 0.7], 1e6)}
    runs = [
        dataclasses.replace(record(name, seed=s, test_accuracy=np.array(curve)), bits=np.arange(3) * each)
        for name, (curve, each) in curves.items()
        for s in (0, 1)
    ]
    results = Results(runs)
    assert results.of("T", "A", "test_accuracy", "gigabits_to_80") == {Run(0, 0): 4.0, Run(0, 1): 4.0}
    assert results.of("T", "C", "test_accuracy", "gigabits_to_80") == {Run(0, 0): math.inf, Run(0, 1): math.inf}
    for a, b, verdict in (("B", "A", "holds"), ("A", "B", "does not hold"), ("B", "C", "holds")):
        claim = Claim(text="c", check="better", a=a, b=b, read="gigabits_to_80", exact=True)
        assert claim.judge(results, "test_accuracy", "last").verdict == verdict
    ratio = Claim(text="c", check="ratio", a="A", b="B", margin=2.0, read="gigabits_to_80", exact=True)
    assert ratio.judge(results, "test_accuracy", "last").text.startswith("+0, +0")


def test_numbers_beside_the_papers():
    rows = beside(planted(A=0.80), {"T": {"A": [83.0, 0.3], "absent": [1.0, 1.0]}}, "test_accuracy", "last")
    (row,) = rows
    ours = [100 * r.metrics["test_accuracy"][-1] for r in planted(A=0.80).records]
    assert (row.algorithm, row.runs) == ("A", 5)
    np.testing.assert_allclose(row.ours, (np.mean(ours), np.std(ours, ddof=1)))
    np.testing.assert_allclose(row.joint, (np.mean(ours) - 83.0) / np.sqrt(0.3**2 + np.var(ours, ddof=1)))
    assert math.isnan(Beside("T", "A", (1.0, math.nan), (2.0, math.nan), 1).joint)


@pytest.mark.slow
def test_a_recipe_from_file_to_report(tmp_path):
    recipe = recipes.Recipe.parse(OWN)
    assert [e.rounds for e in recipe.experiments("small")] == [3, 3]
    assert [e.task.options["seed"] for e in recipe.experiments("paper")] == [5]
    directory = reproduce(recipe, "smoke", tmp_path / "a", Display())
    assert [(r.draw, r.label) for r in directory.records] == [
        (d, label) for d in (0, 1) for label in ("Plain", "Prox, mu=0.0", "Prox, mu=10000.0")
    ]
    text = (tmp_path / "a" / "README.md").read_text()
    assert "| Plain is as good as Prox with mu = 0 | holds | " in text
    assert "Scale: smoke." in text
    assert "- All of it." in text
    with (tmp_path / "a" / "results.csv").open() as stream:
        table = list(csv.DictReader(stream))
    assert [(row["algorithm"], row["paper_mean"], row["runs"]) for row in table] == [("Plain", "2", "2"), ("Prox", "1", "2")]
    ends = [r.metrics["train_loss"][-1] for r in directory.records if r.label == "Plain"]
    assert abs(float(table[0]["ours_mean"]) - np.mean(ends)) < 1e-4
    page = (tmp_path / "a" / "report.html").read_text()
    assert '"title":"Claims"' in page
    assert '"title":"The paper beside ours"' in page
    (tmp_path / "a" / "runs" / "0005.npz").unlink()
    (tmp_path / "a" / "README.md").unlink()
    resume(tmp_path / "a", Display())
    assert (tmp_path / "a" / "README.md").read_text().split("## How")[0] == text.split("## How")[0]
    assert RunDirectory.load(tmp_path / "a").recipe.ran == "smoke"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('shows = "Table 9"', 'showz = "Table 9"', "line 3: .*Did you mean 'shows'"),
        ("[scale.small]\nset = { rounds = 3 }", "", "exactly smoke, small and paper"),
        ("Only = {", "Ony = {", "targets: got 'Ony'"),
        ("Plain = [2.0", "Plan = [2.0", "Did you mean 'Plain'"),
        ('b = "Prox"', 'b = "Prx"', "Did you mean 'Prox'"),
        ('check = "close"', 'check = "closer"', "got 'closer'"),
        ("set = { rounds = 3 }", "set = { rounds = -3 }", "rounds: got -3"),
        ("set = { rounds = 3 }", 'algorithms = ["Plan"]', "scale.algorithms: got 'Plan'.*Did you mean 'Plain'"),
        ("set = { rounds = 3 }", 'set = { "rounds.x" = 3 }', "has no parts"),
        ("set = { rounds = 3 }", 'read = "mean_last_0"', "read: got 'mean_last_0'"),
        ("margin = 1e-6", 'read = "rounds_to_."', "read: got 'rounds_to_.'"),
    ],
)
def test_bad_recipes_are_refused(old, new, words):
    assert old in OWN
    with pytest.raises(SpecError, match=words):
        recipes.Recipe.parse(OWN.replace(old, new), "r.toml")


def test_a_scale_may_read_curves_in_its_own_way():
    recipe = recipes.Recipe.parse(OWN.replace("set = { rounds = 3 }", 'read = "mean_last_2"')).model_copy(
        update={"ran": "small"}
    )
    runs = [record("Plain", "Only", losses=(9.0, 3.0, 1.0))]
    assert [row.ours[0] for row in recipes.Findings(recipe, runs, []).rows] == [2.0]
    other = recipes.Findings(recipe.model_copy(update={"ran": "paper"}), runs, [])
    assert [row.ours[0] for row in other.rows] == [1.0]


def test_a_scale_may_run_some_of_the_algorithms():
    few = recipes.Recipe.parse(OWN.replace("set = { rounds = 3 }", 'algorithms = ["Prox"]'))
    assert [[s.shown() for s in e.algorithm] for e in few.experiments("small")] == [["Prox"], ["Prox"]]
    assert [member.method for member in few.experiments("small")[0].members()] == ["Prox", "Prox"]
    assert len(few.experiments("smoke")[0].algorithm) == 2


def test_fedbc_targets_are_those_of_the_paper():
    targets = recipes.load("fedbc-table-1").targets["E = 1"]
    paper = {"FedBC": 87.8, "q-FedAvg": 87.1, "FedProx": 86.2, "FedAvg": 83.6, "SCAFFOLD": 83.8}
    # forms of one method have the paper's one number
    found = {name: round(mean, 1) for name, (mean, _) in targets.items()}
    assert found == {name: paper[next(method for method in paper if name.startswith(method))] for name in found}
    assert paper.keys() <= found.keys()


def test_the_metrics_of_single_clients_have_their_directions():
    """More is better of accuracies, whoever's; less of how far two of them are apart, and of how they vary."""
    metrics = {
        "drawn_accuracy_smallest": True,
        "drawn_accuracy_gap": False,
        "client_accuracy_variance": False,
        "weight_gap": False,
    }
    for metric, more in metrics.items():
        runs = [
            record(label, "T", seed, **{metric: np.array([0.0, value + seed / 1000])})
            for label, value in (("A", 0.9), ("B", 0.5))
            for seed in range(3)
        ]
        claim = Claim(text="c", check="better", a="A", b="B", metric=metric)
        assert claim.judge(Results(runs), metric, "last").verdict == ("holds" if more else "does not hold"), metric


def test_a_claim_may_compare_tasks():
    """The metric of one method on three tasks, 1, 2 and 4, with deviations of a hundredth; then with the last two exchanged."""
    runs = [
        record("A", task, seed, dissimilarity=np.array([0.0, value + seed / 100 * (-1) ** k]))
        for k, (task, value) in enumerate([("T", 1.0), ("U", 2.0), ("V", 4.0)])
        for seed in range(3)
    ]
    rises = {"check": "rises", "a": "A", "metric": "dissimilarity"}
    assert judged(Results(runs), tasks=["T", "U", "V"], **rises) == "holds"
    assert judged(Results(runs), tasks=["T", "V", "U"], **rises) == "does not hold"
    assert judged(Results(runs), tasks=["T"], **rises) == "undecided"
    evidence = Claim(text="c", tasks=["T", "U", "V"], **rises).judge(Results(runs), "test_accuracy", "last")
    assert evidence.text.startswith("T to U: +")
