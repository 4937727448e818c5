"""Devices of a virtual clock: how fast each client computes, sends and receives, and the energy
that it takes.

Everything here is plain NumPy in 64 bits. It runs on the host, beside the compiled rounds, and
cannot change them.
"""

import csv
import dataclasses
import hashlib
import json
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import scipy  # imports what is asked for, and only then
from jaxtyping import Float, Int

from fedax.core.scheduling.local_work import real
from fedax.errors import DataError, InvalidInput, UnknownName
from fedax.examples.client_names import client_name, number_of
from fedax.utils.numbers import convert_fields, python_numbers, python_tree
from fedax.utils.random import MOST_SEED

Numbers: TypeAlias = Float[np.ndarray, "some"]
Amount: TypeAlias = float | Sequence[float] | np.ndarray | Mapping[str, Any]
"""A number, one for each client, or the table of a distribution."""
MOST_BYTES = 1 << 28
"""Of a table in a file."""


class Range(NamedTuple):
    """Values of a characteristic: finite ones from 0 on, or rates, which are above 0 and may be
    infinite.
    """

    unit: str
    is_rate: bool

    def allows(self, values: Any) -> bool:
        """Returns whether all values are in the range."""
        array = np.asarray(values, np.float64)
        return bool((array > 0 if self.is_rate else (array >= 0) & np.isfinite(array)).all())

    @property
    def allowed(self) -> str:
        return (
            f"numbers > 0 in {self.unit}, inf for no time"
            if self.is_rate
            else f"finite numbers >= 0 in {self.unit}"
        )


CHARACTERISTICS = {
    "speed": Range("examples/s", True),
    "down": Range("bits/s", True),
    "up": Range("bits/s", True),
    "latency": Range("s", False),
    "energy": Range("J per example", False),
    "energy_down": Range("J per bit", False),
    "energy_up": Range("J per bit", False),
}
"""What a client's device is described by."""

SERVER = "server_seconds", "server_seconds_per_byte"
"""What the server takes, one number each."""

FORWARD_AND_BACKWARD = 3.0
"""Time of a training step over that of inference, as FedScale has it."""


def _per_second(kilobits: np.ndarray) -> np.ndarray:
    return 1e3 * kilobits


FOREIGN: dict[str, tuple[tuple[str, ...], Callable[[np.ndarray], np.ndarray]]] = {
    "computation": (("speed",), lambda milliseconds: 1e3 / (FORWARD_AND_BACKWARD * milliseconds)),
    "communication": (("down", "up"), _per_second),
    "dl_kbps": (("down",), _per_second),
    "ul_kbps": (("up",), _per_second),
}
"""FedScale's columns: which characteristics they stand for, and how they convert."""


