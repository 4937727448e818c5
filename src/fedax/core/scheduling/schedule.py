"""The schedule of a run: who works in a round, and how much."""

import dataclasses
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Literal, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from fedax.core.federation import Cohort
from fedax.core.hyper import check_declared, hyper
from fedax.core.scheduling.asynchronous import Asynchronous
from fedax.core.scheduling.availability import Availability
from fedax.core.scheduling.local_work import LocalWork, can_happen, single
from fedax.core.scheduling.sampling import (
    Drawn,
    ProportionalWithoutReplacement,
    Sampling,
    Uniform,
    first,
    weighted_subset,
    weighted_subset_among,
)
from fedax.errors import InvalidInput
from fedax.utils.random import Index, stream


class Schedule(LocalWork):
    r"""The clients that work in a round (`Sampling`), and how much they do (`LocalWork`).

    A pair stands for a number drawn anew for every client and round, uniformly from all whole
    numbers between the two, both included; all phases of a round see the same draw.

    >>> hybrid = Schedule(cohort=10, epochs=(2, 5), batch_size=(10, "all"))  # FedAWARE's Hybrid+
    >>> Schedule(
    ...     times=(1, 2, 4, 8), batch_size="full"
    ... ).rounds  # local GD that communicates at these steps
    4

    Args:
        cohort: clients drawn by one `sample()`; None means everyone. From 1 to the number of
            clients.
        sampling: the rule, a `Sampling` or its name. `"uniform"` draws without replacement (weights
            $n_k$), `"proportional"` with replacement with probability $p_k = n_k/n$ (equal weights,
            with which a mean is an unbiased estimate of $\sum_k p_k$),
            `"proportional_without_replacement"` one after the other from those that are left, with
            probability $p_k$ over their sum (equal weights: the simple average of FedProx and
            FedDANE, Alg. 2. It is not unbiased, because a large client is drawn less often than
            `cohort` times $p_k$, and a small one more often), `"poisson"` each client with
            probability `cohort / clients` (weights $n_k$; a round in which nobody is drawn leaves
            the state as it was). A rule other than `"uniform"` needs a `cohort`, except with an
            asynchronous server, which also chooses by it who starts next.
        epochs: passes over the client's examples in one round; at least 1, or a pair. Ignored if
            `steps` or `times` is given.
        epoch_steps: how epochs become steps: `"ceil"` ends every epoch with a batch that may be
            short, $E \lceil n_k / B \rceil$ steps; `"floor"` takes $\lfloor E n_k / B \rfloor$
            steps, at least one, as FedAWARE's paper has it, also where B is more than $n_k$. Its
            next epoch too begins after a batch that may be short.
        steps: minibatch steps in one round, at least 1, over as many epochs as they need; or a
            pair.
        batch_size: examples of a minibatch, at least 1, or `"full"`, or a pair whose second number
            may be `"all"` of the client's examples. The last batch of an epoch may be short.
        order: `"shuffled"` anew in every epoch, or `"given"`.
        times: the synchronisation times $t_1 < t_2 < \dots$ of local gradient descent, in steps
            from 0: round r (from 1) has $t_r - t_{r-1}$ steps, with $t_0 = 0$. Excludes `steps`;
            there are as many rounds as times.
        stragglers: the probability, in [0, 1], that a client does only part of its work: a uniform
            draw from 1 up to its epochs (or its steps, if the schedule is in steps).
        sync_probability: p in [1e-6, 1]: after every step a coin that all clients share says with
            probability p that the round ends, as in ProxSkip. A round has a geometric number of
            steps, 1/p in the mean and the same for all clients, drawn from the run's seed. Excludes
            `steps`, `times` and `stragglers`; `epochs` is ignored.
        dropouts: the probability, in [0, 1), that a drawn client never answers; it counts as not
            drawn. Phases with everyone wait for everyone.
        availability: the clients who can be reached, an `Availability`, or as files spell it,
            `{"name": "daily", "fraction": 0.5}` or `{"name": "trace", "file": "trace.csv"}`. A
            cohort is drawn among those; if they are fewer, it is all of them, and in a round in
            which nobody is there the state stays. `History.logged` counts who was `available`, and
            `drawn`. Phases with everyone wait for everyone.
        weights: `"size"` for the objective $\sum_k \frac{n_k}{n} f_k$, `"equal"` for
            $\frac1N \sum_k f_k$ (not with proportional sampling).
        over_select: asks this many times `cohort` clients, rounded up, at most all, and takes the
            first `cohort` answers; at least 1. Needs `run(clock=...)`, as `deadline` does.
        deadline: seconds after which a round ends on the virtual clock, above 0, with the answers
            that have come; None to wait for all. Clients that are late are left out as if they had
            dropped out, but what they were sent counts as traffic. In a round without any answer
            the state stays. Fast clients count more often with both options, so that means are
            biased towards them. Not with sampling that draws a client twice, with several phases or
            with `asynchronous`. `History.logged` counts who was `late`.
        asynchronous: an `Asynchronous` server, or a table of its arguments. A round is a server
            step then, and its cohort are the clients whose uploads it takes: the first `cohort`
            ones that arrive. Not with other sampling than `"uniform"` and
            `"proportional_without_replacement"`, nor with `dropouts`, `availability` and
            `sync_probability`.
    """

    _: dataclasses.KW_ONLY
    cohort: int | None = hyper(None, kind=int, low=1, optional=True)
    sampling: Sampling | str = eqx.field(static=True, default="uniform", converter=Sampling.of)
    dropouts: float = hyper(0.0, low=0.0, high=1.0, open_high=True)
    availability: Availability | dict[str, Any] | str | None = eqx.field(
        static=True,
        default=None,
        converter=lambda value: value if value is None else Availability.of(value),
    )
    weights: Literal["size", "equal"] = hyper("size", choices=("size", "equal"))
    over_select: float = hyper(1.0, static=True, low=1.0)
    deadline: float | None = hyper(
        None, kind=float, static=True, low=0.0, open_low=True, optional=True
    )
    asynchronous: Asynchronous | dict[str, Any] | None = eqx.field(
        static=True,
        default=None,
        converter=lambda value: value if value is None else Asynchronous.of(value),
    )

    def __check_init__(self) -> None:
        check_declared(self)
        for name, allowed in self._conflicts().items():
            raise InvalidInput.of(f"Schedule({name}=...)", self.options[name], allowed)

    def _conflicts(self) -> dict[str, str]:
        """Returns the arguments that do not fit the others, and what would."""
        conflicts: dict[str, str] = {}
        rule = self.rule
        if self.times is not None and self.steps is not None:
            conflicts["times"] = "None if steps is given"
        if self.sync_probability is not None and (
            self.steps is not None or self.times is not None or self.stragglers
        ):
            conflicts["sync_probability"] = "None with steps, times or stragglers"
        # size-proportional sampling already weighs clients by size
        if self.weights == "equal" and rule.by_size:
            conflicts["weights"] = f"'size' with sampling={rule.spelling!r}"
        if self.over_select > 1 and self.cohort is None:
            conflicts["over_select"] = "1 without a cohort, with which all clients are asked"
        if self.cutoff_field is not None and self.cohort is not None and rule.repeats:
            conflicts["sampling"] = "sampling without replacement, with over_select and deadline"
        if self.server is None:
            if self.cohort is None and type(rule) is not Uniform:
                conflicts["sampling"] = "'uniform' without a cohort, with which all clients work"
            return conflicts
        # an asynchronous server waits for no cohort, but chooses by the rule who starts next
        if not isinstance(rule, Uniform | ProportionalWithoutReplacement):
            names = "'uniform' or 'proportional_without_replacement'"
            conflicts["sampling"] = f"{names} with an asynchronous server: nobody works twice"
        for name in ("dropouts", "over_select", "deadline", "availability", "sync_probability"):
            default = type(self).__dataclass_fields__[name].default
            if getattr(self, name) != default:
                conflicts[name] = f"{default} with an asynchronous server"
        return conflicts

    def __repr__(self) -> str:
        """Returns the arguments that differ from the defaults, with long lists cut in the
        middle.
        """
        texts: list[str] = []
        options = self.options
        for field in dataclasses.fields(self):
            text = repr(options[field.name])
            if len(text) > 60:
                text = f"{text[:40]} ... {text[-12:]}"
            if options[field.name] != field.default:
                texts.append(f"{field.name}={text}")
        return f"Schedule({', '.join(texts)})"

    def check_population(self, sizes: Sequence[int], couples: bool = False) -> None:
        """Refuses a cohort larger than the population, and more local steps of a round than a
        32-bit number counts.

        Args:
            sizes: examples of each client.
            couples: whether minibatches are full, as for models with a state. Then one of all
                examples of a client is refused where the clients' numbers differ: a compiled
                program would fill it to the largest client's, a process of its own would not.
        """
        clients = len(sizes)
        self.check_steps(max(sizes))
        if couples and isinstance(self.top_batch, str) and min(sizes) < max(sizes):
            allowed = "a number, for a model with a state and clients of unequal sizes"
            raise InvalidInput.of("Schedule(batch_size=...)", self.batch_size, allowed)
        if self.availability_rule is not None:
            self.availability_rule.check(clients)
        if self.cohort is not None and self.cohort > clients:
            allowed = f"1 to {clients}, the number of clients, or None"
            raise InvalidInput.of("Schedule(cohort=...)", self.cohort, allowed)
        if self.server is not None:
            self.server.check(clients, self.capacity(clients))

    @property
    def rule(self) -> Sampling:
        """The sampling rule."""
        return cast(Sampling, self.sampling)

    @property
    def availability_rule(self) -> Availability | None:
        """The rule of availability, None if all clients are always available."""
        return cast(Availability | None, self.availability)

    @property
    def options(self) -> dict[str, Any]:
        """All arguments as experiment files spell them."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return values | {
            "sampling": self.rule.spelling,
            "availability": self.availability_rule and self.availability_rule.spelling,
            "asynchronous": self.server and self.server.spelling,
        }

    @property
    def server(self) -> Asynchronous | None:
        """The asynchronous server, None if the server waits for its cohorts."""
        return cast(Asynchronous | None, self.asynchronous)

    @property
    def weights_equal(self) -> bool:
        """Whether the mean over a drawn cohort estimates sum_k p_k with equal weights (else with
        weights n_k).
        """
        return self.cohort is not None and self.rule.by_size

    @property
    def may_be_empty(self) -> bool:
        """Whether it may happen that nobody works in a round."""
        return (
            can_happen(self.dropouts)
            or self.deadline is not None
            or self.availability_rule is not None
            or (self.cohort is not None and self.rule.may_be_empty)
        )

    @property
    def cutoff_field(self) -> str | None:
        """The option by which the server does not wait for all clients, for messages; None if it
        waits.
        """
        if self.deadline is not None:
            return "Schedule(deadline=...)"
        return "Schedule(over_select=...)" if self.over_select > 1 else None

    def invitation(self, clients: int) -> "Schedule":
        """Returns the schedule that draws the clients whom a round asks, of whom some may be late.

        >>> Schedule(cohort=10, over_select=1.1).invitation(100).cohort
        11
        """
        asked = self.cohort
        if asked is not None:
            # exactly, as decimals: 1.1 times 10 is more than 11 in floating point
            asked = min(math.ceil(Fraction(str(self.over_select)) * asked), clients)
        return dataclasses.replace(self, cohort=asked, over_select=1.0, deadline=None)

    def available_in(
        self, root: Key[Array, ""], round: Index, clients: int
    ) -> Bool[Array, "clients"] | None:
        """Returns which clients are available in a round of a run, None for all."""
        rule = self.availability_rule
        # named by the round alone, so that all draws of a round see the same clients
        key = stream(root, "available", round)
        return None if rule is None else rule.available(key, round, clients)

    def capacity(self, clients: int) -> int:
        """Returns the largest number of clients that `draw` can return."""
        return clients if self.cohort is None else self.rule.capacity(self.cohort, clients)

    def draw(
        self,
        key: Key[Array, ""],
        offsets: Int[Array, "bounds"],
        weights: Float[Array, "clients"] | None = None,
        available: Bool[Array, "clients"] | None = None,
    ) -> tuple[Int[Array, "capacity"], Int[Array, ""] | int]:
        """Draws a cohort: client ids, and how many of them count (the rest is padding).

        See `Federation.sample` for `weights`.

        `available` says which clients are available, None for all.
        """
        ids, count = self._draw_invited(key, offsets, weights, available)
        if not can_happen(self.dropouts):
            return ids, count
        # from another stream than the draw, so that drop-outs do not change who is drawn
        draws = jax.random.uniform(jax.random.fold_in(key, 1), ids.shape, jnp.float32)
        is_drawn = jnp.arange(ids.shape[0], dtype=jnp.int32) < count
        return first(ids, is_drawn & (draws >= single(self.dropouts)))

    def weigh(
        self,
        ids: Int[Array, "capacity"],
        count: Index,
        share: Float[Array, "capacity"],
        clients: int,
        is_sampled: bool,
    ) -> Cohort:
        """Returns clients as a cohort with their weights.

        `share` is their n_k / n, and `is_sampled` says that this schedule's sampling drew them.
        """
        equal = self.weights == "equal"
        objective = jnp.ones_like(share) if equal else share
        # a draw by size has the sizes in it, so that its weights are equal
        weights = jnp.ones_like(share) if is_sampled and self.weights_equal else objective
        terms = jnp.where(jnp.arange(ids.shape[0], dtype=jnp.int32) < count, objective, 0)
        if is_sampled and self.cohort is not None and self.rule.repeats:
            # a client's first draw comes first, and padding after those that work
            order = jnp.argsort(ids, stable=True)
            is_repeat = jnp.diff(ids[order], prepend=-1) == 0
            # the objective has each client once, however often it was drawn
            terms = terms.at[order].mul(jnp.where(is_repeat, 0, 1).astype(terms.dtype))
        # over everyone, shares sum to 1 and equal weights to the number of clients
        return Cohort(ids, count, weights, terms, terms.sum() / (clients if equal else 1))

    def _draw_invited(
        self,
        key: Key[Array, ""],
        offsets: Int[Array, "bounds"],
        weights: Float[Array, "clients"] | None,
        available: Bool[Array, "clients"] | None,
    ) -> Drawn:
        clients = offsets.shape[0] - 1
        if self.cohort is None:
            everyone = jnp.arange(clients, dtype=jnp.int32)
            return (everyone, clients) if available is None else first(everyone, available)
        # weights given by the method replace the rule of sampling
        if weights is not None:
            if available is None:
                return weighted_subset(key, weights, self.cohort), self.cohort
            return weighted_subset_among(key, weights, self.cohort, available)
        if available is not None:
            return self.rule.among(key, offsets, self.cohort, available)
        return self.rule.draw(key, offsets, self.cohort)


def as_inputs(schedules: Sequence[Schedule]) -> tuple[Schedule, ...]:
    """Returns schedules that differ in probabilities only, with those that differ as arrays.

    One compiled program can then serve them all. Probabilities that are equal stay constants of
    the program.

    >>> one, other = as_inputs([Schedule(dropouts=0.0), Schedule(dropouts=0.5)])
    >>> float(other.dropouts), other.stragglers
    (0.5, 0.0)
    """
    # the leaves of a schedule are its probabilities
    rows = [jax.tree.leaves(schedule) for schedule in schedules]
    differs = [len(set(column)) > 1 for column in zip(*rows, strict=True)]
    inputs = list[Schedule]()
    for row, schedule in zip(rows, schedules, strict=True):
        # of NumPy, because a Python number would give an array of weak type
        leaves = [
            jnp.asarray(np.asarray(value, float)) if varies else value
            for value, varies in zip(row, differs, strict=True)
        ]
        inputs.append(jax.tree.unflatten(jax.tree.structure(schedule), leaves))
    return tuple(inputs)
