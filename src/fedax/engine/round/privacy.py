"""Differential privacy of a run: checks by a trace of the method which phases may be noised, and
adds the noise.

The accounting itself, from releases to epsilon, is in `fedax.communication.accounting`.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from fedax.communication.accounting import Ledger, Release, epsilon_of, noise_of, rounds_of
from fedax.communication.channel import Channel, decode, is_message
from fedax.communication.privacy import (
    Bounded,
    LocalNoise,
    Privacy,
    add_noise,
    add_reference,
    clip_leaves,
)
from fedax.core.algorithm import Algorithm
from fedax.core.federation import Cohort, HiddenMemory, Memory, Upload, with_memories
from fedax.core.hyper import as_arrays, bound_to
from fedax.core.scheduling.sampling import Poisson, Uniform
from fedax.core.scheduling.schedule import Schedule
from fedax.core.solver import SGD
from fedax.core.task import Task
from fedax.core.validation.own_methods import call_init, call_model, call_round, call_work
from fedax.engine.round.backend import PhaseResult, PhaseWork, vectors
from fedax.engine.round.client import Setup
from fedax.engine.round.context import RoundContext
from fedax.engine.round.footprint import Probe, RecordingBackend
from fedax.engine.round.model_state import shared_state
from fedax.errors import InvalidInput
from fedax.utils.layout import Layout, accumulator

FIELD = "Channel(privacy=...)"


class Bounding(eqx.Module):
    """Clips uploads at the server.

    Attributes:
        bounds: of the parts of a phase.
        near: the number of the vector sent down to which the first vector that goes up is near,
            None for none.
    """

    bounds: Float[Array, "parts"]
    near: int | None = eqx.field(static=True)

    def __call__(self, value: PyTree, down: PyTree) -> Bounded:
        """Returns the upload's parts, clipped, as they may be added up."""
        return clip_leaves(value, self.bounds, self.reference(down))

    def reference(self, down: PyTree) -> Float[Array, "dim"] | None:
        """Returns the vector whose difference to the first vector of an upload is clipped."""
        return None if self.near is None else vectors(down)[self.near]


class PrivatePhase(NamedTuple):
    """A phase whose uploads are noised.

    Attributes:
        begin: the place of its first part among those of all phases.
        near: see `Bounding`.
        expected: m, the number of clients that is expected.
        form: one upload's value: shapes, types, and the structure of the pytree.
    """

    begin: int
    near: int | None
    expected: int
    form: tuple[tuple[tuple[tuple[int, ...], str], ...], Any]

    @property
    def parts(self) -> int:
        return len(self.form[0])

    def empty_result(self, client_states: dict[str, Memory]) -> PhaseResult:
        """Returns the result of a phase in which no client took part."""
        # the noise hides an empty cohort, so the round goes on with sums of zero
        shapes, structure = self.form
        value = jax.tree.unflatten(structure, [jnp.zeros(shape, dtype) for shape, dtype in shapes])
        wide = jax.tree.map(lambda x: jnp.asarray(x, accumulator(x.dtype)), value)
        total = Bounded(wide, jnp.zeros(self.parts, jnp.float32))
        return PhaseResult(
            Upload(value), (total, jnp.zeros(())), None, client_states, jnp.zeros(0, jnp.int32)
        )


