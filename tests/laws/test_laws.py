"""Every algorithm, with every choice that it declares, x every law.

An algorithm joins by existing in fedax.algorithms, a choice by being declared; no law knows a name.
"""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import pytest

import fedax
from fedax.algorithms import make_algorithm
from fedax.conformance import Method, Skipped, laws
from fedax.conformance.reference import EagerClient, EagerMinibatch, ReferenceBackend
from fedax.core import InvalidInput
from fedax.core.hyper import declared
from problems import (
    WATCHED,
    all_algorithms,
    is_preset,
    kinds_of_laws,
    named,
    regression,
    state_arrays,
)

# 2 steps an epoch for client 0: its third is in the next
SCHEDULE = fedax.Schedule(cohort=3, steps=3, batch_size=4)
ONE = fedax.Simulation(devices=1)


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


AGREEING = {"FedAvg", "SCAFFOLD", "Ditto", "DFedAvgM"}
"""Methods that the reference engine runs with the fast tests: it is slow."""


def few(param, fast=WATCHED):
    """Returns a parameter that is slow unless its method is one of the fast ones."""
    if param.id in fast:
        return param
    return pytest.param(*param.values, marks=[*param.marks, pytest.mark.slow], id=param.id)


# presets have the rounds of another method
ROUNDS = [param for param in KINDS if not is_preset(param.values[0])]
every_round = pytest.mark.parametrize("kind", ROUNDS)
every_switch_too = pytest.mark.parametrize("kind", KINDS + SWITCHES)
# what the engine does for all methods alike: fast tests ask one method of each kind
some_fast = pytest.mark.parametrize("kind", [few(param) for param in KINDS] + SWITCHES)


@functools.cache
def method_of(kind):
    """The method under test of a class, or of one of its choices."""
    return Method(kind, getattr(kind, "kind", kind))


def obeys(law, kind):
    """Tests a law that says nothing about some methods."""
    try:
        law(method_of(kind))
    except Skipped as reason:
        pytest.skip(str(reason))


def go(algorithm, task=None, rounds=5, schedule=SCHEDULE, engine=ONE, **options):
    options = {"solver": fedax.SGD(0.05), "seed": 3, "observe_every": 5, "observe": (), **options}
    return fedax.run(
        algorithm, task or regression(), schedule=schedule, rounds=rounds, engine=engine, **options
    )


@functools.cache
def straight(kind):
    """The reference run of an algorithm with its default hyperparameters."""
    return go(kind())


@some_fast
def test_learns(kind):
    """Five rounds lower the training loss: the laws do not hold for a method that does nothing."""
    laws.learns(method_of(kind))


@pytest.mark.slow
@every_round
def test_another_seed_is_another_run(kind):
    """Of every method but those that take full gradients of everybody, and so have nothing to
    draw."""
    obeys(laws.follows_the_seed, kind)


