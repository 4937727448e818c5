"""The laws. Each is a function of a method, which raises `Broken` with what it saw, or
`Skipped`.
"""

import contextlib
import dataclasses
import functools
import inspect
import operator
from collections.abc import Callable
from typing import Any
from unittest import mock

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from fedax.algorithms import make_algorithm
from fedax.communication.codecs import Identity
from fedax.conformance.method import (
    SCHEDULE,
    SIZES,
    Broken,
    Law,
    Method,
    Skipped,
    Test,
    examples_of,
    is_equal,
    least_squares,
    regression,
    require,
    require_close,
    require_equal,
    run_options,
    squares,
    vector,
)
from fedax.conformance.reference import Eager, ReferenceBackend
from fedax.core import SGD, Algorithm, Schedule, Task
from fedax.core.federation import ClientStates, is_states, with_states
from fedax.core.hyper import declared
from fedax.engine.backends.simulation import Simulation
from fedax.engine.driver.run import RunState, run_grid, start
from fedax.engine.round.phase import PhaseWork
from fedax.errors import InvalidInput
from fedax.graphs import Graph
from fedax.observe import TrainLoss

LAWS: dict[str, Law] = {}
"""All laws by name, in the order in which they are tested."""

NEAR = 1e-3
"""The largest distance to the minimum, relative to that of the start, at which an exact method may
be after `LONG` rounds."""
LONG = 400
EVERYTHING = Schedule(steps=2, batch_size="full")
"""All examples of all clients: cohorts and minibatches are drawn by the clients' numbers."""
SPARSE = Schedule(cohort=1, sampling="poisson", steps=1, batch_size=4, order="given")
"""Of two clients with probability 1/2 each, none is drawn in a quarter of the rounds."""


def law(says: str, advice: str) -> Callable[[Test], Test]:
    """Makes a law of a function."""

    def decorate(test: Test) -> Test:
        LAWS[test.__name__] = Law(test.__name__, says, advice, test)
        return test

    return decorate


@law(
    "learns: five rounds lower the training loss",
    "Does `round` return the new state, with the sign of a descent?",
)
def learns(method: Method) -> None:
    losses = method.run(observe=[TrainLoss()]).metrics["train_loss"]
    require(
        losses[-1] < losses[0], f"the training loss went from {losses[0]:.4g} to {losses[-1]:.4g}"
    )


@law(
    "gives the same bits when it runs again, and leaves the data alone",
    "Draw random numbers from `client.key(purpose)` or `fed.key(purpose)`, and keep state in "
    "what `round` returns.",
)
def repeats(method: Method) -> None:
    task = regression()
    # copies, which a run that writes into its data cannot change
    before = [np.array(leaf) for leaf in jax.tree.leaves(task.train)]
    require_equal(
        method.run(task), method.straight, "a second run with the same seed gave another state"
    )
    require(
        all(map(is_equal, before, jax.tree.leaves(task.train))),
        "the run changed the clients' examples",
    )


@law(
    "gives another run with another seed",
    "A random key that is made of a constant is the same in every run.",
)
def follows_the_seed(method: Method) -> None:
    phases = method.footprint.phases
    if all(phase.everyone and not phase.step_gradients for phase in phases):
        raise Skipped("it takes full gradients of all clients, so nothing is random")
    require(
        not is_equal(vector(method.run(seed=4)), vector(method.straight)),
        "two seeds gave the same model",
    )


@law(
    "computes the same step by step in Python",
    "Work functions are pure: what they need is an argument or a field of the algorithm, and "
    "branches on values are `jnp.where`.",
)
def agrees_with_the_reference(method: Method) -> None:
    _require_agreement(method, Eager(), rounds=2)


@law(
    "computes the same with several clients at a time",
    "A work function sees one client: it has no first axis over clients, and no Python branch "
    "on a client's numbers.",
)
def agrees_in_chunks(method: Method) -> None:
    _require_agreement(
        method,
        Simulation(chunk=2, devices=min(2, len(jax.devices())), microbatch=2),
        rounds=5,
    )


def _require_agreement(method: Method, engine: Any, rounds: int) -> None:
    expected = method.run(rounds=rounds)
    actual = method.run(rounds=rounds, engine=engine)
    name = type(engine).__name__
    require_close(expected, actual, f"another model than on the engine {name}")
    same_traffic = all(
        map(is_equal, (expected.bits.up, expected.bits.down), (actual.bits.up, actual.bits.down))
    )
    require(same_traffic, f"other traffic than on the engine {name}")


