"""Trackers, which get the curves of runs: TensorBoard, Weights & Biases, or any function of a round
and its metrics.
"""

import contextlib
import importlib
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedax.core import FedaxError, History, UnknownName
from fedax.engine.driver.options import Progress
from fedax.errors import install_hint
from fedax.results import Record

_Tracker = Generator[None, tuple[int, dict[str, float]]]
"""Gets rounds with their metrics, begins with the first ones and ends when it is closed."""


class Tracking:
    """Sends the curve of one run to trackers: `fedax.run(progress=Tracking("wandb"))`.

    It is a context manager, whose end closes the trackers. They begin with the first observation.
    One that fails is dropped with a warning, and the run goes on. Of `fedax.run_grid` it gets the
    first member; `replay` takes a finished history.

    Args:
        trackers: where the curve goes: "tensorboard" or "wandb", a function `(round,
            metrics)`, or a list of them.
        config: what defines the run, as plain values.
        project: the project or experiment that the tracker files the run under.
        name: of the run.
        folder: where trackers write their own files.

    Raises:
        UnknownName: no such tracker.
        FedaxError: its package is not installed.

    Example:
        >>> tracking = Tracking(print)
        >>> tracking(
        ...     Progress(1, 9, 0.5, {"train_loss": np.array(2.0), "client_accuracy": np.ones(3)})
        ... )
        1 {'train_loss': 2.0, 'seconds': 0.5}
    """

    def __init__(
        self,
        trackers: str | Callable[..., object] | Sequence[str | Callable[..., object]],
        config: Mapping[str, Any] | None = None,
        *,
        project: str = "fedax",
        name: str = "run",
        folder: str | Path = ".",
    ) -> None:
        self.config = dict(config or {})
        self.project = project
        self.name = name
        self.folder = Path(folder)
        if isinstance(trackers, str) or callable(trackers):
            trackers = [trackers]
        check_installed([tracker for tracker in trackers if isinstance(tracker, str)])
        self._trackers = {
            str(tracker): _own(tracker) if callable(tracker) else TRACKERS[tracker](self)
            for tracker in trackers
        }
        # up to where they wait for the first round
        self._call_each(next)

    def __enter__(self) -> "Tracking":
        return self

    def __exit__(self, *_: object) -> None:
        self._call_each(lambda tracker: tracker.close())

    def __call__(self, observation: Progress) -> None:
        """Logs the progress of a run; for `fedax.run(progress=...)`."""
        metrics = {
            name: float(value) for name, value in observation.metrics.items() if np.ndim(value) == 0
        }
        metrics["seconds"] = observation.seconds
        self._call_each(lambda tracker: tracker.send((observation.round, metrics)))

    def replay(self, history: Record | History) -> None:
        """Logs all of a finished run."""
        rounds = history.rounds.tolist()
        for i, done in enumerate(rounds):
            metrics = {name: values[i] for name, values in history.metrics.items()}
            self(Progress(done, rounds[-1], float(history.seconds[i]), metrics))

    def _call_each(self, act: Callable[[_Tracker], object]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                act(tracker)
            except Exception as error:
                # an error of any kind in a tracker, which closes it, must not end the run
                del self._trackers[name]
                warnings.warn(f"tracker {name} failed and is left out: {error}", stacklevel=3)


def _own(log: Callable[..., object]) -> _Tracker:
    while True:
        log(*(yield))


def _tensorboard(run: Tracking) -> _Tracker:
    step, metrics = yield
    module = importlib.import_module("tensorboardX")
    folder = str(run.folder / "tensorboard" / run.name)
    # a resumed run logs again what came after its checkpoint: earlier points do not count
    with contextlib.closing(module.SummaryWriter(folder, purge_step=step)) as writer:
        writer.add_text(
            "config", "\n".join(f"    {key} = {value!r}" for key, value in run.config.items())
        )
        while True:
            for name, value in metrics.items():
                writer.add_scalar(name, value, step)
            # on disk before the checkpoint of this round: a killed process leaves no hole
            writer.flush()
            step, metrics = yield


def _wandb(run: Tracking) -> _Tracker:
    step, metrics = yield
    started = importlib.import_module("wandb").init(
        config=run.config, project=run.project, name=run.name, dir=str(run.folder)
    )
    try:
        while True:
            started.log(metrics, step=step)
            step, metrics = yield
    finally:
        started.finish()


TRACKERS: dict[str, Callable[[Tracking], _Tracker]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
}
"""Trackers by their names in experiment files."""


def check_installed(names: Sequence[str]) -> None:
    """Refuses trackers whose package is not installed, before anything runs."""
    for name in names:
        if name not in TRACKERS:
            raise UnknownName.among("Tracking(trackers=...)", name, TRACKERS)
        try:
            importlib.import_module({"tensorboard": "tensorboardX"}.get(name, name))
        except ModuleNotFoundError as error:
            message = f"tracker {name!r}: {error.name} is not installed. Run: {install_hint(name)}"
            raise FedaxError(message) from error
