"""Arguments of a wrong type are refused in fedax's own words.

`test_unchecked.py` runs this file without the type checker of the tests.
"""

import numpy as np
import pytest

import fedax
from fedax.core import InvalidInput
from fedax.models import CNN, MLP, Bigram, CharLSTM, Softmax
from fedax.observe import AUC, F1, CalibrationError, OnPredictions, SetMetric
from fedax.tasks import classification


class OwnMetric(OnPredictions):
    name = "own"

    def value(self, labels, predictions):
        return 0.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: fedax.lora(fedax.task("synthetic", clients=2), targets="*", average="factor"),
            r"lora\(average=...\): got 'factor'; allowed: 'exact' or 'factors'",
        ),
        (lambda: MLP(5, 3), r"MLP\(widths=...\): got 5; allowed: several whole numbers"),
        (lambda: MLP((5, "a")), r"MLP\(widths=...\): got \(5, 'a'\)"),
        (lambda: MLP((5, 3), "a"), r"MLP\(dropout=...\): got 'a'"),
        (lambda: Softmax(5.0, 3), r"Softmax\(features=...\): got 5\.0"),
        (lambda: Bigram("a"), r"Bigram\(vocabulary=...\): got 'a'"),
        (lambda: CharLSTM("a"), r"CharLSTM\(vocabulary=...\): got 'a'"),
        (lambda: CNN((4, 4, 1), (), (3, 0), 2), r"CNN\(widths=...\): got \(3, 0\)"),
        (
            lambda: CNN((4, 4, 1), (), (), 10, padding="FULL"),
            r"CNN\(padding=...\): got 'FULL'; allowed: one of \('SAME', 'VALID'\)",
        ),
        (lambda: CharLSTM(80, biases=3), r"CharLSTM\(biases=...\): got 3; allowed: one of \(1, 2"),
        (lambda: AUC(split="foo"), r"AUC\(split=...\): got 'foo'; allowed: one of 'train', "),
        (lambda: F1(split=None), r"F1\(split=...\): got None; allowed: one of 'train', 'valida"),
        (lambda: F1(average="foo"), r"F1\(average=...\): got 'foo'; allowed: one of 'macro', "),
        (
            lambda: CalibrationError(split=["test"]),
            r"CalibrationError\(split=...\): got \['test'\]",
        ),
        (
            lambda: SetMetric("a", len, split="tests"),
            r"SetMetric\(split=...\): got 'tests'; allowed",
        ),
        (lambda: OwnMetric(split="foo"), r"OwnMetric\(split=...\): got 'foo'"),
    ],
)
def test_wrong_types_are_refused(make, message):
    with pytest.raises(InvalidInput, match=message):
        make()


@pytest.mark.parametrize(
    ("model", "shape", "message"),
    [
        (
            "softmax",
            (4, 3),
            r"Softmax: got examples of shape \(4, 3\); allowed: rows of 12 numbers",
        ),
        (
            "mlp",
            (4, 3),
            r"MLP: got examples .*; allowed: rows of 12 numbers\. Write x.reshape\(len",
        ),
        (Softmax(12, 3), (4, 3), r"rows of 12 numbers\. Write x.reshape\(len\(x\), -1\)"),
        (Softmax(5, 3), (4,), r"Softmax: got examples of shape \(4,\); allowed: rows of 5 numbers"),
        (MLP((1, 3)), (), r"MLP: got examples of shape \(\); allowed: rows of 1 number\."),
    ],
)
def test_examples_of_another_shape_are_refused(model, shape, message):
    x = np.ones((7, *shape), np.float32)
    train = {name: {"x": x[:n], "y": np.arange(n) % 3} for name, n in (("anna", 2), ("bert", 5))}
    data = fedax.FederatedData.from_arrays(train, classes=3)
    with pytest.raises(InvalidInput, match=message) as refusal:
        classification(data, model)
    assert "dot_general" not in str(refusal.value)
