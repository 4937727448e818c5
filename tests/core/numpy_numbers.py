"""NumPy's integers and floats are numbers: what is made of them is what Python's numbers make.

`test_unchecked.py` runs this file without the type checker of the tests."""

import warnings

import numpy as np
import pytest

import fedax
from fedax.core import InvalidInput
from fedax.engine.driver.options import RunOptions
from fedax.experiments.config.experiment import Experiment
from fedax.models import CNN, MLP, ResNet, Softmax
from fedax.models.convolutional import Stage
from fedax.utils.numbers import python_number
from parts import with_validation

I, F, D = np.int64, np.float32, np.float64  # noqa: E741


def counts_of(options):
    return options.rounds, options.observe_every, options.checkpoint_every


RECORDS = {
    "cohort": lambda i, f: fedax.Schedule(cohort=i(2), epochs=i(3), batch_size=i(4)),
    "shares": lambda i, f: fedax.Schedule(stragglers=f(0.5), dropouts=f(0.25)),
    "pairs": lambda i, f: fedax.Schedule(epochs=(i(2), i(3)), batch_size=[i(2), "all"]),
    "times": lambda i, f: fedax.Schedule(times=[i(1), i(2), i(4)], batch_size="full"),
    "deadline": lambda i, f: fedax.Schedule(cohort=i(2), over_select=f(1.5), deadline=f(2)),
    "coins": lambda i, f: fedax.Schedule(sync_probability=f(0.5)),
    "daily": lambda i, f: fedax.Daily(fraction=f(0.5), period=i(4), seed=i(1)),
    "asynchronous": lambda i, f: fedax.Asynchronous(concurrency=i(3), b=i(2), a=f(0.5)),
    "devices": lambda i, f: fedax.Devices(speed=f(4), passes=f(1.5)),
    "solver": lambda i, f: fedax.SGD(f(0.5), momentum=f(0.25)),
    "method": lambda i, f: fedax.FedProx(mu=f(0.5)),
    "by name": lambda i, f: fedax.FedProx(mu={"anna": f(0.5), "berta": i(2)}),
    "codec": lambda i, f: fedax.codecs.QSGD(b=i(4)),
    "top k": lambda i, f: fedax.codecs.TopK(f(0.5)),
    "privacy": lambda i, f: fedax.Privacy(clip=f(1), noise=f(2), delta=f(0.125)),
    "bounds": lambda i, f: fedax.Privacy(clip=(f(1), f(2)), budget=f(4)),
    "early stopping": lambda i, f: fedax.EarlyStopping("a", patience=i(2), min_change=f(0.5)),
    "divergence": lambda i, f: fedax.Divergence(f(0.5), window=i(2)),
    "budget": lambda i, f: fedax.Budget(hours=f(0.5), joules=i(2)),
    "options": lambda i, f: counts_of(
        RunOptions(rounds=i(5), observe_every=i(2), checkpoint_every=i(3))
    ),
    "softmax": lambda i, f: Softmax(i(5), i(3)),
    "mlp": lambda i, f: MLP([i(5), i(4), i(3)], dropout=f(0.5)),
    "cnn": lambda i, f: CNN([i(4), i(4), i(1)], (Stage(2, 3),), (i(3),), i(2)),
    "resnet": lambda i, f: ResNet(i(1), i(4), classes=i(3)),
}


