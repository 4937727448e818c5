"""Modules of PyTorch train as PyTorch trains them, step by step."""

import copy
import pickle
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
from torch.utils.data import IterableDataset, Subset, TensorDataset  # noqa: E402

RATE, STEPS = 0.05, 20
FULL = fedax.Schedule(steps=1, batch_size="full")


def cross_entropy(logits, examples):
    return optax.softmax_cross_entropy_with_integer_labels(logits, examples["y"])


def double(make):
    """Makes a network and its examples in double precision, with which 20 steps agree to
    rounding."""
    torch.manual_seed(0)
    net, x, y = make()
    return net.double(), x if x.dtype == torch.int64 else x.double(), y


def train_in_torch(net, x, y):
    optimizer, losses = torch.optim.SGD(net.parameters(), lr=RATE), []
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
    history = run(fedax.tasks.from_torch(net, cross_entropy, [{"x": x, "y": y}]))
    start = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    found = fedax.tasks.torch_state_dict(net, history)
    assert all(torch.equal(start[name], tensor) for name, tensor in net.state_dict().items())
    losses = train_in_torch(net, x, y)
    assert losses[-1] < losses[0] - 0.05
    np.testing.assert_allclose(history.metrics["train_loss"], losses, atol=1e-9)
    assert all(
        torch.allclose(tensor, found[name], rtol=0, atol=1e-9)
        for name, tensor in net.state_dict().items()
    )
    net.load_state_dict(found)


