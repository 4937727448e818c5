"""Hyperparameters, declared once with their range.

From `mu: Scalar = hyper(0.1, low=0.0, doc="...")` come the check at construction, the error text,
the command-line help, the reference pages, the validation of experiment files and the negative
tests. Real hyperparameters are leaves of the algorithm's pytree, so a grid of them is one `vmap`;
choices, switches and counts are static.
"""

import dataclasses
import functools
import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PyTree

from fedax.errors import InvalidInput, UnknownName
from fedax.examples.client_names import by_client_name, in_order
from fedax.utils.numbers import convert_fields, python_numbers
from fedax.utils.plugins import find
from fedax.utils.random import Index

Owner = TypeVar("Owner")

Scalar: TypeAlias = float | int | Float[Array, ""]
"""A real number, as given or as an array of no axes inside a compiled program."""
MOST_COUNT = 2**31 - 1
"""The largest whole number where no smaller bound is declared: programs count in 32 bits."""
PerClient: TypeAlias = Scalar | Float[Array, "clients"] | np.ndarray | Mapping[Any, Any]
"""One real number for all clients, or one for each: a sequence in the order of `task.names`, or a
mapping of names to numbers."""


@dataclasses.dataclass(frozen=True)
class Hyper:
    """The range of a hyperparameter. `low` and `high` are inclusive unless `open_low` /
    `open_high`.

    Without `high`, whole numbers go up to `MOST_COUNT`, and real ones are finite unless the default
    is infinity. See `hyper` for the other fields.
    """

    name: str
    default: Any
    kind: type | None = None
    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False
    choices: tuple[object, ...] | None = None
    optional: bool = False
    pair: tuple[str, ...] | None = None
    words: tuple[str, ...] = ()
    per_client: bool = False
    schedule: bool = False
    leaves: bool = False
    later: bool = False
    doc: str = ""

    @property
    def allowed(self) -> str:
        """The range in words, as every message and every reference page shows it."""
        if self.choices is not None:
            return "one of " + ", ".join(repr(choice) for choice in self.choices)
        if self.leaves:
            return (
                "names of leaves, or parts of them, with * for any text; a predicate; "
                f'"{self.default}"'
            )
        opening = "(" if self.excludes_low else "["
        closing = "]" if self.reaches(self.top) else ")"
        low, high = (f"{bound:.10g}".replace("inf", "infinity") for bound in (self.low, self.top))
        kind = "whole numbers" if self.counts else "numbers"
        text = f"{kind} in {opening}{low}, {high}{closing}"
        if self.per_client:
            text += ", one or one per client (in their order, or by their names)"
        if self.pair is not None:
            text += ", or a pair of them in order"
            text += "".join(f" (the second may be {word!r})" for word in self.pair)
        if self.schedule:
            text += ", or an Optax schedule"
        text += "".join(f", or {word!r}" for word in self.words)
        return text + (", or None" if self.optional else "")

    @property
    def counts(self) -> bool:
        """Whether it is a whole number (then static)."""
        return (self.kind or type(self.default)) is int

    @property
    def top(self) -> float:
        """The upper bound."""
        if self.counts and self.high == math.inf and not self.open_high:
            return MOST_COUNT
        return self.high

    @property
    def excludes_low(self) -> bool:
        """Whether the lower bound is exclusive."""
        return self.open_low or self.low == -math.inf

    def reaches(self, bound: float) -> bool:
        """Returns whether an upper bound is inclusive."""
        return not self.open_high and (bound < math.inf or self.default == math.inf)

    def check(self, owner: str, value: object) -> None:
        """Raises `InvalidInput` naming `owner.name`, the value and the range; traced values
        pass.
        """
        is_number = (self.kind or type(self.default)) in (int, float)
        has_range = is_number or self.choices is not None
        # a tracer has no value to check, and its range was checked when the record was made
        is_traced = isinstance(value, Tracer) or (self.schedule and callable(value))
        if has_range and not is_traced and not self.allows(value):
            raise InvalidInput.of(f"{owner}({self.name}=...)", value, self.allowed)

    def allows(self, value: Any) -> bool:
        """Returns whether a value is within the range."""
        value = python_numbers(value)
        if self.choices is not None:
            # of one type, because True == 1 == 1.0
            return any(type(value) is type(choice) and value == choice for choice in self.choices)
        if value is None:
            return self.optional
        if isinstance(value, str):
            return value in self.words
        entries = [value]
        if self.per_client and isinstance(value, Mapping):
            entries = list(value.values())
        elif self.per_client and getattr(value, "ndim", 0) == 1:
            # NaN is the smallest and the largest where there is one
            entries = [value.min(), value.max()] if value.size else []
        elif self.pair is not None and isinstance(value, tuple) and len(value) == 2:
            entries = list(value[:1] if value[1] in self.pair else value)
        if not entries or not all(map(self._has_number, entries)):
            return False
        return self.pair is None or entries[0] <= entries[-1]

    def _has_number(self, value: object) -> bool:
        """Returns whether a value is one number within the bounds."""
        value = python_numbers(value)
        # bool is an int in Python, and True would pass as 1
        is_number = isinstance(value, int if self.counts else int | float)
        is_array = not self.counts and getattr(value, "dtype", np.dtype(object)).kind in "iufV"
        if isinstance(value, bool) or not (is_number or is_array):
            return False
        try:
            number = float(np.asarray(value))
        except (TypeError, OverflowError):
            return False
        # comparisons with NaN are False, so NaN is refused here
        above = number > self.low if self.excludes_low else number >= self.low
        below = number <= self.top if self.reaches(self.top) else number < self.top
        return bool(above and below)

    def outside(self) -> Iterator[object]:
        """Yields values that must be refused, for the generated negative tests."""
        if self.leaves:
            return
        yield None
        yield "a word that is no choice"
        if self.choices is not None:
            return
        yield math.nan
        step = 1 if self.counts else 1e-3
        yield self.low if self.excludes_low else self.low - step
        if not self.reaches(self.top):
            yield self.top
        elif self.top < math.inf:
            yield self.top + step


