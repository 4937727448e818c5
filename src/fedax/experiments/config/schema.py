"""The experiment file as JSON schema, made from the same declarations that check it; editors
complete and check with it.
"""

import dataclasses
import math
from typing import Any

from fedax.algorithms import algorithm_classes
from fedax.communication.attacks import ATTACKS
from fedax.communication.channel import Codec
from fedax.communication.codecs import CODECS
from fedax.communication.memory_codecs import SharedMemory
from fedax.core import Schedule
from fedax.core.hyper import Hyper, declared
from fedax.core.solver import optax_names
from fedax.data.options import json_schema
from fedax.engine.driver.options import BAD_CLIENT
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.config.grids import SELECT
from fedax.experiments.config.observers import OBSERVERS
from fedax.experiments.config.sections import BY_THEORY, KEEP_MODELS, SOLVERS, TRACKERS
from fedax.tasks.sources import DATASETS, task_options
from fedax.utils.random import MOST_SEED

_REFERENCE = {"type": "string", "pattern": ":"}
_USER = {"type": "object", "required": ["name"], "properties": {"name": _REFERENCE}}
"""Your own code, whose options only its file knows."""


def schema() -> dict[str, Any]:
    """Returns the JSON schema (draft 2020-12) of an experiment file.

    >>> schema()["properties"]["rounds"]["minimum"]
    0
    """
    # pydantic writes the tables; what follows replaces parts that depend on registries and ranges
    document = Experiment.model_json_schema()
    properties = document["properties"]
    properties["rounds"] |= {"minimum": 0}
    properties["observe_every"] |= {"minimum": 1}
    properties["seeds"] |= {
        "minItems": 1,
        "uniqueItems": True,
        "items": {"type": "integer", "minimum": 0, "maximum": MOST_SEED},
    }
    properties["observe"] = {
        "type": "array",
        "items": {"anyOf": [{"enum": list(OBSERVERS)}, _REFERENCE]},
    }
    properties["task"] = {"oneOf": [*map(_task_schema, DATASETS), _USER]}
    solvers = [_named_schema(name, declared(kind), default="sgd") for name, kind in SOLVERS.items()]
    step_size = solvers[0]["properties"]["learning_rate"]
    solvers[0]["properties"]["learning_rate"] = {"anyOf": [step_size, {"const": BY_THEORY}]}
    optax = {
        "type": "object",
        "required": ["name"],
        "properties": {"name": {"enum": sorted({*optax_names()} - {*SOLVERS})}},
    }
    properties["solver"] = {"oneOf": [*solvers, optax, _USER]}
    schedule = {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            field.name: _default_schema(field.default) for field in dataclasses.fields(Schedule)
        },
    }
    properties["schedule"] = schedule
    members = [
        _named_schema(
            name,
            declared(kind),
            label={"type": "string"},
            solver={"type": "object"},
            schedule=schedule,
        )
        for name, kind in algorithm_classes().items()
    ]
    properties["algorithm"] = {
        "type": "array",
        "minItems": 1,
        "items": {"oneOf": [*members, _USER]},
    }
    # choices and ranges that the types do not say
    properties["trackers"] = {"type": "array", "items": {"enum": list(TRACKERS)}}
    properties["checkpoint_every"] = {"type": "integer", "minimum": 0}
    properties["seeds_together"] = {"type": "boolean"}
    properties["on_bad_client"] = {"enum": list(BAD_CLIENT)}
    properties["unseen_steps"] = {"type": "integer", "minimum": 1}
    properties["keep_models"] = {"enum": list(KEEP_MODELS)}
    codecs = {"oneOf": [*_codec_schemas(CODECS), _USER]}
    attacks = {
        "oneOf": [*(_named_schema(name, declared(kind)) for name, kind in ATTACKS.items()), _USER]
    }
    channel_properties = {"up": codecs, "down": codecs, "attack": attacks}
    properties["channel"] = {
        "type": "object",
        "additionalProperties": False,
        "properties": channel_properties,
    }
    document["$defs"]["GridSection"]["properties"]["select"] = {"enum": list(SELECT)}
    lists = {"type": "object", "additionalProperties": {"type": "array", "minItems": 1}}
    document["$defs"]["GridSection"]["additionalProperties"] = lists
    document["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    # the parts that refer to them are replaced above
    unused = (
        "Section",
        "SolverSection",
        "AlgorithmSection",
        "CodecSection",
        "AttackSection",
        "ChannelSection",
    )
    document["$defs"] = {
        name: definition
        for name, definition in document.get("$defs", {}).items()
        if name not in unused
    }
    return document


def _codec_schemas(classes: dict[str, type[Codec]]) -> list[dict[str, Any]]:
    """Returns the forms of codecs; those that share a memory have one without within."""
    plain = {name: kind for name, kind in classes.items() if not issubclass(kind, SharedMemory)}
    forms = [_named_schema(name, declared(kind)) for name, kind in plain.items()]
    outer = [
        _named_schema(name, declared(kind), codec={"oneOf": [*forms, _USER]})
        for name, kind in classes.items()
        if name not in plain
    ]
    return forms + [form | {"required": ["name", "codec"]} for form in outer]


def _named_schema(
    name: str, hyperparameters: dict[str, Hyper], default: str | None = None, **extra: Any
) -> dict[str, Any]:
    properties = (
        {"name": {"const": name}}
        | extra
        | {key: _hyperparameter_schema(limits) for key, limits in hyperparameters.items()}
    )
    required = [] if name == default else ["name"]
    return {
        "type": "object",
        "required": required,
        "additionalProperties": False,
        "properties": properties,
    }


def _hyperparameter_schema(limits: Hyper) -> dict[str, Any]:
    # JSON has no infinity
    finite = not isinstance(limits.default, float) or math.isfinite(limits.default)
    annotations = {"description": limits.doc} | ({"default": limits.default} if finite else {})
    if limits.choices is not None:
        return annotations | {"enum": list(limits.choices)}
    if limits.leaves:
        return annotations | {
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]
        }
    bounds: dict[str, Any] = {"type": "integer" if limits.counts else "number"}
    # (bound, whether it is excluded, keyword of JSON schema)
    ends = ((limits.low, limits.open_low, "minimum"), (limits.top, limits.open_high, "maximum"))
    for bound, excluded, keyword in ends:
        if math.isfinite(bound):
            bounds[f"exclusive{keyword.capitalize()}" if excluded else keyword] = bound
    # one number for each client
    lists = {"type": "array", "items": bounds}
    return annotations | ({"anyOf": [bounds, lists]} if limits.per_client else bounds)


def _task_schema(name: str) -> dict[str, Any]:
    # the options of a partition depend on which one is chosen, so tasks with one stay open
    options = json_schema(task_options(name))
    return {
        "type": "object",
        "required": ["name"],
        "additionalProperties": "partition" in options,
        "properties": {"name": {"const": name}} | options,
    }


def _default_schema(default: Any) -> dict[str, Any]:
    """Returns the type of a default; None and texts, which may stand for a number, stay open."""
    if isinstance(default, bool):
        return {"type": "boolean", "default": default}
    if isinstance(default, int | float):
        return {"default": default}
    return {"default": default} if isinstance(default, str) else {}
