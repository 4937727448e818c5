"""Settings that a method cannot follow: the argument that the error names."""

import functools

import jax.numpy as jnp
import networkx as nx
import numpy as np
import optax
import pytest

import fedax
from fedax import attacks
from fedax.core import InvalidInput, Upload
from fedax.graphs import Graph
from problems import regression
from transcription import LR

FULL = fedax.Schedule(steps=2, batch_size="full")
DECAYED = fedax.SGD(LR, decay=0.5, decay_by="step")
LATE = {
    "schedule": fedax.Schedule(cohort=2, asynchronous={"concurrency": 3}),
    "clock": fedax.Clock(latency=1.0),
}
PATH = Graph.of(nx.path_graph(5))
LINKS = nx.DiGraph([(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (0, 2)])
ROWS = Graph.directed(LINKS, "row")
CHANGING = Graph.sequence([PATH, Graph.ring(5)])

task = functools.cache(regression)


class Weighted(fedax.DFedAvgM):
    def send(self, client, own):
        return Upload(own, weight=jnp.ones(()))


# a regression on whole numbers, with predictions
COUNTS = fedax.from_model(
    fedax.models.MLP((2, 1)),
    lambda outputs, rows: (outputs[:, 0] - rows["y"].astype(outputs.dtype)) ** 2,
    [{"x": np.ones((3, 2)), "y": np.arange(3)}],
)
# the argument, the method and what is given to its run
RUNS = [
    ("byzantine", fedax.Krum(byzantine=2), {}),
    ("byzantine", fedax.Krum(byzantine=1, bucket=2), {}),
    ("byzantine", fedax.Bulyan(byzantine=1), {"schedule": fedax.Schedule(cohort=4)}),
    ("mixing", fedax.TrimmedMean(mixing=3, bucket=2), {}),
    ("mixing", fedax.CenteredClip(mixing=5), {}),
    ("schedule", fedax.ProxSkip(), {"schedule": fedax.Schedule(epochs=1, batch_size=4)}),
    ("schedule", fedax.ProxSkip(), {"schedule": fedax.Schedule(times=(1, 3, 6))}),
    ("dual_buffer", fedax.FedBC(dual_buffer="shared"), LATE),
    ("lam_min", fedax.FedBC(lam_min=2.0, lam_max=1.0), {}),
    ("MOON.*features", fedax.MOON(), {}),
    ("FedLC.*classification", fedax.FedLC(), {"task": COUNTS}),
    ("FedPer.*head", fedax.FedPer(head="out"), {}),
    ("FedRep.*head", fedax.FedRep(head=lambda name, leaf: False), {}),
    ("LGFedAvg.*head", fedax.LGFedAvg(head=lambda name, leaf: True), {}),
    ("FedBN.*norms", fedax.FedBN(), {}),
    ("graph", fedax.DFedAvgM(graph=Graph.ring(4)), {}),
    ("weight", Weighted(), {}),
    ("classes|arrays", fedax.FedAvg(), {"channel": fedax.Channel(attack=attacks.LabelFlip())}),
]
# formulas with a step size, which no other solver takes
RUNS += [
    ("solver", method, {"solver": solver})
    for method, solver in [
        (fedax.SCAFFOLD(), fedax.SGD(0.1, momentum=0.5)),
        (fedax.SCAFFOLD(form="as_released"), fedax.Optax(optax.adam(0.1))),
        (fedax.QFedAvg(), fedax.Exact()),
        (fedax.GD(), fedax.SGD(0.1, clip=1.0)),
        (fedax.FedNova(), fedax.SGD(0.1, weight_decay=0.1)),
        (fedax.FedNova(), DECAYED),
        (fedax.FedRed(), DECAYED),
    ]
]
# they never call the solver, so that sharpness would do nothing
RUNS += [
    ("sharpness", method, {"solver": fedax.SGD(LR, sharpness=0.05)})
    for method in [
        fedax.GD(),
        fedax.LocalGD(),
        fedax.PerFedAvg(),
        fedax.PFedMe(),
        fedax.APFL(),
        fedax.FedRep(head=("b",), body="step"),
        fedax.DGD(),
        fedax.EXTRA(),
        fedax.ExactDiffusion(),
        fedax.GradientTracking(),
        fedax.GTAdam(),
    ]
]
# hostile clients that agree see all uploads of a cohort, as they are
RUNS += [
    ("attack", method, {"channel": fedax.Channel(attack=attack, **channel), **options})
    for method, attack, channel, options in [
        (fedax.FedAvg(), attacks.ALIE(), {"up": fedax.codecs.TopK(0.5)}, {}),
        (fedax.FedAvg(), attacks.ALIE(), {"down": fedax.codecs.Quantizer(b=8)}, {}),
        (fedax.FedAvg(), attacks.ALIE(), {"privacy": fedax.Privacy(clip=1.0, noise=1.0)}, {}),
        (fedax.DSGD(), attacks.ALIE(), {}, {}),
        (fedax.FedAvg(), attacks.ALIE(), {}, LATE),
        (fedax.QuantizedDFedAvgM(), attacks.SignFlip(), {}, {}),
    ]
]


@pytest.mark.parametrize(("field", "method", "options"), RUNS)
def test_runs_are_refused(field, method, options):
    options = {"solver": fedax.SGD(LR), "schedule": FULL, "rounds": 1} | options
    with pytest.raises(InvalidInput, match=field):
        fedax.run(method, **{"task": task()} | options)


class Misspelt(attacks.Attack):
    def corupt(self, v, near, key):
        return -v


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("server", lambda: fedax.FedAdam(server=optax.sgd(0.5))),
        ("attack", lambda: fedax.Channel(attack="noise")),
        ("down", lambda: fedax.Channel(down=fedax.codecs.TopK(0.5))),
        ("knows", lambda: attacks.ALIE(knows="all")),
        ("Misspelt", Misspelt),
        ("'b'|b=", lambda: fedax.QuantizedDFedAvgM(b=1)),
        ("paper", lambda: fedax.QuantizedDFedAvgM(graph=CHANGING, mode="replica")),
        ("row", lambda: fedax.DFedAvgM(graph=Graph.directed(LINKS))),
        ("graph", lambda: fedax.GradientTracking(graph=ROWS)),
        ("graph", lambda: fedax.PushSum(graph=ROWS)),
        *(
            ("graph", functools.partial(kind, graph=graph))
            for kind in (fedax.EXTRA, fedax.ExactDiffusion, fedax.NIDS, fedax.BEER)
            for graph in (CHANGING, PATH.lossy(0.1, "both"))
        ),
    ],
)
def test_methods_are_refused(field, make):
    with pytest.raises(InvalidInput, match=field):
        make()


def test_the_last_of_layers_in_no_order_is_refused():
    """JAX sorts the entries of a dict by name, which is not the order in which they work."""
    layers = {"conv": {"kernel": np.ones(2)}, "dense": {"kernel": np.ones(2)}, "bias": np.ones(1)}
    unordered = fedax.Task(layers, lambda p, x: x * p["bias"].sum(), [[1.0]])
    with pytest.raises(InvalidInput, match=r"head=.*last.*conv\.kernel"):
        fedax.run(fedax.FedPer(), unordered)
