"""Older spellings of experiment files, which stay valid."""

from collections.abc import Mapping
from typing import Any


def respelt(sections: Mapping[str, Any]) -> dict[str, Any]:
    """The sections of a file in the present spelling: `decay` belongs to the solver, not to the schedule.

    >>> respelt({"schedule": {"cohort": 2, "decay": 0.9}})
    {'schedule': {'cohort': 2}, 'solver': {'decay': 0.9}}
    """

    def moved(owner: Mapping[str, Any]) -> dict[str, Any]:
        schedule = owner.get("schedule")
        if not isinstance(schedule, dict) or "decay" not in schedule:
            return dict(owner)
        rest = {key: value for key, value in schedule.items() if key != "decay"}
        solver = owner.get("solver") or {}
        if schedule["decay"] != 1 and isinstance(solver, dict):
            solver = {"decay": schedule["decay"]} | solver
        return {**owner, "schedule": rest} | ({"solver": solver} if solver else {})

    found = moved(sections)
    if isinstance(found.get("algorithm"), list):
        found["algorithm"] = [moved(part) if isinstance(part, dict) else part for part in found["algorithm"]]
    return found
