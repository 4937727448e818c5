"""Arguments of another type than the entry points of tasks and data take are refused by name."""

import subprocess
import sys

import pytest

# the tests' own type checks would refuse the calls first, so they run in another process
SETUP = """
import numpy as np
import fedax
from fedax.data import FederatedData, encode, write_clients
from fedax.tasks import classification, from_loss, logistic
from fedax.tasks import with_held_back, with_validation

client = {"x": np.ones((4, 2)), "y": [0, 1, 0, 1]}
data, model = FederatedData([client], 2), fedax.models.Softmax(2, 2)
task = classification(data, model)
"""
CALLS = {
    "classification([client], model)": "classification(data=...): got a list",
    "classification(data, 5)": "classification(model=...): got 5",
    "logistic([client])": "logistic(federated=...): got a list",
    "write_clients('a', fedax.__path__[0], 2)": "write_clients(clients=...): got '/",
    "write_clients('a', 5, 2)": "write_clients(clients=...): got 5; allowed: FederatedData",
    "write_clients('a', [client], 2, test=5)": "write_clients(test=...): got 5",
    "fedax.lora(task, 1, targets=5)": "lora(targets=...): got 5; allowed: names of leaves",
    "fedax.lora(task, '1', targets='*')": "lora(rank=...): got '1'",
    "fedax.lora(task, 1, targets='*', average='factor')": "lora(average=...): got 'factor'",
    "fedax.lora(5, targets='*')": "lora(task=...): got an object of int",
    "with_validation(5, 0.2)": "with_validation(task=...): got an object of int",
    "with_held_back(5, 0.2)": "with_held_back(task=...): got an object of int",
    "from_loss(lambda w, x: (w - x) ** 2, 0.0, [[1.0]], frozen=5)": "from_loss(frozen=...): got 5",
    "encode(5)": "text: got 5; allowed: text",
}


@pytest.fixture(scope="module")
def messages():
    """The messages of all calls, in their order; another error than fedax's by its name."""
    lines = [SETUP]
    for call in CALLS:
        lines += [
            f"try: {call}",
            "except fedax.InvalidInput as error: print(str(error).splitlines()[0])",
            "except Exception as error: print(type(error).__name__)",
            "else: print('accepted')",
        ]
    command = [sys.executable, "-c", "\n".join(lines)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return dict(zip(CALLS, done.stdout.splitlines(), strict=True))


@pytest.mark.parametrize("call", CALLS)
def test_other_types_are_refused_by_name(call, messages):
    assert messages[call].startswith(CALLS[call])
