"""The models of the work in PyTorch, and a client's training: shared by all contestants that use
it."""

from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from serving import Work
from torch import nn


def network(work):
    """The model with the initial parameters. Convolutions are in channels last, which is faster on
    a CPU."""
    layers = []
    dense = [shape for shape in work.shapes if len(shape) == 2]
    for size, _, inputs, outputs in (shape for shape in work.shapes if len(shape) == 4):
        padding = size // 2 if work.padding == "SAME" else 0
        layers += [nn.Conv2d(inputs, outputs, size, padding=padding), nn.MaxPool2d(2), nn.ReLU()]
    layers += [nn.Flatten()] if work.convolutional else []
    for inputs, outputs in dense:
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    with torch.no_grad():
        for parameter, value in zip(
            model.parameters(), from_vector(work, work.initial), strict=True
        ):
            parameter.copy_(torch.from_numpy(value))
    return model.to(memory_format=torch.channels_last) if work.convolutional else model


def flat_order(work):
    """The places at which PyTorch's flattened pixels (channels first) are among those of the work
    (channels last)."""
    channels = [shape[3] for shape in work.shapes if len(shape) == 4][-1]
    pixels = next(shape[0] for shape in work.shapes if len(shape) == 2) // channels
    return np.arange(pixels * channels).reshape(pixels, channels).T.ravel()


def from_vector(work, vector):
    """A vector of the work as arrays in the shapes of PyTorch."""
    arrays = []
    first_dense = work.convolutional
    for leaf in work.leaves(vector):
        if leaf.ndim == 4:
            leaf = leaf.transpose(3, 2, 0, 1)
        elif leaf.ndim == 2:
            leaf = (leaf[flat_order(work)] if first_dense else leaf).T
            first_dense = False
        arrays.append(np.ascontiguousarray(leaf))
    return arrays


def to_vector(work, arrays):
    """The inverse of `from_vector`, of tensors."""
    leaves = []
    first_dense = work.convolutional
    for value in arrays:
        leaf = value.detach().numpy()
        if leaf.ndim == 4:
            leaf = leaf.transpose(2, 3, 1, 0)
        elif leaf.ndim == 2:
            leaf = leaf.T
            if first_dense:
                leaf = leaf[np.argsort(flat_order(work))]
                first_dense = False
        leaves.append(leaf.ravel())
    return np.concatenate(leaves)


def tensors(work):
    x = torch.from_numpy(work.x)
    y = torch.from_numpy(work.y)
    if work.convolutional:
        x = x.reshape(-1, *work.image).permute(0, 3, 1, 2)  # channels last in memory
    return x, y


def local_steps(model, x, y, batches, rate, compiled=None):
    """A client's steps of SGD on its batches; `compiled` is the model for full ones, so that it has
    one shape."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    criterion = nn.CrossEntropyLoss()
    full = len(batches[0])
    for rows in batches:
        rows = torch.from_numpy(rows)
        optimizer.zero_grad()
        called = compiled if compiled is not None and len(rows) == full else model
        criterion(called(x[rows]), y[rows]).backward()
        optimizer.step()


@lru_cache
def at_hand(path):
    """The work of a file with its tensors and a model, once for each process."""
    work = Work(Path(path))
    return work, network(work), *tensors(work)
