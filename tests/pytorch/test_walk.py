"""The walk of a module of PyTorch to the loss, as a list of the functions of fedax."""

import sys

import jax
import numpy as np
import optax
import pytest

import fedax

torch = pytest.importorskip("torch", reason="needs PyTorch: make torch")

TAKEN = [
    "torch", "as_tensor", "float_type", "export", "_refuse", "_name", "Program.updates",
    "refuse_unequal", "_run_in_jax", "Program.__call__", "linear", "product_by_rows",
    "_is_worth_a_call", "_weigh", "_run_in_torch", "_read_generators", "_size",
]  # fmt: skip
"""Entered while a module of linear layers becomes a model, in this order."""
LOSS = [
    "OfOutputs.__call__", "OfOutputs.outputs", "torch.<locals>.<lambda>", "torch.<locals>.run",
    "Program.__call__", "linear", "product_by_rows",
]  # fmt: skip
"""Open, the outermost first, when the loss of the task has arrived at the product of a layer."""


def name_of(frame):
    """Returns the name of a function of models, tasks and operations, None for others: listeners
    of compilers and what ends with an object are no part of the walk."""
    path = frame.f_code.co_filename.removeprefix(fedax.__path__[0])
    inside = path.startswith(("/models", "/ops", "/tasks"))
    return frame.f_code.co_qualname if inside else None


def record(function, watch):
    sys.setprofile(lambda frame, event, _: watch(frame) if event == "call" else None)
    try:
        return function()
    finally:
        sys.setprofile(None)


@pytest.mark.usefixtures("as_users_run")
def test_the_walk_of_a_module_to_the_loss():
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    examples = {"x": np.ones((8, 3), np.float32), "y": np.arange(8) % 2}
    fedax.models.torch(net, examples["x"])  # what is imported on the way is no part of it
    entered = {}
    walks = []

    def enter(frame):
        name = name_of(frame)
        if name is not None and "<" not in name and frame.f_code.co_name != "MeanDraws":
            entered.setdefault(name)

    model = record(lambda: fedax.models.torch(net, examples["x"]), enter)
    assert list(entered) == TAKEN
    task = fedax.from_model(
        model,
        lambda z, e: optax.softmax_cross_entropy_with_integer_labels(z, e["y"]),
        [examples, examples],
    )
    params = task.start(jax.random.key(0))

    def look(frame):
        if name_of(frame) == "product_by_rows":
            walk = []
            while frame is not None:
                walk.append(name_of(frame))
                frame = frame.f_back
            walks.append([name for name in walk[::-1] if name is not None])

    record(lambda: jax.jit(task.loss).lower(params, task.train[0], jax.random.key(0)), look)
    assert walks == [LOSS, LOSS]