@dataclasses.dataclass(frozen=True)
class Distribution:
    """A named distribution, as a function of a uniform number in (0, 1)."""

    name: str
    parameters: tuple[tuple[str, Any], ...]

    known: ClassVar[dict[str, dict[str, Any]]] = {
        "uniform": {"low": None, "high": None},
        "log_uniform": {"low": None, "high": None},
        "lognormal": {"median": 1.0, "sigma": None},
        "choice": {"values": None, "weights": ()},
    }

    @classmethod
    def of(cls, field: str, spelling: Mapping[str, Any], limits: Range) -> "Distribution":
        """Makes one from its table; refuses parameters with which it gives values out of range."""
        arguments = dict(spelling)
        name = arguments.pop("name", None)
        if name not in cls.known:
            raise InvalidInput.of(
                field, spelling, f"tables with name = one of {', '.join(cls.known)}"
            )
        parameters = cls.known[name]
        for key in arguments:
            if key not in parameters:
                raise UnknownName.among(f"{field}, parameter of {name!r}", key, parameters)
        values = parameters | arguments
        if missing := [key for key, value in values.items() if value is None]:
            raise InvalidInput.found(
                field, f"{name!r} without {', '.join(missing)}", f"{name!r} with all parameters"
            )
        values = {
            k: python_numbers(tuple(v) if isinstance(v, Sequence | np.ndarray) else v)
            for k, v in values.items()
        }
        distribution = cls(name, tuple(values.items()))
        distribution._check(field, limits, **values)
        return distribution

    def _check(self, field: str, limits: Range, **values: Any) -> None:
        numbers = [
            number
            for value in values.values()
            for number in (value if isinstance(value, tuple) else (value,))
        ]
        if not all(real(number) and math.isfinite(number) for number in numbers):
            raise InvalidInput.of(field, self.spelling, "finite parameters")
        if self.name == "lognormal":
            fits, allowed = (
                values["median"] > 0 and values["sigma"] >= 0,
                ("median > 0 and sigma >= 0"),
            )
        elif self.name == "choice":
            choices, weights = values["values"], values["weights"]
            fits = isinstance(choices, tuple) and len(choices) > 0 and limits.allows(choices)
            fits = fits and (
                not weights
                or (len(weights) == len(choices) and min(weights) >= 0 and sum(weights) > 0)
            )
            allowed = f"values that are {limits.allowed}, and a weight >= 0 for each, or none"
        else:
            low, high = values["low"], values["high"]
            fits = low <= high and limits.allows(low) and (low > 0 or self.name == "uniform")
            allowed = f"low <= high, {limits.allowed}" + (
                ", low > 0" if self.name == "log_uniform" else ""
            )
        if not fits:
            raise InvalidInput.of(field, self.spelling, allowed)

    @property
    def spelling(self) -> dict[str, Any]:
        """The inverse of `of`."""
        values = {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in self.parameters
        }
        return {"name": self.name} | {key: value for key, value in values.items() if value != []}

    def __call__(self, probabilities: Numbers) -> Numbers:
        """Returns the values at some uniform numbers: the inverse of the distribution function."""
        values = dict(self.parameters)
        if self.name == "lognormal":
            return values["median"] * np.exp(values["sigma"] * scipy.special.ndtri(probabilities))
        if self.name == "choice":
            choices = np.asarray(values["values"], np.float64)
            ends = np.cumsum(np.asarray(values["weights"] or np.ones(len(choices)), np.float64))
            # rounding may put a probability behind the last end
            return choices[
                np.minimum(
                    np.searchsorted(ends, probabilities * ends[-1], side="right"), len(choices) - 1
                )
            ]
        low, high = float(values["low"]), float(values["high"])
        return (
            low + (high - low) * probabilities
            if self.name == "uniform"
            else low * (high / low) ** probabilities
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Devices:
    r"""The clients' devices, from which a virtual clock has the seconds and the joules of every
    round.

    A phase of client $k$ with $b_\downarrow$ bits down, $b_\uparrow$ bits up and $n$ examples
    takes, with its latency $l_k$,

    $$l_k + \frac{b_\downarrow}{\text{down}_k} + \frac{n}{\text{speed}_k} +
    \frac{b_\uparrow}{\text{up}_k}$$

    seconds. Every characteristic is a number, a list with one number for each client, a
    distribution, or a column of `table`. Distributions are tables:
    `{"name": "lognormal", "median": 50.0, "sigma": 1.0}`, `"uniform"` and `"log_uniform"` with
    `low` and `high`, `"choice"` with `values` and perhaps `weights`. A client's draw depends on
    `seed`, the characteristic and the client's number only, not on the seed of a run.

    Args:
        speed: examples that a client trains on in a second, above 0: those of all minibatches and
            gradients.
        down, up: bits that it receives and sends in a second, above 0.
        latency: seconds of a phase that do not depend on its messages, both ways together, at least
            0.
        energy: joules of an example, at least 0.
        energy_down, energy_up: joules of a bit, at least 0.
        table: a CSV file, or columns by name. Columns are the characteristics above, or FedScale's:
            `computation` (milliseconds of inference for an example, of which training takes three
            times as many), `communication` (kbit/s both ways), `dl_kbps` and `ul_kbps`. Others are
            ignored. With a column `client` (a name, or the number of a client without names) every
            client has its row. Without one, every client gets a row by a seeded draw, so that a
            table of types of devices serves any number of clients.
        varying: by characteristic, the distribution of a factor that every client draws anew in
            every round, such as `{"up": {"name": "lognormal", "sigma": 0.5}}`.
        passes: passes over its examples that a phase with local work counts as, above 0. Only
            needed for solvers that decide by the data how long they work, such as `Exact`.
        seed: of all draws.
        server_seconds: that the server takes in every phase after the last upload that it waits
            for, or in every step of an asynchronous server; finite, at least 0.
        server_seconds_per_byte: in addition, for each byte of the uploads that it takes; finite, at
            least 0. Graphs have no server.

    Raises:
        InvalidInput: a value out of range, with the field.
        DataError: a table that cannot be read, or a value in it out of range, with line and column.

    >>> devices = Devices(speed=[100.0, 10.0], up=1e6, latency=0.5, energy_up=1e-6)
    >>> devices.seconds([0, 1], 0, 0, 1_000_000, np.array([50, 50])).tolist()
    [2.0, 6.5]
    >>> devices.joules([0, 1], 0, 0, 1_000_000, np.array([50, 50])).tolist()
    [1.0, 1.0]
    """

    speed: Amount = math.inf
    down: Amount = math.inf
    up: Amount = math.inf
    latency: Amount = 0.0
    energy: Amount = 0.0
    energy_down: Amount = 0.0
    energy_up: Amount = 0.0
    table: str | Path | Mapping[str, Sequence[Any]] | None = None
    varying: Mapping[str, Any] | None = None
    passes: float | None = None
    seed: int = 0
    server_seconds: float = 0.0
    server_seconds_per_byte: float = 0.0
    digest: str = dataclasses.field(init=False, repr=False, default="")

    def __post_init__(self) -> None:
        convert_fields(self, python_tree)
        rows: Table | None = None
        if self.table is not None:
            if isinstance(self.table, Path):
                object.__setattr__(self, "table", str(self.table))
            table: Any = self.table
            rows = _from_file(table) if isinstance(table, str) else _from_columns(table)
        values = {name: self._parse_characteristic(name, rows) for name in CHARACTERISTICS}
        factors: dict[str, Distribution] = {}
        for name, spelling in dict(self.varying or {}).items():
            if name not in CHARACTERISTICS:
                raise UnknownName.among("Devices(varying=...)", name, CHARACTERISTICS)
            field = f"Devices(varying=...), {name}"
            if not isinstance(spelling, Mapping):
                raise InvalidInput.of(
                    field, spelling, f"tables with name = one of {', '.join(Distribution.known)}"
                )
            # factors of rates are above 0, those of times and energies may be 0
            factors[name] = Distribution.of(
                field, spelling, Range("factors", CHARACTERISTICS[name].is_rate)
            )
        is_whole = isinstance(self.seed, int) and not isinstance(self.seed, bool)
        is_seed = is_whole and 0 <= self.seed <= MOST_SEED
        self._require("seed", is_seed, f"whole numbers from 0 to {MOST_SEED}")
        fits = self.passes is None or (real(self.passes) and 0 < self.passes < math.inf)
        self._require("passes", fits, "finite numbers > 0, or None")
        for name in SERVER:
            value = getattr(self, name)
            self._require(name, real(value) and 0 <= value < math.inf, "finite numbers >= 0")
        # frozen: derived values are set around the dataclass
        derived = {"_values": values, "_factors": factors, "_table": rows, "_rows": None}
        for name, value in derived.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "digest", self._digest())

    def _parse_characteristic(self, name: str, rows: "Table | None") -> Any:
        """Returns a characteristic as a number, an array over clients or a distribution; None if
        the table has it.
        """
        value, limits, field = getattr(self, name), CHARACTERISTICS[name], f"Devices({name}=...)"
        if rows is not None and name in rows.columns:
            # a value beside the column is refused, unless it is the default
            default = next(item.default for item in dataclasses.fields(self) if item.name == name)
            if not (real(value) and value == default):
                raise InvalidInput.found(
                    field, "a value beside a column of the table", "one of the two"
                )
            return None
        if isinstance(value, Mapping):
            return Distribution.of(field, value, limits)
        if isinstance(value, Sequence | np.ndarray) and not isinstance(value, str):
            for k, item in enumerate(value):
                if not _is_number(item) or not limits.allows(item):
                    raise InvalidInput.of(f"{field}, entry {k}", item, limits.allowed)
            return np.asarray(value, np.float64)
        if not _is_number(value) or not limits.allows(value):
            allowed = (
                f"{limits.allowed}, a list of them, or a table with name = one of "
                f"{', '.join(Distribution.known)}"
            )
            raise InvalidInput.of(field, value, allowed)
        return float(value)

    def _require(self, name: str, holds: bool, allowed: str) -> None:
        if not holds:
            raise InvalidInput.of(f"Devices({name}=...)", getattr(self, name), allowed)

    def _digest(self) -> str:
        """Returns a hash of all that the clock depends on: the content of a table, not its file's
        name.
        """
        me: Any = self
        facts: dict[str, Any] = {"seed": self.seed, "passes": self.passes}
        for name, value in me._values.items():
            facts[name] = (
                value.spelling if isinstance(value, Distribution) else np.asarray(value).tolist()
            )
        facts["varying"] = {
            name: distribution.spelling for name, distribution in me._factors.items()
        }
        # left out at 0, so that devices from before these arguments keep their hash
        facts |= {name: getattr(self, name) for name in SERVER if getattr(self, name)}
        if me._table is not None:
            facts["table"] = {name: column.tolist() for name, column in me._table.columns.items()}
            facts["clients"] = me._table.clients
        text = json.dumps(facts, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Devices) and other.digest == self.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    @classmethod
    def of(cls, spelling: Any) -> "Devices":
        """Makes devices from their spelling in files, a table of their arguments; devices are
        returned as they are.

        Raises:
            UnknownName: an argument that there is not.
        """
        if isinstance(spelling, cls):
            return spelling
        names = [field.name for field in dataclasses.fields(cls) if field.init]
        if not isinstance(spelling, Mapping):
            raise InvalidInput.of(
                "devices", spelling, f"a fedax.Devices, or a table with {', '.join(names)}"
            )
        for name in spelling:
            if name not in names:
                raise UnknownName.among("key of [devices]", name, names)
        return cls(**spelling)

    def bound_to(self, names: Sequence[str] | None, clients: int) -> "Devices":
        """Returns the devices of clients with these names, None if they have none.

        Raises:
            InvalidInput: a list with another number of values than clients, a client without a row.
            DataError: a row of a client that there is not, with its line.
        """
        me: Any = self
        for name, value in me._values.items():
            # how many clients there are is known here, not when the devices were made
            if isinstance(value, np.ndarray) and len(value) != clients:
                got = f"{len(value)} values"
                raise InvalidInput.found(
                    f"Devices({name}=...)", got, f"{clients} values, one for each client"
                )
        # rows without clients are types of devices, which `_row_indices` draws
        if me._table is None or me._table.clients is None:
            return self
        # the row of each client, -1 for none yet
        rows = np.full(clients, -1, np.int64)
        number_by_name = {name: k for k, name in enumerate(names or ())}
        for row, name in enumerate(me._table.clients):
            where = f"{me._table.describe_row(row)}, client"
            k = (
                number_by_name[name]
                if name in number_by_name
                else number_of(name, names, clients, where)
            )
            if rows[k] >= 0:
                raise DataError.of(where, name, "each client once")
            rows[k] = row
        if missing := np.flatnonzero(rows < 0).tolist():
            missing_names = ", ".join(repr(names[k]) if names else str(k) for k in missing[:3])
            missing_names += f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            raise InvalidInput.found(
                "Devices(table=...)", f"no row for {missing_names}", "a row for each client"
            )
        bound = object.__new__(type(self))  # without reading the table again
        bound.__dict__.update(self.__dict__)
        object.__setattr__(bound, "_rows", rows)
        return bound

    def values(
        self, name: str, clients: Int[np.ndarray, "some"] | Sequence[int], round: int
    ) -> Numbers:
        """Returns a characteristic of some clients in a round."""
        me, ids = (self, np.asarray(clients, np.int64))
        source: Any = me._values[name]  # type: ignore[attr-defined]
        if source is None:
            values = me._table.columns[name][self._row_indices(ids)]  # type: ignore[attr-defined]
        elif isinstance(source, Distribution):
            values = source(uniform(self.seed, name, ids))
        else:
            values = source[ids] if isinstance(source, np.ndarray) else np.full(ids.shape, source)
        factor = me._factors.get(name)  # type: ignore[attr-defined]
        return (
            values
            if factor is None
            # a stream by another name, so that factor and value are independent
            else values * factor(uniform(self.seed, f"{name} of a round", ids, round))
        )

    def _row_indices(self, ids: np.ndarray) -> np.ndarray:
        me: Any = self
        if me._table.clients is None:
            count = len(next(iter(me._table.columns.values())))
            return np.minimum((uniform(self.seed, "row", ids) * count).astype(np.int64), count - 1)
        if me._rows is None:
            raise InvalidInput.because(
                "Devices(table=...)",
                "rows by client need the clients",
                "Call bound_to(names, clients).",
            )
        return me._rows[ids]

    def seconds(
        self,
        clients: Int[np.ndarray, "some"] | Sequence[int],
        round: int,
        down_bits: Any,
        up_bits: Any,
        examples: Any,
    ) -> Numbers:
        """Returns the seconds that a phase takes each of some clients.

        Args:
            clients: their numbers.
            round: the number of the round, from 0.
            down_bits, up_bits: of their messages, a number for all or one for each.
            examples: that each of them processes.
        """
        down, up, speed, latency = (
            self.values(name, clients, round) for name in ("down", "up", "speed", "latency")
        )
        sent = np.asarray(down_bits, np.float64) / down + np.asarray(up_bits, np.float64) / up
        return latency + sent + np.asarray(examples, np.float64) / speed

    def seconds_at_server(self, up_bits: float) -> float:
        """Returns the seconds that the server takes for uploads of so many bits together."""
        return self.server_seconds + self.server_seconds_per_byte * up_bits / 8

    def examples_after(
        self,
        seconds: float,
        clients: Int[np.ndarray, "some"] | Sequence[int],
        round: int,
        down_bits: Any,
        examples: Any,
    ) -> Numbers:
        """Returns how many examples clients have processed some seconds after the start of a phase.

        Arguments as in `seconds`. Latency and downlink come first.
        """
        down, speed, latency = (
            self.values(name, clients, round) for name in ("down", "speed", "latency")
        )
        computing_seconds = np.maximum(
            seconds - latency - np.asarray(down_bits, np.float64) / down, 0.0
        )
        # an infinite speed takes no time, once the message is there
        return np.minimum(examples, np.where(computing_seconds > 0, computing_seconds * speed, 0.0))

    def joules(
        self,
        clients: Int[np.ndarray, "some"] | Sequence[int],
        round: int,
        down_bits: Any,
        up_bits: Any,
        examples: Any,
    ) -> Numbers:
        """Returns the joules that a phase takes each of some clients; arguments as in `seconds`."""
        names = ("energy_down", "energy_up", "energy")
        down, up, energy = (self.values(name, clients, round) for name in names)
        amounts = (np.asarray(amount, np.float64) for amount in (down_bits, up_bits, examples))
        return sum(
            (rate * amount for rate, amount in zip((down, up, energy), amounts, strict=True)),
            np.zeros(len(down)),
        )