def hyper(default: Any, *, static: bool | None = None, **limits: Any) -> Any:
    """Declares a hyperparameter of an algorithm.

    Args:
        default: its default; a `bool` is a switch, an `int` a whole number (both static), a `float`
            a traced real number.
        static: whether it is part of the program; by default all but real numbers are, which may be
            too where another value makes the program simpler.
        low, high: inclusive bounds; `open_low=True` and `open_high=True` exclude them.
        choices: the allowed values of a categorical (static) hyperparameter.
        per_client: whether a value for each client is allowed too: a sequence in the order of the
            clients, a mapping of their names to values, or a pandas series, whose index has the
            names.
        schedule: whether an Optax schedule, a function of a count, is allowed too.
        leaves: whether it says which leaves of the model, see `fedax.utils.leaf_names.Which`; by
            default a word.
        kind: `int` or `float`, where the default does not say it.
        optional: whether None is allowed too.
        pair: allows a pair of numbers in order too; has the words that its second may be.
        words: that are allowed too.
        later: whether runs were kept before it was declared: what they are known by leaves it out
            at its default.
        doc: one sentence for the reference pages.
    """
    if isinstance(default, bool):
        limits["choices"] = (False, True)
    # real numbers are traced, so that a grid of them is one program
    is_real = limits.get("kind", type(default)) is float
    if static is None:
        static = not is_real
    converter = _to_real if is_real else python_numbers
    if limits.get("per_client"):
        converter = _convert_per_client
    metadata = {"hyper": {"default": default, **limits}}
    return eqx.field(default=default, static=static, converter=converter, metadata=metadata)


def _to_real(value: Any) -> Any:
    """Converts whole numbers, which would be constants of a program, one for a whole grid."""
    value = python_numbers(value)
    return float(value) if type(value) is int else value


def _convert_per_client(value: Any) -> Any:
    """Converts a list to an array, and a mapping or pandas series to a mapping by name."""
    value = _to_real(value)
    # by type, because a bool is an int
    if isinstance(value, tuple) and {type(number) for number in value} <= {int, float}:
        return np.asarray(value, dtype=float)
    named: Any = value  # perhaps of pandas, which is not imported here
    if not hasattr(named, "items"):
        return value
    # keys of one type: JAX sorts those of a pytree
    by_name = by_client_name(named, "values for each client")
    return {name: _to_real(number) for name, number in by_name.items()}


def declared(owner: type | object) -> dict[str, Hyper]:
    """Returns the hyperparameters of a class or an object by name, in the constructor's order."""
    return _read_declarations(owner if isinstance(owner, type) else type(owner))


@functools.cache
def _read_declarations(kind: Any) -> dict[str, Hyper]:
    # keyword-only fields come last in a constructor
    fields = sorted(dataclasses.fields(kind), key=lambda field: field.kw_only is True)
    return {
        field.name: Hyper(field.name, **field.metadata["hyper"])
        for field in fields
        if "hyper" in field.metadata
    }


class Declared:
    """Base of frozen dataclasses that check what they declare."""

    def __post_init__(self) -> None:
        convert_fields(self)
        check_declared(self)


def describe_with_hyperparameters(owner: type) -> str:
    """Returns the docstring of a new class, with its hyperparameters appended."""
    hyperparameters: dict[str, Hyper] = {}
    # from the most general base on, so that later declarations win
    for base in reversed(owner.__mro__):
        # the new class is no dataclass yet
        members = vars(base).get("__dataclass_fields__", vars(base))
        for name, field in members.items():
            if isinstance(field, dataclasses.Field) and "hyper" in field.metadata:
                hyperparameters[name] = Hyper(name, **field.metadata["hyper"])
    lines = [inspect.cleandoc(owner.__doc__ or "")]
    if hyperparameters:
        lines += ["", "Hyperparameters:"]
    for limits in hyperparameters.values():
        text = f"{limits.doc}; {limits.allowed}; default {limits.default!r}."
        lines.append(f"    {limits.name}: {text}")
    return "\n".join(lines)