@law(
    "does not depend on how clients are numbered",
    "Pair values of clients by `ids`, which `gather` returns in the order of its values.",
)
def ignores_the_order(method: Method) -> None:
    algorithm = method.make()
    if getattr(algorithm, "ids", "aligned") not in ("aligned", None):
        raise Skipped("this form pairs clients by their numbers")
    permutation = (3, 0, 4, 2, 1)
    phases = method.footprint.phases
    fields = dict[str, Any]()
    renumbered_fields = dict[str, Any]()
    # other codecs draw by the client's number
    if any(phase.coded for phase in phases) and hasattr(algorithm, "code"):
        fields["code"] = renumbered_fields["code"] = Identity()
    if any(phase.links for phase in phases):
        if not hasattr(algorithm, "graph"):
            raise Skipped("its graph cannot be renumbered: it has no field `graph`")
        fields["graph"] = Graph.ring(5)
        renumbered_fields["graph"] = fields["graph"].renumbered(permutation)
    expected = method.run(hyperparameters=fields, schedule=EVERYTHING)
    renumbered = method.run(regression(order=permutation), renumbered_fields, schedule=EVERYTHING)
    require_close(expected, renumbered, "renumbered clients gave another model")


@law(
    "continues from a saved state to the same bits",
    "All that a round needs is in the state that `round` returns.",
)
def resumes(method: Method) -> None:
    halfway = method.run(rounds=2)
    saved = jax.tree.map(np.asarray, halfway.carry)
    resumed = method.run(resume=dataclasses.replace(halfway, carry=saved))
    require_equal(resumed, method.straight, "two rounds and three more are not five")
    require(
        is_equal(resumed.bits.up, method.straight.bits.up),
        "the traffic after the break is another one",
    )


@law(
    "varies its real hyperparameters within one program",
    "A hyperparameter that decides a Python branch or a shape is declared with `hyper(..., "
    "static=True)`.",
)
def varies_in_a_grid(method: Method) -> None:
    # the defaults, and all reals halved at once
    settings = [{}, method.scaled(0.5)]
    if not settings[1]:
        raise Skipped("it has no real hyperparameters")
    grid = run_grid([method.make(**setting) for setting in settings], regression(), **run_options())
    for setting, history in zip(settings, grid, strict=True):
        require_close(
            history,
            method.run(hyperparameters=setting),
            f"{setting} in a grid is not {setting} alone",
            1e-11,
        )


@law(
    "is compiled once for more rounds and other real hyperparameters",
    "Compare numbers with `jnp.where`, and do not turn them into Python numbers with float() or "
    "int().",
)
def compiles_once(method: Method) -> None:
    values = method.scaled(0.75)
    # what others have compiled already is taken from there
    method.run()
    # called when a program is traced, not in every round
    with recording(method.kind, "round") as calls:
        method.run(hyperparameters=values, observe_every=2, rounds=9, seed=4)
    require(
        not calls.call_count,
        f"`round` was traced {calls.call_count} times more for nine rounds, another seed and "
        f"{values}",
    )


@law(
    "sends what is counted",
    "What a work function uses beside its client comes down as an argument, so that it counts.",
)
def counts_its_traffic(method: Method) -> None:
    algorithm = method.make()
    phases = method.footprint.phases
    links = 0
    if any(phase.links for phase in phases):
        network: Any = getattr(algorithm, "network", None)
        if not callable(network):
            raise Skipped(
                "the links of its graph are not known: it has no method `network(clients)`"
            )
        graph: Any = network(5)
        links = int(np.asarray(graph.degrees).sum())
    # messages of each phase: all links, everyone, or a cohort of three
    senders = [links if phase.links else 5 if phase.everyone else 3 for phase in phases]
    down = sum(phase.down_bits * n for phase, n in zip(phases, senders, strict=True))
    up = sum(phase.up_bits * n for phase, n in zip(phases, senders, strict=True))
    bits = method.straight.bits  # without round 0, in which a method may ask other clients
    sent = set(bits.down.tolist()[1:]), set(bits.up.tolist()[1:])
    require(
        sent == ({down}, {up}),
        f"a round sends {sent[0]} bits down and {sent[1]} up; its trace says {down} and {up}",
    )


@law(
    "keeps what it sends in messages",
    "Pass the value as an argument of the phase, `fed.average(self.train, cohort, value)`: "
    "closures never reach a real device.",
)
def smuggles_nothing(method: Method) -> None:
    with recording(ReferenceBackend, "work") as calls:
        method.run(rounds=2, engine=Eager())
    for call in calls.call_args_list:
        work = call.args[1].work
        if inspect.isfunction(work):
            captured = inspect.getclosurevars(work).nonlocals
        else:
            # a partial function, or a method, whose fields every client has
            captured = dict(enumerate(getattr(work, "args", ()))) | getattr(work, "keywords", {})
        names = [name for name, value in captured.items() if _has_arrays(value)]
        require(not names, f"the work function {work} brings arrays along: {names}")