class Private(NamedTuple):
    """The privacy of a run, static.

    Attributes:
        privacy: as it was asked for.
        phases: by work function and its occurrence in a round.
        clips: C of all parts of a round, at the start.
        ledger: for the accountant.
    """

    privacy: Privacy
    phases: tuple[tuple[tuple[str, int], PrivatePhase], ...]
    clips: tuple[float, ...]
    ledger: Ledger

    @property
    def central(self) -> bool:
        """Whether means are noised; otherwise every upload is, at the client, or nothing is."""
        return self.privacy.where == "server" and not self.privacy.open

    @property
    def adaptive(self) -> bool:
        return self.central and self.privacy.quantile is not None

    def initial_bounds(self) -> Float[Array, "parts"] | None:
        """Returns the bounds of the first round; None where they do not change."""
        return jnp.asarray(self.clips, float) if self.adaptive else None

    def phase(self, phase_work: PhaseWork) -> PrivatePhase:
        """Returns the phase that the work belongs to."""
        return dict(self.phases)[phase_work.name, phase_work.occurrence]

    @property
    def amplified(self) -> bool:
        """Whether epsilon relies on cohorts that are secret outside the server."""
        return bool(self.privacy.noise) and self.ledger.is_sampled

    @property
    def local(self) -> bool:
        """Whether clients add noise to their own uploads."""
        return self.privacy.where == "client" and not self.privacy.open and self.privacy.noise > 0

    def protect(
        self, phase_work: PhaseWork, bounds: Float[Array, "parts"] | None, gaussians: Any = None
    ) -> PhaseWork:
        """Returns the work with clipping, and with the noise of a client (see `LocalNoise`)."""
        if self.privacy.open:
            return phase_work
        phase = self.phase(phase_work)
        own_parts = slice(phase.begin, phase.begin + phase.parts)
        if not self.central:
            return dataclasses.replace(
                phase_work, local=LocalNoise(self.privacy, self.clips[own_parts], gaussians)
            )
        current_bounds = jnp.asarray(self.clips, float) if bounds is None else bounds
        return dataclasses.replace(
            phase_work, bounding=Bounding(current_bounds[own_parts], phase.near)
        )

    def mean(
        self,
        phase: PrivatePhase,
        total: Bounded,
        bounding: Bounding,
        down: PyTree,
        key: Key[Array, ""],
    ) -> PyTree:
        """Returns the noisy mean of the uploads, from their sum."""
        # J parts share the sensitivity, hence sqrt(J)
        share = self.privacy.noise_of_values(phase.expected) * math.sqrt(phase.parts)
        deviations = [share * c for c in bounding.bounds] if share else [0.0] * phase.parts
        values = add_noise(total.value, deviations, jax.random.fold_in(key, 0))
        return add_reference(
            jax.tree.map(lambda x: x / jnp.asarray(phase.expected, x.dtype), values),
            bounding.reference(down),
        )

    def adapt_bounds(
        self,
        phase: PrivatePhase,
        total: Bounded,
        bounds: Float[Array, "parts"],
        key: Key[Array, ""],
    ) -> tuple[Float[Array, "parts"], Float[Array, "some"]]:
        """Returns all bounds after a phase, and the noisy shares of uploads within theirs."""
        privacy, m = self.privacy, phase.expected
        deviation = privacy.count_noise_of(m) * math.sqrt(phase.parts) if privacy.noise else 0.0
        xi = jax.random.normal(jax.random.fold_in(key, 1), (phase.parts,), bounds.dtype)
        # the sum of b - 1/2 is what has noise: b alone would change by 1 with one client, twice
        # what the accountant counts on
        noisy = total.inside.astype(bounds.dtype) + jnp.asarray(deviation, bounds.dtype) * xi
        share = noisy / jnp.asarray(m, bounds.dtype) + jnp.asarray(0.5, bounds.dtype)
        own_parts = slice(phase.begin, phase.begin + phase.parts)
        rate = jnp.asarray(privacy.clip_rate, bounds.dtype)
        return bounds.at[own_parts].multiply(
            jnp.exp(-rate * (share - jnp.asarray(privacy.quantile or 0.0, bounds.dtype)))
        ), share

    def epsilon_after(self, rounds: int) -> float | None:
        """Returns epsilon after some rounds; None without noise, which has no guarantee."""
        if not self.privacy.noise:
            return None
        return epsilon_of(self.ledger, self.privacy.noise, self.privacy.delta, rounds)

    def check_count_noise(self) -> None:
        """Refuses phases with too few clients for the noise of adaptive clipping.

        Raises:
            InvalidInput: there is one.
        """
        for _, phase in self.phases if self.privacy.quantile is not None else ():
            self.privacy.count_noise_of(phase.expected)

    def check_budget(self, rounds: int) -> None:
        """Refuses rounds that spend more than the budget.

        Raises:
            InvalidInput: they do.
        """
        epsilon = self.epsilon_after(rounds)
        if self.privacy.budget < math.inf and (epsilon is None or epsilon > self.privacy.budget):
            allowed = (
                f"numbers >= {math.inf if epsilon is None else epsilon:.4g}, which {rounds} "
                "rounds spend"
            )
            raise InvalidInput.of(
                "Privacy(budget=...)", self.privacy.budget, allowed, "The run has to end here."
            )

    def affordable_rounds(self, rounds: int) -> int:
        """Returns how many of these rounds the budget allows.

        Raises:
            InvalidInput: not even one.
        """
        privacy = self.privacy
        if privacy.budget == math.inf or not rounds:
            return rounds
        max_rounds = rounds_of(self.ledger, privacy.noise, privacy.delta, privacy.budget, rounds)
        if not max_rounds:
            epsilon = epsilon_of(self.ledger, privacy.noise, privacy.delta, 1)
            raise InvalidInput.of(
                "Privacy(budget=...)",
                privacy.budget,
                f"numbers >= {epsilon:.4g}, which one round spends",
            )
        return max_rounds


