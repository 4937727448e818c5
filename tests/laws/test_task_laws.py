"""The laws of tasks: losses, scores and predictions that look at other examples of their batch, or at
an example's place in it, or that are others when called again, break one, and no others do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import commands
import fedax
from fedax.conformance import TASK_LAWS, check
from marks import slow

pytestmark = pytest.mark.usefixtures("as_users_run")
CLIENTS = [np.linspace(-1, 2, 6).reshape(3, 2).astype(np.float32), np.ones((4, 2), np.float32)]


def task_of(loss, **more):
    return fedax.Task(np.zeros((), np.float32), loss, CLIENTS, **more)


def verdict_on(task):
    (verdict,) = check(task, [TASK_LAWS["keeps_examples_apart"]])
    return verdict


def squares(w, x):
    return ((w - x) ** 2).sum(1)


def centred(x):
    return x - x.mean(0, keepdims=True)


def places(x):
    return jnp.arange(x.shape[0])


COUPLED = {
    "mean": lambda w, x: squares(w, centred(x)),
    "batch statistic": lambda w, x: squares(w, centred(x) / (1 + x.std(0, keepdims=True))),
    "one mean for all": lambda w, x: squares(w, x).mean() + jnp.zeros(x.shape[0]),
    "length of the batch": lambda w, x: squares(w, x) / x.shape[0],
    "rank": lambda w, x: squares(w, x) * jnp.argsort(-x[:, 0]).astype(x.dtype),
    "where the model is not zero": lambda w, x: (w * centred(x)).sum(1),
    "mean in training": lambda w, x, key: squares(w, x if key is None else centred(x)),
    "mixed up in training": lambda w, x, key: squares(
        w, x if key is None else 0.7 * x + 0.3 * x[::-1]
    ),
    "state, in evaluation": lambda w, x, state: (squares(w, centred(x)), state),
    "weight by place": lambda w, x: squares(w, x) * (1 + places(x) % 2),
    "from the twentieth on": lambda w, x: squares(w, x) * (1 + (places(x) >= 20)),
    "the last one": lambda w, x: squares(w, x) + (places(x) == x.shape[0] - 1),
    "sums so far": lambda w, x: jnp.cumsum(squares(w, x)),
    "noise of a fixed key": lambda w, x: squares(
        w, x + jax.random.normal(jax.random.key(0), x.shape)
    ),
}


@pytest.mark.parametrize("case", COUPLED)
def test_coupled_losses_break_the_law(case):
    state = {"state": np.zeros(2, np.float32)} if case.startswith("state") else {}
    verdict = verdict_on(task_of(COUPLED[case], **state))
    assert verdict.kind == "broken"
    assert verdict.reason.startswith("loss")


def test_scores_and_predictions_break_it_too():
    def predict(w, x):
        return jnp.stack([x[:, 0] * (1 + places(x)), x[:, 1]], axis=1)

    verdicts = [
        verdict_on(task_of(squares, scores={"spread": COUPLED["mean"]})),
        verdict_on(task_of(squares, predictor=predict)),
    ]
    assert [v.reason.partition(":")[0] for v in verdicts] == ["spread", "predict"]


def by_layer(w, x):
    """Normalised over the features of each example."""
    return squares(w, (x - x.mean(1, keepdims=True)) / (1e-3 + x.std(1, keepdims=True)))


def dropout(w, x, key):
    return squares(w, x if key is None else 2 * x * jax.random.bernoulli(key, 0.5, x.shape))


def loop(w, x):
    return jax.lax.scan(
        lambda total, column: (total + (w - column) ** 2, None), jnp.zeros(x.shape[0]), x.T
    )[0]


def with_state(w, x, key, state):
    """Couples a minibatch in training, and says so."""
    return squares(w, x if key is None else centred(x)), state


def nowhere_finite(w, x):
    return jnp.log(w - 10 + 0 * x[:, 0])


@pytest.mark.parametrize("loss", [squares, by_layer, dropout, loop, with_state, nowhere_finite])
def test_losses_of_single_examples_obey_the_law(loss):
    state = {"state": ()} if loss is with_state else {}
    assert verdict_on(task_of(loss, **state)).kind == "holds"


def test_rounding_in_half_precision_breaks_no_law():
    rng = np.random.default_rng(0)
    weights = [
        rng.normal(size=shape).astype(np.float32) / 8 for shape in ((64, 64), (64, 64), (64, 10))
    ]

    def loss(p, e):
        p = [leaf.astype(jnp.bfloat16) for leaf in p]
        h = jnp.tanh(jnp.tanh(e["x"].astype(jnp.bfloat16) @ p[0]) @ p[1]) @ p[2]
        h = h.astype(jnp.float32)
        return jax.nn.logsumexp(h, axis=1) - jnp.take_along_axis(h, e["y"][:, None], axis=1)[:, 0]

    task = fedax.Task(weights, loss, fedax.data.digits())
    assert verdict_on(task).kind == "holds"


def with_batch_norm():
    """Couples its minibatches in training, with a state."""
    nnx = pytest.importorskip("flax.nnx")

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.norm = nnx.BatchNorm(64, rngs=rngs)
            self.dropout = nnx.Dropout(0.3, rngs=rngs)
            self.head = nnx.Linear(64, 10, rngs=rngs)

        def __call__(self, x):
            return self.head(self.dropout(self.norm(x)))

    return fedax.classification(fedax.data.digits(), fedax.models.nnx(Net))


@pytest.mark.parametrize(
    "make",
    [
        lambda: fedax.task("synthetic", clients=4),
        with_batch_norm,
        slow(lambda: fedax.task("digits", model="mlp")),
        slow(
            lambda: fedax.lora(
                fedax.task("digits", model="mlp"), 2, targets=lambda name, leaf: leaf.ndim == 2
            )
        ),
    ],
    ids=["synthetic", "batch norm", "mlp", "lora"],
)
def test_tasks_of_the_library_obey_the_law(make):
    assert verdict_on(make()).kind == "holds"


FILE = """
import numpy as np
import fedax

