"""The schedule of a run: who works in a round, and how much."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from fedax.core.federation import Cohort
from fedax.core.hyper import Scalar, check_declared, hyper
from fedax.core.scheduling.asynchronous import Asynchronous
from fedax.core.scheduling.conditions import Conditions, spelled
from fedax.core.scheduling.sampling import (
    ProportionalWithoutReplacement,
    Sampling,
    Uniform,
    first,
    weighted_subset,
)
from fedax.errors import InvalidInput
from fedax.utils.numbers import are_counts, python_numbers
from fedax.utils.random import Index, stream


class Work(NamedTuple):
    """One client's local work in one round: minibatch steps, and the examples of a full
    minibatch.
    """

    steps: Index
    batch: Index


class Schedule(eqx.Module):
    r"""The clients that work in a round, and how much they do.

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
        sync_probability: p in [1e-6, 1]: after every step a coin that all clients share says with
            probability p that the round ends, as in ProxSkip. A round has a geometric number of
            steps, 1/p in the mean and the same for all clients, drawn from the run's seed. Excludes
            `steps`, `times` and `stragglers`; `epochs` is ignored.
        weights: `"size"` for the objective $\sum_k \frac{n_k}{n} f_k$, `"equal"` for
            $\frac1N \sum_k f_k$ (not with proportional sampling).
        conditions: what keeps clients from answering, or from all of their work: `Conditions`, or a
            table of its arguments.
        asynchronous: an `Asynchronous` server, or a table of its arguments. A round is a server
            step then, and its cohort are the clients whose uploads it takes: the first `cohort`
            ones that arrive. Not with other sampling than `"uniform"` and
            `"proportional_without_replacement"`, nor with `sync_probability` and with conditions
            other than `stragglers`.
    """

    _: dataclasses.KW_ONLY
    cohort: int | None = hyper(None, kind=int, low=1, optional=True)
    sampling: Sampling = eqx.field(static=True, default="uniform", converter=Sampling.of)
    epochs: int | tuple[int, int] = hyper(1, low=1, pair=())
    epoch_steps: Literal["ceil", "floor"] = hyper("ceil", choices=("ceil", "floor"))
    steps: int | tuple[int, int] | None = hyper(None, kind=int, low=1, pair=(), optional=True)
    batch_size: int | tuple[int, int | str] | Literal["full"] = hyper(
        32, low=1, pair=("all",), words=("full",)
    )
    order: Literal["shuffled", "given"] = hyper("shuffled", choices=("shuffled", "given"))
    times: tuple[int, ...] | None = eqx.field(static=True, default=None, converter=python_numbers)
    sync_probability: float | None = hyper(None, kind=float, low=1e-6, high=1.0, optional=True)
    weights: Literal["size", "equal"] = hyper("size", choices=("size", "equal"))
    asynchronous: Asynchronous | None = eqx.field(
        static=True, default=None, converter=Asynchronous.of
    )
    conditions: Conditions = eqx.field(default=Conditions(), converter=Conditions.of)

    def __check_init__(self) -> None:
        check_declared(self)
        for name, allowed in self._conflicts().items():
            owner = "Schedule" if hasattr(self, name) else "Conditions"
            raise InvalidInput.of(f"{owner}({name}=...)", self.options[name], allowed)

    def _conflicts(self) -> dict[str, str]:
        """Returns the arguments that do not fit the others, and what would."""
        conflicts: dict[str, str] = {}
        rule = self.sampling
        times = self.times
        if times is not None and self.steps is not None:
            conflicts["times"] = "None if steps is given"
        elif times is not None and not (
            times and are_counts(*times) and list(times) == sorted(set(times))
        ):
            conflicts["times"] = "rising whole numbers from 1 on, or None"
        if self.sync_probability is not None and (
            self.steps is not None or self.times is not None or self.conditions.stragglers
        ):
            conflicts["sync_probability"] = "None with steps, times or stragglers"
        # size-proportional sampling already weighs clients by size
        if self.weights == "equal" and rule.by_size:
            conflicts["weights"] = f"'size' with sampling={rule.spelling!r}"
        if self.conditions.over_select > 1 and self.cohort is None:
            conflicts["over_select"] = "1 without a cohort, with which all clients are asked"
        if self.timed_field is not None and self.cohort is not None and rule.repeats:
            conflicts["sampling"] = "sampling without replacement, with over_select and deadline"
        if self.asynchronous is None:
            if self.cohort is None and type(rule) is not Uniform:
                conflicts["sampling"] = "'uniform' without a cohort, with which all clients work"
            return conflicts
        # an asynchronous server waits for no cohort, but chooses by the rule who starts next
        if not isinstance(rule, Uniform | ProportionalWithoutReplacement):
            names = "'uniform' or 'proportional_without_replacement'"
            conflicts["sampling"] = f"{names} with an asynchronous server: nobody works twice"
        options = self.options
        defaults = Schedule().options
        for name in ("dropouts", "over_select", "deadline", "availability", "sync_probability"):
            if options[name] != defaults[name]:
                conflicts[name] = f"{defaults[name]} with an asynchronous server"
        return conflicts

    def __repr__(self) -> str:
        return spelled(self, self.options)

    def check_population(self, sizes: Sequence[int], couples: bool = False) -> None:
        """Refuses a cohort larger than the population, and a minibatch that would differ between
        engines.

        Args:
            sizes: examples of each client.
            couples: whether minibatches are full, as for models with a state. Then one of all
                examples of a client is refused where the clients' numbers differ: a compiled
                program would fill it to the largest client's, a process of its own would not.
        """
        clients = len(sizes)
        top = self.batch_size[1] if isinstance(self.batch_size, tuple) else self.batch_size
        if couples and isinstance(top, str) and min(sizes) < max(sizes):
            allowed = "a number, for a model with a state and clients of unequal sizes"
            raise InvalidInput.of("Schedule(batch_size=...)", self.batch_size, allowed)
        if self.conditions.availability is not None:
            self.conditions.availability.check(clients)
        if self.cohort is not None and self.cohort > clients:
            allowed = f"1 to {clients}, the number of clients, or None"
            raise InvalidInput.of("Schedule(cohort=...)", self.cohort, allowed)
        if self.asynchronous is not None:
            self.asynchronous.check(clients, self.capacity(clients))

    @classmethod
    def of(cls, options: dict[str, Any]) -> "Schedule":
        """Makes a schedule of `options`, arguments as experiment files spell them."""
        names = {field.name for field in dataclasses.fields(Conditions)}
        own = {key: value for key, value in options.items() if key not in names}
        return cls(**own, conditions={key: options[key] for key in names & options.keys()})

    @property
    def options(self) -> dict[str, Any]:
        """All arguments as experiment files spell them, those of its conditions among them."""
        values = dict(vars(self))
        conditions = values.pop("conditions").options
        server = self.asynchronous and self.asynchronous.spelling
        return values | conditions | {"sampling": self.sampling.spelling, "asynchronous": server}

    @property
    def may_be_empty(self) -> bool:
        """Whether it may happen that nobody works in a round."""
        return (
            can_happen(self.conditions.dropouts)
            or self.conditions.deadline is not None
            or self.conditions.availability is not None
            or (self.cohort is not None and self.sampling.may_be_empty)
        )

    @property
    def timed_field(self) -> str | None:
        """The option by which the server does not wait for all clients, for messages; None if it
        waits.
        """
        if self.asynchronous is not None:
            return "Schedule(asynchronous=...)"
        if self.conditions.deadline is not None:
            return "Conditions(deadline=...)"
        return "Conditions(over_select=...)" if self.conditions.over_select > 1 else None

    def invitation(self, clients: int) -> "Schedule":
        """Returns the schedule that draws the clients whom a round asks, of whom some may be late.

        >>> Schedule(cohort=10, conditions={"over_select": 1.1}).invitation(100).cohort
        11
        """
        asked = self.cohort
        if asked is not None:
            # 1.1 times 10 is more than 11 in floating point
            asked = min(math.ceil(round(self.conditions.over_select * asked, 6)), clients)
        conditions = dataclasses.replace(self.conditions, over_select=1.0, deadline=None)
        return dataclasses.replace(self, cohort=asked, conditions=conditions)

    def available_in(
        self, root: Key[Array, ""], round: Index, clients: int
    ) -> Bool[Array, "clients"] | None:
        """Returns which clients are available in a round of a run, None for all."""
        rule = self.conditions.availability
        # named by the round alone, so that all draws of a round see the same clients
        key = stream(root, "available", round)
        return None if rule is None else rule.available(key, round, clients)

    def capacity(self, clients: int) -> int:
        """Returns the largest number of clients that `draw` can return."""
        return clients if self.cohort is None else self.sampling.capacity(self.cohort, clients)

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
        clients = offsets.shape[0] - 1
        if self.cohort is None:
            ids = jnp.arange(clients, dtype=jnp.int32)
            count = clients
            if available is not None:
                ids, count = first(ids, available)
        # weights given by the method replace the rule of sampling
        elif weights is not None:
            ids, count = weighted_subset(key, weights, self.cohort, available)
        elif available is not None:
            ids, count = self.sampling.among(key, offsets, self.cohort, available)
        else:
            ids, count = self.sampling.draw(key, offsets, self.cohort)
        if not can_happen(self.conditions.dropouts):
            return ids, count
        # from another stream than the draw, so that drop-outs do not change who is drawn
        draws = jax.random.uniform(jax.random.fold_in(key, 1), ids.shape, jnp.float32)
        is_drawn = jnp.arange(ids.shape[0], dtype=jnp.int32) < count
        return first(ids, is_drawn & (draws >= single(self.conditions.dropouts)))

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
        is_drawn = is_sampled and self.cohort is not None
        # a draw by size has the sizes in it, so that its weights are equal
        weights = jnp.ones_like(share) if is_drawn and self.sampling.by_size else objective
        terms = jnp.where(jnp.arange(ids.shape[0], dtype=jnp.int32) < count, objective, 0)
        if is_drawn and self.sampling.repeats:
            # a client's first draw comes first, and padding after those that work
            order = jnp.argsort(ids, stable=True)
            is_repeat = jnp.diff(ids[order], prepend=-1) == 0
            # the objective has each client once, however often it was drawn
            terms = terms.at[order].mul(jnp.where(is_repeat, 0, 1).astype(terms.dtype))
        # over everyone, shares sum to 1 and equal weights to the number of clients
        return Cohort(ids, count, weights, terms, terms.sum() / (clients if equal else 1))

    @property
    def rounds(self) -> int | None:
        """The most rounds there can be; None for any number."""
        return None if self.times is None else len(self.times)

    @property
    def drawn(self) -> bool:
        """Whether a client's work is a matter of chance that other clients do not share."""
        return can_happen(self.conditions.stragglers) or any(
            isinstance(v, tuple) for v in (self.epochs, self.steps, self.batch_size)
        )

    def widest(self, largest: int, filled: bool = False) -> int:
        """Returns the largest possible minibatch, if no client has more than `largest` examples.

        Args:
            largest: examples.
            filled: whether clients with fewer examples than a minibatch repeat them.
        """
        batch = self._batches(largest)[-1]
        return batch if filled else min(batch, largest)

    def work(
        self, key: Key[Array, ""], size: Index, round: Index, shared: Key[Array, ""] | None = None
    ) -> Work:
        """Draws the work of a client with `size` examples in one round.

        Args:
            key: the client's random stream of that round.
            size: its examples.
            round: the number of the round.
            shared: a random stream of that round that all clients have in common, needed for
                `sync_probability`.
        """
        # one key for each draw, whether it is made or not: an option does not change the others'
        # draws
        keys = jax.random.split(key, 4) if self.drawn else (key,) * 4
        batch_key, amount_key, straggler_key, part_key = keys
        if self.batch_size == "full":
            batch = size
        elif isinstance(self.batch_size, tuple):
            low, top = self.batch_size
            # a client with fewer than `low` examples has one batch of all of them
            high = jnp.asarray(size) if isinstance(top, str) else jnp.minimum(top, size)
            batch = jax.random.randint(batch_key, (), jnp.minimum(low, size), high + 1, jnp.int32)
        else:
            batch = self.batch_size
        amount: Any = self.epochs if self._is_in_epochs else self.steps
        if self.times is not None:
            # `times` counts steps from the start of the run
            amount = jnp.diff(jnp.asarray((0, *self.times), jnp.int32))[round]
        if self.sync_probability is not None:
            assert shared is not None, "clients without a common stream"
            amount = self._draw_geometric(shared)
        if isinstance(amount, tuple):
            amount = jax.random.randint(amount_key, (), amount[0], amount[1] + 1, jnp.int32)
        if can_happen(self.conditions.stragglers):
            is_late = jax.random.uniform(straggler_key, (), jnp.float32) < single(
                self.conditions.stragglers
            )
            partial_amount = jax.random.randint(
                part_key, (), 1, jnp.asarray(amount, jnp.int32) + 1, jnp.int32
            )
            amount = jnp.where(is_late, partial_amount, amount)
        return Work(self._count_steps(amount, size, batch, jnp.maximum), batch)

    def _draw_geometric(self, key: Key[Array, ""]) -> Index:
        """Draws the steps up to and including the first of which a coin says that it ends the
        round.
        """
        tail = self._log_tail
        if isinstance(tail, float) and tail == -math.inf:
            return 1
        # in (0, 1], so that the logarithm is finite
        uniform = 1 - jax.random.uniform(key, (), jnp.float32)
        # inverts the geometric law: more than k steps have the probability (1 - p)^k
        return 1 + jnp.floor(jnp.log(uniform) / single(tail)).astype(jnp.int32)

    @property
    def _log_tail(self) -> float | Float[Array, ""]:
        """The logarithm of the probability that a coin does not end the round."""
        p = self.sync_probability
        assert p is not None, "no coins"
        # within a sweep p is a traced array
        if not isinstance(p, int | float):
            return jnp.log1p(-p)
        return -math.inf if p == 1 else math.log1p(-p)

    @property
    def _is_in_epochs(self) -> bool:
        return self.steps is None and self.times is None and self.sync_probability is None

    def _count_steps(
        self, amount: Any, size: Index, batch: Any, larger: Callable[..., Any] = np.maximum
    ) -> Any:
        """Returns the steps of an amount of work, which is in epochs or in steps already."""
        if not self._is_in_epochs:
            return amount
        if self.epoch_steps == "ceil":
            return amount * -(-size // batch)
        if isinstance(self.batch_size, tuple):
            # B of the formula is the number of the schedule, also where a client has fewer examples
            batch = larger(batch, self.batch_size[0])
        # over all epochs at once: a short last batch is not rounded up in each of them
        # amount * size // batch, of which the product may need more than 32 bits
        rest = amount * (size % batch) // batch
        return larger(amount * (size // batch) + rest, 1)

    def most_steps(self, largest: int) -> Any:
        """Returns the most steps of a round, if no client has more than `largest` examples."""
        if self.sync_probability is not None:
            # the steps that the smallest uniform number above 0 gives
            return 1 + int(math.log(2.0**-24) / self._log_tail)
        # the most epochs, at the smallest batch
        return self._count_steps(self._amount_bounds[1], largest, self._batches(largest)[0])

    def equal_steps(self, sizes: Sequence[int]) -> bool:
        """Returns whether clients of these sizes always take equally many steps."""
        if self.sync_probability is not None:
            return True
        least, most = self._amount_bounds
        if can_happen(self.conditions.stragglers):
            least = 1
        steps = {
            self._count_steps(amount, size, batch)
            for amount in (least, most)
            for size in (min(sizes), max(sizes))
            for batch in self._batches(size)
        }
        return len(steps) == 1

    def mean_steps(self, size: int) -> float:
        """Returns the expected steps of a round of a client with `size` examples.

        With `times` it is the mean over all rounds.
        """
        amount = sum(self._amount_bounds) / 2
        if self.times is not None:
            # the last time is the number of all steps
            amount = self.times[-1] / len(self.times)
        if self.sync_probability is not None:
            amount = 1 / self.sync_probability
        # a straggler does a uniform part
        lost_share = self.conditions.stragglers * (1 - (amount + 1) / (2 * amount))
        amount *= 1 - lost_share
        return float(np.mean(self._count_steps(amount, size, np.array(self._batches(size)))))

    def mean_epoch(self, size: int) -> float:
        """Returns the expected minibatches in an epoch of a client with `size` examples."""
        return float(np.mean(-(-size // np.array(self._batches(size)))))

    @property
    def _amount_bounds(self) -> tuple[int, int]:
        """The least and the most epochs, or steps, of a round; with `times` both are the steps of
        the longest round.
        """
        if self.times is not None:
            longest = max(b - a for a, b in itertools.pairwise((0, *self.times)))
            return longest, longest
        amount = self.epochs if self.steps is None else self.steps
        return amount if isinstance(amount, tuple) else (amount, amount)

    def _batches(self, size: int) -> range:
        """Returns all B, equally likely, from which the steps of a client with `size` examples may
        follow.

        It is the schedule's number, which may be more than `size`; a drawn number is at most
        `size` where the pair allows that.
        """
        batch = size if self.batch_size == "full" else self.batch_size
        low, top = batch if isinstance(batch, tuple) else (batch, batch)
        most = size if isinstance(top, str) else min(top, size)
        return range(low, max(low, most) + 1)


def as_inputs(schedules: Sequence[Schedule]) -> tuple[Schedule, ...]:
    """Returns schedules that differ in probabilities only, with those that differ as arrays.

    One compiled program can then serve them all. Probabilities that are equal stay constants of
    the program.

    >>> one, other = as_inputs([Schedule(conditions={"dropouts": p}) for p in (0.0, 0.5)])
    >>> float(other.conditions.dropouts), other.conditions.stragglers
    (0.5, 0.0)
    """
    # the leaves of a schedule are its probabilities
    differs = jax.tree.map(lambda *values: len(set(values)) > 1, *schedules)

    def convert(value: float, varies: bool) -> float | Array:
        # of NumPy, because a Python number would give an array of weak type
        return jnp.asarray(np.asarray(value, float)) if varies else value

    return tuple(jax.tree.map(convert, schedule, differs) for schedule in schedules)


def can_happen(probability: float | Float[Array, ""]) -> bool:
    """Returns whether an event can happen. One whose probability differs within a sweep can."""
    return not isinstance(probability, int | float) or probability > 0


def single(value: float | Float[Array, ""]) -> Scalar:
    """Returns a number that single-precision draws are compared with."""
    return value if isinstance(value, int | float) else value.astype(jnp.float32)
