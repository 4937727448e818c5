"""The reference: public names by module, the command line, and experiment files; all from the code
itself."""

import dataclasses
import importlib
import inspect
import json
import re
from typing import Any, get_args

import typer
from pydantic import BaseModel

import fedax
from fedax import cli, codecs
from fedax.algorithms import algorithm_classes
from fedax.core import Algorithm, Schedule
from fedax.core.hyper import Hyper, declared
from fedax.core.scheduling.sampling import SAMPLING
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.config.observers import BY_DEFAULT, OBSERVERS
from fedax.experiments.config.sections import SOLVERS
from fedax.tasks.sources import DATASETS, task_options

THEORY = [
    name
    for name, value in vars(fedax.theory).items()
    if getattr(value, "__name__", "").startswith("fedax.theory.")
    and inspect.ismodule(value)
    and not name.startswith("_")
]
MODULES = (
    "fedax",
    "fedax.tasks",
    "fedax.observe",
    "fedax.models",
    "fedax.data",
    "fedax.codecs",
    "fedax.flower",
    "fedax.attacks",
    "fedax.graphs",
    "fedax.layers",
    "fedax.params",
    "fedax.audit",
    "fedax.privacy",
    *(f"fedax.theory.{name}" for name in THEORY),
)
"""Those with public names, in the order in which they are read; a name is documented at the
first."""
SMALL = ("fedax.graphs", "fedax.audit")
"""Those that use names of other modules, which are no part of them."""
TYPES = {
    "Scalar": "A real number: a Python number, or an array of no axes inside a compiled program.",
    "PerClient": "A real number for all clients, or one for each: in the order of `task.names`, or "
    "a mapping of names to numbers.",
    "Vector": "A model, a gradient or a direction: all parameters in one flat vector.",
}
"""The types of annotations on the page of `fedax`, which no docstring describes at run time."""


class Undocumented(Exception):
    """A public name without a docstring: the site is not built."""


def address(module: str) -> str:
    """The page of a module, below the documents."""
    return f"reference/{module}.md"


def public(module: Any) -> dict[str, Any]:
    """The classes and functions of ours that a module exports, by name."""
    own = module.__name__ if module.__name__ in SMALL else "fedax"
    return {
        name: value
        for name, value in exported(module).items()
        if (inspect.isclass(value) or inspect.isfunction(value))
        and getattr(value, "__module__", "").startswith(own)
    }


def exported(module: Any) -> dict[str, Any]:
    """Returns the public names of a module: those of `__all__`, which a lazy module makes when
    asked for, or all others."""
    if "__all__" in vars(module):
        return {name: getattr(module, name) for name in module.__all__}
    return {name: value for name, value in vars(module).items() if not name.startswith("_")}


def pages() -> dict[str, str]:
    """Markdown by address: one page for each module, the command line, experiment files.

    Raises:
        Undocumented: of public names.
    """
    seen: dict[int, str] = {}
    made = {address(name): _module(importlib.import_module(name), seen) for name in MODULES}
    return made | {"reference/command-line.md": _command_line(), "reference/files.md": _files()}


def _summary(value: Any) -> str:
    """Returns the first paragraph of a docstring, in one line."""
    return (inspect.getdoc(value) or "").partition("\n\n")[0].replace("\n", " ")


def _module(module: Any, seen: dict[int, str]) -> str:
    first = _summary(module)
    lines, elsewhere, own = [f"# {module.__name__}", "", first, ""], [], []
    missing = [
        f"{module.__name__}.{name}"
        for name, value in public(module).items()
        if not inspect.getdoc(value)
    ]
    if missing or not first:
        raise Undocumented(", ".join(missing) or module.__name__)
    listed = re.findall(r"`(\w+)`", inspect.getdoc(module) or "")
    for name, value in sorted(
        public(module).items(),
        key=lambda each: listed.index(each[0]) if each[0] in listed else len(listed),
    ):
        if inspect.isclass(value) and issubclass(value, Algorithm) and "card" in vars(value):
            elsewhere.append(f"[{name}](../algorithms/{name.lower()}.md)")
        elif id(value) in seen:
            elsewhere.append(f"[{name}]({seen[id(value)]})")
        else:
            path = f"{value.__module__}.{value.__qualname__}"
            seen[id(value)] = f"{module.__name__}.md#{path}"
            # the public methods of a base class without a page are part of the class
            options = ["    options:", "      inherited_members: true"] * (module.__name__ in SMALL)
            own += [f"::: {path}", *options, ""]
    if elsewhere:
        lines += ["On pages of their own: " + ", ".join(sorted(elsewhere)) + ".", ""]
    if module.__name__ == "fedax":
        types = [f"- `fedax.{name}`: {about}" for name, about in TYPES.items()]
        own += ["## Types of annotations", "", *types, ""]
    return "\n".join(lines + _modules(module) + own)


