"""Networks in PyTorch for the tests of `fedax.models.torch`."""

import itertools

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: make torch")
nn = torch.nn


def images(count, channels, size, seed=0):
    made = torch.Generator().manual_seed(seed)
    return torch.randn(count, channels, size, size, generator=made), torch.randint(
        0, 10, (count,), generator=made
    )


def tokens(count, steps, seed=0):
    made = torch.Generator().manual_seed(seed)
    return torch.randint(0, 80, (count, steps), generator=made), torch.randint(
        0, 10, (count,), generator=made
    )


def lenet():
    stages = [
        nn.Conv2d(3, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    ]
    dense = [nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)]
    return nn.Sequential(*stages, *dense), *images(8, 3, 32)


def mnist_cnn():
    first = [nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(32, 64, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(
        *first, *second, nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 10)
    ), *images(4, 1, 28)


class Block(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.stride = outputs // inputs
        self.one = nn.Conv2d(inputs, outputs, 3, self.stride, 1, bias=False)
        self.two = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.GroupNorm(2, outputs), nn.GroupNorm(2, outputs)])

    def forward(self, x):
        h = self.norms[1](self.two(torch.relu(self.norms[0](self.one(x)))))
        if self.stride == 2:
            x = nn.functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, x.shape[1]))
        return torch.relu(h + x)


def resnet20():
    widths = [16] * 4 + [32] * 3 + [64] * 3
    blocks = [Block(a, b) for a, b in itertools.pairwise(widths)]
    first = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.GroupNorm(2, 16), nn.ReLU()]
    return nn.Sequential(
        *first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
    ), *images(4, 3, 32)


class Normed(nn.Module):
    """A basic block of ResNet-18."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.one = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)])
        self.shortcut = nn.Sequential()
        if stride == 2:
            project = nn.Conv2d(inputs, outputs, 1, 2, bias=False)
            self.shortcut = nn.Sequential(project, nn.BatchNorm2d(outputs))

    def forward(self, x):
        h = self.norms[1](self.two(torch.relu(self.norms[0](self.one(x)))))
        return torch.relu(h + self.shortcut(x))


def resnet18():
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    sizes = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1)]
    sizes += [(128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)]
    blocks = [Normed(*size) for size in sizes]
    pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)]
    return nn.Sequential(*stem, nn.MaxPool2d(3, 2, 1), *blocks, *pooled), *images(8, 3, 32)


class Text(nn.Module):
    def __init__(self):
        super().__init__()
        self.vectors = nn.Embedding(80, 8)
        self.layers = nn.LSTM(8, 32, 2)
        self.last = nn.Linear(32, 10)

    def forward(self, x):
        return self.last(self.layers(self.vectors(x.T))[0][-1])


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(80, 16, padding_idx=0)
        self.places = nn.Parameter(torch.randn(12, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, "gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.last = nn.Linear(16, 10)

    def forward(self, x):
        return self.last(self.layers(self.tokens(x) + self.places).mean(1))


def lstm():
    return Text(), *tokens(6, 12)


def transformer():
    return Classifier(), *tokens(6, 12)


NETWORKS = [lenet, mnist_cnn, resnet20, lstm, transformer]
