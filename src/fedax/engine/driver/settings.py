"""Settings of a run as plain values, as experiments store them."""

import dataclasses
import json
from typing import Any

import numpy as np

from fedax.core.algorithm import Algorithm
from fedax.core.hyper import declared, is_new
from fedax.engine.driver.options import RunOptions

_SHOWN = 64
"""Of longer arrays only the ends of their range are stored."""


def settings_of(algorithm: Algorithm[Any], options: RunOptions) -> dict[str, Any]:
    """Returns algorithm, solver, schedule, channel and `on_bad_client` as experiments store
    them.
    """
    settings = {
        "algorithm": hyperparameters_of(algorithm),
        "solver": hyperparameters_of(options.solver),
        "schedule": options.schedule.options,
        "channel": options.channel and type(options.channel).__name__,
        "on_bad_client": options.on_bad_client,
    }
    return json.loads(json.dumps(settings, sort_keys=True, default=_to_plain))


def hyperparameters_of(owner: object) -> dict[str, Any]:
    """Returns the class of an algorithm or a solver as `type`, and its hyperparameters by name."""
    fields = dataclasses.fields(owner)  # type: ignore[arg-type]
    names = declared(owner)
    values = ((field, getattr(owner, field.name)) for field in fields if field.name in names)
    return {"type": type(owner).__name__} | {
        field.name: value for field, value in values if not is_new(field, value)
    }


def _to_plain(value: Any) -> Any:
    if not hasattr(value, "tolist"):
        return repr(value)
    array = np.asarray(value)
    return array.tolist() if array.size <= _SHOWN else [float(array.min()), float(array.max())]
