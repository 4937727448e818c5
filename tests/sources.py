"""The project's own files, whatever else lies in the tree."""

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent


@cache
def tracked(root=ROOT):
    """The files that git knows; None where there is no checkout, such as in an unpacked release."""
    command = ["git", "ls-files", "-z", "--cached"]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return frozenset(root / name for name in done.stdout.split("\0") if name) or None


def own_files(*folders, suffix=".py", root=ROOT):
    """The files of some folders, sorted: in a checkout those that git knows, elsewhere all but
    those in hidden folders."""
    files = [
        path
        for folder in folders
        for path in sorted((root / folder).rglob(f"*{suffix}"))
        if path.is_file()
    ]
    known = tracked(root)
    if known is not None:
        return [path for path in files if path in known]
    return [
        path
        for path in files
        if not any(part.startswith(".") for part in path.relative_to(root).parts)
    ]
