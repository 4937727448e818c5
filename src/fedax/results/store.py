"""Runs on disk: a folder for each, named by its content."""

import dataclasses
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from fedax.core import Outcome
from fedax.results.record import Record
from fedax.utils.files import read, write


def run_id(settings: Mapping[str, Any]) -> str:
    """Returns the name of a run: 16 hexadecimal digits of the SHA-256 of its settings as JSON.

    >>> run_id({"seed": 0, "rounds": 2}) == run_id({"rounds": 2, "seed": 0})
    True
    """
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def to_files(record: Record, packed: bool = False) -> dict[str, bytes]:
    """Returns the files of a run by name: `curves.npz` with its arrays, and `run.json` with the
    rest and a checksum of both.

    Args:
        record: the run.
        packed: whether the files go into a compressed archive, without arrays by client.
    """
    values = vars(record) | {"outcome": dataclasses.asdict(record.outcome)}
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    metrics = record.scalars if packed else record.metrics
    apart = {"metrics", "models"} | arrays.keys()
    about = {k: value for k, value in values.items() if k not in apart and value is not None}
    arrays |= {f"metrics/{name}": curve for name, curve in metrics.items()}
    buffer = io.BytesIO()
    # compressed twice, the archive would be larger
    save = np.savez if packed else np.savez_compressed
    save(buffer, **cast(Any, arrays))
    curves = buffer.getvalue()
    about["sha256"] = _checksum(about, curves)
    return {"curves.npz": curves, "run.json": json.dumps(about, indent=1).encode()}


def from_files(files: Mapping[str, bytes]) -> Record:
    """Returns the run of `to_files`.

    Raises:
        Exception: damaged or missing files; zip, zlib, JSON, any layer below can fail.
    """
    about = json.loads(files["run.json"])
    curves = files["curves.npz"]
    if about.pop("sha256") != _checksum(about, curves):
        raise ValueError("its checksum does not fit")
    metrics = dict[str, np.ndarray]()
    with np.load(io.BytesIO(curves), allow_pickle=False) as stored:
        for name in stored:
            if name.startswith("metrics/"):
                metrics[name.removeprefix("metrics/")] = stored[name]
            # of older runs
            elif name != "compiling":
                about[name] = stored[name]
    return Record(**about | {"outcome": Outcome(**about["outcome"])}, metrics=metrics)


def _checksum(about: Mapping[str, Any], curves: bytes) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode() + curves).hexdigest()


def write_run(folder: Path, record: Record) -> None:
    """Writes a run into its folder, `run.json` last: a folder without it has no finished run."""
    for name, content in to_files(record).items():
        write(folder / name, content)


def read_run(folder: Path) -> Record:
    """Reads the run of a folder.

    Raises:
        Exception: missing or damaged files, see `from_files`.
    """
    return from_files({name: read(folder / name) for name in ("run.json", "curves.npz")})


def pack(runs: Mapping[str, Record]) -> bytes:
    """Returns the files of runs, by their names, as one `.tar.xz` archive, without arrays by
    client.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz", preset=9) as archive:
        for name, record in runs.items():
            for file, content in to_files(record, packed=True).items():
                # without owner and date: equal runs are equal archives
                member = tarfile.TarInfo(f"{name}/{file}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def unpack(data: bytes) -> dict[str, Record]:
    """Returns the runs of an archive of `pack`.

    Raises:
        Exception: damaged data; tar, LZMA, any layer below can fail.
    """
    runs: dict[str, dict[str, bytes]] = {}
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:xz") as archive:
        for member in archive:
            folder, _, name = member.name.rpartition("/")
            runs.setdefault(folder, {})[name] = cast(Any, archive.extractfile(member)).read()
    return {name: from_files(files) for name, files in runs.items()}
