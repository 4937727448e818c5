"""The experiment file as JSON schema, with which editors complete and check.

pydantic writes the tables; the names and options of registries are added here.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from fedax.algorithms import algorithm_classes
from fedax.communication.attacks import ATTACKS
from fedax.communication.codecs import CODECS
from fedax.communication.memory_codecs import SharedMemory
from fedax.core import Schedule
from fedax.core.hyper import Hyper, declared
from fedax.core.solver import optax_names
from fedax.data.options import json_schema
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.config.observers import OBSERVERS
from fedax.experiments.config.sections import BY_THEORY, SOLVERS
from fedax.tasks.sources import DATASETS, task_options

_REFERENCE = {"type": "string", "pattern": ":"}


def schema() -> dict[str, Any]:
    """Returns the JSON schema (draft 2020-12) of an experiment file.

    >>> schema()["properties"]["rounds"]["minimum"]
    0
    """
    document = Experiment.model_json_schema()
    document["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    properties = document["properties"]
    definitions = document["$defs"]
    names = {"anyOf": [{"enum": list(OBSERVERS)}, _REFERENCE]}
    properties["observe"] |= {"anyOf": [{"type": "array", "items": names}]}
    schedule = {field.name: _default_schema(field) for field in dataclasses.fields(Schedule)}
    common = {"solver": {"type": "object"}, "schedule": _table(schedule)}
    properties["schedule"] |= common["schedule"]
    definitions["AlgorithmSection"] = _forms(
        algorithm_classes(), label={"type": "string"}, **common
    )
    definitions["AttackSection"] = _forms(ATTACKS)
    definitions["CodecSection"] = _forms(CODECS)
    for form in definitions["CodecSection"]["oneOf"]:
        name = form["properties"]["name"].get("const")
        if name and issubclass(CODECS[name], SharedMemory):
            form["properties"]["codec"] = {"$ref": "#/$defs/CodecSection"}
            form["required"] = ["name", "codec"]
    solvers = _forms(SOLVERS)
    sgd = solvers["oneOf"][0]
    sgd["required"] = []
    step_size = sgd["properties"]["learning_rate"]
    sgd["properties"]["learning_rate"] = {"anyOf": [step_size, {"const": BY_THEORY}]}
    optax = {"name": {"enum": sorted({*optax_names()} - {*SOLVERS})}}
    solvers["oneOf"].append(_table(optax, "name") | {"additionalProperties": True})
    definitions["SolverSection"] = solvers
    tasks = []
    for name in DATASETS:
        options = json_schema(task_options(name))
        # the options of a partition depend on which one is chosen
        is_open = {"additionalProperties": "partition" in options}
        tasks.append(_table({"name": {"const": name}, **options}, "name") | is_open)
    definitions["Section"] = {"oneOf": [*tasks, *_forms({})["oneOf"]]}
    return document


def _table(properties: Mapping[str, Any], *required: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _forms(classes: Mapping[str, type], **common: Any) -> dict[str, Any]:
    """Returns a table for each name, and one of your own code, whose options only its file
    knows.
    """
    forms: list[dict[str, Any]] = []
    for name, kind in classes.items():
        values = {key: _hyperparameter_schema(limits) for key, limits in declared(kind).items()}
        forms.append(_table({"name": {"const": name}, **common, **values}, "name"))
    own = _table({"name": _REFERENCE}, "name") | {"additionalProperties": True}
    return {"oneOf": [*forms, own]}


def _hyperparameter_schema(limits: Hyper) -> dict[str, Any]:
    about: dict[str, Any] = {"description": limits.doc}
    # JSON has no infinity
    if not isinstance(limits.default, float) or math.isfinite(limits.default):
        about["default"] = limits.default
    if limits.choices is not None:
        return about | {"enum": list(limits.choices)}
    if limits.leaves:
        text = {"type": "string"}
        return about | {"anyOf": [text, {"type": "array", "items": text}]}
    bounds: dict[str, Any] = {"type": "integer" if limits.counts else "number"}
    if math.isfinite(limits.low):
        bounds["exclusiveMinimum" if limits.open_low else "minimum"] = limits.low
    if math.isfinite(limits.top):
        bounds["exclusiveMaximum" if limits.open_high else "maximum"] = limits.top
    if limits.per_client:
        return about | {"anyOf": [bounds, {"type": "array", "items": bounds}]}
    return about | bounds


def _default_schema(field: dataclasses.Field[Any]) -> dict[str, Any]:
    """Returns the default of a schedule's option; its type stays open, because texts may stand for
    numbers.
    """
    return {"default": field.default} if isinstance(field.default, int | float | str) else {}
