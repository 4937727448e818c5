"""How deep the call of a user's loss lies below `fedax.run`."""

import os
import traceback

import numpy as np
import pytest

import fedax

ROOT = os.path.dirname(fedax.__file__)


@pytest.mark.parametrize("dim", [3, 70_000], ids=["one kernel", "blocks"])
def test_frames_from_run_to_the_loss(dim):
    stacks = []

    def loss(w, examples):
        stack = traceback.extract_stack()
        stacks.append([frame for frame in stack if frame.filename.startswith(ROOT)])
        return (examples["x"] @ w - examples["y"]) ** 2

    clients = [{"x": np.ones((n, dim)), "y": np.ones(n)} for n in (5, 9)]
    task = fedax.Task(np.zeros(dim), loss, clients)
    stacks.clear()  # those of the task's checks
    fedax.run(fedax.FedAvg(), task, rounds=1, observe=[])
    (stack,) = stacks
    assert stack[0].name == "run"
    assert len(stack) <= 28, [f"{frame.filename}: {frame.name}" for frame in stack]
