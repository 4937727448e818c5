"""What PyTorch computes beside the exported operators is refused, in 32 bits, as users meet it."""

import random

import jax
import numpy as np
import pytest

import fedax

torch = pytest.importorskip("torch", reason="needs PyTorch: make torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.nn.utils import parametrizations, spectral_norm  # noqa: E402

rng = np.random.default_rng(0)
ROWS = rng.normal(size=(20, 4)).astype("float32")
OWN = random.Random(0)
TOKENS = rng.integers(0, 50, (20, 4))


@pytest.fixture(autouse=True)
def _in_32_bits():
    with jax.enable_x64(False):
        yield


class Net(nn.Module):
    """A trunk and a head, with a function between."""

    def __init__(self, between=None, before=None):
        super().__init__()
        self.trunk = nn.Linear(4, 6)
        self.head = nn.Linear(6, 3)
        self.between = between
        self.before = before
        self.calls = 0

    def forward(self, x):
        if self.before is not None:
            self.before(self)
        h = torch.tanh(self.trunk(x))
        return self.head(h if self.between is None else self.between(self, h))


class Reversal(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        return -gradient


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.sign()

    @staticmethod
    def backward(context, gradient):
        return gradient


class NoGradient(Net):
    def forward(self, x):
        with torch.no_grad():
            h = torch.tanh(self.trunk(x))
        return self.head(h)


def count(net):
    net.calls += 1


def with_hook(register, hook):
    net = Net()
    register(net)(hook)
    return net


STOPS = {
    "detach": lambda: Net(lambda net, h: h.detach()),
    "no_grad": NoGradient,
    "requires_grad": lambda: Net(before=lambda net: net.trunk.requires_grad_(False)),
    "straight_through": lambda: Net(lambda net, h: h + (h.sign() - h).detach()),
    "reversal": lambda: Net(lambda net, h: Reversal.apply(h)),
    "function": lambda: Net(lambda net, h: Sign.apply(h)),
    "weight_hook": lambda: with_hook(
        lambda net: net.trunk.weight.register_hook, lambda gradient: gradient * (gradient > 0)
    ),
    "module_hook": lambda: with_hook(
        lambda net: net.head.register_full_backward_hook, lambda net, x, y: (2 * x[0],)
    ),
    "output_hook": lambda: Net(lambda net, h: [h, h.register_hook(lambda g: 2 * g)][0]),
    "spectral_norm": lambda: nn.Sequential(spectral_norm(nn.Linear(4, 6)), nn.Linear(6, 3)),
}
DECISIONS = {
    "python_draw": lambda: Net(lambda net, h: h if random.random() < 0.5 else 0 * h),
    "numpy_draw": lambda: Net(lambda net, h: h if np.random.random() < 0.9 else 0 * h),  # noqa: NPY002
    "own_draw": lambda: Net(lambda net, h: h * OWN.random()),
    "counter": lambda: Net(lambda net, h: h / net.calls, count),
    "large_batch": lambda: Net(lambda net, h: h * (2.0 if h.shape[0] >= 16 else 1.0)),
    "even_batch": lambda: Net(lambda net, h: h * (2.0 if h.shape[0] % 2 else 1.0)),
    "double": lambda: Net(lambda net, h: (h.double() + 1e9).var(1, keepdim=True).float() * h),
    "hash": lambda: nn.Sequential(Hash(), nn.Embedding(97, 3), nn.Flatten()),
}
TAKEN = {
    "dropouts": lambda: nn.Sequential(
        nn.Linear(4, 6), nn.Dropout(0.3), nn.AlphaDropout(0.3), nn.BatchNorm1d(6), nn.Linear(6, 3)
    ),
    "functional_dropout": lambda: Net(lambda net, h: functional.dropout(h, 0.4, net.training)),
    "transformer": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 2)), nn.TransformerEncoderLayer(2, 1, 4), nn.Flatten()
    ),
    "lstm": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 2)), Last(nn.LSTM(2, 3, 2, dropout=0.5, batch_first=True))
    ),
    "weight_norm": lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 3))),
    "logging_hook": lambda: with_hook(lambda net: net.trunk.weight.register_hook, lambda g: None),
}


class Hash(nn.Module):
    def forward(self, x):
        return (x * 1000003) % 97


class Last(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0][:, -1]


def take(make, x=ROWS):
    torch.manual_seed(0)
    model = fedax.models.torch(make(), x)
    return fedax.from_model(model, lambda z, e: (z**2).mean(1), [{"x": x}])


@pytest.mark.parametrize("name", STOPS)
def test_stopped_and_changed_gradients_are_refused_with_the_parameter(name):
    message = r"(gradient|output|buffer) '?(trunk|0)\.(weight|bias).* differs from PyTorch's by"
    with pytest.raises(fedax.InvalidInput, match=message):
        take(STOPS[name])


@pytest.mark.parametrize("name", DECISIONS)
def test_what_python_decides_once_is_refused(name):
    message = "differs from PyTorch's|draws random numbers|Constraints violated|in (int|float)64"
    with pytest.raises(Exception, match=message):
        take(DECISIONS[name], TOKENS if name == "hash" else ROWS)


@pytest.mark.parametrize("name", TAKEN)
def test_modules_without_such_are_taken(name):
    history = fedax.run(fedax.FedAvg(), take(TAKEN[name]), rounds=1)
    assert history.outcome.ok


def test_rows_that_an_embedding_lacks_end_the_run():
    for size in (50, 2000):
        task = take(lambda size=size: nn.Sequential(nn.Embedding(size, 3), nn.Flatten()), TOKENS)
        loss = task.loss(
            task.start(jax.random.key(0)),
            {"x": np.array([[-1, 0, 0, 0], [size, 0, 0, 0]])},
            key=None,
        )
        assert np.isnan(loss).all()


def test_embeddings_scaled_by_frequency_are_refused():
    with pytest.raises(fedax.InvalidInput, match="scale_grad_by_freq"):
        take(lambda: nn.Embedding(50, 3, scale_grad_by_freq=True), TOKENS)
