"""Every algorithm, with every choice that it declares, x every law.

An algorithm joins by existing in fedax.algorithms, a choice by being declared; no law knows a name.
"""

import ast
import dataclasses
import functools
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.algorithms import make_algorithm
from fedax.communication.codecs import Identity
from fedax.core import InvalidInput
from fedax.core.hyper import declared
from fedax.engine.backends.reference import EagerClient, EagerMinibatch
from fedax.engine.driver import session
from fedax.engine.round.context import RoundContext
from problems import all_algorithms, is_preset, kinds_of_laws, named, regression, squares, state_arrays, vector

SCHEDULE = fedax.Schedule(cohort=3, steps=3, batch_size=4)  # 2 steps an epoch for client 0: its third is in the next
ONE = fedax.Simulation("sequential", devices=1)
CHUNKS = fedax.Simulation("chunked", chunk=2, devices=2, microbatch=2)


def marks(kind):
    return [pytest.mark.slow] if is_preset(kind) else []


@dataclasses.dataclass(frozen=True)
class Switched:
    """An algorithm with one of its choices that is not the default, made as the algorithm is."""

    kind: type
    name: str
    value: Any

    @property
    def __name__(self):
        return f"{self.kind.__name__}-{self.name}={self.value}"

    @property
    def inherited(self):
        """Whether another class declares it, where the same lines read it."""
        return self.name not in vars(self.kind).get("__annotations__", {})

    def __call__(self, **others):
        return self.kind(**{self.name: self.value}, **others)


def choices_of(kind):
    """Every choice and every switch that is not the default."""
    for name, known in declared(kind).items():
        values = (False, True) if isinstance(known.default, bool) else known.choices or ()
        yield from (Switched(kind, name, value) for value in values if value != known.default)


KINDS = [pytest.param(kind, marks=marks(kind), id=named(kind)) for kind in kinds_of_laws()]
CHOICES = [choice for kind in kinds_of_laws() for choice in choices_of(kind)]
SWITCHES = [
    pytest.param(choice, marks=[*marks(choice.kind), pytest.mark.slow], id=named(choice))
    for choice in CHOICES
    if not choice.inherited
]
every_algorithm = pytest.mark.parametrize("kind", KINDS)
every_switch_too = pytest.mark.parametrize("kind", KINDS + SWITCHES)


def go(algorithm, task=None, rounds=5, schedule=SCHEDULE, engine=ONE, **options):
    options = {"solver": fedax.SGD(0.05), "seed": 3, "observe_every": 5, "observe": (), **options}
    return fedax.run(algorithm, task or regression(), schedule=schedule, rounds=rounds, engine=engine, **options)


@functools.cache
def straight(kind):
    """The reference run of an algorithm with its default hyperparameters."""
    return go(kind())


def close(a, b, tolerance=1e-12):
    np.testing.assert_allclose(vector(a), vector(b), rtol=tolerance, atol=tolerance)


