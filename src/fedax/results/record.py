"""The record of a run: its curves, without model and state."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedax.core import History, Outcome, UnknownName
from fedax.core.directions import Mode
from fedax.errors import printable
from fedax.observe.modes import mode_of

AUDITED = ", membership inference"
"""After a variant's title: the task in which it is attacked."""


@dataclasses.dataclass(frozen=True)
class Record:
    """One run of one algorithm on one task.

    Attributes:
        task: title of the task.
        label: title of the algorithm, unique within the task.
        seed: seed of the run.
        draw: seed of the data.
        rounds: rounds completed at each observation, shape (observations,).
        seconds: wall time since the start, shape (observations,).
        bits: traffic so far, both directions, all participants, shape (observations,).
        metrics: by name, first axis (observations,).
        outcome: how it ended.
        gradients: expected minibatch gradients of one client so far, shape (observations,); None if
            not known.
        settings: the configuration that it was made with, as plain values; None if not known.
        versions: of the libraries and the machine that it was made with, and JAX's settings; None
            if not known.
        clients: the names of the clients, None if they have none.
        modes: directions of metrics, as far as the built-in observers do not state them; None if
            there are none.
        time, energy: seconds and joules so far on the virtual clock, shape (observations,); None
            without devices.
        models: by name (`""` is the final one), the arrays of models that are to be kept in files
            beside the record; empty in a record that is read.
    """

    task: str
    label: str
    seed: int
    draw: int
    rounds: np.ndarray
    seconds: np.ndarray
    bits: np.ndarray
    metrics: dict[str, np.ndarray]
    outcome: Outcome
    gradients: np.ndarray | None = None
    settings: dict[str, Any] | None = None
    versions: dict[str, Any] | None = None
    clients: Sequence[str] | None = None
    modes: dict[str, Mode] | None = None
    time: np.ndarray | None = None
    energy: np.ndarray | None = None
    models: Mapping[str, Mapping[str, np.ndarray]] = dataclasses.field(
        default_factory=dict, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        """Writes control characters of names out, which may come from files of others."""
        vars(self).update(
            task=printable(self.task),
            label=printable(self.label),
            metrics={printable(name): values for name, values in self.metrics.items()},
            clients=self.clients and [printable(name) for name in self.clients],
        )

    @classmethod
    def of(
        cls,
        history: History,
        *,
        task: str = "",
        label: str = "",
        seed: int = 0,
        draw: int = 0,
        gradients: float | None = None,
    ) -> "Record":
        """Returns the record of a finished run; `gradients` are the expected minibatch gradients of
        one client and round.

        Where clients were left out, the metric `dropped` says how many uploads so far. The value
        `gap` of methods that step along the shortest combination is the metric `frank_wolfe_gap`,
        of the last round before each observation.
        """
        rounds = history.rounds
        logged = history.logged
        details = history.details
        # by rounds completed; the first number is that of the initial model
        counted: dict[str, np.ndarray] = {}
        if "dropped" in logged:
            # client numbers by round, filled up with -1
            counted["dropped"] = np.cumsum([0, *(logged["dropped"] >= 0).sum(1)]).astype(float)
        if np.ndim(logged.get("gap", 0)) == 1:
            # there is no gap before the first round
            counted["frank_wolfe_gap"] = np.array([np.nan, *logged["gap"]])
        # only what the built-in observers do not state
        modes: dict[str, Mode] = {
            name: mode for name, mode in details.modes.items() if mode_of(name) != mode
        }
        return cls(
            task=task,
            label=label,
            seed=seed,
            draw=draw,
            rounds=rounds,
            seconds=history.seconds,
            bits=history.bits.cumulative[rounds],
            metrics=history.metrics | {name: values[rounds] for name, values in counted.items()},
            outcome=history.outcome,
            gradients=None if gradients is None else rounds * gradients,
            settings=details.settings,
            clients=details.clients,
            modes=modes or None,
            time=None if history.clock is None else history.clock.seconds,
            energy=None if history.clock is None else history.clock.joules,
        )

    @property
    def scalars(self) -> dict[str, np.ndarray]:
        """The metrics that are one number per observation."""
        return {name: values for name, values in self.metrics.items() if values.ndim == 1}

    @property
    def lost(self) -> bool:
        """Whether the run has no final value: a stop rule found that it diverged, or something was
        not finite.
        """
        return self.outcome.kind in ("diverged", "non-finite")

    @property
    def diverged(self) -> bool:
        """Whether the run diverged: it was stopped for that, is not finite, or ended above its
        initial training loss.

        Tables, grids, claims and summaries count runs by this. What such a run is worth in a metric
        is another question: one that has a final value counts with it, one that has none as the
        worst of its task.
        """
        losses = self.metrics.get("train_loss")
        # `not <=` rather than `>`, so that NaN counts as risen
        rose = losses is not None and not losses[-1] <= losses[0]
        return self.lost or bool(rose)

    @property
    def ending(self) -> str:
        """The end of the run: `ok`, `diverged`, `interrupted`, with the round where it is known."""
        if self.outcome.ok and self.diverged:
            return "diverged: above its initial loss"
        return (
            f"diverged: {self.outcome}" if self.outcome.kind == "non-finite" else str(self.outcome)
        )


def describe_endings(records: Iterable[Record]) -> str:
    """Returns how runs ended: `ok`, or how many in which way."""
    endings = Counter(record.ending for record in records)
    return ", ".join(
        f"{count} {ending}" if len(endings) > 1 else ending for ending, count in endings.items()
    )


def finished(records: Iterable[Record]) -> list[Record]:
    """Returns the runs that came to their end: means are of these, and curves too where there are
    any.
    """
    return [record for record in records if record.outcome.kind != "interrupted"]


def check_metrics(records: Iterable[Record], metrics: Iterable[str]) -> None:
    """Refuses metrics that no run has."""
    known = {name: None for record in records for name in record.scalars}
    for metric in metrics:
        if metric not in known:
            raise UnknownName.among("metric", metric, known)


def by_label(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Groups runs by algorithm, in the order of first appearance."""
    return _group(records, lambda record: record.label)


def by_task(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Groups runs by task, in the order of first appearance."""
    return _group(records, lambda record: record.task)


def _group(records: Iterable[Record], key: Callable[[Record], str]) -> dict[str, list[Record]]:
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return groups
