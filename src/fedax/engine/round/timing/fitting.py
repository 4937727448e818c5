"""Devices of a virtual clock from measured durations: the record of a deployment, and the fit."""

import csv
import io
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy  # imports what is asked for, and only then
from jaxtyping import Float

from fedax.errors import DataError
from fedax.utils.files import write, writing

PHASES = {"download": "bytes", "compute": "examples", "upload": "bytes"}
"""What a client does in a phase of a round, and the column that says how much."""
COLUMNS = ("run", "client", "round", "phase", "seconds", "bytes", "examples")
"""Of a record of durations; `run` tells several runs of a deployment apart."""
DURATIONS = "durations.csv"
"""The record in a run directory."""
MOST_BYTES = 1 << 31


class Duration(NamedTuple):
    """A row of a record.

    Attributes:
        run, client: their names.
        round: from 0.
        phase: a name of `PHASES`.
        seconds: that it took.
        amount: bytes or examples; NaN for examples that were not counted.
    """

    run: str
    client: str
    round: int
    phase: str
    seconds: float
    amount: float


class DeviceFit(NamedTuple):
    """The devices that fit a record best.

    Attributes:
        clients: their names.
        columns: `speed`, `down`, `up` and `latency`, shape (clients,).
        errors: by which the predicted time of each round is off, relative to the measured one.
        merged: clients whose messages have one size, so that their latency is part of the rates.
        passed_over: rows of `compute` without a number of examples, which count in nothing.
    """

    clients: tuple[str, ...]
    columns: dict[str, Float[np.ndarray, "clients"]]
    errors: Float[np.ndarray, "rounds"]
    merged: tuple[str, ...]
    passed_over: int = 0

    def write(self, path: Path) -> None:
        """Writes the table for `Devices(table=...)`."""
        text = io.StringIO()
        # quotes names with commas, quotes or line breaks
        table = csv.writer(text, lineterminator="\n")
        table.writerow(("client", *self.columns))
        for client, *values in zip(self.clients, *self.columns.values(), strict=True):
            table.writerow((client, *(f"{value:.6g}" for value in values)))
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path, text.getvalue())