def private_of(algorithm: Algorithm[Any], setup: Setup) -> Private | None:
    """Returns the privacy of a method's run; None if its channel asks for none.

    Raises:
        InvalidInput: a method, a schedule or a task for which it does not hold, with the reason.
    """
    privacy = None if setup.channel is None else setup.channel.privacy
    if privacy is None:
        return None
    central, name = privacy.where == "server", type(algorithm).__name__
    task, rule = setup.task, setup.schedule.rule
    if task.state is not None and task.state_policy == "average":
        raise _refusal(
            name,
            "the model's state, such as batch statistics, is averaged without noise",
            "Freeze it.",
        )
    if task.encoding is not None and task.encoding.measured:
        hint = "Give from_table numbers that you know: standardize=(means, deviations)."
        raise _refusal(name, "features were standardized by means of all clients' rows", hint)
    if central and setup.schedule.weights != "equal":
        hint = 'Write weights="equal".'
        raise InvalidInput.of(
            "Schedule(weights=...)",
            setup.schedule.weights,
            "'equal' with privacy at the server",
            hint,
        )
    if central and setup.schedule.cohort is not None and not isinstance(rule, Uniform | Poisson):
        reason = (
            "'uniform' or 'poisson' with privacy at the server: otherwise a client's "
            "chance depends on others' sizes"
        )
        raise InvalidInput.of("Schedule(sampling=...)", rule.spelling, reason)
    if privacy.noise and not privacy.open:
        _check_delta(privacy, setup.population.clients)
    # both rounds must have the same phases, because a bound and its noise belong to a phase
    rounds = _trace_two_rounds(algorithm, setup, central, name)
    phases: dict[tuple[str, int], PrivatePhase] = {}
    for traced in (phase for round in rounds for phase in round):
        recorded = phases.get(traced.key)
        phase = PrivatePhase(
            sum(p.parts for p in phases.values()),
            traced.near,
            _expected_clients(traced, setup),
            traced.form,
        )
        # `begin` counts the parts before a phase, which is known after the first time only
        if recorded is not None and recorded._replace(begin=phase.begin) != phase:
            raise _refusal(
                name, f"phase {traced.key[0]} of its first round has another form than later"
            )
        phases.setdefault(traced.key, phase)
    first, later = (
        _releases(round, setup.schedule, setup.population.clients, central) for round in rounds
    )
    clips = privacy.bounds(sum(phase.parts for phase in phases.values()))
    halved = not central or _has_fixed_cohort_size(setup.schedule, setup.population.clients)
    private = Private(privacy, tuple(phases.items()), clips, Ledger(first, later, halved))
    private.check_count_noise()
    return private


def _check_delta(privacy: Privacy, clients: int) -> None:
    """Refuses a delta so large that publishing a random client's data would count as private."""
    if privacy.delta >= 1 / clients:
        raise InvalidInput.of(
            "Privacy(delta=...)",
            privacy.delta,
            f"numbers in (0, 1/{clients}), below one over the number of clients",
        )


