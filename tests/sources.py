"""The project's own files, whatever else lies in the tree."""

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent


@cache
def tracked():
    """The files that git knows; None where there is no checkout, such as in an unpacked release."""
    command = ["git", "ls-files", "-z", "--cached"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return frozenset(ROOT / name for name in done.stdout.split("\0") if name)


def own_files(*folders, suffix=".py"):
    """The files of some folders, sorted: in a checkout those that git knows, elsewhere all but those in hidden folders."""
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob(f"*{suffix}")) if path.is_file()]
    known = tracked()
    if known is not None:
        return [path for path in files if path in known]
    return [path for path in files if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)]
