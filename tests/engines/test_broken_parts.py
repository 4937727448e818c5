"""NaN and infinity: the part that broke is named, and a client whose upload is not finite can be
left out."""

import warnings

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedax
from problems import SIZES, regression, squares, vector

ENGINES = {
    "sequential": lambda: fedax.Simulation(devices=1),
    "chunked, 2 devices": lambda: fedax.Simulation(chunk=2, devices=2),
    "eager": fedax.Eager,
}
every_engine = pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
ONE_STEP = fedax.Schedule(steps=1, batch_size="full")


def breaks_beyond(params, examples):
    """NaN for examples that are marked."""
    return jnp.where(examples["bad"] > 0, jnp.nan, 1.0) * squares(params, examples)


def task_with(bad, only=range(5)):
    """The regression of some clients, of whom some cannot compute their loss."""
    task = regression()
    clients = [dict(task.train[k]) | {"bad": np.full(SIZES[k], float(k in bad))} for k in only]
    return fedax.Task({"b": np.zeros(()), "w": np.full(3, 0.1)}, breaks_beyond, clients, l2=0.01)


def go(method, task, engine, **more):
    return fedax.run(
        method,
        task,
        **{"solver": fedax.SGD(0.05), "schedule": ONE_STEP, "rounds": 2, "engine": engine()} | more,
    )


class Own(fedax.Algorithm):
    """A method of which a part breaks in round 1."""

    part: str = fedax.hyper("server", choices=("server", "memory", "mark"))

    def init(self, fed, w):
        return {"w": w, "mark": jnp.inf + w[0], "memory": fed.client_states(w)}

    def round(self, fed, state):
        w, memory = fed.average(self.train, fed.everyone, state["w"], states=state["memory"])
        w = jnp.where((fed.round == 1) & (self.part == "server"), jnp.inf, w)
        return {"w": w, "mark": state["mark"], "memory": memory}

    def model(self, state):
        return state["w"]

    def train(self, client, w, own):
        bad = (client.round == 1) & (client.index == 3) & (self.part == "memory")
        return fedax.Upload(client.minimize(start=w), state=jnp.where(bad, jnp.nan, own))


@pytest.mark.slow
@every_engine
@pytest.mark.parametrize(
    ("part", "outcome"),
    [
        ("server", "non-finite in round 2, in the server state"),
        ("memory", "non-finite in round 2, in the state of client 3"),
        ("mark", "ok"),
    ],
)
def test_the_part_that_broke_is_named(part, outcome, engine):
    """Also an infinity that a method has from the start on is no failure."""
    assert str(go(Own(part=part), regression(), engine, rounds=3).outcome) == outcome


def test_an_infinite_server_step_is_the_failure_of_its_round():
    history = go(
        fedax.FedAvg(server=optax.sgd(1e308)),
        regression(),
        ENGINES["sequential"],
        solver=fedax.SGD(10.0),
        rounds=3,
    )
    assert str(history.outcome) == "non-finite in round 1, in the server state"


@pytest.mark.slow
def test_personal_models_are_looked_at():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        history = go(
            fedax.Ditto(lam=1e308),
            regression(),
            ENGINES["sequential"],
            rounds=5,
            solver=fedax.SGD(10.0),
        )
    assert str(history.outcome) == "non-finite in round 2, in the state of client 0"


@every_engine
def test_an_infinite_training_loss_is_no_success(engine):
    """Without a gradient it changes nothing else."""
    task = fedax.Task(1.0, lambda w, x: 0 * w + x * jnp.asarray(1e308), [np.full(3, 10.0)])
    history = go(fedax.FedAvg(), task, engine, observe=[fedax.observe.TrainLoss()])
    assert str(history.outcome) == "non-finite in round 1, in train_loss"


DROPPING = {
    "scaffold": fedax.SCAFFOLD(),
    "fedbc": fedax.FedBC(dual_lr=0.1),
    "fedmgda": fedax.FedMGDA(),
    "fedaware": fedax.FedAWARE(),
    "feddane": fedax.FedDANE(mu=0.1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DROPPING)
def test_left_out_is_not_drawn(name):
    """With client 4 out of every round, the others' run: the same clients, weights renormalised."""
    options = {"on_bad_client": "drop", "rounds": 3}
    left = go(DROPPING[name], task_with(bad={4}), ENGINES["sequential"], **options)
    alone = go(DROPPING[name], task_with(bad=(), only=range(4)), ENGINES["sequential"], **options)
    assert left.outcome.ok
    assert left.logged["dropped"].tolist() == [[4]] * 3
    assert alone.logged["dropped"].shape == (3, 0)
    # of their sum over all memories the fifth client is a part, which stays zero
    if name == "scaffold":
        share = 1 - SIZES[4] / sum(SIZES)
        kept = np.asarray(left.state.clients.all())
        np.testing.assert_allclose(kept[4], 0)
        np.testing.assert_allclose(
            left.state.c,
            np.asarray(SIZES[:4]) / sum(SIZES[:4]) @ kept[:4] * share,
            rtol=1e-12,
            atol=1e-12,
        )
    else:
        np.testing.assert_allclose(vector(left), vector(alone), rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scaffold", "fedaware", "feddane"])
def test_left_out_alike_on_every_engine(name):
    schedule = fedax.Schedule(cohort=3, steps=2, batch_size=4)
    first, *others = [
        go(
            DROPPING[name],
            task_with(bad={1, 3}),
            engine,
            on_bad_client="drop",
            schedule=schedule,
            rounds=4,
            seed=5,
            observe_every=4,
        )
        for engine in ENGINES.values()
    ]
    assert {*np.unique(first.logged["dropped"])} - {-1} == {1, 3}
    for other in others:
        np.testing.assert_allclose(vector(other), vector(first), rtol=1e-12, atol=1e-12)
        assert other.logged["dropped"].tolist() == first.logged["dropped"].tolist()
        assert other.bits.up.tolist() == first.bits.up.tolist()


@pytest.mark.slow
@every_engine
def test_if_everybody_is_left_out_the_state_stays(engine):
    history = go(fedax.FedDANE(), task_with(bad=set(range(5))), engine, on_bad_client="drop")
    assert history.outcome.ok
    np.testing.assert_allclose(vector(history), [0.0, 0.1, 0.1, 0.1])
    assert history.logged["dropped"].tolist() == [[0, 1, 2, 3, 4]] * 2
    # the gradients of all clients; nobody solves anything
    assert (history.bits.up == 5 * 4 * 64).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "engine", [ENGINES["chunked, 2 devices"], ENGINES["eager"]], ids=["chunked", "eager"]
)
def test_a_round_ends_with_the_phase_that_nobody_takes_part_in(engine):
    """FedDANE, Poisson, one client on average: what would be the second cohort of such a round is
    sent nothing."""
    one, other = (
        go(
            fedax.FedDANE(mu=0.1),
            regression(),
            e,
            schedule=fedax.Schedule(cohort=1, sampling="poisson", steps=1),
            rounds=8,
        )
        for e in (ENGINES["sequential"], engine)
    )
    down = one.bits.down
    up = one.bits.up
    assert (up[down == 0] == 0).all()
    assert len({*up.tolist()}) > 2
    # one gradient, four numbers of 64 bits, and then nobody
    assert (down[up == 256] == 256).any()
    assert other.bits.down.tolist() == down.tolist()
    assert other.bits.up.tolist() == up.tolist()