def test_batch_norm_leaves_padding_out_and_its_statistics_are_the_state():
    def normed():
        first = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()]
        return nn.Sequential(*first, nn.Linear(144, 10), nn.BatchNorm1d(10)), *images(7, 1, 8)

    net, x, y = double(normed)
    task = fedax.tasks.from_torch(net, cross_entropy, [{"x": x, "y": y}])
    assert sorted(task.state) == [
        "1.running_mean",
        "1.running_var",
        "5.running_mean",
        "5.running_var",
    ]
    # the second minibatch is short
    history = run(task, rounds=1, schedule=fedax.Schedule(epochs=1, batch_size=4, order="given"))
    found = fedax.tasks.torch_state_dict(net, history)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    for rows in (slice(0, 4), slice(4, 7)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
        optimizer.step()
    for name, tensor in net.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            np.testing.assert_allclose(found[name], tensor, atol=1e-10, err_msg=name)
    with torch.no_grad():
        loss = float(nn.functional.cross_entropy(net.eval()(x), y))
    np.testing.assert_allclose(history.metrics["train_loss"][-1], loss, atol=1e-10)


class Steps(nn.Module):
    """A head on the mean over the steps of each example, of which every step is normed."""

    def __init__(self):
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(2), nn.Linear(2, 10)

    def forward(self, x):
        batch, steps, channels = x.shape
        normed = self.norm(x.reshape(batch * steps, channels))
        return self.head(normed.reshape(batch, steps, channels).mean(1))


class OwnMean(nn.Module):
    """Keeps a running mean by itself."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(2))
        self.head = nn.Linear(2, 10)

    def forward(self, x):
        x = x.mean(1)
        if self.training:
            self.mean.copy_(0.9 * self.mean + 0.1 * x.mean(0).detach())
        return self.head(x - self.mean)


def test_padding_is_left_out_of_norms_of_steps_and_refused_for_own_buffers():
    x = torch.randn(5, 3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 1
    data, schedule = (
        [{"x": x, "y": torch.arange(5)}],
        fedax.Schedule(epochs=1, batch_size=3, order="given"),
    )
    net = Steps().double()
    history = run(fedax.tasks.from_torch(net, cross_entropy, data), 1, schedule=schedule)
    for rows in (slice(0, 3), slice(3, 5)):
        net(x[rows])
    np.testing.assert_allclose(
        history.state_dict()["norm.running_mean"], net.norm.running_mean, atol=1e-12
    )
    task = fedax.tasks.from_torch(OwnMean().double(), cross_entropy, data)
    with pytest.raises(fedax.InvalidInput, match="minibatches of one size"):
        run(task, 1, schedule=schedule)


def test_a_minibatch_of_one_example_has_variance_zero():
    """PyTorch refuses it; here clients of all sizes train together."""

    def normed():
        return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4), nn.Linear(4, 10)), *images(5, 1, 2)

    net, x, y = double(normed)
    task = fedax.tasks.from_torch(net, cross_entropy, [{"x": x, "y": y}])
    # minibatches of four examples and of one
    history = run(task, rounds=1, schedule=fedax.Schedule(epochs=1, batch_size=4, order="given"))
    net(x[:4])
    for name, last in (("running_mean", x[4].flatten()), ("running_var", 0)):
        expected = 0.9 * net.state_dict()[f"1.{name}"] + 0.1 * last
        np.testing.assert_allclose(history.state_dict()[f"1.{name}"], expected, atol=1e-12)
    assert history.outcome.ok
    assert np.isfinite(history.metrics["train_loss"]).all()


def test_statistics_that_clients_keep_go_back_as_their_mean():
    def normed():
        return nn.Sequential(nn.Flatten(), nn.Linear(4, 10), nn.BatchNorm1d(10)), *images(8, 1, 2)

    net, x, y = double(normed)
    clients = [{"x": x[:4], "y": y[:4]}, {"x": x[4:], "y": y[4:]}]
    history = run(fedax.tasks.from_torch(net, cross_entropy, clients, state_policy="local"), 1)
    with torch.no_grad():
        means = [net[1](part["x"].flatten(1)).mean(0) for part in clients]
    np.testing.assert_allclose(
        history.state_dict()["2.running_mean"], 0.05 * (means[0] + means[1]), atol=1e-12
    )
    found = fedax.tasks.torch_state_dict(net, history)
    assert all(torch.equal(found[name], tensor) for name, tensor in history.state_dict().items())
    with pytest.raises(fedax.FedaxError, match="a task of from_torch"):
        fedax.run(fedax.FedAvg(), fedax.tasks.synthetic(clients=2), rounds=0).state_dict()


def test_dropout_draws_in_training_alone():
    net, x = (
        nn.Sequential(nn.Dropout(0.25), nn.Linear(3, 3, bias=False)).double(),
        np.ones((1000, 3)),
    )
    with torch.no_grad():
        net[1].weight.copy_(torch.eye(3))
    task = fedax.tasks.from_torch(net, lambda z, e: z.sum(1), [x])
    params = task.start(jax.random.key(0))
    one, two = (np.asarray(task.loss(params, {"x": x}, key=jax.random.key(k))) for k in (0, 1))
    np.testing.assert_allclose(np.asarray(task.loss(params, {"x": x}, key=None)), 3.0)
    assert (one != two).any()
    assert set(np.round(one * 0.75).astype(int)) <= {0, 1, 2, 3}
    assert abs(one.mean() - 3) < 0.1


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_dropout_of_channels_draws_for_each_example_and_channel(axes):
    layer, size = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)[axes - 1], 2**axes
    net = nn.Sequential(layer(0.25), nn.Flatten(), nn.Linear(3 * size, 1, bias=False)).double()
    with torch.no_grad():
        net[2].weight.copy_(2.0 ** torch.arange(3 * size))
    x = np.ones((400, 3, *(2,) * axes))
    task = fedax.tasks.from_torch(net, lambda z, e: z[:, 0], [x])
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
    task = fedax.tasks.from_torch(net, lambda z, e: z[:, 0], [x])
    found = task.loss(task.start(jax.random.key(0)), {"x": x}, key=jax.random.key(0))
    with torch.no_grad():
        expected = net.train()(torch.ones((1000, 1), dtype=torch.float64)).numpy()
    np.testing.assert_allclose(np.unique(found), np.unique(expected), rtol=1e-6)
    assert abs(np.mean(found) - expected.mean()) < 0.2


def test_parameters_keep_names_ties_and_what_is_not_trained():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.out = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
            self.base = nn.Linear(4, 4).requires_grad_(False)
            self.out.weight = self.tokens.weight
            self.register_buffer("scale", torch.tensor(2.0))

        def forward(self, x):
            return self.out(self.base(self.tokens(x)).mean(1)) * self.scale

    net, x, y = Tied().double(), torch.arange(12).reshape(4, 3) % 6, torch.arange(4)
    history = run(fedax.tasks.from_torch(net, cross_entropy, [{"x": x, "y": y}]), 3)
    assert sorted(history.params) == ["base.bias", "base.weight", "tokens.weight"]
    found = fedax.tasks.torch_state_dict(net, history)
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=RATE)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    for name, tensor in net.state_dict().items():
        np.testing.assert_allclose(found[name], tensor, atol=1e-12, err_msg=name)
    with pytest.raises(fedax.FedaxError, match="at least one real array to train"):
        fedax.tasks.from_torch(net, cross_entropy, [{"x": x, "y": y}], frozen="tokens")


def test_statistics_are_in_saved_models_and_start_further_runs(tmp_path):
    """By the names of PyTorch; parameters without them give a warning."""
    safetensors = pytest.importorskip("safetensors.torch")
    path = tmp_path / "model.safetensors"
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 10), nn.BatchNorm1d(10))
    x, y = images(8, 1, 2)
    task = fedax.tasks.from_torch(net, cross_entropy, [{"x": x, "y": y}])
    history = run(task, 2)
    history.save(path)
    net.load_state_dict(safetensors.load_file(path))
    for name, tensor in fedax.tasks.torch_state_dict(net, fedax.load_params(path)).items():
        assert torch.equal(tensor, net.state_dict()[name])
    np.testing.assert_array_equal(net[2].running_mean, history.model_state["2.running_mean"])
    for params in (history, path, net.state_dict()):
        again = run(task, 0, params=params)
        assert again.metrics["train_loss"][0] == history.metrics["train_loss"][-1]
    with pytest.warns(UserWarning, match="without the model's state"):
        run(task, 0, params=history.params)


def test_adapters_start_from_a_state_dict_with_its_statistics():
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 10), nn.BatchNorm1d(10))
    x, y = images(8, 1, 2)
    task = fedax.tasks.from_torch(net, cross_entropy, [{"x": x, "y": y}])
    history = run(task, 2)
    for params in (history, history.state_dict()):
        adapted = fedax.lora(task, 2, targets="1.weight", params=params)
        assert run(adapted, 0).metrics["train_loss"][0] == history.metrics["train_loss"][-1]


def test_merged_adapters_go_back_into_the_module_with_its_statistics():
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 10), nn.BatchNorm1d(10)).double()
    x, y = images(8, 1, 2)
    task = fedax.tasks.from_torch(net, cross_entropy, [{"x": x, "y": y}])
    history = run(fedax.lora(task, 2, targets="1.weight"), 2)
    tensors = history.state_dict()
    np.testing.assert_array_equal(tensors["1.weight"], history.params.merged()["1.weight"])
    other = copy.deepcopy(net)
    other.load_state_dict(fedax.tasks.torch_state_dict(net, history))
    net.load_state_dict(tensors)
    for module in (net, other):
        with torch.no_grad():
            outputs = torch.softmax(module.eval()(x.double()), 1)
        np.testing.assert_allclose(outputs, history.predict(x.numpy()), rtol=0, atol=1e-12)


def test_data_sets_are_read_as_arrays():
    net, (x, y) = nn.Sequential(nn.Flatten(), nn.Linear(4, 10)), images(8, 1, 2)
    whole = TensorDataset(x, y)
    sets = [Subset(whole, [0, 1, 2]), Subset(whole, [3, 4, 5, 6, 7])]
    arrays = [{"x": x[:3].numpy(), "y": y[:3].numpy()}, {"x": x[3:].numpy(), "y": y[3:].numpy()}]
    found = [
        run(
            fedax.tasks.from_torch(net, cross_entropy, clients, test=clients, central=clients[0]), 2
        )
        for clients in (sets, arrays)
    ]
    np.testing.assert_array_equal(*(history.params["1.weight"] for history in found))
    named = fedax.tasks.from_torch(
        net, cross_entropy, dict(zip(("north", "south"), sets, strict=True))
    )
    assert list(named.names) == ["north", "south"]

    class Endless(IterableDataset):
        def __iter__(self):
            return iter([])

    for clients, message in (
        (whole, "one data set"),
        ([Endless()], "without a length"),
        ([TensorDataset(x)], "1 parts"),
    ):
        with pytest.raises(fedax.FedaxError, match=message):
            fedax.tasks.from_torch(net, cross_entropy, clients)


def test_any_data_set_with_a_length_is_read_by_its_items():
    """As of Flower's quickstart: dicts, by a transform."""

    class Pictures:
        def __init__(self, x, y):
            self.x, self.y = x, y

        def __len__(self):
            return len(self.x)

        def __getitem__(self, k):
            return {"img": self.x[k], "label": int(self.y[k])}

    net, (x, y) = nn.Sequential(nn.Flatten(), nn.Linear(4, 10)), images(8, 1, 2)

    def of_labels(logits, examples):
        return cross_entropy(logits, {"y": examples["label"]})

    sets = [Pictures(x[:3], y[:3]), Pictures(x[3:], y[3:])]
    sets[1].format, sets[1].shape = {"type": "custom"}, (5, 2)  # as those of Hugging Face have
    task = fedax.tasks.from_torch(net, of_labels, sets, inputs="img", test=sets)
    np.testing.assert_array_equal(task.train.arrays["img"], x)
    np.testing.assert_array_equal(task.test.arrays["label"], y)


def test_data_sets_of_hugging_face_are_read_with_their_transforms():
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    rows = datasets.Dataset.from_dict({"img": [[0.0, 1.0], [2.0, 3.0]], "label": [0, 1]})

    def halved(batch):
        return batch | {"img": [torch.tensor(x) / 2 for x in batch["img"]]}

    task = fedax.tasks.from_torch(
        nn.Linear(2, 2),
        lambda logits, examples: cross_entropy(logits, {"y": examples["label"]}),
        [rows.with_transform(halved)],
        inputs="img",
    )
    np.testing.assert_array_equal(task.train.arrays["img"], [[0.0, 0.5], [1.0, 1.5]])


class Unknown(nn.Module):
    def forward(self, x):
        return torch.linalg.matrix_exp(x.reshape(-1, 2, 2)).reshape(-1, 4)


class Branching(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


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
            r"matrix_exp.* of '2' \(Unknown\).*test_from_torch.py:\d+",
        ),
        (Branching(), r"torch.export refuses it on inputs of shapes \[\(8, 1, 2, 2\)\]"),
        (
            nn.Sequential(nn.Flatten(), nn.Linear(4, 4), Drawing()),
            "random numbers in evaluation.*if self.training",
        ),
        (Taking(), r"_local_scalar_dense.*It is .item\(\)"),
        (nn.Linear, "with parentheses"),
        (lambda x: x, "a torch.nn.Module"),
        (nn.Linear(7, 3), "torch.export refuses"),
    ],
    ids=["operator", "branch", "draws", "item", "class", "call", "shape"],
)
def test_what_cannot_be_taken_is_named(module, message):
    x, y = images(3, 1, 2)
    with pytest.raises(fedax.FedaxError, match=message):
        fedax.tasks.from_torch(module, cross_entropy, [{"x": x, "y": y}])


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), nn.functional.cross_entropy])
def test_a_loss_of_torch_is_refused_with_its_form_in_jax(loss):
    x, y = images(3, 1, 2)
    with pytest.raises(fedax.InvalidInput, match=r"Write lambda .*optax.softmax_cross_entropy"):
        fedax.tasks.from_torch(nn.Flatten(), loss, [{"x": x, "y": y}])