@every_switch_too
def test_pure(kind):
    """The same inputs give the same bits, and nothing is written into the task."""
    task = regression()
    before = [np.array(leaf) for leaf in jax.tree.leaves(task.train)]
    again = go(kind(), task)
    assert all(np.array_equal(a, b) for a, b in zip(state_arrays(again), state_arrays(straight(kind)), strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(before, jax.tree.leaves(task.train), strict=True))


@every_switch_too
def test_learns(kind):
    """Five rounds lower the training loss: the laws do not hold for a method that does nothing."""
    history = go(kind(), observe=[fedax.observe.TrainLoss()])
    assert history.metrics["train_loss"][-1] < history.metrics["train_loss"][0]


def takes_minibatches(kind):
    """Whether a round looks at minibatches, seen from the reference engine."""
    calls = []
    original = EagerClient.for_each_minibatch
    EagerClient.for_each_minibatch = lambda self, *arguments: calls.append(self) or original(self, *arguments)
    try:
        go(kind(), rounds=1, engine=fedax.Eager())
    finally:
        EagerClient.for_each_minibatch = original
    return bool(calls)


@pytest.mark.slow
@every_switch_too
def test_another_seed_is_another_run(kind):
    """Of every method but those that take full gradients of everybody, and so have nothing to draw."""
    everything = all(phase.everyone for phase in fedax.footprint(kind()).phases) and not takes_minibatches(kind)
    assert np.array_equal(vector(go(kind(), seed=4)), vector(straight(kind))) == everything


@pytest.mark.slow
@every_algorithm
def test_gradients_traced_are_computed(kind, monkeypatch):
    """Counted in the reference engine, everyone at work: minibatch gradients, and full ones as an epoch of them.

    For every choice that a method offers, and twice its numbers of inner steps.
    """
    counts = {"minibatch": 0, "full": 0}

    def counted(owner, name):
        for method in ("gradient", *(["gradient_of"] if owner is EagerMinibatch else [])):
            original = getattr(owner, method)

            def gradient(self, *arguments, original=original):
                counts[name] += 1
                return original(self, *arguments)

            monkeypatch.setattr(owner, method, gradient)

    counted(EagerMinibatch, "minibatch")
    counted(EagerClient, "full")
    task, schedule = regression(sizes=[5, 5]), fedax.Schedule(steps=1, batch_size=2)
    settings = [{}]
    settings += [{name: choice} for name, known in declared(kind).items() for choice in known.choices or ()]
    settings += [{name: 2 * known.default} for name, known in declared(kind).items() if name == "inner_steps"]
    for setting in settings:
        algorithm = kind(**setting)
        counts.update(minibatch=0, full=0)
        with jax.disable_jit():  # a loop inside a step is then a loop of Python
            go(algorithm, task, rounds=1, schedule=schedule, engine=fedax.Eager())
        # a full gradient is one call of a minibatch of all examples
        done = (counts["minibatch"] - counts["full"] + schedule.mean_epoch(5) * counts["full"]) / 2
        assert done == fedax.footprint(algorithm, task).gradients(schedule.mean_steps(5), schedule.mean_epoch(5)), setting


@pytest.mark.slow
@every_algorithm
def test_one_trace_for_many_rounds(kind, monkeypatch):
    """More rounds, other seeds and other real hyperparameters are the same program."""
    monkeypatch.setattr(session, "evict_programs", lambda: None)  # which may drop it in between
    traces = []

    class Counted(kind):
        def round(self, fed, state):
            traces.append(1)
            return super().round(fed, state)

    task, schedule = regression(), fedax.Schedule(cohort=2, steps=1, batch_size=4, order="given")
    run = functools.partial(go, task=task, schedule=schedule, observe_every=2)
    run(Counted(), rounds=3)
    count = len(traces)
    reals = {
        n: h.default * 0.75 for n, h in declared(kind).items() if isinstance(h.default, float) and np.isfinite(h.default)
    }
    run(Counted(**{n: v for n, v in reals.items() if declared(kind)[n].allows(v)}), rounds=9, seed=4)
    assert count > 0
    assert len(traces) == count


def agree(kind, engine):
    rounds = 2 if isinstance(engine, fedax.Eager) else 5
    reference, other = go(kind(), rounds=rounds), go(kind(), rounds=rounds, engine=engine)
    close(reference, other)
    assert np.array_equal(reference.bits.up, other.bits.up)
    assert np.array_equal(reference.bits.down, other.bits.down)


@pytest.mark.slow
@pytest.mark.parametrize(
    "choice",
    [
        pytest.param(
            choice, marks=[*marks(choice.kind), *([pytest.mark.slow] if choice.inherited else [])], id=named(choice)
        )
        for choice in CHOICES
    ],
)
def test_every_choice_is_the_same_on_the_reference_engine(choice):
    agree(choice, fedax.Eager())


@every_algorithm
@pytest.mark.parametrize(
    "engine",
    [
        pytest.param(fedax.Eager(), id="eager"),
        # the parts of this one are in the others
        pytest.param(fedax.Simulation("sequential", devices=2), id="sequential-2", marks=pytest.mark.slow),
    ],
)
def test_same_on_every_engine(kind, engine):
    agree(kind, engine)


@pytest.mark.slow
@every_switch_too
def test_same_in_chunks(kind):
    """Several clients at a time, on two devices, and batches in parts."""
    agree(kind, CHUNKS)


@pytest.mark.slow
@every_switch_too
def test_invariant_to_client_order(kind):
    """With everyone and full batches, the numbering of clients does not matter.

    Their graph is renumbered with them, and their messages are not rounded at random. Forms that mix up `ids` pair clients by
    their numbers.
    """
    if getattr(kind, "name", None) == "ids":
        pytest.skip("pairs clients by their numbers")
    schedule, order = fedax.Schedule(steps=2, batch_size="full"), (3, 0, 4, 2, 1)
    graph, phases = fedax.Graph.ring(5), fedax.footprint(kind()).phases
    code = {"code": Identity()} if any(phase.coded for phase in phases) else {}
    linked = any(phase.links for phase in phases)
    one, other = (kind(**code, **({"graph": g} if linked else {})) for g in (graph, graph.renumbered(order)))
    close(go(one, schedule=schedule), go(other, regression(order=order), schedule=schedule))


@every_switch_too
def test_observers_do_not_matter(kind):
    watched = go(kind(), observe=[fedax.observe.TrainLoss(), fedax.observe.Dissimilarity()], observe_every=2)
    assert all(np.array_equal(a, b) for a, b in zip(state_arrays(watched), state_arrays(straight(kind)), strict=True))


@every_switch_too
def test_resume_is_the_straight_run(kind):
    """A state saved at round 2 as plain arrays and taken up again ends in the same bits."""
    part = go(kind(), rounds=2)
    saved = jax.tree.map(np.asarray, part.state)
    resumed = go(kind(), resume=fedax.History(**{**vars(part), "state": saved}))
    assert all(np.array_equal(a, b) for a, b in zip(state_arrays(resumed), state_arrays(straight(kind)), strict=True))
    assert np.array_equal(resumed.bits.up, straight(kind).bits.up)


@every_algorithm
def test_memory_is_opaque(kind):
    """No algorithm reads a Memory: its only use is to be handed to a verb and kept."""
    tree = ast.parse(inspect.getsource(inspect.getmodule(kind)))
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "_rows"]


