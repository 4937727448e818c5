"""Translates older spellings of experiment files, which stay valid."""

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from fedax.core import InvalidInput
from fedax.errors import shown
from fedax.experiments.config.toml import KeyPath
from fedax.report.tables.reductions import convert_to_rounds


def _raise(key_path: KeyPath, error: InvalidInput) -> NoReturn:
    raise error


def upgrade_spelling(
    sections: Mapping[str, Any],
    is_stored: bool = False,
    refuse: Callable[[KeyPath, InvalidInput], NoReturn] = _raise,
) -> dict[str, Any]:
    """Translates the sections of a file to the present spelling: `decay` belongs to the solver, not
    to the schedule.

    Args:
        sections: of the file, as plain values.
        is_stored: whether it is a run directory's copy, in which `read` may count observations
            (they are translated to rounds) and defaults are written out.
        refuse: raises an error about a key.

    Raises:
        InvalidInput: a schedule and its solver with different decays.

    >>> upgrade_spelling({"schedule": {"cohort": 2, "decay": 0.9}})
    {'schedule': {'cohort': 2}, 'solver': {'decay': 0.9}}
    """

    def move_decay(
        owner: Mapping[str, Any], common: Mapping[str, Any], key_path: KeyPath
    ) -> dict[str, Any]:
        """Moves the decay of a file or of an algorithm's section, over the options of `common`."""
        schedule, solver = owner.get("schedule"), owner.get("solver") or {}
        if not isinstance(schedule, dict) or "decay" not in schedule:
            return dict(owner)
        decay = schedule["decay"]
        remaining = {key: value for key, value in schedule.items() if key != "decay"}
        if isinstance(solver, dict):
            # copies of directories had the default of the schedule written out
            is_default = is_stored and decay == 1
            if solver.get("decay", decay) != decay and not is_default:
                reason = f"is {shown(decay)}, but the solver's decay is {shown(solver['decay'])}"
                hint = "It is the solver's: remove it from the schedule."
                refuse(
                    (*key_path, "schedule", "decay"),
                    InvalidInput.because("schedule.decay", reason, hint),
                )
            # other solvers than the common one do not have its options
            is_common = solver.get("name", common.get("name", "sgd")) == common.get("name", "sgd")
            is_override = is_common and common.get("decay", 1) != 1
            # 1 is the default, which some solvers do not know, and written only over another decay
            if decay != 1 or is_override:
                solver = {"decay": decay} | solver
        return {**owner, "schedule": remaining} | ({"solver": solver} if solver else {})

    upgraded = move_decay(with_read_in_rounds(sections) if is_stored else sections, {}, ())
    common = upgraded.get("solver")
    if isinstance(upgraded.get("algorithm"), list):
        upgraded["algorithm"] = [
            move_decay(section, common if isinstance(common, dict) else {}, ("algorithm", position))
            if isinstance(section, dict)
            else section
            for position, section in enumerate(upgraded["algorithm"])
        ]
    return upgraded


def with_read_in_rounds(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the sections with `read` in rounds, where an earlier version counted observations.

    >>> with_read_in_rounds({"observe_every": 2, "read": "mean_last_10"})
    {'observe_every': 2, 'read': 'mean_last_20_rounds'}
    """
    read, every = sections.get("read"), sections.get("observe_every", 1)
    if not isinstance(read, str) or not isinstance(every, int):
        return dict(sections)
    return {**sections, "read": convert_to_rounds(read, every)}
