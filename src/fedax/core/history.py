"""The result of a run."""

import dataclasses
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import PyTree

from fedax.core.carry import RunCarry
from fedax.core.directions import Mode, column_name
from fedax.core.task import Task
from fedax.core.traffic import Traffic
from fedax.errors import InvalidInput, UnknownName


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The end of a run: a value, not an exception.

    Attributes:
        kind: `"ok"`, `"stopped"` (early, by `fedax.EarlyStopping` or a budget of privacy, which is
            ok too), `"diverged"` (a stop rule fired), `"non-finite"` (something is NaN or
            infinite), `"interrupted"`.
        round: the round, from 0, in which it happened (None for ok); of `"interrupted"` the first
            one that did not run. As text, rounds are counted from 1.
        client: the client that sent the first non-finite upload, or whose part it is (None
            otherwise).
        name: of that client, None if clients have no names.
        part: the part that is not finite if it is not an upload: `"the state"` or `"the personal
            model"` of the client, `"the server state"`, or an observed loss by its name.
        by_budget: whether a budget of privacy, time or energy ended the run, which a larger one
            continues.
    """

    kind: Literal["ok", "stopped", "diverged", "non-finite", "interrupted"] = "ok"
    round: int | None = None
    client: int | None = None
    part: str | None = None
    name: str | None = None
    by_budget: bool = False

    @property
    def ok(self) -> bool:
        return self.kind in ("ok", "stopped")

    def __str__(self) -> str:
        text = self.kind
        if self.round is not None:
            # rounds are counted from 1 here; that of an interruption is the first that did not run
            number = self.round + (self.kind != "interrupted")
            is_after = self.kind in ("interrupted", "stopped")
            text += f" {'after' if is_after else 'in'} round {number}"
        if self.part is not None:
            text += f", in {self.part}"
        if self.client is not None:
            name = self.client if self.name is None else self.name
            text += f" {'from' if self.part is None else 'of'} client {name}"
        return text


@dataclasses.dataclass(frozen=True)
class Best:
    """The model with the best finite value of a metric among the observations of a run, the first
    of equal ones.

    Attributes:
        metric: by which it is the best.
        round: rounds completed then.
        value: of the metric.
        params: the model, in the user's own pytree.
        state: its state then, such as batch statistics, see `History.final_state`.
    """

    metric: str
    round: int
    value: float
    params: PyTree
    state: PyTree = dataclasses.field(repr=False, default=None)


class ClockReadings(NamedTuple):
    """What a run has taken on its virtual clock at each observation, shape (observations,).

    Attributes:
        seconds: from the start of the run.
        joules: of all clients together.
    """

    seconds: np.ndarray
    joules: np.ndarray


class RunDetails(NamedTuple):
    """What is known of a run beside its numbers and models.

    Attributes:
        algorithm: the name of its class.
        clients: their names, in their order; None if they have no names.
        settings: algorithm, solver, schedule and channel as plain values.
        origin: what the results depend on, as plain values, texts and hashes by name; with privacy
            without hashes of the data. `run(resume=history)` compares it with its own arguments.
        modes: by metric, `"max"` where more is better, `"min"` where less is; only metrics whose
            observer or task states it.
        predictor: the task that predicts, without its examples.
        final_state: see `History.final_state`.
        personal_state: the states in which clients use their own models, such as batch statistics
            after fine-tuning, with a first axis (clients,); None if training changes no state.
    """

    algorithm: str = ""
    clients: tuple[str, ...] | None = None
    settings: dict[str, Any] | None = None
    origin: dict[str, Any] | None = None
    modes: Mapping[str, Mode] = MappingProxyType({})
    predictor: Task | None = None
    final_state: PyTree = None
    personal_state: PyTree = None


SECONDS = "round_seconds"
JOULES = "round_joules"
"""Notes of a run with devices: what each round takes on the virtual clock."""


def clock_after(logged: Mapping[str, np.ndarray]) -> ClockReadings | None:
    """Returns what a run has taken after 0, 1, 2, ... rounds, by what it logged.

    Rounds that it took without devices cost nothing. None if all did.
    """
    if SECONDS not in logged:
        return None
    totals = [np.concatenate([[0.0], np.nancumsum(logged[name])]) for name in (SECONDS, JOULES)]
    return ClockReadings(*totals)


SHOWN_ROWS = 8
"""Observations of a history that is printed, and the last one."""


def is_by_client(metric: str, values: np.ndarray, clients: Sequence[str] | None = None) -> bool:
    """Returns whether a metric has one number for each client.

    `clients` are their names, if known.
    """
    has_client_axis = np.ndim(values) == 2 and metric.startswith(("client_", "local_"))
    return has_client_axis and (clients is None or values.shape[1] == len(clients))


@dataclasses.dataclass(frozen=True, repr=False)
class History:
    """The course of a run. `print` shows a short table, and a notebook the curves too.

    Attributes:
        rounds: rounds completed at each observation, starting with 0 (the initial model). Shape
            (observations,).
        metrics: by name, what the observers saw, first axis (observations,).
        logged: by name, what the algorithm reported with `log`, first axis (rounds,). With
            `run(..., on_bad_client="drop")` also `dropped`: the numbers of the clients that each
            round left out, ascending, filled up with -1. With `run(..., clock=...)` also
            `round_seconds` and `round_joules`.
        params: the final global model, in the user's own pytree.
        bits: exact traffic of every round.
        outcome: how it ended.
        seconds: wall time of each observation since the call, with the checks, the placing of the
            data on devices and compilation.
        carry: what `run(..., resume=history)` continues from: the algorithm's `state` after the
            last round and what else a `RunCarry` has. With privacy it has nothing of what clients
            store, here and in the other attributes.
        details: names, settings and what else is known of the run, see `RunDetails`.
        best: with `run(..., keep_best=metric)` or early stopping, the best model by that metric
            among the observed ones.
        personal: with `run(..., personal=True)`, the models that the clients use themselves, in the
            user's own pytree with a first axis (clients,).
    """

    rounds: np.ndarray
    metrics: dict[str, np.ndarray]
    logged: dict[str, np.ndarray]
    params: PyTree
    bits: Traffic
    outcome: Outcome
    seconds: np.ndarray
    carry: RunCarry
    details: RunDetails
    best: Best | None = None
    personal: PyTree = None

    def __repr__(self) -> str:
        head = f"{self.algorithm}: {len(self.bits.up)} rounds, {self.outcome}"
        table = self._shown.to_string(index=False, float_format="{:.6g}".format)
        return f"{head}\n{table}" if len(self.rounds) else head

    def _repr_html_(self) -> str:
        """Returns the curves and a table, for notebooks."""
        svg = io.StringIO()
        if self._curves:
            self.plot().savefig(svg, format="svg")
        return svg.getvalue() + self._shown.to_html(index=False)

    @property
    def algorithm(self) -> str:
        """The name of the algorithm's class."""
        return self.details.algorithm

    @property
    def state(self) -> PyTree:
        """The algorithm's state after the last round."""
        return self.carry.state

    @property
    def model_state(self) -> PyTree:
        """What the final model updates without a gradient, such as batch statistics, if that
        changes: a pytree, or the clients' states of theirs.
        """
        return self.carry.model_state

    @property
    def final_state(self) -> PyTree:
        """The model's state in which the final model is evaluated, None if it has none: of states
        that clients keep, their mean, or with privacy the initial one.
        """
        return self.details.final_state

    @property
    def clock(self) -> ClockReadings | None:
        """The seconds and joules of `run(clock=...)` at the observations, computed and not
        measured.

        None without devices. With an asynchronous server the joules of clients that are still at
        work are not counted.
        `History.seconds` is the wall time.
        """
        readings = clock_after(self.logged)
        return readings and ClockReadings(*(values[self.rounds] for values in readings))

    def save(self, path: str | Path) -> None:
        """Writes the final model to a file of safetensors.

        `fedax.load_params` and `load_state` read it.

        With its state, such as batch statistics, if it has one: see `final_state`.

        Raises:
            InvalidInput: another ending.
            WriteFailed: a file that cannot be written.
        """
        import fedax  # core is below the rooms that write and show a history

        about = {
            "algorithm": self.algorithm,
            "rounds": len(self.bits.up),
            "outcome": str(self.outcome),
        }
        fedax.save_params(self.params, path, about=about, state=self.final_state)

    def state_dict(self) -> dict[str, Any]:
        """Returns parameters and buffers of a PyTorch module as tensors, by their names.

        Adapters of `fedax.lora` are added to the weights.

        Buffers that training does not change are not among them, nor second names of tied
        parameters: a module with such takes them by `load_state_dict(..., strict=False)`.
        """
        import torch  # pyright: ignore[reportMissingImports]

        merge = getattr(self.params, "merged", None)
        params = self.params if merge is None else merge()
        arrays = {**params, **(self.final_state or {})}
        return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}

    def predict(self, x: Any, *, best: bool = False) -> np.ndarray:
        """Returns the predictions of the final model for new inputs, one row for each example.

        They are the probabilities of all classes for classifiers, else what the task's own function
        returns.

        Args:
            x: see `Task.predict`.
            best: whether the best model predicts, see `History.best`.

        Raises:
            InvalidInput: a task without predictions, or no best model.
            DataError: inputs that do not fit the training examples.

        Example:
            >>> import fedax
            >>> task = fedax.task("synthetic", clients=3)
            >>> history = fedax.run(fedax.FedAvg(), task, rounds=1)
            >>> history.predict(task.train.arrays["x"][:5]).argmax(1).shape
            (5,)
        """
        predictor = self.details.predictor
        if predictor is None:
            hint = "Use task.predict(history.params, x)."
            raise InvalidInput.because(
                "History.predict", "this history was not returned by fedax.run", hint
            )
        if not best:
            return predictor.at(self.final_state).predict(self.params, x)
        if self.best is None:
            hint = "Pass run(keep_best=...)."
            raise InvalidInput.because(
                "History.predict(best=True)", "the run kept no best model", hint
            )
        return predictor.at(self.best.state).predict(self.best.params, x)

    @property
    def _curves(self) -> dict[str, np.ndarray]:
        """The metrics that are one number for each observation."""
        return {name: values for name, values in self.metrics.items() if np.ndim(values) == 1}

    @property
    def _shown(self) -> Any:
        """Some observations as a data frame, the last one among them."""
        last = len(self.rounds) - 1
        step = last // SHOWN_ROWS + 1
        return self.to_pandas().iloc[[*range(0, last, step), last]]

    def plot(self, *metrics: str) -> Any:
        """Plots some metrics, or all that are one number, against rounds, by Matplotlib.

        Raises:
            UnknownName: a metric that the run does not have.
        """
        import fedax

        return fedax.plot(self, *metrics)

    def to_pandas(self) -> Any:
        """The observations as a data frame of pandas: round, seconds, bits so far, and all metrics
        that are one number.

        Accuracies are fractions from 0 to 1, as in `metrics`, and their columns say so:
        `test_accuracy (fraction)`. `fedax.table` gives percent.
        """
        import pandas as pd  # takes long to import

        columns = {
            "round": self.rounds,
            "seconds": self.seconds,
            "bits": self.bits.cumulative[self.rounds],
        }
        if self.clock is not None:
            columns |= {
                "clock_seconds": self.clock.seconds,
                "clock_joules": self.clock.joules,
            }
        return pd.DataFrame(
            columns | {column_name(name): values for name, values in self._curves.items()}
        )

    def by_client(self, metric: str) -> dict[str, np.ndarray]:
        """Returns a metric that has a number for each client, by the client's name, or its number
        where clients have no names.

        Args:
            metric: such as `"client_accuracy"`.

        Returns:
            For each client the values at all observations.

        Raises:
            UnknownName: a metric that the run does not have, or that is not one number for each
                client.
        """
        clients = self.details.clients
        known = [
            name for name, values in self.metrics.items() if is_by_client(name, values, clients)
        ]
        if metric not in known:
            raise UnknownName.among("History.by_client(metric)", metric, known)
        values = self.metrics[metric]
        names = clients or map(str, range(values.shape[1]))
        return dict(zip(names, values.T, strict=True))

    def last(self, metric: str) -> float:
        """Returns the final value of a scalar metric.

        Raises:
            UnknownName: a metric that the run does not have, or that has a number for each client.
        """
        if metric not in self._curves:
            raise UnknownName.among("History.last(metric)", metric, self._curves)
        return float(self._curves[metric][-1])