def reals_of(kind):
    return {n: h for n, h in declared(kind).items() if isinstance(h.default, float) and np.isfinite(h.default)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if reals_of(kind.values[0])])
def test_vmap_over_hyperparameters_is_the_loop(kind):
    reals = reals_of(kind)
    settings = [{}, {n: h.default / 2 for n, h in reals.items() if h.allows(h.default / 2)}]
    options = {"solver": fedax.SGD(0.05), "schedule": SCHEDULE, "rounds": 5, "seed": 3, "observe_every": 5, "engine": ONE}
    grid = fedax.run_grid([kind(**s) for s in settings], regression(), **options)
    for setting, history in zip(settings, grid, strict=True):
        close(history, fedax.run(kind(**setting), regression(), **options), 1e-11)


def traced_bits(algorithm):
    """Down and up in a round of the regression, 3 of 5 drawn; a message to the neighbours goes over every link."""
    phases = fedax.footprint(algorithm, regression()).phases
    links = int(np.asarray(fedax.Graph.named(algorithm.topology, 5).degrees).sum()) if phases[0].links else 0
    senders = [links if phase.links else 5 if phase.everyone else 3 for phase in phases]
    pairs = list(zip(phases, senders, strict=True))
    return sum(phase.down_bits * n for phase, n in pairs), sum(phase.up_bits * n for phase, n in pairs)


@every_switch_too
def test_bits_counted_are_bits_traced(kind):
    history, (down, up) = straight(kind), traced_bits(kind())
    first = int(isinstance(kind, Switched))  # who works in round 0 may be the choice
    assert history.bits.down.tolist()[first:] == [down] * (5 - first)
    assert history.bits.up.tolist()[first:] == [up] * (5 - first)


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind in all_algorithms() for name in declared(kind)],
    ids=lambda v: getattr(v, "__name__", v),
)
def test_bad_hyperparameters_are_refused(kind, name):
    limits = declared(kind)[name]
    for value in limits.outside():
        with pytest.raises(InvalidInput, match=rf"{kind.__name__}\({name}=\.\.\.\): got .*; allowed: ") as refusal:
            make_algorithm(kind.__name__, **{name: value})
        assert limits.allowed in str(refusal.value)


def broken(params, examples):
    return jnp.where(examples["x"][:, 0] > 1e6, jnp.nan, 1.0) * squares(params, examples)