@pytest.mark.parametrize("make", RECORDS.values(), ids=RECORDS)
@pytest.mark.parametrize("kinds", [(np.int64, np.float32), (np.uint8, np.float64)], ids=str)
def test_records_are_those_of_pythons_numbers(make, kinds):
    """In value, text, hash and structure, and without a warning of Equinox."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        given, plain = make(*kinds), make(int, float)
    assert repr(given) == repr(plain)
    assert given == plain
    if not isinstance(given, fedax.FedProx):  # of which one has a mapping
        assert hash(given) == hash(plain)


GRAPHS = {
    "ring": lambda i, f: fedax.Graph.ring(i(5)),
    "random_regular": lambda i, f: fedax.Graph.random_regular(i(6), i(3), seed=i(1)),
    "erdos_renyi": lambda i, f: fedax.Graph.erdos_renyi(i(6), f(0.5), seed=i(1)),
    "lossy": lambda i, f: fedax.Graph.ring(i(4)).lossy(drops=f(0.5)).noisy(f(0.25)),
    "named": lambda i, f: fedax.Graph.named("star", i(4)),
}


@pytest.mark.parametrize("make", GRAPHS.values(), ids=GRAPHS)
def test_graphs_are_those_of_pythons_numbers(make):
    given, plain = make(I, F), make(int, float)
    assert repr(given) == repr(plain)
    np.testing.assert_array_equal(given.neighbours, plain.neighbours)
    np.testing.assert_array_equal(given.weights, plain.weights)


LABELS = np.array([0, 1, 2, 1, 0, 2, 2, 1, 0, 1, 2, 0])
PARTITIONS = {
    "iid": lambda i, f: fedax.data.iid(i(7), clients=i(3), seed=i(2)),
    "dirichlet": lambda i, f: fedax.data.dirichlet(
        LABELS, clients=i(2), alpha=f(0.5), minimum=i(1)
    ),
    "label_shards": lambda i, f: fedax.data.label_shards(
        LABELS, clients=i(3), shards_per_client=i(2)
    ),
}


@pytest.mark.parametrize("make", PARTITIONS.values(), ids=PARTITIONS)
def test_partitions_are_those_of_pythons_numbers(make):
    for given, plain in zip(make(I, F), make(int, float), strict=True):
        np.testing.assert_array_equal(given, plain)


def test_tasks_are_those_of_pythons_numbers():
    """A share of 32 bits is counted in 32 bits: a fifth of 10 is 2."""
    given = fedax.task("digits", clients=I(3), seed=I(1), test_fraction=F(0.2), l2=F(0.5))
    plain = fedax.task("digits", clients=3, seed=1, test_fraction=0.2, l2=0.5)
    assert repr(given) == repr(plain)
    assert given.l2 == 0.5
    assert type(given.l2) is float
    np.testing.assert_array_equal(given.train.offsets, plain.train.offsets)
    np.testing.assert_array_equal(given.train.arrays["x"], plain.train.arrays["x"])
    by_name = fedax.task("synthetic", clients=I(2), seed=I(3))
    drawn = fedax.task("synthetic", clients=2, seed=3)
    np.testing.assert_array_equal(by_name.train.arrays["x"], drawn.train.arrays["x"])
    shares = (with_validation(drawn, share, seed=I(1)) for share in (F(0.2), 0.2))
    sizes = [task.train.sizes.tolist() for task in shares]
    assert sizes[0] == sizes[1]


def test_a_run_is_that_of_pythons_numbers():
    losses = []
    clients = {"anna": np.arange(3.0), "berta": np.arange(5.0)}
    task = fedax.Task(0.0, lambda w, x: (w - x) ** 2, clients, l2=np.float32(0.25))
    for i, f in ((I, F), (int, float)):
        history = fedax.run(
            fedax.FedProx(mu=f(0.5)),
            task,
            solver=fedax.SGD(f(0.25)),
            schedule=fedax.Schedule(batch_size=i(2), cohort=i(1)),
            rounds=2,
            observe=[fedax.observe.TrainLoss()],
        )
        losses.append(history.metrics["train_loss"].tolist())
    assert losses[0] == losses[1]


def test_experiments_of_numpys_numbers_have_the_same_file():
    def experiment(i, f):
        return Experiment.of(
            name="a",
            rounds=i(2),
            seeds=[i(0), i(1)],
            task={"name": "digits", "clients": i(3)},
            solver={"learning_rate": f(0.5)},
            schedule={"cohort": i(2), "stragglers": f(0.5)},
            algorithm=[{"name": "fedprox", "mu": f(0.25)}],
            grid={"fedprox": {"mu": [f(0.25), f(0.5)]}},
        )

    assert experiment(I, F).toml() == experiment(int, float).toml()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fedax.Schedule(cohort=np.bool_(True)), r"Schedule\(cohort=...\): got"),
        (lambda: fedax.Schedule(cohort=np.int64(0)), r"Schedule\(cohort=...\): got 0;"),
        (lambda: fedax.Schedule(cohort=np.float64(2)), r"Schedule\(cohort=...\): got 2\.0;"),
        (lambda: fedax.Schedule(stragglers=np.bool_(True)), r"stragglers=...\): got"),
        (lambda: fedax.Schedule(epochs=np.timedelta64(2)), r"epochs=...\): got"),
        (lambda: fedax.codecs.QSGD(b=np.float32(4)), r"QSGD\(b=...\): got 4\.0;"),
        (lambda: fedax.FedProx(mu=np.bool_(True)), r"FedProx\(mu=...\): got"),
        (lambda: fedax.data.iid(5, clients=np.bool_(True)), r"iid\(clients=...\): got"),
        (lambda: fedax.data.iid(5, clients=np.int64(0)), r"iid\(clients=...\): got 0;"),
        (lambda: fedax.Privacy(clip=np.float32(0)), r"Privacy\(clip=...\): got 0\.0;"),
    ],
)
@pytest.mark.filterwarnings("ignore:A JAX array is being set as static")
def test_what_is_out_of_range_stays_refused(make, message):
    with pytest.raises(InvalidInput, match=message):
        make()


def test_python_number_leaves_everything_else():
    for value in ("full", None, True, np.bool_(True), np.ones(2), np.datetime64("2020-01-01")):
        assert python_number(value) is value
    assert type(python_number(D(0.5))) is float
    assert python_number(np.uint8(255)) == 255
