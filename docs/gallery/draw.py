"""Runs the examples of `examples/` and draws their pictures again.

python docs/gallery/draw.py [NAME ...]
"""

import os
import runpy
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
EXAMPLES = FOLDER.parents[1] / "examples"


def run_script(path: Path, labels: list[str], metric: list[str]) -> None:
    """Runs a script and draws its histories as `picture.png` in the working directory."""
    import pandas as pd

    import fedax
    from fedax.results import drawing

    histories = []
    original = fedax.run

    def recorded(*args: Any, **options: Any) -> Any:
        histories.append(original(*args, **options))
        return histories[-1]

    fedax.run = recorded
    sys.path.insert(0, str(path.parent))  # as Python does for a script
    runpy.run_path(str(path), run_name="__main__")
    drawn: dict[str, list[Any]] = {}
    for label, history in zip(labels, histories, strict=True):
        if label:
            drawn.setdefault(label, []).append(history)
    if metric:
        name, title = metric
        parts = [
            histories[0].to_pandas().assign(method=label) for label, histories in drawn.items()
        ]
        figure = drawing.curves(pd.concat(parts), y=name, col=[], y_title=title)
        drawing.save_as(drawing.Picture("picture", figure), Path("picture.png"))
    else:
        fedax.compare(drawn, "picture.png")


def run_file(path: Path, options: list[str]) -> None:
    """Runs an experiment file, draws its curves, and prints its table."""
    from fedax.experiments.results.store import RunDirectory
    from fedax.results.drawing import save_as

    command = [sys.executable, "-m", "fedax.cli"]
    subprocess.run(
        [*command, "run", str(path), *options, "--out", "run"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    subprocess.run([*command, "report", "run", "--table", "text"], check=True)
    save_as(RunDirectory.load(Path("run")).pictures()[0], Path("picture.png"))


def draw(name: str) -> None:
    """Runs an example in a process of its own, and keeps its picture."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, __file__, "--here", name],
            cwd=folder,
            env=os.environ | {"JAX_PLATFORMS": "cpu"},
            check=True,
        )
        (FOLDER / f"{name}.png").write_bytes(Path(folder, "picture.png").read_bytes())


def main(arguments: list[str]) -> None:
    about = tomllib.loads((FOLDER / "gallery.toml").read_text())
    if arguments[:1] == ["--here"]:
        extra = about[arguments[1]]
        file = EXAMPLES / f"{arguments[1]}.toml"
        if file.exists():
            run_file(file, [word for value in extra.get("set", []) for word in ("--set", value)])
        else:
            run_script(file.with_suffix(".py"), extra["labels"], extra.get("metric", []))
        return
    for name in arguments or about:
        print(name, flush=True)
        draw(name)


if __name__ == "__main__":
    main(sys.argv[1:])
