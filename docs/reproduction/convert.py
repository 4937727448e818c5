"""Converts kept archives and finished run folders to the present spelling, in place: a decay belongs
to the solver, and readings count rounds.

    python docs/reproduction/convert.py FOLDER...
"""

import re
import sys
import tomllib
from pathlib import Path


def in_rounds(text: str, every: int) -> str:
    """Returns a text with readings such as `mean_last_10`, of observations, in rounds."""
    return re.sub(
        r"\b(mean_last)_(\d+)\b(?!_)", lambda m: f"{m[1]}_{int(m[2]) * every}_rounds", text
    )


def convert_config(path: Path) -> int:
    """Converts a stored experiment, and returns how many rounds lie between its observations."""
    lines, section = [], ""
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.startswith("["):
            section = line.strip("[]\n")
        key, _, value = line.partition(" = ")
        if key == "decay" and section.split(".")[-1] == "schedule":
            # the default, which was written out
            assert float(value) == 1, f"{path}: move decay = {value} to the solver by hand"
            continue
        lines.append(line)
    text = "".join(lines)
    every = tomllib.loads(text).get("observe_every", 1)
    text = re.sub(r'^read = ".*"$', lambda m: in_rounds(m[0], every), text, flags=re.MULTILINE)
    path.write_text(text, encoding="utf-8")
    return every


def main() -> None:
    """Converts the folders that are named."""
    for folder in map(Path, sys.argv[1:]):
        every = [convert_config(path) for path in sorted(folder.glob("config*.toml"))]
        table = folder / "runs.csv"
        if every and table.exists():
            head, rest = table.read_text(encoding="utf-8").split("\n", 1)
            table.write_text(f"{in_rounds(head, every[0])}\n{rest}", encoding="utf-8")


if __name__ == "__main__":
    main()
