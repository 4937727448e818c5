"""Optional sinks for curves: TensorBoard, MLflow, Weights & Biases, or anything with three
methods.
"""

import contextlib
import importlib
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from fedax.core import FedaxError, History, InvalidInput, UnknownName
from fedax.engine.driver.run import Progress
from fedax.errors import install_hint
from fedax.results import Record


@runtime_checkable
class Tracker(Protocol):
    """The destination of the curve of one run."""

    def start(self, config: Mapping[str, Any]) -> None:
        """Begins the run; `config` is what defines it, as plain values."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Logs the scalar metrics after `step` rounds."""

    def finish(self) -> None:
        """Ends the run."""


class TensorBoard:
    """Event files in a folder, by tensorboardX."""

    def __init__(self, folder: Path, project: str, name: str) -> None:
        self.folder = folder / "tensorboard" / name
        self.module = _import_module("tensorboard")
        self.config: Mapping[str, Any] = {}
        self.writer: Any = None

    def start(self, config: Mapping[str, Any]) -> None:
        self.config = config

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if self.writer is None:
            # a resumed run logs again what came after its checkpoint: earlier points do not count
            self.writer = self.module.SummaryWriter(str(self.folder), purge_step=step)
            lines = [f"    {key} = {value!r}" for key, value in self.config.items()]
            self.writer.add_text("config", "\n".join(lines))
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)
        # on disk before the checkpoint of this round: a killed process leaves no hole
        self.writer.flush()

    def finish(self) -> None:
        if self.writer is not None:
            self.writer.close()


class MLflow:
    """A run of an MLflow experiment; the server is that of the environment
    (MLFLOW_TRACKING_URI).
    """

    def __init__(self, folder: Path, project: str, name: str) -> None:
        self.project, self.name, self.mlflow = project, name, _import_module("mlflow")

    def start(self, config: Mapping[str, Any]) -> None:
        self.mlflow.set_experiment(self.project)
        self.mlflow.start_run(run_name=self.name)
        self.mlflow.log_params({key: str(value)[:500] for key, value in config.items()})

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        # MLflow refuses other letters, such as that of hit@5
        named = {re.sub(r"[^\w./ -]", "_", name): value for name, value in metrics.items()}
        self.mlflow.log_metrics(named, step=step)

    def finish(self) -> None:
        self.mlflow.end_run()


class WeightsAndBiases:
    """A run of a Weights & Biases project."""

    def __init__(self, folder: Path, project: str, name: str) -> None:
        self.folder, self.project, self.name, self.run = (
            folder,
            project,
            name,
            _import_module("wandb"),
        )

    def start(self, config: Mapping[str, Any]) -> None:
        self.run = self.run.init(
            project=self.project, name=self.name, config=dict(config), dir=str(self.folder)
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.run.log(dict(metrics), step=step)

    def finish(self) -> None:
        self.run.finish()


TRACKERS: dict[str, Callable[[Path, str, str], Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WeightsAndBiases,
}
"""By their name in experiment files (`fedax.experiments.config.sections.TRACKERS`);
each is made from a folder, the title of the experiment and the name of the run."""

_MODULES = {"tensorboard": "tensorboardX", "mlflow": "mlflow", "wandb": "wandb"}


def _import_module(name: str) -> Any:
    try:
        return importlib.import_module(_MODULES[name])
    except ModuleNotFoundError as error:
        message = f"tracker {name!r}: {_MODULES[name]} is not installed. Run: {install_hint(name)}"
        raise FedaxError(message) from error


def check_installed(names: Sequence[str]) -> None:
    """Refuses trackers whose package is not installed, before anything runs."""
    for name in names:
        if name in _MODULES:
            _import_module(name)


class Tracking:
    """Sends the curve of one run to trackers: `fedax.run(progress=Tracking("wandb"))`.

    It is a context manager, whose end closes the trackers. One that fails is dropped with a
    warning, and the run goes on. Of `fedax.run_grid` it gets the first member; `replay` takes a
    finished history.

    Args:
        trackers: where the curve goes: "tensorboard", "mlflow" or "wandb", an object with the
            methods `start(config)`, `log(round, metrics)` and `finish()`, or a list of them.
        config: what defines the run, as plain values.
        project: the project or experiment that the tracker files the run under.
        name: of the run.
        folder: where trackers write their own files.

    Raises:
        UnknownName: no such tracker.
        FedaxError: its package is not installed.

    Example:
        >>> class Seen:
        ...     def start(self, config):
        ...         print(dict(config))
        ...
        ...     def log(self, step, metrics):
        ...         print(step, metrics)
        ...
        ...     def finish(self):
        ...         print("end")
        >>> tracking = Tracking([Seen()], {"mu": 0.1})
        {'mu': 0.1}
        >>> tracking(
        ...     Progress(1, 9, 0.5, {"train_loss": np.array(2.0), "client_accuracy": np.ones(3)})
        ... )
        1 {'train_loss': 2.0, 'seconds': 0.5}
        >>> tracking.finish()
        end
    """

    def __init__(
        self,
        trackers: Any,
        config: Mapping[str, Any] | None = None,
        *,
        project: str = "fedax",
        name: str = "run",
        folder: str | Path = ".",
    ) -> None:
        tracker_list = (
            list(trackers)
            if isinstance(trackers, Sequence) and not isinstance(trackers, str)
            else [trackers]
        )
        for tracker in tracker_list:
            if isinstance(tracker, str) and tracker not in TRACKERS:
                raise UnknownName.among("Tracking(trackers=...)", tracker, TRACKERS)
            if not isinstance(tracker, str | Tracker):
                allowed = f"one of {', '.join(TRACKERS)}, or an object with start, log and finish"
                raise InvalidInput.of("Tracking(trackers=...)", tracker, allowed)
        self.trackers = [
            TRACKERS[tracker](Path(folder), project, name) if isinstance(tracker, str) else tracker
            for tracker in tracker_list
        ]
        self._call_each(lambda tracker: tracker.start(config or {}))

    def __enter__(self) -> "Tracking":
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def __call__(self, observation: Progress) -> None:
        """Logs the progress of a run; for `fedax.run(progress=...)`."""
        scalars = {
            name: float(value) for name, value in observation.metrics.items() if np.ndim(value) == 0
        }
        self._call_each(
            lambda tracker: tracker.log(
                observation.round, scalars | {"seconds": observation.seconds}
            )
        )

    def replay(self, record: Record | History) -> None:
        """Logs all of a finished run."""
        if isinstance(record, History):
            record = Record.of(record, task="", label=record.algorithm, seed=0)
        for i, done in enumerate(record.rounds.tolist()):
            metrics = {name: values[i] for name, values in record.scalars.items()}
            self(Progress(done, int(record.rounds[-1]), float(record.seconds[i]), metrics))

    def finish(self) -> None:
        """Ends the run."""
        self._call_each(lambda tracker: tracker.finish())

    def _call_each(self, act: Callable[[Tracker], None]) -> None:
        # a copy: a tracker that fails is removed inside the loop
        for tracker in list(self.trackers):
            try:
                act(tracker)
            except Exception as error:
                # an error of any kind in a tracker must not end the run
                self.trackers.remove(tracker)
                # a run that stays open would take the curves of the next ones
                with contextlib.suppress(Exception):
                    tracker.finish()
                warnings.warn(
                    f"{type(tracker).__name__} failed and is left out: {error}", stacklevel=3
                )
