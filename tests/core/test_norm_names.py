"""FedBN's default goes by names, and refuses norms that it would overlook."""

import numpy as np
import pytest

import fedax
from fedax.core import InvalidInput
from fedax.utils.leaf_names import overlooked_norms

NAMES = (
    *("bn1.bias", "bn1.weight", "conv1.weight", "downsample.0.weight"),
    *("downsample.1.bias", "downsample.1.weight"),
)
RNG = np.random.default_rng(0)
CLIENTS = {k: RNG.normal(size=(n, 2)).astype(np.float32) for k, n in (("b", 3), ("a", 5))}


def loss(p, x, *, state, training):
    total = sum(p[name].sum() for name in NAMES).astype(x.dtype)
    return ((x.sum(1) - total) ** 2, state) if training else (x.sum(1) - total) ** 2


def run(norms, stored=("bn1.running_mean", "downsample.1.running_mean")):
    task = fedax.Task(
        {name: np.ones(2, np.float32) for name in NAMES},
        loss,
        CLIENTS,
        state={name: np.zeros(2, np.float32) for name in stored},
        state_policy="local",
    )
    return fedax.run(
        fedax.FedBN(**norms),
        task,
        solver=fedax.SGD(0.001),
        schedule=fedax.Schedule(batch_size=1),
        rounds=1,
    )


@pytest.mark.slow
def test_norms_of_other_names_are_refused_with_names_():
    with pytest.raises(
        InvalidInput,
        match=r"FedBN\(norms=\.\.\.\): got 'norms', by which downsample.1.bias, "
        r"downsample.1.weight of layers with a running mean are averaged; .* Name the norms",
    ):
        run({})
    history = run({"norms": ["bn1", "downsample.1"]})
    # of six leaves of two numbers, four stay
    assert history.bits.up[0] == 2 * 2 * 2 * 32
    # their norms are found by name
    assert run({}, stored=["bn1.running_mean"]).bits.up[0] == 2 * 4 * 2 * 32


@pytest.mark.parametrize(
    ("names", "state_names", "overlooked"),
    [
        # Flax NNX, Flax Linen and Haiku
        (["b.scale.value", "l.kernel.value"], ["b.mean.value"], ["b.scale.value"]),
        (["l.kernel", "n.s.scale"], ["batch_stats.n.s.mean"], ["n.s.scale"]),
        (["a/~/b.scale", "a/~/l.w"], ["a/~/b/~/mean_ema.hidden"], ["a/~/b.scale"]),
        # layers without names of PyTorch; another layer has the whole name of the norm as its end
        (["0.0.weight", "0.1.weight"], ["0.1.running_mean"], ["0.1.weight"]),
        (["0.1.weight", "1.weight"], ["1.running_mean"], ["1.weight"]),
        # one leaf of the layer has the name of a norm; a state that is no mean; one of the model
        (["l.norm_scale", "l.w"], ["l.mean"], []),
        (["conv.weight_orig"], ["conv.weight_u"], []),
        (["scale", "w"], ["mean"], []),
    ],
)
def test_norms_are_told_by_their_running_means(names, state_names, overlooked):
    assert overlooked_norms(names, state_names) == overlooked
