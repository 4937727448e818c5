"""Padding of short minibatches in modules with batch statistics: the norms of Flax leave it out,
and statistics that it would enter are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.core import InvalidInput
from fedax.tasks.own_models.outputs import Network
from fedax.tasks.own_models.padding import leaves_padding_out, mask_of_rows

nn = pytest.importorskip("flax.linen", reason="flax is not installed")
nnx = pytest.importorskip("flax.nnx", reason="flax is not installed")

RNG = np.random.default_rng(0)
CLIENTS = {
    name: {
        "x": RNG.normal(size=(n, 4, 3)).astype(np.float32) + n,
        "y": RNG.normal(size=n).astype(np.float32),
    }
    for name, n in (("anna", 3), ("bert", 5))
}


pytestmark = pytest.mark.usefixtures("as_users_run")


def squares(z, e):
    return (z - e["y"]) ** 2


def linen(norm):
    """A module that applies `norm(x, train)` to (batch, time, channels) first of all."""

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, train=False):
            return nn.Dense(1)(norm(x, train).reshape(len(x), -1))[:, 0]

    return Net()


def by_rows(x, train):
    return nn.BatchNorm(not train, momentum=0.9)(x.reshape(-1, 3))


def by_keyword(x, train):
    return nn.BatchNorm(momentum=0.9)(x=x, use_running_average=not train)


class LinenSubclass(nn.BatchNorm):
    @nn.compact
    def __call__(self, x, train):
        return super().__call__(x, not train)


class OwnMean(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        mean = self.variable("batch_stats", "mean", lambda: jnp.zeros(3))
        if train:
            mean.value = 0.9 * mean.value + 0.1 * x.mean((0, 1))
        return x - mean.value


class Steps(nn.Module):
    """Its state does not depend on the batch at all."""

    @nn.compact
    def __call__(self, x, train):
        steps = self.variable("counts", "steps", lambda: jnp.zeros(()))
        if train:
            steps.value = steps.value + 1
        return x


def time_first(x, train):
    """The rows of an example do not lie side by side."""
    return nn.BatchNorm(not train)(x.swapaxes(0, 1).reshape(-1, 3)).reshape(4, -1, 3).swapaxes(0, 1)


class Norm(nnx.BatchNorm):
    def __call__(self, x):
        return super().__call__(x.reshape(-1, 3)).reshape(x.shape)


class OtherNorm(nnx.BatchNorm):
    def __call__(self, x):
        if not self.use_running_average:
            self.mean[...] = 0.9 * self.mean[...] + 0.1 * x.mean((0, 1))
        return x - self.mean[...]


def of_nnx(norm):
    class Net(nnx.Module):
        def __init__(self, rngs):
            self.norm = norm(3, momentum=0.9, rngs=rngs)
            self.head = nnx.Linear(12, 1, rngs=rngs)

        def __call__(self, x):
            return self.head(self.norm(x).reshape(len(x), -1))[:, 0]

    return Net


MASKED = {
    "Linen": lambda: linen(lambda x, train: nn.BatchNorm(not train, momentum=0.9)(x)),
    "Linen, several rows an example": lambda: linen(by_rows),
    "Linen, by keyword": lambda: linen(by_keyword),
    "Linen, a subclass": lambda: linen(lambda x, train: LinenSubclass(momentum=0.9)(x, train)),
    "NNX": lambda: of_nnx(nnx.BatchNorm),
    "NNX, a subclass": lambda: of_nnx(Norm),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", MASKED)
def test_batch_norms_of_flax_leave_padding_out(case):
    task = fedax.tasks.from_flax(MASKED[case](), squares, CLIENTS)
    x = CLIENTS["bert"]["x"]
    examples = {"x": jnp.asarray(x), "y": jnp.zeros(5, jnp.float32)}
    _, state = task.loss(
        task.start(jax.random.key(0)),
        examples,
        jax.random.key(1),
        state=task.state,
        mask=jnp.arange(5) < 2,
    )
    mean, var = jax.tree.leaves(state)
    np.testing.assert_allclose(mean, 0.1 * x[:2].mean((0, 1)), rtol=1e-5)
    np.testing.assert_allclose(var, 0.9 + 0.1 * x[:2].var((0, 1)), rtol=1e-4)


BLIND = {
    "Linen, its own mean": lambda: linen(lambda x, train: OwnMean()(x, train)),
    "Linen, rows in another order": lambda: linen(time_first),
    "NNX, its own mean": lambda: of_nnx(OtherNorm),
}


@pytest.mark.parametrize("case", BLIND)
def test_statistics_that_padding_would_enter_are_refused(case):
    task = fedax.tasks.from_flax(BLIND[case](), squares, CLIENTS)
    message = r"got 2, with which some minibatches .* shorter, .*minibatches of one size"
    with pytest.raises(InvalidInput, match=message):
        fedax.run(fedax.FedAvg(), task, schedule=fedax.Schedule(batch_size=2), rounds=1)
    # minibatches of one example are never padded
    assert fedax.run(
        fedax.FedAvg(), task, schedule=fedax.Schedule(batch_size=1), rounds=0
    ).outcome.ok


def test_a_state_that_does_not_depend_on_the_batch_takes_any_minibatches():
    task = fedax.tasks.from_flax(linen(lambda x, train: Steps()(x, train)), squares, CLIENTS)
    assert fedax.run(
        fedax.FedAvg(), task, schedule=fedax.Schedule(batch_size=2), rounds=0
    ).outcome.ok


def running_mean(mask_for):
    """A network whose state is the mean of whole numbers, under a mask."""

    def apply(params, state, inputs, key, mask):
        (x,) = inputs
        real = mask_for(mask, x)
        return x * params["w"], {"mean": jnp.where(real, x, 0).sum(0) / real.sum()}

    return Network(apply, {"w": np.zeros(3, np.float32)}, {"mean": np.zeros(3, np.float32)}, True)


def tell(network, inputs):
    return leaves_padding_out(network, network.start, inputs)


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint8, bool])
def test_the_probe_tells_by_inputs_of_any_type(dtype):
    x = (np.zeros((2, 3), dtype),)
    assert tell(running_mean(mask_of_rows), x)
    assert not tell(running_mean(lambda mask, x: jnp.ones((len(x), 1), bool)), x)


def test_the_probe_tells_by_outputs_of_the_examples():
    def apply(params, state, inputs, key, mask):
        return inputs[0] - inputs[0].mean(0), state

    count = {"steps": np.zeros((), np.float32)}
    network = Network(apply, {"w": np.ones(3, np.float32)}, count, True)
    assert not leaves_padding_out(network, network.start, (np.ones((2, 3), np.float32),))


def test_a_mask_that_does_not_fit_is_refused():
    mask = jnp.array([True, False])
    np.testing.assert_array_equal(mask_of_rows(mask, jnp.zeros((6, 2)))[:, 0], [1, 1, 1, 0, 0, 0])
    for rows in (1, 5):
        message = rf"got a batch norm of an array of shape \({rows}, 2\) in a minibatch of 2"
        with pytest.raises(InvalidInput, match=message):
            mask_of_rows(mask, jnp.zeros((rows, 2)))
