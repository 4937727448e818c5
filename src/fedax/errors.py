"""The one family of exceptions that fedax raises.

Everything derives from :class:`FedaxError`. Input errors also derive from `ValueError`, name the
field, the value that was given and what is allowed, and are raised before anything is compiled or
overwritten.
"""

import difflib
import importlib.util
import shlex
import sys
import unicodedata
from collections.abc import Iterable
from importlib.metadata import requires

_SHOWN = 300
_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode's categories of characters that move a terminal's cursor, turn a text around, or begin a
line."""


def is_printable(text: str) -> bool:
    r"""Returns whether a text is free of control characters.

    >>> (
    ...     is_printable("FedAvg, μ = 1"),
    ...     is_printable("a\x1b[2J"),
    ...     is_printable("a\nb"),
    ...     is_printable("\u202eb"),
    ... )
    (True, False, False, False)
    """
    return not any(unicodedata.category(character) in _UNSEEN for character in text)


def printable(text: str) -> str:
    r"""Returns a text with control characters written out, so that it cannot move a cursor or forge
    a line of a log.

    >>> print(printable("a\x1b[2J\nb\u202ec"))
    a\x1b[2J\nb\u202ec
    """
    if is_printable(text):
        return text
    return "".join(
        character.encode("unicode_escape", "surrogatepass").decode()
        if unicodedata.category(character) in _UNSEEN
        else character
        for character in text
    )


def shown(value: object) -> str:
    """Returns a value in a message: its text, or the beginning and the end of it.

    >>> shown("a"), len(shown("a" * 1_000_000))
    ("'a'", 338)
    """
    try:
        return short(repr(value))
    except RecursionError:
        return f"a deeply nested {type(value).__name__}"
    except ValueError:  # Python writes no number of more than 4,300 digits
        return f"a {type(value).__name__} with too many digits"


def short(text: str) -> str:
    """Returns a text of any length with control characters written out, cut in the middle if it
    would fill the screen.
    """
    text = "\n".join(map(printable, text.split("\n")))
    if len(text) <= 2 * _SHOWN:
        return text
    cut = f" ... ({len(text) - _SHOWN} characters left out) ... "
    return text[: _SHOWN // 2] + cut + text[-_SHOWN // 2 :]


def install_hint(extra: str) -> str:
    """Returns the command that installs what an extra of fedax needs into the environment of this
    process.

    It names the packages and not the extra, because fedax itself may come from a checkout or a
    file.

    >>> install_hint("slurm").endswith(' install "submitit>=1.5"')
    True
    """
    requirements = [requirement.partition(";") for requirement in requires("fedax") or ()]
    packages = [
        name.strip()
        for name, _, marker in requirements
        if marker.replace("'", '"').strip() == f'extra == "{extra}"'
    ]
    python = shlex.quote(sys.executable)
    pip = f"{python} -m pip install"
    if importlib.util.find_spec("pip") is None:  # environments of uv
        pip = f"uv pip install --python {python}"
    return " ".join([pip, *(f'"{name}"' for name in packages)])


class FedaxError(Exception):
    """Base of every exception raised on purpose by fedax."""


class InvalidInput(FedaxError, ValueError):
    """A value outside what a field allows.

    Attributes:
        field: the field in the message, such as `FedProx(mu=...)`; empty if there is none.
    """

    field = ""

    @classmethod
    def of(cls, field: str, value: object, allowed: str, hint: str = "") -> "InvalidInput":
        """Builds the message `field: got value; allowed: ...`, with an optional hint on what to
        do.
        """
        return cls.found(field, shown(value), allowed, hint)

    @classmethod
    def because(cls, field: str, reason: str, hint: str = "") -> "InvalidInput":
        """Builds the message `field: reason`, for what is not a value out of a range, such as a
        file or a combination.
        """
        return cls._about(field, f"{short(field)}: {short(reason)}.", hint)

    @classmethod
    def found(cls, field: str, what: str, allowed: str, hint: str = "") -> "InvalidInput":
        """Refuses a value as `of` does, for something described in words."""
        return cls._about(field, f"{short(field)}: got {short(what)}; allowed: {allowed}.", hint)

    @classmethod
    def _about(cls, field: str, text: str, hint: str) -> "InvalidInput":
        error = cls(f"{text} {hint}" if hint else text)
        error.field = field
        return error


class UnknownName(InvalidInput):
    """A name that is not in a list of choices; the message holds the nearest one."""

    @classmethod
    def among(cls, field: str, name: str, known: Iterable[str], hint: str = "") -> "InvalidInput":
        """Builds the message, with the nearest known name unless there is a `hint`."""
        names = sorted(set(known))
        # a typo, or an end such as worst_tenth of client_accuracy_worst_tenth, or anything alike
        matches = difflib.get_close_matches(name[:_SHOWN], names, n=1, cutoff=0.8)
        matches = matches or [known for known in names if known.endswith(f"_{name}")]
        matches = matches or difflib.get_close_matches(name[:_SHOWN], names, n=1, cutoff=0.5)
        if matches and not hint:
            hint = f"Did you mean {matches[0]!r}?"
        allowed = f"one of {', '.join(names)}" if names else "none"
        # the hint first: lists may be long
        got = f"{short(field)}: got {shown(name)}"
        text = f"{got}. {hint} Allowed" if hint else f"{got}; allowed"
        return cls._about(f"{field} {name}", f"{text}: {allowed}.", "")


class DataError(InvalidInput):
    """Data that cannot be trained on: empty clients, NaN, labels out of range, unequal lengths."""


class SpecError(InvalidInput):
    """An experiment file that cannot be read or does not validate."""


class RunExists(FedaxError):
    """The output directory already holds a run; nothing was overwritten."""


class WriteFailed(FedaxError):
    """Results could not be kept, for lack of space for example; what was kept before is whole."""


class WorkError(FedaxError):
    """A client's work failed; the message names algorithm, phase, round and client."""


class RankFailed(FedaxError):
    """Another rank of an MPI program failed; the message names it and has its text."""


class RunFailed(FedaxError):
    """Raised by `run(..., throw=True)` when the outcome is not ok."""
