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

_CURVES = ("rounds", "seconds", "bits", "gradients", "time", "energy")
_ABOUT = ("task", "label", "seed", "draw", "settings", "versions", "clients", "modes")


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
    arrays = {name: getattr(record, name) for name in _CURVES}
    metrics = record.scalars if packed else record.metrics
    arrays |= {f"metrics/{name}": values for name, values in metrics.items()}
    arrays = {name: array for name, array in arrays.items() if array is not None}
    buffer = io.BytesIO()
    # compressed twice, the archive would be larger
    save = np.savez if packed else np.savez_compressed
    save(buffer, **cast(Any, arrays))
    curves = buffer.getvalue()
    about = {name: getattr(record, name) for name in _ABOUT}
    about["outcome"] = dataclasses.asdict(record.outcome)
    about = {name: value for name, value in about.items() if value is not None}
    about["sha256"] = _checksum(about, curves)
    return {"curves.npz": curves, "run.json": json.dumps(about, indent=1).encode()}


def from_files(files: Mapping[str, bytes]) -> Record:
    """Returns the run of `to_files`.

    Raises:
        ValueError: damaged or missing files.
    """
    try:
        about, curves = json.loads(files["run.json"]), files["curves.npz"]
        if about.pop("sha256") != _checksum(about, curves):
            raise ValueError("its checksum does not fit")
        with np.load(io.BytesIO(curves), allow_pickle=False) as stored:
            arrays = dict(stored)
        metrics = {
            name.removeprefix("metrics/"): arrays.pop(name)
            for name in list(arrays)
            if name.startswith("metrics/")
        }
        outcome = Outcome(**about.pop("outcome"))
        arrays.pop("compiling", None)  # of older runs
        return Record(**about, **arrays, metrics=metrics, outcome=outcome)
    except Exception as error:  # zip, zlib, header, JSON: any layer below can fail
        raise ValueError(str(error) or type(error).__name__) from error


def _checksum(about: Mapping[str, Any], curves: bytes) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode() + curves).hexdigest()


def write_run(folder: Path, record: Record) -> None:
    """Writes a run into its folder, `run.json` last: a folder without it has no finished run."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in to_files(record).items():
        write(folder / name, content)


def read_run(folder: Path) -> Record:
    """Reads the run of a folder.

    Raises:
        OSError, ValueError: missing or damaged files.
    """
    return from_files({name: read(folder / name) for name in ("run.json", "curves.npz")})


def pack(runs: Mapping[str, Record]) -> bytes:
    """Returns the files of runs, by their names, as one `.tar.xz` archive, without arrays by
    client.
    """
    files = dict[str, bytes]()
    for name, record in runs.items():
        files |= {f"{name}/{file}": data for file, data in to_files(record, packed=True).items()}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz", preset=9) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def unpack(data: bytes) -> dict[str, Record]:
    """Returns the runs of an archive of `pack`.

    Raises:
        ValueError: damaged data.
    """
    runs: dict[str, dict[str, bytes]] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:xz") as archive:
            for member in archive:
                content = archive.extractfile(member)
                folder, _, name = member.name.rpartition("/")
                runs.setdefault(folder, {})[name] = b"" if content is None else content.read()
    except Exception as error:  # LZMA, headers, lengths: any layer below can fail
        raise ValueError(f"a damaged archive ({error or type(error).__name__})") from error
    return {name: from_files(files) for name, files in runs.items()}