class Table(NamedTuple):
    """A table of devices.

    Attributes:
        source: the file, or the argument, for messages.
        clients: the client of every row as text; None if rows are types of devices.
        columns: by characteristic, shape (rows,).
        lines: the line of every row in the file; empty if there is none.
    """

    source: str
    clients: tuple[str, ...] | None
    columns: dict[str, np.ndarray]
    lines: tuple[int, ...] = ()

    def describe_row(self, row: int) -> str:
        return (
            f"{self.source}, line {self.lines[row]}"
            if self.lines
            else (f"{self.source}, row {row}")
        )


def _from_columns(
    columns: Mapping[str, Sequence[Any]],
    source: str = "Devices(table=...)",
    lines: tuple[int, ...] = (),
) -> Table:
    """Makes a table of columns by name, whose values may be texts."""
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise DataError.of(source, lengths, "columns of one length")
    # empty at first, because `describe_row` is needed for messages
    table = Table(source, None, {}, lines)
    clients = None
    if "client" in columns:
        clients = tuple(
            client_name(value, f"{table.describe_row(row)}, client")
            for row, value in enumerate(columns["client"])
        )
    for name, column in columns.items():
        # one of FedScale's columns may stand for several characteristics
        targets, convert = FOREIGN.get(name, ((name,), lambda values: values))
        if not set(targets) <= set(CHARACTERISTICS):
            continue
        limits = CHARACTERISTICS[targets[0]]
        # kilobits and milliseconds have to be finite: they are measured
        is_foreign = name in FOREIGN
        allowed = "finite numbers > 0" if is_foreign else limits.allowed
        values = np.empty(len(column))
        for row, value in enumerate(column):
            try:
                values[row] = float(value)
            except (TypeError, ValueError):
                # refused below, with its line
                values[row] = math.nan
            fits = (0 < values[row] < math.inf) if is_foreign else limits.allows(values[row])
            # float(True) is 1
            if not fits or isinstance(value, bool):
                raise DataError.of(f"{table.describe_row(row)}, {name}", value, allowed)
        for target in targets:
            if target in table.columns:
                got = f"{name!r} and another column for {target!r}"
                raise DataError.found(source, got, "one column for each characteristic")
            table.columns[target] = convert(values)
    if not table.columns or not min(lengths.values()):
        names = ", ".join((*CHARACTERISTICS, *FOREIGN))
        raise DataError.of(
            source,
            list(columns),
            f"at least one row, and one of the columns {names}; client is optional",
        )
    return table._replace(clients=clients)