def check_declared(owner: object) -> None:
    """Checks all hyperparameters of an object against their declared ranges."""
    for name, limits in declared(owner).items():
        limits.check(type(owner).__name__, getattr(owner, name))


def make(
    kind: str,
    known_classes: Mapping[str, type[Owner]],
    name: str,
    base: type,
    options: Mapping[str, Any],
    **fields: Any,
) -> Owner:
    """Makes an object by the name of its class, with options.

    `kind` is the word for such objects in messages, `known_classes` has the built-in classes by
    name, the user's derive from `base`, and `fields` are those that are no hyperparameters.

    Raises:
        UnknownName: no such name or option.
        InvalidInput: an option out of its range.
    """
    owner = class_of(kind, known_classes, name, base)
    return construct(f"option of {kind} {name!r}", owner, options, **fields)


def construct(
    field: str, owner: type[Owner], options: Mapping[str, Any], hint: str = "", **fields: Any
) -> Owner:
    """Makes an object of a class with options.

    `field` is the word for an option in messages, with a `hint` where one is unknown.

    Raises:
        UnknownName: no such option.
        InvalidInput: an option out of its range.
    """
    known = declared(owner)
    for key in options:
        if key not in known:
            raise UnknownName.among(field, key, [*known, *fields] or ["(none)"], hint)
    return owner(**options, **fields)


def class_of(
    kind: str, known_classes: Mapping[str, type[Owner]], name: str, base: type
) -> type[Owner]:
    """Returns the class of a name, among built-in ones or the user's (see `fedax.utils.plugins`),
    which derives from `base`.

    Raises:
        UnknownName, InvalidInput: as `fedax.utils.plugins.find`.
    """
    allowed = f"a class derived from {base.__name__}"
    return find(kind, name, known_classes, allowed, lambda value: is_concrete(value, base))


def is_concrete(value: object, base: type) -> bool:
    """Returns whether a value is a class derived from another one, without abstract methods."""
    return isinstance(value, type) and issubclass(value, base) and not inspect.isabstract(value)


def entry(value: PerClient, client: Index) -> Array:
    """Returns the entry of one client in a per-client hyperparameter, or the common value.

    >>> float(entry(0.5, 3)), float(entry(np.array([1.0, 2.0]), 1))
    (0.5, 2.0)
    """
    values = jnp.asarray(value)
    return values[client] if values.ndim else values


def bound_to(owner: Owner, names: Sequence[str] | None, clients: int) -> Owner:
    """Returns the object with everything that refers to clients by name in the order of the
    clients.

    These are mappings given for per-client hyperparameters, and graphs whose nodes have names.

    Args:
        owner: an algorithm.
        names: of the clients; None if they are numbered.
        clients: how many there are.

    Raises:
        DataError: a name that no client has.
        InvalidInput: a client without a value.

    >>> import fedax
    >>> bound_to(fedax.FedProx(mu={"berta": 2.0, "anna": 1.0}), ["anna", "berta"], 2).mu.tolist()
    [1.0, 2.0]
    """
    changes = dict[str, Any]()
    for name in declared(owner):
        value = getattr(owner, name)
        where = f"{type(owner).__name__}({name}=...)"
        if isinstance(value, Mapping):
            changes[name] = np.asarray(in_order(value, names, clients, where), dtype=float)
    for field in dataclasses.fields(owner):  # type: ignore[arg-type]
        value = getattr(owner, field.name)
        if hasattr(value, "bound_to"):
            changes[field.name] = value.bound_to(names, clients)
    return dataclasses.replace(owner, **changes) if changes else owner  # type: ignore[type-var]


def check_population(owner: object, clients: int) -> None:
    """Refuses per-client hyperparameters of another length than there are clients."""
    for name, limits in declared(owner).items():
        shape = np.shape(getattr(owner, name)) if limits.per_client else ()
        if len(shape) and shape != (clients,):
            field = f"{type(owner).__name__}({name}=...)"
            allowed = f"one number, or {clients}, one per client"
            raise InvalidInput.found(field, f"{len(getattr(owner, name))} numbers", allowed)


def as_arrays(tree: PyTree, dtype: DTypeLike) -> PyTree:
    """Turns the real numbers of a pytree into arrays, so that another value is no other program."""

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, float | np.ndarray):
            # on the host: one transfer, and no program is compiled for the conversion
            return jnp.asarray(np.asarray(leaf, dtype))
        return jnp.asarray(leaf, dtype) if eqx.is_inexact_array(leaf) else leaf

    # what overflows becomes infinite, and the run says so
    with np.errstate(over="ignore"):
        return jax.tree.map(convert, tree)