def _refusal(name: str, reason: str, hint: str = "") -> InvalidInput:
    return InvalidInput.because(f"{FIELD}, {name}", reason, hint)


class _TracedPhase(NamedTuple):
    """A phase of a traced round.

    Attributes:
        key: name of the work function, and how often it ran before in the round.
        near: see `Bounding`.
        draw: number of the draw in the round that its cohort is from, None for all clients.
        form: shapes and types of an upload's leaves, and their structure.
    """

    key: tuple[str, int]
    near: int | None
    draw: int | None
    form: Any


class _InspectionContext(RoundContext):
    """A round that remembers which draw a cohort is from."""

    @property
    def everyone(self) -> Cohort:
        cohort = super().everyone
        self.backend.everyone_ids.append(cohort.ids)  # type: ignore[attr-defined]
        return cohort

    def sample(self, weights: Any = None) -> Cohort:
        cohort = super().sample(weights)
        self.backend.draws.append(_Draw(cohort.ids, weights is not None))  # type: ignore[attr-defined]
        return cohort


class _Draw(NamedTuple):
    """A draw of a cohort: its clients, and whether the algorithm gave the weights of the draw."""

    ids: Any
    is_weighted: bool


class _OpaqueMemory(Memory):
    """The clients' memories in a traced round, in which the server must not read them."""

    def mean(self, default: PyTree = None) -> PyTree:
        raise InvalidInput.because(FIELD, "a round reads the mean of what clients store")

    def _with(self, rows: PyTree) -> Memory:
        return _OpaqueMemory(rows)


class _InspectionBackend(RecordingBackend):
    """Traces rounds, and refuses methods whose messages noise on a mean would not hide.

    Attributes:
        draws: of the round so far.
        everyone_ids: the clients of each `everyone` of the round so far.
        phases_of_round: of the round so far.
    """

    def __init__(self, setup: Setup, central: bool, name: str) -> None:
        super().__init__(setup)
        self.central, self.name = central, name
        self.draws: list[_Draw] = []
        self.everyone_ids: list[Any] = []
        self.phases_of_round: list[_TracedPhase] = []

    def memory(self, initial: PyTree) -> Memory:
        return _OpaqueMemory(super().memory(initial).all())

    def exchange(
        self,
        phase_work: PhaseWork,
        everyone: Cohort,
        client_states: dict[str, Memory],
        neighbours: Array,
        weights: Array,
    ) -> tuple[PhaseResult, Memory]:
        raise _refusal(self.name, "a method without a server, whose neighbours see single uploads")

    def work(
        self, phase_work: PhaseWork, cohort: Cohort, client_states: dict[str, Memory], gather: bool
    ) -> PhaseResult:
        if gather and self.central:
            hint = 'Choose a method whose server needs means alone, or where="client".'
            reason = (
                f"phase {phase_work.name} gathers single uploads, to which no noise on a "
                "mean applies"
            )
            raise _refusal(self.name, reason, hint)
        down = decode(phase_work.down)[0]
        rows = [client_states["own"].of(cohort.ids[0])] if "own" in client_states else []
        upload = call_work(phase_work.work, Probe(self.setup, phase_work), (*down, *rows))
        self._check_upload(upload, phase_work.name)
        leaves, structure = jax.tree.flatten(upload.value, is_leaf=is_message)
        form = (
            tuple((tuple(jnp.shape(leaf)), str(jnp.result_type(leaf))) for leaf in leaves),
            structure,
        )
        near, draw = (
            self._find_reference(upload, down, phase_work.name),
            self._find_draw(cohort, phase_work.name),
        )
        self.phases_of_round.append(
            _TracedPhase((phase_work.name, phase_work.occurrence), near, draw, form)
        )
        return super().work(phase_work, cohort, client_states, gather)

    def _check_upload(self, upload: Upload[Any], phase: str) -> None:
        """Refuses an upload that is no plain tree of real numbers, which alone are noised."""
        leaves = jax.tree.leaves(upload.value, is_leaf=is_message)
        if upload.weight is not None:
            raise _refusal(
                self.name,
                f"uploads of phase {phase} have weights of their own, by "
                "which one may count for many",
            )
        if any(map(is_message, leaves)):
            raise _refusal(self.name, f"phase {phase} codes its messages itself")
        if not all(jnp.issubdtype(jnp.result_type(leaf), jnp.floating) for leaf in leaves):
            raise _refusal(
                self.name, f"phase {phase} uploads whole numbers, which Gaussian noise does not fit"
            )

    def _find_reference(self, upload: Upload[Any], down: PyTree, phase: str) -> int | None:
        """Returns the number of the vector sent down whose difference to the upload is clipped.

        Returns None without one.
        """
        if upload.reference is None:
            return None
        # by identity: while tracing, a vector that was sent down is the very object that the work
        # function saw
        near = next((i for i, v in enumerate(vectors(down)) if v is upload.reference), None)
        if near is None and self.central:
            raise _refusal(
                self.name,
                f"the reference of uploads of phase {phase} is none of the vectors sent down",
            )
        return near

    def _find_draw(self, cohort: Cohort, phase: str) -> int | None:
        """Returns the number of the draw that a cohort is from.

        Returns None for all clients, where sampling amplifies nothing, and with noise at the
        clients for clients of unknown origin.

        Raises:
            InvalidInput: clients drawn by weights, or at the server clients of unknown origin.
        """
        # by identity, as with references: a cohort keeps the ids of its draw
        number = next((i for i, draw in enumerate(self.draws) if draw.ids is cohort.ids), None)
        if number is not None:
            if self.draws[number].is_weighted:
                raise _refusal(
                    self.name,
                    f"the clients of phase {phase} are drawn by weights that depend on their data",
                )
            return number
        # their expected number is the divisor of the mean, and their chance amplifies the noise.
        # Noise at the clients has neither
        if self.central and not any(ids is cohort.ids for ids in self.everyone_ids):
            raise _refusal(
                self.name, f"it cannot be told from which draw the clients of phase {phase} are"
            )
        return None


