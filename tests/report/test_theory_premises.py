"""Theorems are marked for the runs they are about, and for no others: runs of the library, and
settings one by one."""

import copy

import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest
from test_theory_charts import curves, marks

import fedax
from fedax.observe import (
    ConsensusSquare,
    Constraints,
    Curvature,
    Dissimilarity,
    Inexactness,
    LocalSpread,
    LocalWork,
    Objective,
    Optimum,
    SolveErrors,
)
from fedax.report import Record
from fedax.report.theorems import premises
from fedax.report.theorems.marks import theory_charts
from fedax.report.theorems.statements import Interval, decide_sign, mean_over_seeds
from fedax.theory import feddane, local_gd
from marks import slow
from problems import quadratic, random_quadratic

A, B = random_quadratic(clients=4, dim=3)
TASK = quadratic(A, B)
FULL = fedax.Schedule(steps=2, batch_size="full", weights="equal")
GRAPH = [LocalWork(), ConsensusSquare(), Curvature(), Dissimilarity()]
LEMMA_4 = "consensus below Lemma 4, corrected"
LEMMA_5 = "consensus below Lemma 5, corrected"


def charts(method, observe, seeds=(0,), task=TASK, rounds=2, **options):
    runs = [
        fedax.run(method, task, observe=observe, seed=seed, rounds=rounds, **options)
        for seed in seeds
    ]
    return theory_charts(
        [Record.of(run, task="T", label="A", seed=s) for run, s in zip(runs, seeds, strict=True)]
    )


def pairs(*links):
    graph = nx.Graph()
    graph.add_nodes_from(range(4))
    graph.add_edges_from(links)
    return fedax.Graph.of(graph, connected=False)


def quantized(mode, **options):
    return fedax.QuantizedDFedAvgM(mode=mode, step=1e-3, b=16, rounding="floor", **options)


MATCHINGS = fedax.Graph.sequence([pairs((0, 1), (2, 3)), pairs((0, 2), (1, 3))])


