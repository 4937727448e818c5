"""Modules of PyTorch train as PyTorch trains them, step by step."""

import copy
import runpy

import jax
import numpy as np
import optax
import pytest

import fedax
from sources import ROOT

torch = pytest.importorskip("torch", reason="needs PyTorch: make torch")

from networks import NETWORKS, images  # noqa: E402
from torch import nn  # noqa: E402

RATE = 0.05
STEPS = 20
FULL = fedax.Schedule(steps=1, batch_size="full")


OWN = """
import fedax, numpy, torch

def task():
    x = numpy.ones((4, 3), "f4")
    data = fedax.FederatedData.from_arrays([{"x": x, "y": numpy.arange(4)}], classes=4)
    return fedax.classification(data, fedax.models.torch(torch.nn.Linear(3, 4), x))
"""


def cross_entropy(logits, examples):
    return optax.softmax_cross_entropy_with_integer_labels(logits, examples["y"])


def make_task(net, clients, loss=cross_entropy, **options):
    """Makes the task of a module, which is exported for the first client's examples."""
    first = clients[0] if isinstance(clients[0], dict) else {"x": clients[0]}
    return fedax.from_model(fedax.models.torch(net, first["x"]), loss, clients, **options)


def double(make):
    """Makes a network and its examples in double precision, with which 20 steps agree to
    rounding."""
    torch.manual_seed(0)
    net, x, y = make()
    return net.double(), x if x.dtype == torch.int64 else x.double(), y


def test_a_module_of_an_own_task_starts_alike(tmp_path):
    """In every process, whatever random numbers it has drawn."""
    file = tmp_path / "net.py"
    file.write_text(OWN)
    starts = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        starts.append(fedax.task(f"{file}:task").start(jax.random.key(0)))
    assert jax.tree.all(jax.tree.map(np.array_equal, *starts))


def train_in_torch(net, x, y):
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    with torch.no_grad():
        return [*losses, float(nn.functional.cross_entropy(net(x), y))]


def run(task, rounds=STEPS, **options):
    defaults = {
        "solver": fedax.SGD(RATE),
        "schedule": FULL,
        "observe": [fedax.observe.TrainLoss()],
        "observe_every": 1,
    }
    return fedax.run(fedax.FedAvg(), task, rounds=rounds, **(defaults | options))


@pytest.mark.slow
@pytest.mark.parametrize("make", NETWORKS)
def test_losses_are_those_of_torch_over_20_steps_and_weights_go_back(make):
    net, x, y = double(make)
    history = run(make_task(net, [{"x": x, "y": y}]))
    start = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    found = history.state_dict()
    assert all(torch.equal(start[name], tensor) for name, tensor in net.state_dict().items())
    losses = train_in_torch(net, x, y)
    assert losses[-1] < losses[0] - 0.05
    np.testing.assert_allclose(history.metrics["train_loss"], losses, atol=1e-9)
    assert all(
        torch.allclose(tensor, found[name], rtol=0, atol=1e-9)
        for name, tensor in net.state_dict().items()
    )
    net.load_state_dict(found)


def test_batch_statistics_are_the_state_and_short_minibatches_are_filled_again():
    def normed():
        first = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()]
        return nn.Sequential(*first, nn.Linear(144, 10), nn.BatchNorm1d(10)), *images(7, 1, 8)

    net, x, y = double(normed)
    task = make_task(net, [{"x": x, "y": y}])
    assert sorted(task.state) == [
        "1.running_mean",
        "1.running_var",
        "5.running_mean",
        "5.running_var",
    ]
    # the second minibatch is short: the first example comes again
    history = run(task, rounds=1, schedule=fedax.Schedule(epochs=1, batch_size=4, order="given"))
    found = history.state_dict()
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    for rows in ([0, 1, 2, 3], [4, 5, 6, 0]):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
        optimizer.step()
    for name, tensor in net.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            np.testing.assert_allclose(found[name], tensor, atol=1e-10, err_msg=name)
    with torch.no_grad():
        loss = float(nn.functional.cross_entropy(net.eval()(x), y))
    np.testing.assert_allclose(history.metrics["train_loss"][-1], loss, atol=1e-10)


def test_statistics_that_clients_keep_go_back_as_their_mean():
    def normed():
        return nn.Sequential(nn.Flatten(), nn.Linear(4, 10), nn.BatchNorm1d(10)), *images(8, 1, 2)

    net, x, y = double(normed)
    clients = [{"x": x[:4], "y": y[:4]}, {"x": x[4:], "y": y[4:]}]
    history = run(make_task(net, clients, state_policy="local"), 1)
    with torch.no_grad():
        means = [net[1](part["x"].flatten(1)).mean(0) for part in clients]
    np.testing.assert_allclose(
        history.state_dict()["2.running_mean"], 0.05 * (means[0] + means[1]), atol=1e-12
    )