def _modules(module: Any) -> list[str]:
    """The modules that a module exports by `__all__`, each with what it is about and a link to its
    page if it has one."""
    found = {name: value for name, value in exported(module).items() if inspect.ismodule(value)}
    if not found or "__all__" not in vars(module):
        return []
    lines = ["Modules:", ""]
    for name, value in found.items():
        about = _summary(value)
        if value.__name__ in MODULES:
            title = f"[`{value.__name__}`]({value.__name__}.md)"
        elif name == "algorithms":
            title = f"[`{value.__name__}`](../algorithms/index.md)"
        elif parts := [part for part in MODULES if part.startswith(f"{value.__name__}.")]:
            links = [f"[{part.rpartition('.')[2]}]({part}.md)" for part in parts]
            title = f"`{value.__name__}` ({', '.join(links)})"
        else:
            title = f"`{value.__name__}`"
        lines.append(f"- {title}: {about}")
    return [*lines, ""]


def _command_line() -> str:
    """Every command with its arguments and options."""
    root = typer.main.get_command(cli.app)
    lines = ["# Command line", "", "`fedax COMMAND --help` shows the same in a terminal.", ""]
    for path, command in _commands(root, "fedax"):
        lines += [f"## {path}", "", inspect.cleandoc(command.help or ""), ""]
        rows = [
            _option(parameter)
            for parameter in command.params
            if parameter.name != "help" and not getattr(parameter, "hidden", False)
        ]
        if rows:
            lines += ["| | | default |", "| --- | --- | --- |", *rows, ""]
    return "\n".join(lines)


def _commands(group: Any, path: str) -> list[tuple[str, Any]]:
    found = []
    for name, command in sorted(group.commands.items()):
        found += (
            _commands(command, f"{path} {name}")
            if hasattr(command, "commands")
            else [(f"{path} {name}", command)]
        )
    return found


def _option(parameter: Any) -> str:
    name = (
        ", ".join(f"`{option}`" for option in parameter.opts)
        if parameter.param_type_name == "option"
        else f"`{parameter.metavar or parameter.name}`"
    )
    default = parameter.default
    shown = f"`{default}`" if default and not callable(default) else ""
    about = (getattr(parameter, "help", "") or "").replace("|", "/")
    return f"| {name} | {about} | {shown} |"


def _files() -> str:
    """Experiment files: every table and key."""
    made = Experiment.model_json_schema()
    lines = [
        "# Experiment files",
        "",
        *INTRODUCTION.strip().splitlines(),
        "",
        "## Keys of the file",
        "",
    ]
    lines += ["| key | default | allowed | |", "| --- | --- | --- | --- |"]
    for key, about in made["properties"].items():
        if key not in (*EXPLAINED, *_sections()):
            default = (
                ""
                if key in made["required"]
                else f"`{_toml(Experiment.model_fields[FIELDS.get(key, key)].default)}`"
            )
            text = " ".join(about.get("description", "").split())
            lines.append(f"| `{key}` | {default or 'needed'} | {_allowed(about)} | {text} |")
    lines += ["", "## `[task]`", "", "| name | options with their defaults |", "| --- | --- |"]
    for name in DATASETS:
        options = ", ".join(
            f"`{key}` (needed)"
            if option.default is option.empty
            else f"`{key} = {_toml(option.default)}`"
            for key, option in task_options(name).items()
        )
        lines.append(f"| `{name}` | {options} |")
    lines += ["", "They are described with `fedax.task` and [`fedax.data`](fedax.data.md)."]
    lines += ["", "## `[solver]`", ""]
    for name, kind in SOLVERS.items():
        lines += [f'`name = "{name}"`', "", *_table(declared(kind)), ""]
    lines += ["## `[schedule]`", "", "| key | default |", "| --- | --- |"]
    lines += [
        f"| `{field.name}` | `{_toml(field.default)}` |" for field in dataclasses.fields(Schedule)
    ]
    rules = ", ".join(f'`"{rule}"`' for rule in SAMPLING)
    lines += [
        "",
        f"Of `sampling`: {rules}. A pair such as `epochs = [2, 5]` is drawn anew for "
        "every client and round.",
        "",
    ]
    lines += ["## `[[algorithm]]`", "", ALGORITHM.strip(), ""]
    lines += [
        f"- [`{name}`](../algorithms/{name}.md): {_names(kind)}"
        for name, kind in algorithm_classes().items()
    ]
    lines += [
        "",
        "## `[channel]`",
        "",
        '`up` and `down` are codecs: `up = {name = "qsgd", b = 8}`. `ef21` and `diana` have another one '
        'within: `up = {name = "ef21", codec = {name = "topk", fraction = 0.1}}`.',
        "",
    ]
    for name, kind in codecs.CODECS.items():
        lines += [f'`name = "{name}"`', "", *_table(declared(kind)), ""]
    lines += [
        "## `observe`",
        "",
        "A list of names; by default those that fit the task.",
        "",
        "| name | | by default |",
        "| --- | --- | --- |",
    ]
    for name, kind in OBSERVERS.items():
        about = _summary(kind if inspect.isclass(kind) else type(kind()))
        first = about.replace("|", r"\vert{}")  # bars would divide cells
        lines.append(f"| `{name}` | {first} | {'yes' if name in BY_DEFAULT else 'no'} |")
    lines += ["", "## Other tables", ""]
    for name, kind in _sections().items():
        text = inspect.cleandoc(kind.__doc__ or "").partition(">>>")[0].strip()
        lines += [f"### `[{name}]`", "", text, "", "| key | default | |", "| --- | --- | --- |"]
        for key, field in kind.model_fields.items():
            about = " ".join((field.description or "").split())
            lines.append(f"| `{key}` | `{_toml(field.default)}` | {about} |")
        lines.append("")
    return "\n".join(lines)