def test_loaders_of_torch_are_refused_with_what_to_write():
    net, (x, y) = nn.Sequential(nn.Flatten(), nn.Linear(4, 10)), images(3, 1, 2)
    loader = torch.utils.data.DataLoader(TensorDataset(x, y))
    for clients in (loader, [loader]):
        with pytest.raises(fedax.DataError, match=r"Give loader\.dataset"):
            fedax.tasks.from_torch(net, cross_entropy, clients)


def test_habits_of_torch_are_refused_with_what_to_write():
    net, x, y = nn.Linear(4, 3), torch.ones(6, 4), torch.arange(6) % 3
    task = fedax.tasks.from_torch(net, cross_entropy, [{"x": x, "y": y}])
    history = run(task, 0)

    def torch_loss(logits, examples):
        return nn.functional.cross_entropy(logits, examples["y"], reduction="none")

    def make(clients, loss=cross_entropy, **more):
        return fedax.tasks.from_torch(net, loss, clients, **more)

    one = [{"x": x, "y": y}]
    for refused, message in (
        (lambda: make(one, torch_loss), "calls PyTorch: write it with optax"),
        (lambda: make([{"a": x, "b": x, "y": y}]), r"from_torch\(inputs"),
        (lambda: make([(x, y)]), r"TensorDataset\(x, y\)"),
        (lambda: history.predict(TensorDataset(x, y)), r"np\.stack"),
        (lambda: pickle.dumps(history), r"history\.save\(FILE\)"),
    ):
        with pytest.raises(fedax.InvalidInput, match=message):
            refused()
    assert copy.deepcopy(history).predict(x.numpy()).shape == (6, 3)


