"""Which phases of a method may be noised, by its trace, and what they release."""

import collections
import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from fedax.communication.accounting import Ledger, Release
from fedax.communication.channel import is_message
from fedax.core.federation import ClientStates, HiddenStates, with_states
from fedax.core.scheduling.sampling import Poisson, Uniform
from fedax.core.scheduling.schedule import Schedule
from fedax.core.validation.own_methods import call_model
from fedax.engine.round.client import Setup
from fedax.engine.round.phase import refuse
from fedax.engine.round.private import Private, PrivatePhase
from fedax.engine.round.trace import TracedPhase, trace
from fedax.errors import InvalidInput

FIELD = "Channel(privacy=...)"


def private_of(setup: Setup) -> Private | None:
    """Returns the privacy of a method's run; None if its channel asks for none.

    Raises:
        InvalidInput: a method, a schedule or a task for which it does not hold, with the reason.
    """
    privacy = None if setup.channel is None else setup.channel.privacy
    if privacy is None:
        return None
    central = privacy.where == "server"
    algorithm = setup.algorithm
    refusal = f"{FIELD}, {type(algorithm).__name__}"
    task = setup.task
    rule = setup.schedule.sampling
    weights = setup.schedule.weights
    depends_on_sizes = setup.schedule.cohort is not None and not isinstance(rule, Uniform | Poisson)
    refuse(
        refusal,
        {
            "the model's state, such as batch statistics, is averaged without noise; freeze "
            "it": task.state is not None and task.state_policy == "average",
            "features were standardized by means of all clients' rows; give numbers that you know, "
            "`standardize` of from_table's columns, or those published": task.data.measured,
            'privacy at the server asks for Schedule(weights="equal")': central
            and weights != "equal",
            'privacy at the server asks for Schedule(sampling="uniform") or "poisson": otherwise a '
            "client's chance depends on others' sizes": central and depends_on_sizes,
        },
    )
    clients = setup.population.clients
    # otherwise publishing a random client's data would count as private
    if privacy.noise and privacy.delta >= 1 / clients:
        allowed = f"numbers in (0, 1/{clients}), below one over the number of clients"
        raise InvalidInput.of("Privacy(delta=...)", privacy.delta, allowed)
    # a bound and its noise belong to a phase, so both rounds must have the same phases. With noise
    # at the server an upload that is not finite counts as 0, and no client is left out
    bare = dataclasses.replace(setup, channel=None, drop=setup.drop and not central)
    traced = trace(bare, (0, 1), states=_OpaqueStates)
    phases: dict[tuple[str, int], PrivatePhase] = {}
    for phase in (phase for round in traced.rounds for phase in round):
        _check_phase(phase, central, refusal)
        key = phase.name, phase.occurrence
        begin = sum(p.size for p in phases.values())
        leaves, structure = jax.tree.flatten(phase.upload.value)
        is_drawn = isinstance(phase.draw, int) and setup.schedule.cohort is not None
        expected = int(setup.schedule.cohort or 0) if is_drawn else clients
        private_phase = PrivatePhase(begin, phase.near, expected, (tuple(leaves), structure))
        # `begin` counts the parts before a phase, which is known after the first time only
        recorded = phases.setdefault(key, private_phase)
        reason = f"phase {phase.name} of its first round has another form than later"
        refuse(refusal, {reason: recorded._replace(begin=begin) != private_phase})
    # the model must not depend on what clients store, which no noise covers
    hidden = with_states(traced.state, lambda _: HiddenStates())
    jax.eval_shape(lambda state: call_model(algorithm, state, setup.layout.dim), hidden)
    first, later = (
        _releases(round, setup.schedule, setup.population.clients, central)
        for round in traced.rounds
    )
    clips = privacy.bounds(sum(phase.size for phase in phases.values()))
    halved = not central or _has_fixed_cohort_size(setup.schedule, setup.population.clients)
    private = Private(privacy, tuple(phases.items()), clips, Ledger(first, later, halved))
    private.check_count_noise()
    return private


class _OpaqueStates(ClientStates):
    """The clients' states in a traced round, in which the server must not read them."""

    def mean(self, default: PyTree = None) -> PyTree:
        raise InvalidInput.because(FIELD, "a round reads the mean of what clients store")

    def _with(self, rows: PyTree) -> ClientStates:
        return _OpaqueStates(rows)


def _check_phase(phase: TracedPhase, central: bool, refusal: str) -> None:
    """Refuses a phase whose messages noise would not hide.

    Raises:
        InvalidInput: names the phase and the reason.
    """
    leaves = jax.tree.leaves(phase.upload.value, is_leaf=is_message)
    is_coded = any(map(is_message, leaves))
    is_real = is_coded or all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves)
    is_foreign = phase.upload.reference is not None and phase.near is None
    reasons = {
        "a method without a server, whose neighbours see single uploads": phase.links,
        f"phase {phase.name} gathers single uploads, to which no noise on a mean applies; choose "
        'a method whose server needs means alone, or where="client"': phase.gather and central,
        f"uploads of phase {phase.name} have weights of their own, by which one may count for "
        "many": phase.upload.weight is not None,
        f"phase {phase.name} codes its messages itself": is_coded,
        f"phase {phase.name} uploads whole numbers, which Gaussian noise does not fit": not is_real,
        f"the reference of uploads of phase {phase.name} is none of the vectors sent down": central
        and is_foreign,
        f"the clients of phase {phase.name} are drawn by weights that depend on their "
        "data": phase.draw == "weighted",
        # their expected number is the divisor of the mean, and their chance amplifies the noise;
        # noise at the clients has neither
        f"it cannot be told from which draw the clients of phase {phase.name} are": central
        and phase.draw is None,
    }
    refuse(refusal, reasons)


def _releases(
    round: list[TracedPhase], schedule: Schedule, clients: int, central: bool
) -> tuple[Release, ...]:
    """Returns the releases of a round.

    Sampling amplifies where a client's chance is the same for every draw: Poisson sampling, and
    draws of a fixed number from all clients. Among those who can be reached the chance is larger,
    and who drops out of a fixed draw is not exchangeable.
    """
    # by draw, the number of phases with its clients; those that send nothing release nothing
    phases_by_draw = collections.Counter(
        phase.draw for phase in round if jax.tree.leaves(phase.upload.value)
    )
    poisson = central and schedule.cohort is not None and isinstance(schedule.sampling, Poisson)
    fixed = (
        central
        and _has_fixed_cohort_size(schedule, clients)
        and schedule.conditions.availability is None
        and not schedule.conditions.dropouts
    )
    if not (poisson or fixed):
        # without amplification it does not matter from which draw a sum is
        return (Release(1.0, phases_by_draw.total()),)
    rate = int(schedule.cohort or 0) / clients
    population = clients if fixed else 0
    releases = [
        Release(rate, times, population) if isinstance(draw, int) else Release(1.0, times)
        for draw, times in phases_by_draw.items()
    ]
    return tuple(sorted(releases, reverse=True))


def _has_fixed_cohort_size(schedule: Schedule, clients: int) -> bool:
    """Returns whether cohorts leave some clients out and do not have a random size."""
    return (
        schedule.cohort is not None
        and schedule.cohort < clients
        and isinstance(schedule.sampling, Uniform)
    )
