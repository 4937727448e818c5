"""Processes that meet: they agree before they begin, and nobody waits for one that has failed."""

import contextlib
import json
import math
import signal
import threading
import traceback
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, NamedTuple

from fedax.engine.distributed import abort as ending
from fedax.engine.distributed.process_group import Team
from fedax.errors import InvalidInput, RankFailed

PATIENCE = 3.0
"""Seconds that a rank with an error waits for the others to have one too, before it ends them."""
_SHOWN = 3
"""The most differences in one message."""


class Word(NamedTuple):
    """A rank's contribution to a meeting: its error with the traceback, and what it has to say."""

    error: str = ""
    trace: str = ""
    content: Any = None


class Meeting(Team):
    """See `Team`.

    A meeting is one of all ranks, wherever each is in its program: one that brings an error gives it to all. Who is in the middle
    of a round cannot come, so a rank whose error finds no others in time ends the job.
    """

    name: str
    """Of the engine, for messages."""
    _asked = False

    @abstractmethod
    def gathered(self, word: Word, patience: float) -> list[Word] | None:
        """Everybody's word at this meeting, or None if not all have come in time, in seconds."""

    @contextlib.contextmanager
    def jointly(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._meet(error=error)
        else:
            self._meet()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        with self._interruptions():
            try:
                yield
            except BaseException as error:
                if self.size > 1 and not getattr(error, "known_to_all", False):
                    self._meet(error=error, patience=PATIENCE)
                    ending.end_by(error, ending.Place(self.rank, self.size))
                raise

    def agree(self, facts: Callable[[], dict[str, Any]], **more: Any) -> Callable[[], dict[str, Any]]:
        found: dict[str, Any] = {}
        with self.jointly():
            try:
                found = json.loads(json.dumps(facts()))
            except InvalidInput as error:
                if more.get("checkpoint_every"):
                    raise
                warnings.warn(f"the ranks' arguments are not compared: {error}", stacklevel=2)
            more = json.loads(json.dumps(more))
        everybody = [(more, found) for more, found in self._meet((more, found))]
        found = self.joined([found for _, found in everybody])
        check_equal(self.name, [more | own for more, own in everybody])
        return lambda: found

    def joined(self, facts: list[dict[str, Any]]) -> dict[str, Any]:
        """The facts of the whole run by everybody's, of which what may differ is taken away."""
        return facts[self.rank]

    def any(self, asked: bool) -> bool:
        return any(self._meet(asked or self._asked))

    def _meet(self, content: Any = None, error: BaseException | None = None, patience: float = math.inf) -> list[Any]:
        """Everybody's content; raises if somebody brings an error, its own to that rank.

        With an error and no more patience it returns without the others.
        """
        if self.size == 1:
            if error is not None:
                raise error
            return [content]
        own = Word(content=content)
        if error is not None:
            own = Word(ending.text_of(error), "".join(traceback.format_exception(error)))
        words = self.gathered(own, patience)
        if words is None:
            return []
        failed = {rank: word.error for rank, word in enumerate(words) if word.error}
        if failed:
            known = error or RankFailed("; ".join(f"{_named(ranks)}: {text}" for text, ranks in _by_value(failed).items()))
            known.known_to_all = True  # pyright: ignore[reportAttributeAccessIssue]
            if error is None:
                known.add_note(f"\nThere:\n{words[min(failed)].trace}")
            raise known
        return [word.content for word in words]

    @contextlib.contextmanager
    def _interruptions(self) -> Iterator[None]:
        """The first Ctrl-C counts for all ranks at their next look; the second is at once. Handlers of others stay."""
        main = threading.current_thread() is threading.main_thread()
        if not main or self.size == 1 or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return

        def ask(number: int, frame: FrameType | None) -> None:
            self._asked = True
            signal.signal(signal.SIGINT, signal.default_int_handler)

        signal.signal(signal.SIGINT, ask)
        try:
            yield
        finally:
            self._asked = False
            signal.signal(signal.SIGINT, signal.default_int_handler)


def check_equal(name: str, everybody: Sequence[dict[str, Any]]) -> None:
    """Refuses ranks that are not about to run the same.

    Args:
        name: of the engine.
        everybody: the facts of all ranks.

    Raises:
        InvalidInput: with the first fields that differ, and their values by rank.
    """
    flat = [dict(_flat(facts)) for facts in everybody]
    places = dict.fromkeys(place for own in flat for place in own)
    found = [place for place in places if len({repr(own.get(place)) for own in flat}) > 1]
    if not found:
        return
    shown = []
    for place in found[:_SHOWN]:
        values = {rank: _short(own[place]) if place in own else "nothing" for rank, own in enumerate(flat)}
        shown.append(f"{place}: " + "; ".join(f"{value} on {_named(at)}" for value, at in _by_value(values).items()))
    rest = len(found) - len(shown)
    more = [f"And {rest} more"] if rest else []
    text = ". ".join(["the ranks disagree", *shown, *more])
    error = InvalidInput.because(name, text, "All must run the same.")
    error.known_to_all = True  # pyright: ignore[reportAttributeAccessIssue]
    raise error


def _flat(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """The plain values of nested dictionaries and lists of dictionaries, by place."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _flat(inner, f"{place}.{name}".lstrip("."))
    elif isinstance(value, list) and any(isinstance(inner, dict | list) for inner in value):
        for i, inner in enumerate(value):
            yield from _flat(inner, f"{place}[{i}]")
    else:
        yield place, value


def _by_value(by_rank: dict[int, str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for rank, value in by_rank.items():
        found.setdefault(value, []).append(rank)
    return found


def _named(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
