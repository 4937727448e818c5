"""The curves of all runs of a directory in one small text file, for version control."""

import dataclasses
import json
import lzma
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedax.core import Outcome
from fedax.results import Record

NAME = "runs.jsonl.xz"
_CURVES = ("rounds", "seconds", "bits", "gradients", "compiling", "time", "energy")
_PLAIN = ("task", "label", "seed", "draw", "settings", "versions", "modes")


def packed(about: Mapping[str, Any], runs: Mapping[int, Record]) -> bytes:
    """Returns all runs, by number, as compressed lines of JSON, below a line about the directory.

    A run takes a kilobyte or two.

    Curves with one number per observation are kept whole, to the bit; those of the single clients
    are left out.
    """
    lines: list[dict[str, Any]] = [dict(about)]
    for number, run in sorted(runs.items()):
        curves = {name: getattr(run, name) for name in _CURVES if getattr(run, name) is not None}
        curves |= {f"metrics/{name}": values for name, values in run.scalars.items()}
        line = {"number": number} | {
            name: getattr(run, name) for name in _PLAIN if getattr(run, name) is not None
        }
        line |= {"outcome": dataclasses.asdict(run.outcome)}
        lines.append(
            line
            | {
                # with the type, so that float32 comes back as float32
                "curves": {
                    name: [values.dtype.name, _shortest_decimals(values)]
                    for name, values in curves.items()
                }
            }
        )
    return lzma.compress("".join(f"{json.dumps(line)}\n" for line in lines).encode(), preset=9)


def unpacked(data: bytes) -> tuple[dict[str, Any], dict[int, Record]]:
    """Unpacks what `packed` returns.

    Raises:
        ValueError: damaged data.
    """
    try:
        about, *lines = map(json.loads, lzma.decompress(data).decode().splitlines())
        return about, dict(map(_parse_record, lines))
    except Exception as error:  # compression, text, JSON, fields: any layer below can fail
        raise ValueError(f"{NAME} is damaged ({error or type(error).__name__})") from error


def _parse_record(line: dict[str, Any]) -> tuple[int, Record]:
    curves: dict[str, Any] = {
        name: np.array(values, kind) for name, (kind, values) in line["curves"].items()
    }
    plain = {name: line[name] for name in _PLAIN if name in line}
    metrics = {
        name.removeprefix("metrics/"): curves.pop(name)
        for name in list(curves)
        if name.startswith("metrics/")
    }
    outcome = Outcome(**line["outcome"])
    return line["number"], Record(**plain, **curves, metrics=metrics, outcome=outcome)


def _shortest_decimals(values: np.ndarray) -> list[float]:
    """Returns the shortest decimals that give the same numbers in the array's type."""
    # `str` of a float32 has few digits, `tolist` those of the float64 with the same value
    return (
        [float(str(value)) for value in values] if values.dtype == np.float32 else values.tolist()
    )