@pytest.mark.slow
@every_round
def test_gradients_traced_are_computed(kind, monkeypatch):
    """Counted in the reference engine, everyone at work: minibatch gradients, and full ones as an
    epoch of them.

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
    task = regression(sizes=[5, 5])
    schedule = fedax.Schedule(steps=1, batch_size=2)
    settings = [kind, *(choice for choice in choices_of(kind) if not choice.inherited)]
    if "inner_steps" in declared(kind):
        settings.append(functools.partial(kind, inner_steps=4))
    for setting in settings:
        algorithm = setting()
        counts.update(minibatch=0, full=0)
        with jax.disable_jit():  # a loop inside a step is then a loop of Python
            go(algorithm, task, rounds=1, schedule=schedule, engine=fedax.Eager())
        # a full gradient is one call of a minibatch of all examples
        done = counts["minibatch"] - counts["full"] + schedule.mean_epoch(5) * counts["full"]
        traced = fedax.footprint(algorithm, task)
        # both clients work
        assert done / 2 == traced.gradients(schedule.mean_steps(5), schedule.mean_epoch(5)), setting


@pytest.mark.slow
@every_round
def test_one_trace_for_many_rounds(kind):
    """More rounds, other seeds and other real hyperparameters are the same program."""
    laws.compiles_once(method_of(kind))


@pytest.mark.parametrize("kind", [few(param, AGREEING) for param in ROUNDS] + SWITCHES)
def test_same_on_the_reference_engine(kind):
    """It calls the work functions that the trace names, in order."""
    method = method_of(kind)
    with laws.recording(ReferenceBackend, "work") as calls:
        laws.agrees_with_the_reference(method)
    works = [call.args[1] for call in calls.call_args_list]
    called = [work.name for work in works if not work.receives]
    assert called == [phase.work for phase in method.footprint.phases] * 2


@pytest.mark.slow
@every_round
def test_same_in_chunks(kind):
    laws.agrees_in_chunks(method_of(kind))


@pytest.mark.slow
@every_switch_too
def test_invariant_to_client_order(kind):
    """With everyone and full batches, the numbering of clients does not matter."""
    obeys(laws.ignores_the_order, kind)


@pytest.mark.parametrize("kind", [few(param) for param in KINDS])
def test_observers_do_not_matter(kind):
    watched = go(
        kind(), observe=[fedax.observe.TrainLoss(), fedax.observe.Dissimilarity()], observe_every=2
    )
    assert all(
        np.array_equal(a, b)
        for a, b in zip(state_arrays(watched), state_arrays(straight(kind)), strict=True)
    )


@some_fast
def test_resume_is_the_straight_run(kind):
    """A state saved at round 2 as plain arrays and taken up again ends in the same bits."""
    laws.resumes(method_of(kind))


def reals_of(kind):
    return {
        n: h
        for n, h in declared(kind).items()
        if isinstance(h.default, float) and np.isfinite(h.default)
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if reals_of(kind.values[0])])
def test_vmap_over_hyperparameters_is_the_loop(kind):
    laws.varies_in_a_grid(method_of(kind))


@some_fast
def test_bits_counted_are_bits_traced(kind):
    laws.counts_its_traffic(method_of(kind))


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind in all_algorithms() for name in declared(kind)],
    ids=lambda v: getattr(v, "__name__", v),
)
def test_bad_hyperparameters_are_refused(kind, name):
    limits = declared(kind)[name]
    for value in limits.outside():
        with pytest.raises(
            InvalidInput,
            match=rf"\w+\({name}=\.\.\.\): got .*; allowed: ",
        ) as refusal:
            make_algorithm(kind.__name__, **{name: value})
        assert limits.allowed in str(refusal.value)


@pytest.mark.slow
@every_round
def test_non_finite_client_is_reported(kind):
    """Client 2 cannot compute its loss; the outcome names it and the round."""
    laws.names_a_broken_client(method_of(kind))


@pytest.mark.slow
@every_switch_too
def test_flat_losses_change_nothing(kind):
    """Nobody has a gradient: every multiplier, norm and total weight that can vanish does, and the
    model stays."""
    if isinstance(kind(), fedax.SCAFFOLD) and kind().form == "as_released":
        pytest.skip(
            "its control variates start at random numbers, which move models without a gradient"
        )
    laws.keeps_a_flat_model(method_of(kind))


@pytest.mark.slow
@every_round
def test_round_without_clients_changes_nothing(kind):
    laws.keeps_its_state_without_clients(method_of(kind))


def test_some_rounds_of_that_law_have_no_clients():
    history = go(fedax.FedAvg(), regression(sizes=(4, 5)), 12, laws.SPARSE, observe_every=1)
    assert 0 < (history.bits.up == 0).sum() < 12


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [kind for kind in kinds_of_laws() if kind.citation.reductions], ids=named
)
def test_declared_reductions(kind):
    laws.reduces_as_declared(method_of(kind))