CLASS = """
from torch import nn


class Net(nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.layer = nn.Linear(features, classes)

    def forward(self, x):
        return self.layer(x)
"""


def test_a_class_is_the_model_of_a_classification_task(tmp_path):
    """With the same weights whenever it is made."""
    (tmp_path / "net.py").write_text(CLASS)
    name = f"{tmp_path / 'net.py'}:Net"
    one, two = (fedax.tasks.synthetic(clients=3, model=name) for _ in range(2))
    weights = [task.start(jax.random.key(0))["layer.weight"] for task in (one, two)]
    np.testing.assert_array_equal(*weights)
    module = runpy.run_path(str(tmp_path / "net.py"))["Net"](60, 10)
    clients = fedax.data.FederatedData.from_arrays([one.train[k] for k in range(3)], classes=10)
    task = fedax.tasks.classification(clients, module)
    np.testing.assert_array_equal(
        task.start(jax.random.key(0))["layer.weight"], module.layer.weight.detach()
    )


def test_weights_of_another_module_are_refused():
    net = nn.Linear(2, 3)
    for other in ({"weight": np.ones((2, 3))}, {"kernel": np.ones((3, 2))}):
        with pytest.raises(fedax.FedaxError, match="names and shapes of the module's state_dict"):
            fedax.tasks.torch_state_dict(net, other)


