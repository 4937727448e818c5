"""Translates older spellings of experiment files, which stay valid."""

from collections.abc import Mapping
from typing import Any

from fedax.report.tables.reductions import convert_to_rounds


def upgrade_spelling(sections: Mapping[str, Any], kept: bool = False) -> dict[str, Any]:
    """Translates the sections of a file to the present spelling: `decay` belongs to the solver, not
    to the schedule.

    In a run directory's copy (`kept`) `read` may count observations, which are translated to
    rounds.

    >>> upgrade_spelling({"schedule": {"cohort": 2, "decay": 0.9}})
    {'schedule': {'cohort': 2}, 'solver': {'decay': 0.9}}
    """

    def move_decay(owner: Mapping[str, Any]) -> dict[str, Any]:
        schedule = owner.get("schedule")
        if not isinstance(schedule, dict) or "decay" not in schedule:
            return dict(owner)
        rest = {key: value for key, value in schedule.items() if key != "decay"}
        solver = owner.get("solver") or {}
        # 1 is the default and need not be written; a decay that the solver has already wins
        if schedule["decay"] != 1 and isinstance(solver, dict):
            solver = {"decay": schedule["decay"]} | solver
        return {**owner, "schedule": rest} | ({"solver": solver} if solver else {})

    found = move_decay(with_read_in_rounds(sections) if kept else sections)
    if isinstance(found.get("algorithm"), list):
        found["algorithm"] = [
            move_decay(part) if isinstance(part, dict) else part for part in found["algorithm"]
        ]
    return found


def with_read_in_rounds(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the sections with `read` in rounds, where an earlier version counted observations.

    >>> with_read_in_rounds({"observe_every": 2, "read": "mean_last_10"})
    {'observe_every': 2, 'read': 'mean_last_20_rounds'}
    """
    read, every = sections.get("read"), sections.get("observe_every", 1)
    if not isinstance(read, str) or not isinstance(every, int):
        return dict(sections)
    return {**sections, "read": convert_to_rounds(read, every)}
