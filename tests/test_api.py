"""The public interface: a change of it is announced, never an accident.

`python tests/test_api.py` writes `tests/api.txt` anew; what then differs belongs into the
changelog."""

import importlib
import inspect
from pathlib import Path
from types import ModuleType

import fedax

FILE = Path(__file__).with_name("api.txt")
MODULES = [
    "attacks",
    "codecs",
    "core",
    "data",
    "flower",
    "graphs",
    "layers",
    "models",
    "observe",
    "privacy",
    "tasks",
    "theory",
]


def interface() -> list[str]:
    """A line for each public name at the first place that has it: classes with constructor, methods and fields, functions with
    parameters and defaults."""
    lines = [
        line for name in fedax.__all__ for line in described(f"fedax.{name}", getattr(fedax, name))
    ]
    for name in MODULES:
        module = importlib.import_module(f"fedax.{name}")
        names = getattr(module, "__all__", None) or vars(module)
        for part, value in sorted((name, getattr(module, name)) for name in names):
            is_ours = getattr(value, "__module__", "").startswith("fedax")
            if is_ours and not part.startswith("_") and value is not vars(fedax).get(part):
                lines += described(f"fedax.{name}.{part}", value)
    return sorted(set(lines))


def described(name, value):
    if isinstance(value, ModuleType):
        return [name]
    if not inspect.isclass(value):
        return [name + signature(value)] if callable(value) else [name]
    parts = [f"{name}{signature(value)}"]
    # its verbs are those of the base class
    if issubclass(value, fedax.Algorithm) and value is not fedax.Algorithm:
        return parts
    ours = [kind for kind in reversed(value.__mro__) if kind.__module__.startswith("fedax")]
    inherited = {key: part for kind in ours for key, part in vars(kind).items()}
    for key, part in inherited.items():
        plain = inspect.unwrap(
            part.__func__ if isinstance(part, classmethod | staticmethod) else part
        )
        if key.startswith("_") or isinstance(part, ModuleType):
            continue
        if isinstance(part, property):
            parts.append(f"{name}.{key}")
        elif inspect.isfunction(plain):
            parts.append(f"{name}.{key}{signature(plain)}")
    return parts


def signature(value):
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return "(...)"
    bare = [
        p.replace(annotation=p.empty, default=Shown.of(p.default))
        for p in found.parameters.values()
    ]
    return str(found.replace(parameters=bare, return_annotation=found.empty))


class Shown:
    """A default value as text that is the same everywhere."""

    def __init__(self, value):
        self.value = value

    @classmethod
    def of(cls, value):
        return value if value is inspect.Parameter.empty else cls(value)

    def __repr__(self):
        plain = self.value is None or isinstance(self.value, str | int | float | tuple)
        return repr(self.value) if plain else "..."


def test_the_public_interface_is_the_announced_one():
    known = FILE.read_text().splitlines()
    now = interface()
    gone = sorted(set(known) - set(now))
    new = sorted(set(now) - set(known))
    assert (gone, new) == ([], []), "announce it in CHANGELOG.md, then `python tests/test_api.py`"


if __name__ == "__main__":
    FILE.write_text("\n".join(interface()) + "\n")