def append_durations(path: Path, rows: Iterable[Sequence[Any]]) -> None:
    """Appends rows to a record, which begins with its header."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", newline="", encoding="utf-8") as file:
            table = csv.writer(file, lineterminator="\n")
            if file.tell() == 0:
                table.writerow(COLUMNS)
            table.writerows(rows)


def read_durations(path: Path) -> list[Duration]:
    """Reads a record: CSV with the columns `COLUMNS`, of which `run` may be missing.

    The examples of `compute` may be empty: deployments do not count them where the data decide how
    much work there is, as with the solver `Exact`.

    Raises:
        DataError: a missing file or column, or a value that is none, with its line.
    """
    try:
        if not path.is_file() or path.stat().st_size > MOST_BYTES:
            raise ValueError(f"no plain file of at most {MOST_BYTES} bytes")
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [(i, row) for i, row in enumerate(csv.reader(file, strict=True), 1) if row]
    except (OSError, UnicodeDecodeError, ValueError, csv.Error) as error:
        reason = f"a record that cannot be read ({error})"
        allowed = f"CSV with the columns {', '.join(COLUMNS)}, which deployments write"
        raise DataError.found(str(path), reason, allowed) from error
    header = [name.strip() for name in rows[0][1]] if rows else []
    if missing := [name for name in COLUMNS[1:] if header.count(name) != 1]:
        allowed = f"a header with {', '.join(COLUMNS[1:])}, each once"
        raise DataError.found(f"{path}, line 1", f"no column {', '.join(missing)}", allowed)
    durations = []
    for line, row in rows[1:]:
        if len(row) != len(header):
            raise DataError.of(f"{path}, line {line}", row, f"{len(header)} values")
        durations.append(
            _parse_duration(dict(zip(header, map(str.strip, row), strict=True)), path, line)
        )
    if not durations:
        raise DataError.found(str(path), "no row below the header", "at least one")
    return durations


def _parse_duration(row: dict[str, str], path: Path, line: int) -> Duration:
    def parse_number(name: str) -> float:
        try:
            value = float(row[name])
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            hint = "Negative seconds come from clocks that disagree." if name == "seconds" else ""
            location = f"{path}, line {line}, {name}"
            raise DataError.of(location, row[name], "finite numbers > 0", hint)
        return value

    if row["phase"] not in PHASES:
        raise DataError.of(f"{path}, line {line}, phase", row["phase"], f"one of {list(PHASES)}")
    if not row["round"].isdecimal():
        raise DataError.of(f"{path}, line {line}, round", row["round"], "whole numbers >= 0")
    if not row["client"]:
        raise DataError.of(f"{path}, line {line}, client", "", "a client's name or number")
    column = PHASES[row["phase"]]
    is_counted = row[column] != "" or row["phase"] != "compute"
    amount = parse_number(column) if is_counted else math.nan
    names = row.get("run", ""), row["client"], int(row["round"]), row["phase"]
    return Duration(*names, parse_number("seconds"), amount)


def fit_devices(durations: Sequence[Duration], source: str = "durations") -> DeviceFit:
    r"""Fits a device to the durations of each client.

    A phase takes $a + b x$ seconds for an amount $x$, with $a, b \ge 0$ that minimize the sum of
    squares of relative errors. Speed and bandwidths are $1/b$, and the latency is the sum of $a$
    over the three phases. Rows without a number of examples are passed over.

    Args:
        durations: rows of a record.
        source: the record, for messages.

    Raises:
        DataError: a client without one of the phases, or with no counted examples in `compute`.

    >>> rows = [
    ...     Duration("", "anna", i, phase, 0.1 + amount / rate, amount)
    ...     for phase, rate in (("download", 1e6), ("compute", 50.0), ("upload", 1e5))
    ...     for i, amount in enumerate((10.0, 200.0))
    ... ]
    >>> fit = fit_devices(rows)
    >>> {name: [round(float(v), 3) for v in column] for name, column in fit.columns.items()}
    {'speed': [50.0], 'down': [8000000.0], 'up': [800000.0], 'latency': [0.3]}
    """
    counted = [row for row in durations if not math.isnan(row.amount)]
    by_client: dict[str, dict[str, list[Duration]]] = {row.client: {} for row in durations}
    for row in counted:
        by_client[row.client].setdefault(row.phase, []).append(row)
    uncounted = {row.client for row in durations if math.isnan(row.amount)}
    lines: dict[tuple[str, str], tuple[float, float]] = {}
    columns: dict[str, list[float]] = {"speed": [], "down": [], "up": [], "latency": []}
    merged: list[str] = []
    for client, phases in by_client.items():
        if missing := [phase for phase in PHASES if phase not in phases]:
            got = f"no row of {', '.join(missing)}"
            hint = ""
            if "compute" in missing and client in uncounted:
                got += " with a number of examples"
                hint = (
                    "Where the data decide how much work there is, as with the solver exact, "
                    "deployments count no examples. Record a run with a counted solver, such as "
                    "sgd."
                )
            allowed = f"rows of {', '.join(PHASES)} for each client"
            raise DataError.found(f"{source}, client {client}", got, allowed, hint)
        for phase in PHASES:
            lines[client, phase] = _fit_line(phases[phase])
        # messages of one size do not tell latency and bandwidth apart
        if any(len({row.amount for row in phases[phase]}) == 1 for phase in ("download", "upload")):
            merged.append(client)
        columns["latency"].append(sum(lines[client, phase][0] for phase in PHASES))
        for name, phase, unit in (
            ("speed", "compute", 1.0),
            ("down", "download", 8.0),
            ("up", "upload", 8.0),
        ):
            slope = lines[client, phase][1]
            columns[name].append(unit / slope if slope else math.inf)
    arrays = {name: np.asarray(column) for name, column in columns.items()}
    errors, passed_over = _relative_errors(counted, lines), len(durations) - len(counted)
    return DeviceFit(tuple(by_client), arrays, errors, tuple(merged), passed_over)


def _fit_line(rows: Sequence[Duration]) -> tuple[float, float]:
    """Returns the constant and the slope of seconds over amounts, both at least 0."""
    seconds, amounts = np.array([row.seconds for row in rows]), np.array([r.amount for r in rows])
    scale = amounts.mean()
    # relative errors: each row is divided by its seconds
    design = np.stack([np.ones_like(seconds), amounts / scale], 1) / seconds[:, None]
    if np.ptp(amounts) == 0:
        design[:, 0] = 0.0
    constant, slope = scipy.optimize.nnls(design, np.ones_like(seconds))[0]
    return float(constant), float(slope / scale)


def _relative_errors(
    durations: Sequence[Duration], lines: dict[tuple[str, str], tuple[float, float]]
) -> Float[np.ndarray, "rounds"]:
    """Returns the relative errors of the rounds' times, which are those of their slowest client."""
    clients: dict[tuple[str, int], dict[str, np.ndarray]] = defaultdict(dict)
    for row in durations:
        constant, slope = lines[row.client, row.phase]
        pair = np.array([row.seconds, constant + slope * row.amount])
        of_round = clients[row.run, row.round]
        of_round[row.client] = of_round.get(row.client, 0.0) + pair
    slowest = np.array([np.stack([*pairs.values()]).max(0) for pairs in clients.values()])
    return np.abs(slowest[:, 1] / slowest[:, 0] - 1)
