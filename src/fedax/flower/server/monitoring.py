"""The state of a deployed run as a file that Prometheus reads."""

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedax.errors import FedaxError
from fedax.utils.files import write, writing

LOG = logging.getLogger("fedax.flower")
KINDS = {
    "fedax_round": ("gauge", "Rounds that are done."),
    "fedax_round_end_timestamp_seconds": ("gauge", "When the last round ended."),
    "fedax_metric": ("gauge", "The last observation, by the name of the metric."),
    "fedax_clients": ("gauge", "Clients of the deployment."),
    "fedax_clients_online": ("gauge", "Clients that are connected."),
    "fedax_answers_total": ("counter", "Uploads that counted."),
    "fedax_absent_total": ("counter", "Orders without an answer before the deadline."),
    "fedax_refused_total": ("counter", "Answers that were refused."),
    "fedax_message_bytes_total": ("counter", "Bytes of arrays sent down and up."),
    "fedax_certificate_end_timestamp_seconds": ("gauge", "When a certificate ends, by its file."),
}
"""Type and help of each series."""


class MetricsFile:
    """Series of numbers in the text format of Prometheus, replaced as a whole by every `write`.

    A file that cannot be written is logged once and does not end the run.

    Args:
        path: the file; its folder is made.
        certificate_ends: of certificates, in seconds since 1970, by the file's name.
    """

    def __init__(self, path: Path, certificate_ends: Mapping[str, float] | None = None) -> None:
        self.path, self._is_broken = path, False
        self._values: dict[str, dict[str, float]] = {name: {} for name in KINDS}
        for name, end in (certificate_ends or {}).items():
            self.set("fedax_certificate_end_timestamp_seconds", end, file=name)

    def set(self, series: str, value: float, **labels: str) -> None:
        """Sets a value."""
        self._values[series][_format_labels(labels)] = value

    def add(self, series: str, value: float, **labels: str) -> None:
        """Adds to a counter."""
        values, key = self._values[series], _format_labels(labels)
        values[key] = values.get(key, 0.0) + value

    def round(self, done: int, notes: Mapping[str, np.ndarray], **labels: str) -> None:
        """Adds the notes of rounds.

        Args:
            done: rounds that are done now.
            notes: of the new rounds, arrays with one entry per round.
            labels: of the run.
        """
        self.set("fedax_round", done, **labels)
        self.set("fedax_round_end_timestamp_seconds", time.time(), **labels)
        for name in ("answers", "absent", "refused", "message_bytes"):
            self.add(f"fedax_{name}_total", float(np.sum(notes.get(name, 0))), **labels)

    def count_clients(self, clients: int, online: int) -> None:
        """Sets the number of clients, and writes the file if it has changed."""
        previous = self._values["fedax_clients_online"].get("")
        self.set("fedax_clients", clients)
        self.set("fedax_clients_online", online)
        if online != previous:
            self.write()

    def observe(self, metrics: Mapping[str, Any], **labels: str) -> None:
        """Sets the metrics of an observation that are single numbers."""
        for name, value in metrics.items():
            if np.ndim(value) == 0:
                self.set("fedax_metric", float(value), name=name, **labels)

    def write(self) -> None:
        """Replaces the file."""
        lines = []
        for series, values in self._values.items():
            kind, text = KINDS[series]
            lines += [f"# HELP {series} {text}", f"# TYPE {series} {kind}"] if values else []
            lines += [f"{series}{labels} {value!r}" for labels, value in values.items()]
        try:
            with writing(self.path):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                write(self.path, "\n".join(lines) + "\n")
        except FedaxError as error:
            if not self._is_broken:
                LOG.warning("no metrics for Prometheus: %s", error)
            self._is_broken = True


def _format_labels(labels: Mapping[str, str]) -> str:
    """Returns labels in the text format, sorted by name."""
    pairs = [f'{name}="{_escape(value)}"' for name, value in sorted(labels.items())]
    return f"{{{','.join(pairs)}}}" if pairs else ""


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