FIELDS = {"read": "reads"}
"""The fields of keys that have another name."""
EXPLAINED = ("task", "solver", "schedule", "algorithm", "channel")
INTRODUCTION = """
A file is everything that a run needs. `fedax validate FILE` checks it with its data and shows it with every default written out,
`fedax run FILE` runs it, and `--set PATH=VALUE` puts another value in its place. `fedax validate --schema` prints the JSON schema of
its tables and keys for editors.

```toml
name = "Digits by label"
rounds = 60
seeds = [0, 1, 2]

[task]
name = "digits"
partition = "shards"
clients = 20

[solver]
name = "sgd"
learning_rate = 0.05

[schedule]
cohort = 10
epochs = 5
batch_size = 10

[[algorithm]]
name = "fedavg"

[[algorithm]]
name = "fedprox"
mu = 0.1
```
"""
ALGORITHM = """
One table for each method. `name` is one of those below; `label` is its title in tables; other keys are its hyperparameters (a list
is one value for each client). `solver` and `schedule` are tables of options that differ from the file's.
"""


def _sections() -> dict[str, Any]:
    """The tables of a file that no part of this page is about yet, by name."""
    found = {}
    for name, field in Experiment.model_fields.items():
        kinds = [
            each
            for each in (field.annotation, *get_args(field.annotation))
            if inspect.isclass(each)
        ]
        kinds = [each for each in kinds if issubclass(each, BaseModel)]
        if kinds and name not in EXPLAINED:
            found[field.alias or name] = kinds[0]
    return found


def _allowed(about: dict[str, Any]) -> str:
    if "items" in about and "enum" in about["items"]:
        return "a list of: " + ", ".join(f"`{choice}`" for choice in about["items"]["enum"])
    if "enum" in about:
        return ", ".join(f"`{choice}`" for choice in about["enum"])
    kinds = [about.get("type", "")] + [each.get("type", "") for each in about.get("anyOf", [])]
    words = {
        "integer": "whole number",
        "string": "text",
        "array": "list",
        "number": "number",
        "boolean": "true or false",
        "object": "table",
    }
    text = " or ".join(words[kind] for kind in kinds if kind in words)
    return text + (f", at least {about['minimum']}" if "minimum" in about else "")


def _toml(value: Any) -> str:
    return "none" if value is None else json.dumps(value, default=str)


def _table(known: dict[str, Hyper]) -> list[str]:
    if not known:
        return ["No options."]
    rows = [
        f"| `{limits.name}` | `{limits.default}` | {limits.allowed} | {limits.doc} |"
        for limits in known.values()
    ]
    return ["| key | default | allowed | |", "| --- | --- | --- | --- |", *rows]


def _names(kind: Any) -> str:
    return ", ".join(f"`{name}`" for name in declared(kind)) or "no hyperparameters"