@pytest.mark.slow
@every_switch_too
def test_non_finite_client_is_reported(kind):
    """Client 2 cannot compute its loss; the outcome names it and the round."""

    task = regression()
    clients = [task.train.client(k) for k in range(5)]
    clients[2] = {"x": clients[2]["x"] + 1e7, "y": clients[2]["y"]}
    broken_task = fedax.tasks.from_loss(broken, {"b": 0.0, "w": np.zeros(3)}, clients)
    schedule = fedax.Schedule(steps=1, batch_size=4, order="given")
    history = go(kind(), broken_task, schedule=schedule, rounds=3)
    assert (history.outcome.kind, history.outcome.round, history.outcome.client) == ("non-finite", 0, 2)
    with pytest.raises(fedax.core.RunFailed, match=r"non-finite at round 0 (from|in the memory of) client 2"):
        go(kind(), broken_task, schedule=schedule, rounds=3, throw=True)


@pytest.mark.slow
@every_switch_too
def test_flat_losses_change_nothing(kind):
    """Nobody has a gradient: every multiplier, norm and total weight that can vanish does, and the model stays."""
    start = {"a": np.ones(2), "b": np.ones(2)}
    task = fedax.tasks.from_loss(lambda p, x: 0 * (p["a"] + p["b"]).sum() + 0 * x, start, clients=[[1.0, 2.0], [3.0]])
    history = go(kind(), task, schedule=fedax.Schedule(cohort=1, batch_size=4, order="given"), rounds=3)
    assert history.outcome.ok
    assert all(np.isfinite(leaf).all() for leaf in state_arrays(history) if leaf.dtype.kind == "f")
    if isinstance(kind(), fedax.SCAFFOLD) and kind().form == "as_released":
        return  # its control variates start at random numbers, which move models without a gradient
    moved = "the mean of equal models is equal up to rounding; a sign or a norm of it needs differences, Upload(model - w)"
    np.testing.assert_allclose(vector(history), np.ones(4), rtol=0, atol=1e-12, err_msg=moved)


@pytest.mark.slow
@every_algorithm  # a choice may draw a cohort of its own, which is never empty
def test_round_without_clients_changes_nothing(kind):
    """A Poisson cohort may be empty; then the state stays, bit for bit."""
    schedule = fedax.Schedule(cohort=1, sampling="poisson", steps=1, batch_size=4, order="given")
    task, empty = regression(sizes=(4, 5)), 0
    history = go(kind(), task, rounds=0, schedule=schedule, observe_every=1)
    for t in range(1, 25):
        after = go(kind(), task, rounds=t, schedule=schedule, resume=history, observe_every=1)
        assert after.outcome.ok
        if after.bits.up[-1] == 0:
            empty += 1
            assert all(np.array_equal(a, b) for a, b in zip(state_arrays(after), state_arrays(history), strict=True))
        history = after
    assert (0 < empty < 24) == any(not phase.everyone for phase in fedax.footprint(kind()).phases)
    eager = go(kind(), task, rounds=2, schedule=schedule, engine=fedax.Eager())
    close(go(kind(), task, rounds=2, schedule=schedule, observe_every=1), eager)


REDUCTIONS = [(kind, reduction) for kind in kinds_of_laws() for reduction in kind.card.reductions]


@pytest.mark.parametrize(("kind", "reduction"), REDUCTIONS, ids=lambda v: getattr(v, "__name__", None) or v.to)
def test_declared_reductions(kind, reduction):
    task = regression(sizes=(8,) * 5) if reduction.equal_sizes else regression()
    close(
        go(make_algorithm(kind.__name__, **reduction.setting), task),
        go(make_algorithm(reduction.to, **reduction.other), task),
    )


@pytest.mark.slow
@every_algorithm
def test_phases_traced_are_those_of_a_round(kind, monkeypatch):
    """The trace names the work functions that a round really calls, in order, and the bits it sends, whatever is chosen."""
    seen = []
    original = RoundContext._prepare

    def spy(self, work, *rest):
        seen.append(work.__name__)
        return original(self, work, *rest)

    for setting in [kind, *choices_of(kind)]:
        algorithm = setting()
        traced = [phase.work for phase in fedax.footprint(algorithm, regression()).phases]
        seen.clear()
        with monkeypatch.context() as patch:
            patch.setattr(RoundContext, "_prepare", spy)
            schedule = fedax.Schedule(cohort=3, steps=1, batch_size=4)
            history = go(
                algorithm, rounds=2, schedule=schedule, engine=fedax.Eager()
            )  # who works in round 0 may be a choice
        assert seen == traced * 2, setting
        assert (history.bits.down[1], history.bits.up[1]) == traced_bits(algorithm), setting