def _has_arrays(value: Any) -> bool:
    leaves = () if isinstance(value, Algorithm) else jax.tree.leaves(value)
    return any(isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves)


def recording(owner: type, method: str) -> Any:
    """Records the calls of a method in a block."""
    return mock.patch.object(owner, method, autospec=True, side_effect=getattr(owner, method))


@law(
    "leaves the clients' states to work functions, which return new ones",
    "Only a work function sees a state, that of its own client. Return the new one, "
    "`Upload(..., state=new)`, and from `round` what the phase returns: `mean, states = "
    "fed.average(..., states=states)`. Upload what the server needs to know.",
)
def leaves_memories_alone(method: Method) -> None:
    if not any(method.footprint.memory):
        raise Skipped("its clients have no memories")
    steps = start(method.make(), regression(), solver=SGD(0.05), schedule=SCHEDULE, engine=Eager())
    first = state = steps.init()
    with recording(ReferenceBackend, "work") as calls, recording(PhaseWork, "send") as sent:
        for _ in range(4):
            calls.reset_mock()
            # one round twice: with the memories as they are, and with NaN in those of clients
            # outside
            after, _ = steps.step(state)
            worked = [call.args[2].ids for call in calls.call_args_list]
            outside = jnp.asarray(np.setdiff1d(np.arange(5), np.concatenate(worked)))
            poison = functools.partial(_poison, ids=outside)
            after_poisoning, _ = steps.step(RunState(state.round, with_states(state.value, poison)))
            # the rows of clients outside, which hold NaN on one side, get it on both
            expected, actual = (
                jax.tree.leaves(with_states(s.value, poison)) for s in (after, after_poisoning)
            )
            require(
                all(map(is_equal, expected, actual)),
                f"in round {state.round}, clients {outside.tolist()} did not work, and "
                "their memories changed the state",
            )
            state = after
    # values may stay as they are, such as a head that is not trained
    is_returned = any(call.args[2].state is not None for call in sent.call_args_list)
    require(is_returned, "no work function returned a client's state")
    old, new = (
        jax.tree.leaves(eqx.filter(s.value, is_states, is_leaf=is_states)) for s in (first, state)
    )
    is_kept = any(map(operator.is_, old, new))
    require(not is_kept, "`round` gave back the clients' old states")


def _poison(states: ClientStates, ids: jax.Array) -> ClientStates:
    """Puts NaN into the states of some clients."""

    def fill_with_nan(rows: Any) -> Any:
        return jnp.full_like(rows, jnp.nan) if jnp.issubdtype(rows.dtype, jnp.inexact) else rows

    return states.put(ids, jax.tree.map(fill_with_nan, states.take(ids)))


@law(
    "refuses hyperparameters out of their range",
    "Declare each with `hyper(default, low=..., high=..., doc=...)`.",
)
def refuses_bad_hyperparameters(method: Method) -> None:
    for name, limits in declared(method.kind).items():
        for value in limits.outside():
            with contextlib.suppress(InvalidInput):
                method.make(**{name: value})
                raise Broken(
                    f"{method.kind.__name__}({name}={value!r}) was made; allowed: {limits.allowed}."
                )


@law(
    "names the client whose numbers are not finite",
    "A NaN must reach an upload or a state: jnp.nan_to_num, clipping and comparisons hide it.",
)
def names_a_broken_client(method: Method) -> None:
    clients = examples_of(SIZES)
    # predictions of these inputs overflow, and infinities of both signs add up to NaN
    clients[2] = clients[2] | {"x": np.sign(clients[2]["x"]) * 1e308}
    task = least_squares(clients, 0.01, (0.0, 10.0))
    outcome = method.run(task, schedule=EVERYTHING, rounds=3).outcome
    reported = (outcome.kind, outcome.round, outcome.client)
    require(
        reported == ("non-finite", 0, 2),
        f"client 2 computed NaN in round 0, and the outcome is {outcome}",
    )


def _scaled_task(scale: float) -> Task:
    """Returns regression for two clients, whose losses are multiplied by a number in their data."""
    clients = [
        client | {"scale": np.full(len(client["y"]), scale)} for client in examples_of((4, 5))
    ]
    begin = {"b": 1.0, "w": np.ones(3)}
    return dataclasses.replace(Task(begin, _scaled_squares, clients), owner=None)


