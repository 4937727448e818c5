"""Arguments of the wrong kind: refused by name before anything is compiled."""

import math
import subprocess
import sys

import pytest

import fedax
from fedax.core import InvalidInput
from problems import regression

WRONG = {
    "algorithm": "fedax.run('fedavg', task)",
    "class for an object": "fedax.run(fedax.FedAvg, task)",
    "task": "fedax.run(fedax.FedAvg(), 'digits')",
    "member": "fedax.run_grid(['a'], task)",
    "start": "fedax.start(3, task)",
    "seed": "fedax.run(fedax.FedAvg(), task, seed='a')",
    "seeds": "fedax.run(fedax.FedAvg(), task, seed=[0, 1])",
    "seeds of NumPy": "fedax.run(fedax.FedAvg(), task, seed=np.arange(2))",
    "key": "fedax.run(fedax.FedAvg(), task, seed=jax.random.key(0))",
    "range of seeds": "fedax.run(fedax.FedAvg(), task, seed=range(2))",
    "histories": "fedax.compare({'A': 3})",
    "history": "fedax.compare({'A': [1.0]})",
    "solver": "fedax.run(fedax.FedAvg(), task, solver=0.1)",
    "schedule": "fedax.run(fedax.FedAvg(), task, schedule={})",
    "engine": "fedax.run(fedax.FedAvg(), task, engine='eager')",
    "channel": "fedax.run(fedax.FedAvg(), task, channel='topk')",
    "observer": "fedax.run(fedax.FedAvg(), task, observe=['train_loss'])",
    "stop": "fedax.run(fedax.FedAvg(), task, stop=3)",
    "stops": "fedax.run(fedax.FedAvg(), task, stop=['early'])",
    "folder": "fedax.task('mnist', folder=3)",
    "partition": "fedax.task('digits', partition=3)",
    "number of clients": "fedax.task('digits', clients=None)",
}
ADVICE = {
    "fedax.run(fedax.FedAvg, task)": "Write FedAvg(), with parentheses.",
    "fedax.run(task, fedax.FedAvg())": "allowed: an object of Algorithm.",
    "fedax.run(fedax.FedAvg(), task, solver=[fedax.SGD(0.1)])": "Several solvers are a grid: "
    "run_grid([algorithm], task, solver=[...]).",
    "fedax.run(fedax.FedAvg(), task, schedule=[fedax.Schedule()])": "Several schedules are a grid: "
    "run_grid([algorithm], task, schedule=[...]).",
    "fedax.run(fedax.FedAvg(), task, solver=0.1)": "Write fedax.SGD(0.1).",
    "fedax.run(fedax.FedAvg(), task, observe=[fedax.observe.TestLoss()])": (
        "Make the task with test=[...], the examples of each client, or central={...}, a global "
        "set."
    ),
    "fedax.run(fedax.FedAvg(), task, observe=[fedax.observe.ClientAccuracy()])": (
        "Make the task with test=[...], the examples of each client."
    ),
    "fedax.run(fedax.FedAvg(), task, observe=[fedax.observe.TrainLoss])": "Write TrainLoss(), "
    "with parentheses.",
    "fedax.Channel(up=fedax.codecs.TopK)": "Write TopK(), with parentheses.",
    "fedax.Channel(up='top_k')": "Write fedax.codecs.TopK().",
    "fedax.Channel(down='qsgd')": "Write fedax.codecs.QSGD().",
    "fedax.Channel(attack=fedax.attacks.SignFlip)": "Write SignFlip(), with parentheses.",
    "fedax.Channel(attack='signflip')": "Write fedax.attacks.SignFlip().",
    "fedax.Channel(privacy=fedax.Privacy)": "Write Privacy(), with parentheses.",
}
PROGRAM = """
import jax
import numpy as np
import fedax
from fedax.data import FederatedData
task = fedax.Task(0.0, lambda w, x: (w - x) ** 2 / 2, [[4.0]])
for text in {texts}:
    try:
        eval(text)
    except fedax.InvalidInput as error:
        assert "allowed: " in str(error), error
    except Exception as error:
        print(text, repr(error))
    else:
        print(text, "is not refused")
for text, advice in {advice}.items():
    try:
        eval(text)
    except fedax.InvalidInput as error:
        assert str(error).endswith(advice), error
    else:
        print(text, "is not refused")
"""


@pytest.mark.slow
def test_arguments_of_the_wrong_kind_are_refused_by_name():
    """In a program of its own, because the types of all arguments are checked in tests."""
    program = PROGRAM.format(texts=list(WRONG.values()), advice=ADVICE)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert (done.stdout, done.returncode) == ("", 0), done.stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rounds", 2**40),
        ("checkpoint_every", 0),
        ("stop", fedax.Divergence(1.0, -1)),
        ("stop", fedax.Divergence(math.nan, 3)),
    ],
)
def test_values_that_no_run_could_follow_are_refused(name, value):
    with pytest.raises(InvalidInput, match=r"run\(|Divergence\((window|rise)=...\)"):
        fedax.run(fedax.FedAvg(), regression(), **{"rounds": 1, name: value})


def test_hyperparameters_are_finite_where_the_range_says_so():
    with pytest.raises(InvalidInput, match=r"got inf; allowed: numbers in \[0, infinity\)"):
        fedax.FedProx(mu=math.inf)
    assert fedax.FedBC(lam_max=math.inf).lam_max == math.inf
