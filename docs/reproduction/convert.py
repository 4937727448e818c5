"""Converts kept archives, run folders and files of the benchmark to the present form, in place: a
run is named by its content, `runs.tar.xz` has the runs of an archive, `study.toml` the settings.

    python docs/reproduction/convert.py FOLDER... [src/fedax/benchmark/archive/*/*.jsonl.xz]
"""

import collections
import dataclasses
import io
import json
import lzma
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import tomli_w

from fedax.core import Outcome
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.results.planned import planned_runs
from fedax.results import Record
from fedax.results.store import pack, write_run

PLAIN = ("task", "label", "seed", "draw", "settings", "versions", "modes")
HEADER = ("title", "notes", "status", "reason", "jobs")


def lines_of(path):
    """Returns the first line of an old archive, and its runs by number."""
    about, *lines = map(json.loads, lzma.decompress(path.read_bytes()).decode().splitlines())
    runs = {}
    for line in lines:
        curves = {name: np.array(values, kind) for name, (kind, values) in line["curves"].items()}
        runs[line["number"]] = record_of(
            {n: line[n] for n in (*PLAIN, "outcome") if n in line}, curves
        )
    return about, runs


def record_of(plain, arrays):
    """Returns a run of its plain values and its arrays."""
    start = "metrics/"
    metrics = {n.removeprefix(start): v for n, v in arrays.items() if n.startswith(start)}
    curves = {n: v for n, v in arrays.items() if not n.startswith(start)}
    return Record(**plain | {"outcome": Outcome(**plain["outcome"])}, **curves, metrics=metrics)


def file_of(path):
    """Returns the run of an old file."""
    with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as stored:
        meta = json.loads(str(stored["meta"]))
        meta.pop("summed", None)
        return record_of(meta, {name: stored[name] for name in stored.files if name != "meta"})


def convert_study(folder, runs):
    """Writes `study.toml` with the hashes of the data, and returns the experiments."""
    files = sorted(folder.glob("config*.toml"), key=lambda p: int("0" + re.sub(r"\D", "", p.stem)))
    experiments = [Experiment.read(file, kept=True) for file in files]
    hashes = collections.defaultdict(collections.Counter)
    for number, planned in enumerate(planned_runs(experiments)):
        if number in runs and (data := (runs[number].settings or {}).get("data")):
            hashes[planned.experiment][json.dumps(data)] += 1
    for place, counts in hashes.items():
        if len(counts) > 1:
            print(f"  {folder.name}: {files[place].name} has runs of {len(counts)} data: {counts}")
        data = json.loads(counts.most_common(1)[0][0])
        experiments[place] = experiments[place].model_copy(update={"data": data})
    documents = [experiment.resolved() for experiment in experiments]
    study = documents[0] if len(documents) == 1 else {"experiment": documents}
    (folder / "study.toml").write_text(tomli_w.dumps(study), encoding="utf-8")
    for file in files:
        file.unlink()
    readme = folder / "README.md"
    if readme.exists():
        text = readme.read_text(encoding="utf-8")
        text = re.sub(r"^Settings: .*$", "Settings: `study.toml`.", text, flags=re.MULTILINE)
        readme.write_text(text, encoding="utf-8")
    return experiments


def rename(folder, runs, experiments, versions):
    """Returns the runs by id, and says where settings differ from those of the file."""
    renamed = {}
    for number, planned in enumerate(planned_runs(experiments)):
        if number not in runs:
            continue
        run, old = runs[number], dict(runs[number].settings or {})
        jax, encoding = old.pop("jax", None) or {}, old.pop("encoding", None)
        new = dict(planned.settings)
        # options of schedules that are newer than the run stand at their defaults
        shared = new | {"schedule": {name: new["schedule"][name] for name in old["schedule"]}}
        for name in sorted(old.keys() | new.keys()):
            if old.get(name) != shared.get(name) and name not in ("observe", "data"):
                print(f"  {folder.name} {number}: {name} was {old.get(name)}, is {new.get(name)}")
        settings = new | ({"encoding": encoding} if encoding else {})
        made_with = run.versions or (versions | jax)
        if planned.id in renamed:
            print(f"  {folder.name} {number}: the same run as an earlier one")
        renamed[planned.id] = (
            number,
            dataclasses.replace(run, settings=settings, versions=made_with),
        )
    return renamed


def convert(folder):
    """Converts a folder: an archive, a run folder, or numbers without curves."""
    packed, versions = folder / "runs.jsonl.xz", folder / "versions.json"
    if packed.exists():
        about, runs = lines_of(packed)
    elif (folder / "summary.json").exists():
        about = json.loads((folder / "summary.json").read_text())
        runs = {int(file.stem): file_of(file) for file in (folder / "runs").glob("*.npz")}
    else:
        convert_study(folder, {})
        return
    known = json.loads(versions.read_text())
    experiments = convert_study(folder, runs)
    renamed = rename(folder, runs, experiments, known)
    header = {name: about[name] for name in HEADER if name in about} | {"versions": known}
    (folder / "summary.json").write_text(json.dumps(header, indent=1) + "\n", encoding="utf-8")
    versions.unlink()
    if packed.exists():
        (folder / "runs.tar.xz").write_bytes(
            pack({name: run for name, (_, run) in renamed.items()})
        )
        packed.unlink()
        (folder / "runs.csv").unlink(missing_ok=True)
        return
    for name, (number, run) in renamed.items():
        write_run(folder / "runs" / name, run)
        (folder / "runs" / f"{number:04d}.npz").unlink()
        for model in (folder / "models").glob(f"{number:04d}*"):
            shutil.move(model, folder / "runs" / name / f"model{model.name[4:]}")


def convert_entry(file):
    """Converts a result of the benchmark."""
    about, runs = lines_of(file)
    others = {"entry.json": json.dumps(about).encode()}
    target = file.with_name(file.name.replace(".jsonl.xz", ".tar.xz"))
    target.write_bytes(pack({str(number): run for number, run in runs.items()}, others))
    file.unlink()


for path in map(Path, sys.argv[1:]):
    (convert if path.is_dir() else convert_entry)(path)