def _from_file(file: str) -> Table:
    """Reads a table in CSV, with a header."""
    path = Path(file)
    try:
        # a pipe or device would never end
        if not path.is_file() or path.stat().st_size > MOST_BYTES:
            raise ValueError(f"no plain file of at most {MOST_BYTES} bytes")
        # files of spreadsheets may begin with a byte-order mark
        text = path.read_text(encoding="utf-8-sig")
        # blank lines are dropped after they were counted
        rows = [
            (i, row) for i, row in enumerate(csv.reader(text.splitlines(), strict=True), 1) if row
        ]
    except (OSError, UnicodeDecodeError, ValueError, csv.Error) as error:
        raise DataError.of(
            "Devices(table=...)", f"{file}, which cannot be read ({error})", "a table in CSV"
        ) from error
    head = [name.strip() for name in rows[0][1]] if rows else []
    if len(set(head)) < len(head) or len(rows) < 2:
        raise DataError.of(file, head, "a header of different names, and at least one row below it")
    for line, row in rows[1:]:
        if len(row) != len(head):
            raise DataError.of(
                f"{file}, line {line}", row, f"{len(head)} values, as the header has"
            )
    columns = {name: [row[i].strip() for _, row in rows[1:]] for i, name in enumerate(head)}
    return _from_columns(columns, file, tuple(line for line, _ in rows[1:]))