def task(shift=1.0, coupled=False):
    def loss(w, x):
        x = x - x.mean(0) if coupled else x
        return (w - x - shift) ** 2
    return fedax.Task(0.0, loss, [np.arange(5.0), np.arange(3.0)])

ready = task()
"""


def test_the_command_checks_a_task(tmp_path):
    (tmp_path / "own.py").write_text(FILE)

    def call(*arguments):
        return commands.call("check", "--task", *arguments)

    for name in ("task:shift=2.0", "ready"):
        right = call(f"{tmp_path}/own.py:{name}")
        assert right.exit_code == 0, right.output
        assert "2 holds." in right.output
    wrong = call(f"{tmp_path}/own.py:task:coupled=true", "--only", "keeps_examples_apart")
    assert wrong.exit_code == 1
    assert "loss: the value of an example is" in wrong.output
    assert "`fedax check --task " in wrong.output
    assert "Did you mean" in call("synthetic", "--only", "keeps_examples").output
    assert "2 holds." in call("synthetic:clients=4").output


def test_a_loss_that_changes_something_outside_breaks_a_law():
    calls = []

    def counting(w, x):
        calls.append(len(calls))
        return squares(w, x) + calls[-1]

    law = TASK_LAWS["stays_the_same"]
    (broken,) = check(task_of(counting), [law])
    assert broken.kind == "broken"
    assert "loss: another function when it is called again" in broken.reason
    for task in (task_of(squares), task_of(dropout), with_batch_norm()):
        assert [verdict.kind for verdict in check(task, [law])] == ["holds"]


def test_making_a_task_evaluates_nothing():
    """Its shapes alone are looked at; the law finds a coupled loss when it is asked."""
    evaluated = []

    def loss(w, x):
        jax.debug.callback(lambda: evaluated.append(1))
        return squares(w, centred(x))

    task = task_of(loss)
    jax.effects_barrier()
    assert not evaluated
    assert verdict_on(task).kind == "broken"
    assert evaluated
