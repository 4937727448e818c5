"""Converts kept archives and finished run folders to the present form, in place: the default decay
is not written out in a schedule.

    python docs/reproduction/convert.py FOLDER...
"""

import re
import sys
from pathlib import Path

DECAY = re.compile(r"^(\[(?:.*\.)?schedule\]\n(?:[^\[\n].*\n)*?)decay = 1\.0\n", re.MULTILINE)

for folder in map(Path, sys.argv[1:]):
    for path in folder.glob("config*.toml"):
        path.write_text(DECAY.sub(r"\1", path.read_text()))