@pytest.mark.slow
def test_the_tutorial_runs(capsys):
    space = runpy.run_path(str(ROOT / "docs" / "tutorials" / "from-pytorch.py"))
    accuracy = space["history"].metrics["test_accuracy"][-1]
    assert accuracy > 0.3
    assert abs(float(capsys.readouterr().out.split()[-1]) - accuracy) < 0.01


class Items(torch.utils.data.Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, k):
        return self.items[k]


X = np.ones(3, np.float32)


@pytest.mark.parametrize("items", [[{"x": X, "y": 0}, {"x": X}], [(X, 0), (X,)]])
def test_items_of_a_data_set_have_one_form(items):
    with pytest.raises(fedax.DataError, match=r"clients\[0\]: got items that .*default_collate"):
        fedax.tasks.from_torch(nn.Linear(3, 2), cross_entropy, [Items(items)])


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Sequential(nn.Linear(3, 2).bfloat16()), r"'0.weight' of type bfloat16"),
        (nn.Sequential(nn.LSTM(3, 5, proj_size=2)), r"'0' \(LSTM\) with proj_size=2"),
    ],
)
def test_types_and_layers_without_a_form_are_named(module, message):
    with pytest.raises(fedax.InvalidInput, match=message):
        fedax.tasks.from_torch(module, cross_entropy, [{"x": X[None], "y": [0]}])


def test_a_module_has_an_output_for_each_class():
    data = fedax.data.FederatedData.from_arrays(
        [{"x": np.ones((4, 3)), "y": [0, 1, 2, 3]}], classes=4
    )
    with pytest.raises(fedax.InvalidInput, match="got '2 logits'; allowed: 4"):
        fedax.tasks.classification(data, nn.Linear(3, 2))
