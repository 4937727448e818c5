"""Differential privacy of a run: the stages that clip uploads and add noise, and what rounds spend.

Which phases may be noised is checked in `fedax.engine.round.privacy`; the accounting itself, from
releases to epsilon, is in `fedax.communication.accounting`.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from fedax.communication.accounting import Ledger, epsilon_of, rounds_of
from fedax.communication.privacy import Bounded, Privacy, add_noise, add_reference, clip_leaves
from fedax.core.client import Client
from fedax.core.federation import ClientStates, Upload
from fedax.engine.round.phase import PhaseResult, Sending, Stage, vectors, zeros
from fedax.errors import InvalidInput


class PrivatePhase(NamedTuple):
    """A phase whose uploads are noised.

    Attributes:
        begin: the place of its first part among those of all phases.
        near: the number of the vector sent down to which the first vector that goes up is near,
            None for none.
        expected: m, the number of clients that is expected.
        form: one upload's value: its leaves, and the structure of the pytree.
    """

    begin: int
    near: int | None
    expected: int
    form: tuple[tuple[jax.ShapeDtypeStruct, ...], Any]

    @property
    def size(self) -> int:
        """How many parts an upload has."""
        return len(self.form[0])

    @property
    def parts(self) -> slice:
        """Its parts among those of all phases."""
        return slice(self.begin, self.begin + self.size)


class LocalNoise(Stage):
    """Clips and noises an upload at the client, before anything leaves it.

    Attributes:
        privacy: with `where="client"`.
        bounds: C of every part of this phase.
        begin: the place of its first part among those of all phases.
        gaussians: for each part standard Gaussian numbers from the operating system, for one
            message of a deployed client; None in a simulation, whose noise follows from the seed.
    """

    privacy: Privacy
    bounds: tuple[float, ...] = eqx.field(static=True)
    begin: int = eqx.field(static=True)
    gaussians: Any = None

    def send(self, client: Client, sending: Sending) -> Sending:
        near = sending.reference
        # work functions of a round share a client's streams, and need noise of their own
        key = client.key(f"privacy {self.begin}")
        clipped = clip_leaves(sending.value, jnp.asarray(self.bounds, float), near).value
        # J parts together are one mechanism of multiplier z, so each has sqrt(J) times its noise
        multiplier = self.privacy.noise * math.sqrt(len(self.bounds))
        deviations = [multiplier * c for c in self.bounds]
        value = add_reference(add_noise(clipped, deviations, key, self.gaussians), near)
        return sending._replace(value=value)


class CentralNoise(Stage):
    """Clips uploads at the server, and adds noise to their mean.

    The mean is divided by the expected number of clients: the actual one would leak.

    Attributes:
        privacy: with `where="server"`.
        phase: whose uploads they are.
        bounds: C of every part of this phase.
    """

    privacy: Privacy
    phase: PrivatePhase = eqx.field(static=True)
    bounds: Float[Array, "parts"]

    def open(self, value: PyTree, down: PyTree) -> Bounded:
        """Returns the upload's parts, clipped, as they may be added up."""
        return clip_leaves(value, self.bounds, self._reference(down))

    def _reference(self, down: PyTree) -> Float[Array, "dim"] | None:
        """Returns the vector whose difference to the first vector of an upload is clipped."""
        return None if self.phase.near is None else vectors(down)[self.phase.near]

    def empty(self, client_states: dict[str, ClientStates]) -> PhaseResult:
        # the noise hides an empty cohort, so the round goes on with sums of no rows
        forms, structure = self.phase.form
        value = jax.tree.unflatten(structure, forms)
        parts = Bounded(zeros(value, 0), jnp.zeros((0, self.phase.size), jnp.float32))
        rows = parts, jnp.zeros(0)
        return PhaseResult(Upload(value), None, rows, client_states, jnp.zeros(0, jnp.int32))

    def mean(
        self,
        result: PhaseResult,
        down: PyTree,
        key: Callable[[PyTree], Key[Array, ""]],
        bounds: Float[Array, "parts"] | None,
    ) -> tuple[PyTree, Float[Array, "parts"] | None, Float[Array, "some"] | None]:
        total = result.sums[0]
        noise_key = key((total, self.bounds))
        # J parts share the sensitivity, hence sqrt(J)
        share = self.privacy.noise_of_values(self.phase.expected) * math.sqrt(self.phase.size)
        deviations = [share * c if share else 0.0 for c in self.bounds]
        noisy = add_noise(total.value, deviations, jax.random.fold_in(noise_key, 0))
        means = jax.tree.map(lambda x: x / jnp.asarray(self.phase.expected, x.dtype), noisy)
        mean = add_reference(means, self._reference(down))
        value = jax.tree.map(lambda x, like: x.astype(like.dtype), mean, result.form)
        if bounds is None:
            return value, None, None
        privacy = self.privacy
        m = self.phase.expected
        deviation = 0.0
        if privacy.noise:
            deviation = privacy.count_noise_of(m) * math.sqrt(self.phase.size)
        xi = jax.random.normal(jax.random.fold_in(noise_key, 1), (self.phase.size,), bounds.dtype)
        # the sum of b - 1/2 is what has noise: b alone would change by 1 with one client, twice
        # what the accountant counts on
        noisy = total.inside.astype(bounds.dtype) + jnp.asarray(deviation, bounds.dtype) * xi
        share = noisy / jnp.asarray(m, bounds.dtype) + jnp.asarray(0.5, bounds.dtype)
        rate = jnp.asarray(privacy.clip_rate, bounds.dtype)
        excess = share - jnp.asarray(privacy.quantile or 0.0, bounds.dtype)
        return value, bounds.at[self.phase.parts].multiply(jnp.exp(-rate * excess)), share


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
        """Whether means are noised; otherwise every upload is, at the client."""
        return self.privacy.where == "server"

    @property
    def local(self) -> bool:
        """Whether clients add noise to their own uploads."""
        return self.privacy.where == "client" and self.privacy.noise > 0

    @property
    def amplified(self) -> bool:
        """Whether epsilon relies on cohorts that are secret outside the server."""
        return bool(self.privacy.noise) and self.ledger.is_sampled

    def initial_bounds(self) -> Float[Array, "parts"] | None:
        """Returns the bounds of the first round; None where they do not change."""
        is_adaptive = self.central and self.privacy.quantile is not None
        return jnp.asarray(self.clips, float) if is_adaptive else None

    def stage(
        self,
        work: str,
        occurrence: int,
        bounds: Float[Array, "parts"] | None = None,
        gaussians: Any = None,
    ) -> Stage:
        """Returns the stage that protects a phase.

        Args:
            work, occurrence: of the phase.
            bounds: of adaptive clipping.
            gaussians: see `LocalNoise`.
        """
        phase = dict(self.phases)[work, occurrence]
        if not self.central:
            return LocalNoise(self.privacy, self.clips[phase.parts], phase.begin, gaussians)
        all_bounds = jnp.asarray(self.clips, float) if bounds is None else bounds
        return CentralNoise(self.privacy, phase, all_bounds[phase.parts])

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
            self.check_budget(1)
        return max_rounds