def _trace_two_rounds(
    algorithm: Algorithm[Any], setup: Setup, central: bool, name: str
) -> list[list[_TracedPhase]]:
    """Returns the phases of the first round and of a later one, which may differ."""
    # with noise at the server an upload that is not finite counts as 0, and no client is left out
    setup = dataclasses.replace(setup, channel=None, drop=setup.drop and not central)
    backend = _InspectionBackend(setup, central, name)
    rounds: list[list[_TracedPhase]] = []

    def two_rounds() -> None:
        root, w = jax.random.key(0), jnp.zeros(setup.layout.dim, setup.layout.dtype)
        state = call_init(algorithm, _InspectionContext(backend, 0, root), w)
        for t in (0, 1):
            backend.draws, backend.everyone_ids, backend.phases_of_round = [], [], []
            fed = _InspectionContext(backend, t, root, model_state=shared_state(setup.task))
            state = call_round(algorithm, fed, state)
            rounds.append(backend.phases_of_round)
        call_model(algorithm, with_memories(state, lambda _: HiddenMemory()), setup.layout.dim)

    jax.eval_shape(two_rounds)
    return rounds


def _expected_clients(phase: _TracedPhase, setup: Setup) -> int:
    """Returns the number of clients that a phase is expected to have."""
    is_drawn = phase.draw is not None and setup.schedule.cohort is not None
    return int(setup.schedule.cohort or 0) if is_drawn else setup.population.clients