@pytest.mark.parametrize(
    ("method", "why"),
    [
        (fedax.DFedAvgM(), None),
        (fedax.DFedAvgM(graph=MATCHINGS), "the graph changes"),
        slow(fedax.DSGD(topology="complete"), "about DFedAvgM, not DSGD"),
        slow(fedax.GTSGD(), "about DFedAvgM, not GTSGD"),
        (quantized("replica"), None),
        (quantized("paper"), r"under eq. (7) there is no bound"),
        slow(quantized("choco"), 'not mode="choco"'),
        slow(quantized("replica", code=fedax.codecs.TopK(0.5)), "rounded to one grid"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_consensus_is_held_to_the_lemmas_of_dfedavgm_alone(method, why):
    """Two matchings of four nodes have lambda 0 over a period, and single rounds that contract
    nothing: no bound of 0 is drawn."""
    (chart,) = charts(method, GRAPH, solver=fedax.SGD(1e-3), schedule=FULL)
    found = marks(chart)
    lemma = next(name for name in found if name.endswith("corrected"))
    if why is None:
        assert found[lemma] == ([1, 2], [])
        assert "Not marked" not in chart.note
    else:
        assert set(map(str, found.values())) == {"([], [])"}
        assert why in chart.note
        assert not any(label.startswith("Lemma") for label in curves(chart))


def test_expectations_need_several_seeds():
    """Rounding at random: one seed decides nothing, four are a mean with an interval."""
    method = fedax.QuantizedDFedAvgM(mode="replica", step=1e-3, b=16)
    options = {"solver": fedax.SGD(1e-3), "schedule": FULL}
    (one,) = charts(method, GRAPH, **options)
    assert marks(one)[LEMMA_5] == ([], [])
    assert "an expectation, which one seed does not show" in one.note
    (four,) = charts(method, GRAPH, seeds=range(4), **options)
    assert marks(four)[LEMMA_5] == ([1, 2], [])
    band = next(
        s for panel in four.panels for s in panel.series if s.label == "with its 95 % interval"
    )
    assert np.all((band.low[1:] <= band.y[1:]) & (band.y[1:] <= band.high[1:]))


def test_lemma_b_2_with_other_curvatures():
    """Curvatures 1 and 1.5, solved exactly: delta is that at the local models, and L the curvature
    between them."""
    task = quadratic(np.array([[[1.0]], [[1.5]]]), np.array([[0.01], [-0.01]]))
    method = fedax.FedBC(dual_lr=0.0, lam=3.0, gamma=0.1, learn_gamma=False)
    observe = [Curvature(), Constraints(), SolveErrors()]
    (chart,) = charts(method, observe, task=task, rounds=3, solver=fedax.Exact(), schedule=FULL)
    assert marks(chart)["local models as near as Lemma B.2 says"] == ([0, 1, 2, 3], [])
    cohort = fedax.Schedule(steps=2, batch_size="full", cohort=1)
    (chart,) = charts(method, observe, task=task, rounds=1, solver=fedax.Exact(), schedule=cohort)
    assert marks(chart)["local models as near as Lemma B.2 says"] == ([], [])
    assert "about rounds of all devices" in chart.note


def optimum():
    return np.linalg.solve(A.mean(0), np.einsum("kij,kj->i", A, B) / 4)


@pytest.mark.parametrize(
    ("method", "schedule", "lemmas", "theorem"),
    [
        (fedax.LocalGD(returned="mean"), FULL, True, True),
        (fedax.LocalGD(), FULL, True, False),
        slow(
            fedax.FedAvg(),
            fedax.Schedule(steps=2, batch_size="full", weights="equal", cohort=1),
            False,
            False,
        ),
        slow(
            fedax.LocalGD(returned="mean"), fedax.Schedule(steps=2, batch_size="full"), False, False
        ),
    ],
)
def test_theorem_1_is_about_the_mean_of_local_gd(method, schedule, lemmas, theorem):
    best = optimum()
    least = float(np.mean(np.einsum("ki,kij,kj->k", best - B, A, best - B)) / 2)
    rate = local_gd.step_size(float(np.linalg.eigvalsh(A).max()), 2) * 0.99
    observe = [Curvature(), LocalSpread(least), Optimum(jnp.asarray(best))]
    (chart,) = charts(method, observe, solver=fedax.SGD(rate), schedule=schedule)
    found = marks(chart)
    assert found["Theorem 1"] == ([1, 2] if theorem else [], [])
    for name in ("Lemma 2 in every round", "Lemma 2, second inequality", "Lemma 3 at every step"):
        assert found[name] == ([0, 1, 2] if lemmas else [], [])
    assert ("Theorem 1" in chart.note) != theorem


FELL, PROMISED = "f fell by rho |∇f|²", "rho > 0: a decrease is promised"
DEVICES = quadratic(np.array([[[1.0]], [[1.0]]]), np.array([[1.0], [-3.0]]))
DANE = [Objective(), Dissimilarity(), Curvature(), Inexactness()]


def drawn(**options):
    return fedax.Schedule(cohort=1, steps=1, batch_size="full", **options)


def test_a_decrease_in_expectation_is_a_mean_over_seeds():
    """One of two devices a round: f rises in many single rounds, and falls by what is promised in
    the mean."""
    method = fedax.FedDANE(mu=21.0)
    options = {
        "task": DEVICES,
        "rounds": 1,
        "solver": fedax.Exact(),
        "schedule": drawn(sampling="proportional"),
    }
    (one,) = charts(method, DANE, **options)
    assert marks(one)[FELL] == ([], [])
    assert "expectation" in one.note
    runs = [
        Record(task="T", label="A", seed=seed, draw=0, outcome=fedax.core.Outcome(), **column)
        for seed, column in many()
    ]
    (chart,) = theory_charts(runs)
    assert marks(chart)[PROMISED][0] == [0, 1]
    assert marks(chart)[FELL] == ([0], [])
    excess = [run.metrics["objective"][0] - run.metrics["objective"][1] for run in runs]
    assert min(excess) < 0 < np.mean(excess)


def many():
    """Forty runs as FedDANE's with one of two devices drawn: f falls by 0.1 or rises by 0.02, and
    0.01 is promised."""
    settings = {
        "algorithm": {"type": "FedDANE", "mu": 50.0},
        "solver": {"type": "Exact"},
        "channel": None,
    }
    settings |= {
        "schedule": {"cohort": 1, "sampling": "proportional", "weights": "size"},
        "on_bad_client": "stop",
    }
    rho = feddane.decrease(mu=50.0, smoothness=1.0, dissimilarity=1.0)
    for seed in range(40):
        end = 1.9 if seed % 2 else 2.02
        metrics = {
            "objective": [2.0, end],
            "gradient_norm": [np.sqrt(0.01 / rho)] * 2,
            "dissimilarity": [1.0] * 2,
            "smoothness_largest": [1.0] * 2,
            "smoothness": [[1.0, 1.0]] * 2,
            "eigenvalue_lowest": [1.0] * 2,
            "proximal": [50.0] * 2,
            "inexactness_largest": [0.0] * 2,
        }
        books = {
            "rounds": np.arange(2),
            "seconds": np.zeros(2),
            "bits": np.zeros(2, int),
            "settings": settings,
        }
        yield (
            seed,
            books | {"metrics": {name: np.array(values) for name, values in metrics.items()}},
        )


def test_an_interval_that_has_both_decides_nothing():
    found = mean_over_seeds(
        [np.array([1.0, 1.0, -1.0]), np.array([1.1, -1.0, -1.1]), np.array([0.9, 0.5, -0.9])]
    )
    np.testing.assert_allclose(found.mean, [1.0, 1 / 6, -1.0])
    half = (
        4.302652729911275 * np.std([1.0, 1.1, 0.9], ddof=1) / np.sqrt(3)
    )  # 97.5 % of Student's t with 2 degrees of freedom
    np.testing.assert_allclose([found.low[0], found.high[0]], [1 - half, 1 + half])
    np.testing.assert_array_equal(decide_sign(found), [1, np.nan, 0])
    alone = mean_over_seeds([np.ones(2)])
    np.testing.assert_array_equal(decide_sign(alone), [np.nan, np.nan])
    short = mean_over_seeds([np.ones(3), np.ones(2)])
    np.testing.assert_array_equal(decide_sign(short), [1, 1, np.nan])
    assert isinstance(short, Interval)


DANE_SETTINGS = {
    "algorithm": {
        "type": "FedDANE",
        "mu": 1.0,
        "correction": "exact",
        "cohorts": "independent",
        "decay": 1.0,
        "pipelined": False,
    },
    "solver": {"type": "Exact"},
    "schedule": {
        "cohort": 3,
        "sampling": "proportional",
        "weights": "size",
        "batch_size": 10,
        "dropouts": 0.0,
    },
    "channel": None,
    "on_bad_client": "stop",
}
LOCAL_SETTINGS = {
    "algorithm": {"type": "LocalGD", "returned": "mean"},
    "solver": {"type": "SGD", "learning_rate": 0.1, "momentum": 0.0, "decay": 1.0},
    "schedule": {
        "cohort": None,
        "sampling": "uniform",
        "weights": "equal",
        "batch_size": "full",
        "steps": 2,
    },
    "channel": None,
    "on_bad_client": "stop",
}
GOSSIP_SETTINGS = LOCAL_SETTINGS | {"algorithm": {"type": "DFedAvgM"}}
BC_SETTINGS = LOCAL_SETTINGS | {"algorithm": {"type": "FedBC"}, "solver": {"type": "Exact"}}


def changed(settings, path, value):
    found = copy.deepcopy(settings)
    *sections, name = path.split(".")
    place = found
    for section in sections:
        place = place[section]
    place[name] = value
    return found


COMMON = [("channel", "Channel"), ("on_bad_client", "drop")]
REACH = [("schedule.dropouts", 0.1), ("schedule.availability", "daily")]
STEPS = [
    ("solver.type", "Optax"),
    ("solver.clip", 1.0),
    ("solver.weight_decay", 0.1),
    ("solver.decay", 0.9),
]
BROKEN = {
    "feddane": [
        *COMMON,
        *REACH,
        ("algorithm.type", "FedAvg"),
        ("algorithm.correction", "as_released"),
        ("algorithm.correction", "off"),
        ("algorithm.cohorts", "shared"),
        ("algorithm.decay", 0.9),
        ("algorithm.pipelined", True),
        ("algorithm.mu", [1.0, 2.0]),
        ("schedule.sampling", "uniform"),
        ("schedule.sampling", "proportional_without_replacement"),
        ("schedule.sampling", "poisson"),
        ("solver.type", "SGD"),
    ],
    "local_gd_mean": [
        *COMMON,
        *STEPS,
        ("algorithm.type", "FedAvg"),
        ("algorithm.returned", "last"),
        ("solver.momentum", 0.5),
        ("schedule.weights", "size"),
        ("schedule.batch_size", 32),
    ],
    "dfedavgm": [
        *COMMON,
        *REACH,
        *STEPS,
        ("algorithm.type", "DSGD"),
        ("algorithm.type", "QuantizedDFedAvgM"),
    ],
    "fedbc_consensus": [*COMMON, *REACH, ("algorithm.type", "PerFedBC"), ("schedule.cohort", 3)],
}
CHECKS = {
    "feddane": (DANE_SETTINGS, lambda settings: premises.feddane(settings, 10)),
    "local_gd_mean": (LOCAL_SETTINGS, premises.local_gd_mean),
    "dfedavgm": (GOSSIP_SETTINGS, lambda settings: premises.dfedavgm(settings, 1.0)),
    "fedbc_consensus": (BC_SETTINGS, lambda settings: premises.fedbc_consensus(settings, 10)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_every_premise_counts(name):
    settings, check = CHECKS[name]
    assert check(settings) is None
    assert check(None) == premises.UNKNOWN
    for path, value in BROKEN[name]:
        assert isinstance(check(changed(settings, path, value)), str), (path, value)


def test_other_ways_to_satisfy_the_premises():
    """All clients in every cohort need no law of drawing, and full gradients make a local solution
    the same again."""
    everyone = changed(
        changed(DANE_SETTINGS, "schedule.sampling", "uniform"), "schedule.cohort", 10
    )
    assert premises.feddane(everyone, 10) is None
    assert premises.feddane(everyone, 11) is not None
    assert premises.feddane(changed(everyone, "algorithm.cohorts", "shared"), 10) is None
    steps = changed(everyone, "solver.type", "SGD")
    assert premises.feddane(steps, 10) is not None
    assert premises.feddane(changed(steps, "schedule.batch_size", "full"), 10) is None
    assert premises.feddane(changed(everyone, "algorithm.mu", [2.0, 2.0]), 10) is None
    momentum = changed(GOSSIP_SETTINGS, "solver.momentum", 0.9)
    assert premises.dfedavgm(momentum, 1.0) is None
    assert premises.dfedavgm(momentum, None) is not None
    assert (
        premises.dfedavgm(
            changed(GOSSIP_SETTINGS, "algorithm", {"type": "QuantizedDFedAvgM", "mode": "replica"}),
            1.0,
        )
        is None
    )


def test_settings_of_runs_and_of_files_have_one_form(tmp_path):
    """The settings that a run keeps have the keys that an experiment's runs have, with the same
    values."""
    from fedax.experiments.config.experiment import Experiment
    from fedax.experiments.results.settings import run_configurations
    from samples import TINY

    experiment = Experiment.parse(TINY)
    plan = experiment.plan()
    for slot, told in run_configurations([experiment]):
        label = slot.member.label
        history = fedax.run(
            plan.algorithms[label], plan.task, **plan.arguments_of(label) | {"rounds": 0}
        )
        for name in ("algorithm", "solver", "schedule", "channel"):
            own = history.settings[name]
            assert own == told[name] if told[name] is None else told[name].items() <= own.items(), (
                name
            )
        record = Record.of(history, task="T", label="A", seed=0)
        assert Record.from_bytes(record.to_bytes()).settings == history.settings
