"""The experiment file as JSON schema, with which editors complete and check.

pydantic writes the tables; the names and options of registries are added here.
"""

import math
from collections.abc import Mapping
from typing import Any

from fedax.algorithms import algorithm_classes
from fedax.communication.attacks import ATTACKS
from fedax.communication.codecs import CODECS
from fedax.core import Schedule
from fedax.core.hyper import declared
from fedax.core.solver import optax_names
from fedax.data.options import json_schema
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.config.observers import OBSERVERS
from fedax.experiments.config.sections import SOLVERS, fields_of
from fedax.tasks.sources import DATASETS, task_options

_OWN = {"properties": {"name": {"pattern": ":"}}, "required": ["name"]}
"""A table of your own code, whose options only its file knows."""


def schema() -> dict[str, Any]:
    """Returns the JSON schema (draft 2020-12) of an experiment file.

    >>> schema()["properties"]["rounds"]["minimum"]
    0
    """
    document = Experiment.model_json_schema()
    tables = document["$defs"]
    names = {"anyOf": [{"enum": list(OBSERVERS)}, {"pattern": ":"}]}
    document["properties"]["observe"]["anyOf"][0]["items"] = names
    keys = {key: {} for key in fields_of(Schedule)}
    schedule = {"properties": keys, "additionalProperties": False}
    document["properties"]["schedule"] |= schedule
    common = {"label": {"type": "string"}, "solver": {"type": "object"}, "schedule": schedule}
    tables["AlgorithmSection"] = _forms(algorithm_classes(), common)
    tables["AttackSection"] = _forms(ATTACKS, {})
    tables["CodecSection"] = _forms(CODECS, {"codec": {"$ref": "#/$defs/CodecSection"}})
    tables["SolverSection"] = _forms(SOLVERS, {})
    optax = {"name": {"enum": sorted({*optax_names()} - {*SOLVERS})}}
    # the solver is SGD if no other one is named
    tables["SolverSection"]["oneOf"][0]["required"] = []
    tables["SolverSection"]["oneOf"].append({"properties": optax, "required": ["name"]})
    tasks = {name: json_schema(task_options(name)) for name in DATASETS}
    # the options of a partition depend on which one is chosen
    forms = [_named(name, options, "partition" in options) for name, options in tasks.items()]
    tables["Section"] = {"oneOf": [*forms, _OWN]}
    return document


def _named(name: str, options: Mapping[str, Any], is_open: bool = False) -> dict[str, Any]:
    properties = {"name": {"const": name}, **options}
    return {"properties": properties, "required": ["name"], "additionalProperties": is_open}


def _forms(classes: Mapping[str, type], common: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a table for each name, and one for your own code."""
    forms: list[dict[str, Any]] = []
    for name, kind in classes.items():
        options = dict(common)
        for key, limits in declared(kind).items():
            options[key] = {"description": f"{limits.doc}; {limits.allowed}"}
            # JSON has no infinity
            if not isinstance(limits.default, float) or math.isfinite(limits.default):
                options[key]["default"] = limits.default
            if limits.choices is not None:
                options[key]["enum"] = list(limits.choices)
        forms.append(_named(name, options))
    return {"oneOf": [*forms, _OWN]}
