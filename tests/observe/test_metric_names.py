"""Names of metrics and scores that there are not are refused in a sentence."""

import pytest

import fedax
from fedax.core import InvalidInput

TASK = fedax.Task(0.0, lambda w, x: (w - x) ** 2, [[1.0, 2.0], [3.0]])
HISTORY = fedax.run(fedax.FedAvg(), TASK, rounds=1)


@pytest.mark.parametrize("name", ["nope", "train_los", ""])
def test_a_metric_that_a_history_does_not_have_is_refused(name):
    for of in (HISTORY.last, HISTORY.plot):
        with pytest.raises(InvalidInput, match=rf"got '{name}'; allowed: one of \S"):
            of(name)
    with pytest.raises(InvalidInput, match=rf"got '{name}', and no metric by client was observed"):
        HISTORY.by_client(name)
    assert HISTORY.last("train_loss") == HISTORY.metrics["train_loss"][-1]


@pytest.mark.parametrize("every", [0, -1])
def test_a_table_of_no_rounds_is_refused(every):
    with pytest.raises(InvalidInput, match="whole numbers >= 1"):
        HISTORY.table(every)