def _scaled_squares(params: Any, examples: Any) -> Any:
    return examples["scale"] * squares(params, examples)


@law(
    "keeps the model where no client has a gradient",
    "The mean of equal models is equal up to rounding. A sign or a norm of it needs "
    "differences: `Upload(model - w)`. "
    "A division by a norm or by a sum of weights needs a case for zero. Noise comes from "
    "`client.key(purpose)` or `fed.key(purpose)`, never from a constant.",
)
def keeps_a_flat_model(method: Method) -> None:
    # depends on parameters and examples, with gradient 0 everywhere
    history = method.run(_scaled_task(0.0), schedule=SPARSE, rounds=12)
    require(history.outcome.ok, f"without gradients the run ended {history.outcome}")
    distance = np.abs(vector(history) - 1).max()
    require(distance <= 1e-12, f"the model moved by {distance:.2g} without gradients")


@law(
    "keeps its state in a round without clients",
    "Return the given state's fields where nothing was uploaded.",
)
def keeps_its_state_without_clients(method: Method) -> None:
    task = _scaled_task(1.0)
    common = {"schedule": SPARSE, "observe_every": 1}
    history = method.run(task, rounds=0, **common)
    # resumed after every round, to compare the states before and after it
    for t in range(1, 13):
        after = method.run(task, rounds=t, resume=history, **common)
        require(
            after.outcome.ok,
            f"round {t - 1}, in which few clients or none worked, ended {after.outcome}",
        )
        if after.bits.up[-1] == 0:
            require_equal(after, history, f"nobody worked in round {t - 1}, and the state changed")
        history = after


@law(
    "has the special cases that its citation declares",
    "Correct the method, or the `Reduction` on its citation.",
)
def reduces_as_declared(method: Method) -> None:
    reductions = _on_card(method, "reductions")
    if not reductions:
        raise Skipped("its citation declares no reductions")
    for reduction in reductions:
        task = regression(sizes=(8,) * 5) if reduction.equal_sizes else regression()
        other = make_algorithm(reduction.to, **reduction.other)
        reason = f"with {reduction.setting} it is not {reduction.to}"
        require_close(method.run(task, reduction.setting), Method.of(other).run(task), reason)


@law(
    "weighs examples alike: a client split in two changes nothing",
    "Average with the cohort's weights. Uploads with weights of their own and a plain mean of "
    "`gather` ignore p_k.",
)
def weighs_examples_alike(method: Method) -> None:
    if not _on_card(method, "by_examples"):
        raise Skipped("its citation does not say by_examples=True")
    clients = examples_of((6, 3, 12))
    # twelve examples become clients of four and of eight
    halves = [
        {name: values[rows] for name, values in clients[2].items()}
        for rows in (slice(0, 4), slice(4, None))
    ]
    schedule = Schedule(steps=1, batch_size="full")
    unsplit, split = (
        method.run(least_squares(group), schedule=schedule, rounds=1)
        for group in (clients, [*clients[:2], *halves])
    )
    require_close(unsplit, split, "after a step with full gradients", 1e-9)


@law(
    "has the minimum as its fixed point",
    "Look at the sign of a control variate, at a client's state that its work function does not "
    "return, and at means over a cohort that are added to a sum over all clients: they take "
    "the factor `fed.answered.coverage`, over `fed.sample().distinct`: each client once.",
)
def is_exact(method: Method) -> None:
    if not _on_card(method, "exact"):
        raise Skipped("its citation does not say exact=True")
    clients = examples_of((8, 16, 24, 16))
    x, y = (np.concatenate([client[name] for client in clients]) for name in ("x", "y"))
    # least squares for the leaves b and w
    minimum = np.linalg.lstsq(np.column_stack([np.ones(len(y)), x]), y, rcond=None)[0]
    task = least_squares(clients)
    for sampling in ("uniform", "proportional"):
        schedule = Schedule(cohort=2, steps=3, batch_size="full", sampling=sampling)
        history = method.run(
            task, schedule=schedule, rounds=LONG, solver=SGD(0.1), observe_every=LONG
        )
        remaining = np.linalg.norm(vector(history) - minimum) / np.linalg.norm(minimum)
        got = (
            f"after {LONG} rounds with two of four clients ({sampling}), {remaining:.2g} of the "
            "way to the minimum is left"
        )
        require(remaining <= NEAR, f"{got} ({history.outcome})")


def _on_card(method: Method, field: str) -> Any:
    return getattr(getattr(method.kind, "citation", None), field, None)
