"""Mutated specifications, data files and run files: read, or refused by an error of anybody's,
without a hang or a wrong number.

A program, because the checks of types in tests would refuse first:
`python tests/fuzz/fuzz.py KIND EXAMPLES [SEED]`. The kinds are `specifications`, `data` and `bits`.
It ends with 1 after the first failure, which it prints with the mutated text."""

import gzip
import io
import json
import os
import random
import signal
import struct
import sys
import tempfile
import warnings
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent.parent))

import fedax
from fedax import data
from fedax.data import characters, read_glove, words
from fedax.experiments.config.experiment import Experiment
from fedax.results.store import from_files, to_files
from samples import TINY, record

SECONDS = 30
"""Of the processor for one reading, as other programs may be busy; more is a hang."""
SEEDS = {"specifications": 1, "data": 2, "bits": 3}
FULL = (
    TINY + "[stop]\nrise = 1.0\nwindow = 5\n[channel]\nup = "
    '{ name = "topk", fraction = 0.5 }\n'
    + "[grid]\nselect = 'train_loss'\nseeds = [7, 8]\n[grid.fedprox]\nmu = [0.1, "
    "1.0]\n[grid.schedule]\nsteps = [1, 2]\n"
)
VALUES = [
    "-1",
    "0",
    "3",
    "0.5",
    "1e400",
    "1e300",
    "nan",
    "-inf",
    "inf",
    "true",
    '""',
    '"x"',
    "[]",
    "[1]",
    '["a"]',
    "[[1, 2], [3]]",
]
VALUES += [
    "{}",
    "{ a = 1 }",
    "1979-05-27",
    "07:32:00",
    "'",
    "99999999999",
    str(2**31),
    str(2**63),
    "1" + "0" * 400,
]
VALUES += [
    "1" + "0" * 5_000,
    "0x" + "f" * 5_000,
    f'"{"a" * 100_000}"',
    "[" * 5_000 + "]" * 5_000,
    str(list(range(3_000))),
]
VALUES += [
    '"\\u0000"',
    '"digits"',
    '"mnist"',
    '"libsvm"',
    '"table"',
    '"full"',
    '[1, "all"]',
    '"eager"',
    '"../.."',
]
KEYS = [
    "x",
    "name",
    "mu",
    "clients",
    "alpha",
    "seed",
    "label",
    "model",
    "partition",
    "folder",
    "file",
    "times",
    "epochs",
    "l2",
    "read",
]
KEYS += [
    "batch_size",
    "sampling",
    "dropouts",
    "stragglers",
    "momentum",
    "decay",
    "observe",
    "minimum",
    "checkpoint_every",
    "engine",
]
TABLES = [
    "[task]",
    "[[algorithm]]",
    "[solver]",
    "[schedule]",
    "[x]",
    "[stop.x]",
    "[grid.solver]",
    "[a" + ".a" * 3_000 + "]",
]
KEPT_SPECIFICATIONS = [
    TINY.replace("mu = 1", "mu = [[1.0, 2.0], [3.0]]"),
    TINY.replace("clients = 4", "clients = 99999999999"),
    TINY.replace("rounds = 2", "a" + ".a" * 20_000 + " = 2"),
    "# c\n" * 5_000 + TINY.replace("mu = 1", "mu = -1"),
]
"""Texts that once gave a hang or much memory."""


@st.composite
def specifications(draw):
    lines = FULL.splitlines()
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(lines) - 1))
        kind = draw(
            st.sampled_from(
                ["value", "value", "value", "key", "drop", "twice", "letter", "table", "many"]
            )
        )
        key, equals, _ = lines[at].partition("=")
        if kind == "value" and equals:
            lines[at] = f"{key}= {draw(st.sampled_from(VALUES))}"
        elif kind == "key" and equals:
            lines[at] = f"{draw(st.sampled_from(KEYS))} = {draw(st.sampled_from(VALUES))}"
        elif kind == "drop":
            lines[at] = ""
        elif kind == "twice":
            lines.insert(at, lines[at])
        elif kind == "letter" and lines[at]:
            where = draw(st.integers(0, len(lines[at]) - 1))
            lines[at] = (
                lines[at][:where]
                + draw(st.sampled_from(list("=[]\"'.#\\é\x00\t1\u2028")))
                + lines[at][where + 1 :]
            )
        elif kind == "table":
            lines[at] = draw(st.sampled_from(TABLES))
        elif kind == "many":
            lines[at] += "\n# comment" * draw(st.integers(1, 2_000))
    return "\n".join(lines)


def read_specification(text, folder):
    experiment = Experiment.parse(text, "a.toml")
    experiment.plan()
    again = Experiment.parse(experiment.toml(), "again.toml")
    assert again.toml() == experiment.toml(), "another experiment is read from what was written"


def _leaf(x, y):
    return json.dumps(
        {"users": ["a"], "num_samples": [len(y)], "user_data": {"a": {"x": x, "y": y}}}
    ).encode()


def _parquet():
    import pyarrow as arrow
    from pyarrow import parquet

    buffer = io.BytesIO()
    parquet.write_table(arrow.table({"height": [1.0, 2.0], "y": [0, 1]}), buffer)
    return buffer.getvalue()