def _releases(
    round: list[_TracedPhase], schedule: Schedule, clients: int, central: bool
) -> tuple[Release, ...]:
    """Returns the releases of a round.

    Sampling amplifies where a client's chance is the same for every draw: Poisson sampling, and
    draws of a fixed number from all clients. Among those who can be reached the chance is larger,
    and who drops out of a fixed draw is not exchangeable.
    """
    phases_by_draw: dict[int | None, int] = {}  # by draw, the number of phases with its clients
    sending = [phase for phase in round if phase.form[0]]  # others release nothing
    for phase in sending:
        phases_by_draw[phase.draw] = phases_by_draw.get(phase.draw, 0) + 1
    poisson = central and schedule.cohort is not None and isinstance(schedule.rule, Poisson)
    fixed = (
        central
        and _has_fixed_cohort_size(schedule, clients)
        and schedule.availability_rule is None
        and not schedule.dropouts
    )
    if not (poisson or fixed):
        # without amplification it does not matter from which draw a sum is
        return (Release(1.0, len(sending)),)
    rate, population = int(schedule.cohort or 0) / clients, clients if fixed else 0
    releases = [
        Release(1.0, times) if draw is None else Release(rate, times, population)
        for draw, times in phases_by_draw.items()
    ]
    return tuple(sorted(releases, reverse=True))


def _has_fixed_cohort_size(schedule: Schedule, clients: int) -> bool:
    """Returns whether cohorts leave some clients out and do not have a random size."""
    return (
        schedule.cohort is not None
        and schedule.cohort < clients
        and isinstance(schedule.rule, Uniform)
    )


def privacy_spent(
    algorithm: Algorithm[Any],
    task: Task,
    *,
    schedule: Schedule,
    privacy: Privacy,
    rounds: int = 100,
) -> float:
    r"""Returns the $\varepsilon$ that a run spends, at the $\delta$ of its privacy.

    Infinity without noise.

    Of one run, between the neighbours that `Privacy` names. Several runs on the same data spend
    more together.

    Args:
        algorithm, task, schedule, rounds: of the run.
        privacy: of its channel.

    >>> import fedax
    >>> task, schedule = (
    ...     fedax.task("digits", clients=50),
    ...     fedax.Schedule(cohort=10, sampling="poisson", weights="equal"),
    ... )
    >>> private = fedax.Privacy(noise=1.0, delta=1e-3)
    >>> round(
    ...     fedax.privacy_spent(
    ...         fedax.FedAvg(), task, schedule=schedule, privacy=private, rounds=20
    ...     ),
    ...     2,
    ... )
    5.23

    Raises:
        InvalidInput: a method or a schedule for which it does not hold.
    """
    private = _build_private(algorithm, task, schedule, privacy)
    return epsilon_of(private.ledger, privacy.noise, privacy.delta, rounds)


def noise_for(
    epsilon: float,
    algorithm: Algorithm[Any],
    task: Task,
    *,
    schedule: Schedule,
    privacy: Privacy,
    rounds: int = 100,
) -> float:
    r"""Returns the noise multiplier with which a run spends at most $\varepsilon$ at its $\delta$.

    Args:
        epsilon: to spend, above 0.
        algorithm, task, schedule, rounds: of the run.
        privacy: of its channel; its own noise does not matter.

    Raises:
        InvalidInput: a method or a schedule for which it does not hold, or options of `privacy`
            that do not fit the noise found, such as `count_noise`.
    """
    without_noise = dataclasses.replace(privacy, noise=0.0)
    private = _build_private(algorithm, task, schedule, without_noise)
    noise = noise_of(private.ledger, epsilon, privacy.delta, rounds)
    # refuses what does not fit this noise, rather than the noise that `privacy` came with
    private._replace(privacy=dataclasses.replace(privacy, noise=noise)).check_count_noise()
    return noise


def _build_private(
    algorithm: Algorithm[Any], task: Task, schedule: Schedule, privacy: Privacy
) -> Private:
    schedule.check_population(np.asarray(task.train.sizes).tolist())
    _check_delta(privacy, task.train.clients)
    layout, channel = (
        Layout.of(jax.eval_shape(task.start, jax.random.key(0))),
        Channel(privacy=privacy),
    )
    algorithm = bound_to(algorithm, task.names, task.train.clients)
    algorithm.check(schedule, np.asarray(task.train.sizes).tolist())
    algorithm.check_model(task, layout)
    algorithm, solver = as_arrays((algorithm, SGD()), layout.dtype)
    private = private_of(
        algorithm, Setup(task, solver, schedule, layout, task.train.population, channel)
    )
    assert private is not None, "asked for"
    return private
