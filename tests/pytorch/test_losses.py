"""Losses over ten steps of SGD are PyTorch's within 1e-5, in compiled programs of 32 bits."""

import copy

import jax
import numpy as np
import optax
import pytest

import fedax

torch = pytest.importorskip("torch", reason="needs PyTorch: make torch")

from networks import lenet, lstm, resnet18, transformer  # noqa: E402
from torch import nn  # noqa: E402

STEPS = 10
RATES = {lenet: 0.05, resnet18: 0.01, lstm: 0.1, transformer: 0.05}


def cross_entropy(logits, examples):
    return optax.softmax_cross_entropy_with_integer_labels(logits, examples["y"])


def losses_in_torch(net, x, y, rate):
    """Returns the losses in evaluation before the first step and after each."""
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    losses = []
    for step in range(STEPS + 1):
        with torch.no_grad():
            losses.append(float(nn.functional.cross_entropy(net.eval()(x), y)))
        if step < STEPS:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net.train()(x), y).backward()
            optimizer.step()
    return losses


@pytest.mark.slow
@pytest.mark.parametrize("make", RATES)
def test_losses_over_ten_steps_are_those_of_pytorch(make):
    torch.manual_seed(0)
    net, x, y = make()
    with jax.enable_x64(False):
        model = fedax.models.torch(net, x)
        task = fedax.from_model(model, cross_entropy, [{"x": x.numpy(), "y": y.numpy()}])
        history = fedax.run(
            fedax.FedAvg(),
            task,
            rounds=STEPS,
            solver=fedax.SGD(RATES[make]),
            schedule=fedax.Schedule(steps=1, batch_size="full"),
            observe=[fedax.observe.TrainLoss()],
            observe_every=1,
        )
    expected = losses_in_torch(copy.deepcopy(net), x, y, RATES[make])
    assert expected[-1] < expected[0] - 0.01
    np.testing.assert_allclose(history.metrics["train_loss"], expected, rtol=0, atol=1e-5)