def test_dropout_draws_in_training_alone():
    net = nn.Sequential(nn.Dropout(0.25), nn.Linear(3, 3, bias=False)).double()
    x = np.ones((1000, 3))
    with torch.no_grad():
        net[1].weight.copy_(torch.eye(3))
    task = make_task(net, [x], lambda z, e: z.sum(1))
    params = task.start(jax.random.key(0))
    one, two = (np.asarray(task.loss(params, {"x": x}, key=jax.random.key(k))) for k in (0, 1))
    np.testing.assert_allclose(np.asarray(task.loss(params, {"x": x}, key=None)), 3.0)
    assert (one != two).any()
    assert set(np.round(one * 0.75).astype(int)) <= {0, 1, 2, 3}
    assert abs(one.mean() - 3) < 0.1


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_dropout_of_channels_draws_for_each_example_and_channel(axes):
    layer = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)[axes - 1]
    size = 2**axes
    net = nn.Sequential(layer(0.25), nn.Flatten(), nn.Linear(3 * size, 1, bias=False)).double()
    with torch.no_grad():
        net[2].weight.copy_(2.0 ** torch.arange(3 * size))
    x = np.ones((400, 3, *(2,) * axes))
    task = make_task(net, [x], lambda z, e: z[:, 0])
    params = task.start(jax.random.key(0))
    found = np.asarray(task.loss(params, {"x": x}, key=jax.random.key(0))) * 0.75
    # the bits of an output are the inputs that were kept
    kept = (np.rint(found).astype(int)[:, None] >> np.arange(3 * size)) & 1
    kept = kept.reshape(400, 3, size)
    assert (kept == kept[:, :, :1]).all()
    assert abs(kept.mean() - 0.75) < 0.05
    assert len(np.unique(kept[:, :, 0], axis=0)) == 8
    np.testing.assert_array_equal(task.loss(params, {"x": x}, key=None), 2.0 ** (3 * size) - 1)


def test_alpha_dropout_has_the_two_values_of_torch():
    net = nn.Sequential(nn.AlphaDropout(0.25), nn.Linear(1, 1, bias=False)).double()
    with torch.no_grad():
        net[1].weight.fill_(1)
    x = np.ones((1000, 1))
    task = make_task(net, [x], lambda z, e: z[:, 0])
    found = task.loss(task.start(jax.random.key(0)), {"x": x}, key=jax.random.key(0))
    with torch.no_grad():
        expected = net.train()(torch.ones((1000, 1), dtype=torch.float64)).numpy()
    np.testing.assert_allclose(np.unique(found), np.unique(expected), rtol=1e-6)
    assert abs(np.mean(found) - expected.mean()) < 0.2


def test_parameters_keep_names_ties_and_what_is_not_trained():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(6, 4)
            self.out = nn.Linear(4, 6, bias=False)
            self.base = nn.Linear(4, 4).requires_grad_(False)
            self.out.weight = self.tokens.weight
            self.register_buffer("scale", torch.tensor(2.0))

        def forward(self, x):
            return self.out(self.base(self.tokens(x)).mean(1)) * self.scale

    net = Tied().double()
    x = torch.arange(12).reshape(4, 3) % 6
    y = torch.arange(4)
    history = run(make_task(net, [{"x": x, "y": y}]), 3)
    assert sorted(history.params) == ["base.bias", "base.weight", "tokens.weight"]
    other = copy.deepcopy(net)
    other.load_state_dict(history.state_dict(), strict=False)
    found = other.state_dict()
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=RATE)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    for name, tensor in net.state_dict().items():
        np.testing.assert_allclose(found[name], tensor, atol=1e-12, err_msg=name)
    with pytest.raises(fedax.FedaxError, match="at least one real array to train"):
        make_task(net, [{"x": x, "y": y}], frozen="tokens")