def _is_number(value: Any) -> bool:
    return real(value) or isinstance(value, np.integer | np.floating)


def uniform(seed: int, name: str, *counts: Any) -> Numbers:
    """Returns uniform numbers in (0, 1) that depend on a seed, a name and some whole numbers alone.

    A draw of one client therefore costs the same in any population, and does not depend on who else
    is asked. The numbers are hashed by the finalizer of SplitMix64.

    >>> bool(uniform(0, "speed", np.array([3, 4]))[1] == uniform(0, "speed", np.array([4]))[0])
    True

    Source: Steele et al., Fast Splittable Pseudorandom Number Generators, OOPSLA 2014, Fig. 15.
    """
    # the numbers of clients broadcast against one round
    arrays = np.broadcast_arrays(*(np.atleast_1d(np.asarray(count, np.uint64)) for count in counts))
    state = np.full(arrays[0].shape, seed, np.uint64)
    for word in (np.full(state.shape, zlib.crc32(name.encode()), np.uint64), *arrays):
        state = _mix(_mix(state) ^ word)
    # the upper 53 bits, and half a step more, so that 0 does not occur
    steps = (_mix(state) >> np.uint64(11)).astype(np.float64) + 0.5
    # the last half step rounds up to 2^53, which would give 1
    return np.minimum(steps, 2.0**53 - 1) * 2.0**-53


def _mix(state: np.ndarray) -> np.ndarray:
    # arrays of unsigned numbers wrap without a warning
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
