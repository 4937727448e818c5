"""The gallery of examples: a page for each script or file of `examples/`, with its picture and
output.

    python docs/hooks/gallery.py [NAME ...]    # runs examples and draws their pictures again

Pictures and `made.toml`, which has the outputs, are files of `docs/gallery`, so that the site is
built without running the examples."""

import ast
import hashlib
import os
import re
import runpy
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER, EXAMPLES = ROOT / "docs" / "gallery", ROOT / "examples"
MADE = FOLDER / "made.toml"


def examples() -> dict[str, Path]:
    """Returns the examples by name."""
    return {
        path.stem: path for path in sorted(EXAMPLES.glob("*.*")) if path.suffix in (".py", ".toml")
    }


def digest(path: Path) -> str:
    """Returns what tells whether a picture belongs to its example."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def described(path: Path) -> str:
    """Returns the text about an example: its docstring, or its first comments."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return ast.get_docstring(ast.parse(text)) or ""
    lines = re.match(r"(#[^\n]*\n)*", text)[0].splitlines()
    return "\n".join(line[2:] for line in lines if not line.startswith("#   "))


def pages() -> dict[str, str]:
    """Returns the pages by address."""
    about, made = (
        tomllib.loads((FOLDER / "gallery.toml").read_text()),
        tomllib.loads(MADE.read_text()),
    )
    found, cards = {}, []
    for name, extra in about.items():
        if name not in made:
            continue
        path = examples()[name]
        text = described(path)
        first = re.match(r"(.+?[.!?])(\s|$)", text, flags=re.DOTALL)
        summary = " ".join((first[1] if first else text).split())
        cards.append(
            f"[![]({name}.png){{ loading=lazy }}<br>**{extra['title']}**<br>{summary}]({name}.md)"
        )
        code = path.read_text(encoding="utf-8")
        language = "toml" if path.suffix == ".toml" else "python"
        command = (
            " ".join(["fedax run", f"examples/{path.name}", *settings(extra)])
            if language == "toml"
            else f"python examples/{path.name}"
        )
        found[f"gallery/{name}.md"] = "\n".join(
            [
                f"# {extra['title']}",
                "",
                text,
                "",
                f"![Curves of the runs of this example]({name}.png)",
                "",
                f"`{command}` prints",
                "",
                "```text",
                made[name]["output"].rstrip(),
                "```",
                "",
                f"## `examples/{path.name}`",
                "",
                f"```{language}",
                code.rstrip(),
                "```",
                "",
            ]
        )
    head = (
        "# Examples\n\nTwo notebooks are made for a hosted notebook service, where you upload them with a wheel of fedax: "
        "[compare methods on your data](../notebooks/compare.ipynb) and [write your own "
        "method](../notebooks/own-method.ipynb).\n\nEach page has a picture, what the example prints, and its code, which is a file of the "
        'folder `examples`.\n\n<div class="grid-links" markdown>\n\n'
    )
    return found | {"gallery/index.md": head + "\n\n".join(cards) + "\n\n</div>\n"}


def run_script(path: Path, labels: list[str], metric: list[str]) -> None:
    """Runs a script and draws its histories as `picture.png` in the working directory."""
    import pandas as pd

    import fedax
    from fedax.results import drawing

    histories, original = [], fedax.run

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


def settings(extra: dict[str, Any]) -> list[str]:
    """Returns the options that change values of an experiment file."""
    return [word for value in extra.get("set", []) for word in ("--set", value)]


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
    print(
        subprocess.run(
            [*command, "report", "run", "--table", "text"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    )
    save_as(RunDirectory.load(Path("run")).pictures()[0], Path("picture.png"))


def draw(name: str) -> dict[str, str]:
    """Runs an example in a process of its own, and keeps its picture."""
    path = examples()[name]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, __file__, "--here", name],
            cwd=folder,
            env=os.environ | {"JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        (FOLDER / f"{name}.png").write_bytes(Path(folder, "picture.png").read_bytes())
    return {"sha256": digest(path), "output": done.stdout.rstrip()}


def main(arguments: list[str]) -> None:
    about = tomllib.loads((FOLDER / "gallery.toml").read_text())
    if arguments[:1] == ["--here"]:
        path = examples()[arguments[1]]
        if path.suffix == ".toml":
            run_file(path, settings(about[arguments[1]]))
        else:
            run_script(path, about[arguments[1]]["labels"], about[arguments[1]].get("metric", []))
        return
    import tomli_w

    for name in arguments or about:
        print(name, flush=True)
        made = tomllib.loads(MADE.read_text()) if MADE.exists() else {}
        made[name] = draw(name)
        MADE.write_text(tomli_w.dumps(made, multiline_strings=True), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
