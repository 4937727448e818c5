"""`fedax new`: skeletons of an algorithm with its test, and of an experiment file."""

import re
from importlib.resources import files
from pathlib import Path

from fedax.algorithms import algorithm_classes
from fedax.core import InvalidInput, RunExists
from fedax.utils.files import write, writing

FAMILIES = ("server", "personalized", "decentralized")
"""Skeletons of algorithms, by family."""


def new_algorithm(name: str, family: str, folder: Path | None) -> list[Path]:
    """Writes an algorithm and its test; below a checkout into its family, where it is found, else into `folder`.

    Args:
        name: of the class: letters and digits, a capital first, such as `FedHalf`.
        family: one of `FAMILIES`.
        folder: for both files; by default the checkout in the working directory, or the working directory itself.

    Raises:
        InvalidInput: a name or family that cannot be. RunExists: a file is there already; nothing is written.
    """
    if not re.fullmatch(r"[A-Z][A-Za-z0-9]*", name):
        raise InvalidInput.of("NAME", name, "letters and digits, a capital first, such as FedHalf")
    if name.lower() in algorithm_classes():
        raise InvalidInput.of("NAME", name, "a name that no algorithm has")
    if family not in FAMILIES:
        raise InvalidInput.of("--family", family, "one of " + ", ".join(FAMILIES))
    checkout = Path("src", "fedax", "algorithms", family)
    inside = folder is None and checkout.is_dir()
    place, tests = (checkout, Path("tests", "closed_forms")) if inside else (folder or Path(), folder or Path())
    module = f"fedax.algorithms.{family}.{name.lower()}" if inside else name.lower()
    return _written(
        {
            place / f"{name.lower()}.py": _text(f"{family}.py.txt", name, module),
            tests / f"test_{name.lower()}.py": _text(f"test_{family}.py.txt", name, module),
        }
    )


def new_experiment(file: Path) -> list[Path]:
    """Writes an experiment file with comments; `.toml` is added to a name without it.

    Raises:
        RunExists: it is there already.
    """
    file = file if file.suffix == ".toml" else file.with_name(f"{file.name}.toml")
    return _written({file: _text("experiment.toml.txt", file.stem, "")})


def _text(skeleton: str, name: str, module: str) -> str:
    text = files("fedax.cli").joinpath("skeletons", skeleton).read_text(encoding="utf-8")
    return text.replace("MODULE", module).replace("NAME", name)


def _written(texts: dict[Path, str]) -> list[Path]:
    for file in texts:
        if file.exists():
            raise RunExists(f"{file} is there already; nothing was overwritten.")
    for file, text in texts.items():
        with writing(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            write(file, text)
    return list(texts)
