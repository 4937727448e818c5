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
        match=r"FedBN\(norms=\.\.\.\): got 'norms', by which the layers of "
        r"downsample.1.running_mean are averaged; .* Name the norms",
    ):
        run({})
    history = run({"norms": ["bn1", "downsample.1"]})
    # of six leaves of two numbers, four stay
    assert history.bits.up[0] == 2 * 2 * 2 * 32
    # their norms are found by name
    assert run({}, stored=["bn1.running_mean"]).bits.up[0] == 2 * 4 * 2 * 32


@pytest.mark.parametrize(
    "layer", ["b.mean.value", "batch_stats.n.s.mean", "a/~/b/~/mean_ema.hidden", "0.1.running_mean"]
)
def test_norms_are_told_by_their_running_means(layer):
    """Of Flax NNX, Flax Linen, Haiku, and layers without names of PyTorch."""
    found = ["BatchNorm_0.mean", "batch_norm/~/mean_ema.average", "bn1.running_mean"]
    assert overlooked_norms([*found, "conv.weight_u", layer]) == [layer]