def test_statistics_are_in_saved_models_and_start_further_runs(tmp_path):
    """By the names of PyTorch; parameters without them give a warning."""
    safetensors = pytest.importorskip("safetensors.torch")
    path = tmp_path / "model.safetensors"
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 10), nn.BatchNorm1d(10))
    x, y = images(8, 1, 2)
    task = make_task(net, [{"x": x, "y": y}])
    history = run(task, 2)
    history.save(path)
    net.load_state_dict(safetensors.load_file(path), strict=False)
    np.testing.assert_array_equal(net[2].running_mean, history.model_state["2.running_mean"])
    for params in (history, path, net.state_dict()):
        again = run(task, 0, params=params)
        assert again.metrics["train_loss"][0] == history.metrics["train_loss"][-1]
    with pytest.warns(UserWarning, match="without the model's state"):
        run(task, 0, params=history.params)


def test_merged_adapters_go_back_into_the_module_with_its_statistics():
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 10), nn.BatchNorm1d(10)).double()
    x, y = images(8, 1, 2)
    task = make_task(net, [{"x": x, "y": y}])
    history = run(fedax.lora(task, 2, targets="1.weight"), 2)
    tensors = history.state_dict()
    np.testing.assert_array_equal(tensors["1.weight"], history.params.merged()["1.weight"])
    net.load_state_dict(tensors, strict=False)
    with torch.no_grad():
        outputs = torch.softmax(net.eval()(x.double()), 1)
    np.testing.assert_allclose(outputs, history.predict(x.numpy()), rtol=0, atol=1e-12)


def test_several_arguments_are_a_tuple():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Linear(3, 10)
            self.two = nn.Linear(4, 10)

        def forward(self, x, z):
            return self.one(x) * self.two(z)

    net = Both()
    x = torch.randn(6, 4)
    model = fedax.models.torch(net, (x[:, :3], x))
    clients = [{"a": x[:, :3], "b": x, "y": torch.arange(6)}]
    task = fedax.from_model(model, cross_entropy, clients, inputs=("a", "b"))
    expected = nn.functional.cross_entropy(net(x[:, :3], x), torch.arange(6)).item()
    losses = run(task, 0).metrics["train_loss"]
    np.testing.assert_allclose(losses[0], expected, rtol=1e-5)


class Unknown(nn.Module):
    def forward(self, x):
        return torch.linalg.matrix_exp(x.reshape(-1, 2, 2)).reshape(-1, 4)


class Drawing(nn.Module):
    def forward(self, x):
        return x * torch.empty_like(x).bernoulli_(0.5)


class Taking(nn.Module):
    def forward(self, x):
        return x * x.max().item()


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (
            nn.Sequential(nn.Flatten(), nn.Linear(4, 4), Unknown()),
            r"the operators aten.linalg_matrix_exp.default in training",
        ),
        (
            nn.Sequential(nn.Flatten(), nn.Linear(4, 4), Drawing()),
            r"the operators aten.bernoulli.p in evaluation",
        ),
        (Taking(), r"aten._local_scalar_dense"),
    ],
    ids=["operator", "draws", "item"],
)
def test_operators_without_a_form_are_named(module, message):
    with pytest.raises(fedax.InvalidInput, match=message):
        fedax.models.torch(module, images(3, 1, 2)[0])


CLASS = """
import numpy as np
from torch import nn

import fedax


class Net(nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.layer = nn.Linear(features, classes)

    def forward(self, x):
        return self.layer(x)


def net(features, classes):
    return fedax.models.torch(Net(features, classes), np.ones((8, features), np.float32))
"""


def test_a_function_of_a_file_makes_the_model_of_a_classification_task(tmp_path):
    """With the same weights whenever it is made."""
    (tmp_path / "net.py").write_text(CLASS)
    name = f"{tmp_path / 'net.py'}:net"
    one, two = (fedax.task("synthetic", clients=3, model=name) for _ in range(2))
    weights = [task.start(jax.random.key(0))["layer.weight"] for task in (one, two)]
    np.testing.assert_array_equal(*weights)
    assert one.loss.shape(one.train.arrays) == (3, 10)


@pytest.mark.slow
def test_the_tutorial_runs(capsys):
    space = runpy.run_path(str(ROOT / "docs" / "tutorials" / "from-pytorch.py"))
    accuracy = space["history"].metrics["test_accuracy"][-1]
    assert accuracy > 0.3
    assert abs(float(capsys.readouterr().out.split()[-1]) - accuracy) < 0.01


@pytest.mark.parametrize(
    ("module", "error"),
    [
        (nn.Linear(3, 2).bfloat16(), TypeError),
        (nn.Sequential(nn.LSTM(3, 5, proj_size=2)), Exception),
    ],
)
def test_types_and_layers_without_a_form_are_refused(module, error):
    with pytest.raises(error):
        fedax.models.torch(module, np.ones((4, 3), np.float32))