IDX = bytes([0, 0, 8, 3]) + struct.pack(">3I", 2, 3, 2) + bytes(range(12))
TABLE = b"height,weight,y\n1.5,60,0\n1.8,80,1\n2.5,70,1\n"
FORMATS = {
    "idx": ("x", IDX, lambda path: data.read_idx(path)),
    "idx.gz": ("x.gz", gzip.compress(IDX, mtime=0), lambda path: data.read_idx(path)),
    "csv": ("a.csv", TABLE, lambda path: fedax.task("table", table=path.parent)),
    "csv.gz": (
        "a.csv.gz",
        gzip.compress(TABLE, mtime=0),
        lambda path: fedax.task("table", table=path.parent),
    ),
    "parquet": ("a.parquet", _parquet(), lambda path: fedax.task("table", table=path.parent)),
    "leaf": (
        "all.json",
        _leaf([[0.5, 1.0], [1.0, 2.0]], [0, 1]),
        lambda path: data.leaf(path, classes=2),
    ),
    "leaf characters": (
        "all.json",
        _leaf(["ab", "cd"], ["c", "e"]),
        lambda path: data.leaf(path, classes=80, convert=characters),
    ),
    "leaf words": (
        "all.json",
        _leaf([["1", "d", "q", "u", "so good"], "so"], ["4", "0"]),
        lambda path: data.leaf(path, classes=2, convert=words({"so": 0, "good": 1})),
    ),
    "libsvm": ("toy", b"-1 1:0.5 3:1\n+1 2:2\n-1 1:1\n", lambda path: data.read_libsvm(path)),
    "glove": ("glove", b"so 0.5 1\ngood -1 2\n", lambda path: read_glove(path)),
}
PIECES = [
    b"nan",
    b"inf",
    b"-1",
    b"1e400",
    b"9" * 400,
    b"9" * 5_000,
    b"[" * 3_000,
    b"{}",
    b'"',
    b",",
    b"\n",
    b"\0",
    b"\xff" * 8,
]
PIECES += [
    b"null",
    b"true",
    b"99999999999",
    b":",
    b" 4294967297:1",
    b"\r",
    b"1" * 200_000,
    b"\xef\xbb\xbf",
    b"[[1]]",
    b"x,y\n",
]


@st.composite
def files(draw):
    kind = draw(st.sampled_from(list(FORMATS)))
    content = bytearray(FORMATS[kind][1])
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(content) - 1, 0)))
        change = draw(st.sampled_from(["flip", "byte", "insert", "replace", "cut", "twice", "end"]))
        if change == "flip" and content:
            content[at] ^= 1 << draw(st.integers(0, 7))
        elif change == "byte" and content:
            content[at] = draw(st.sampled_from([0, 1, 127, 128, 254, 255]))
        elif change == "insert":
            content[at:at] = draw(st.sampled_from(PIECES))
        elif change == "replace":
            content[at : at + draw(st.integers(1, 8))] = draw(st.sampled_from(PIECES))
        elif change == "cut":
            del content[at : at + draw(st.integers(1, 20))]
        elif change == "twice":
            content += content[at:]
        elif change == "end":
            del content[at:]
    return kind, bytes(content)


def read_file(given, folder):
    kind, content = given
    name, _, read = FORMATS[kind]
    place = Path(tempfile.mkdtemp(dir=folder))
    (place / name).write_bytes(content)
    read(place / name)


FILES = to_files(record())
RUN = FILES["curves.npz"]


def read_run(bit, folder):
    content = bytearray(RUN)
    content[bit // 8] ^= 1 << bit % 8
    try:
        from_files(FILES | {"curves.npz": bytes(content)})
    except Exception:  # of any layer
        return
    raise AssertionError(f"bit {bit} of a run's file is flipped in silence")


def bits(examples):
    return random.Random(0).sample(range(8 * len(RUN)), min(examples, 8 * len(RUN)))


class Hang(BaseException):
    """A reading that takes too long."""


def interrupt(*_):
    raise Hang


def attempt(read, given, folder):
    """Reads, and takes any error but a failed assertion and a hang for an answer."""
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        read(given, folder)
    except AssertionError:
        raise
    except Exception:
        return
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def main(kind, examples, number):
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGPROF, interrupt)
    Experiment.parse(FULL).plan()  # what is slow once, such as imports, is no hang
    strategy, read = {
        "specifications": (specifications(), read_specification),
        "data": (files(), read_file),
    }.get(kind, (None, None))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FEDAX_DATA"] = folder  # real data would be read again and again
        if kind == "bits":
            for bit in bits(examples):
                attempt(read_run, bit, folder)
        else:
            kept = (
                KEPT_SPECIFICATIONS
                if kind == "specifications"
                else [(name, made[1]) for name, made in FORMATS.items()]
            )
            for given_first in kept:
                attempt(read, given_first, folder)

            @seed(number)
            @settings(
                max_examples=examples,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(strategy)
            def tried(value):
                attempt(read, value, folder)

            tried()
    print(f"{examples} {kind}, seed {number}: none fails")


if __name__ == "__main__":
    main(
        sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else SEEDS[sys.argv[1]]
    )
