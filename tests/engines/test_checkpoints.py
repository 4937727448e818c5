"""Runs that are broken off and taken up again end in the same bits; nothing half-written is
believed."""

import errno
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

import fedax
from fedax.algorithms import make_algorithm
from fedax.core import InvalidInput, RunExists, WriteFailed
from problems import regression

ROUNDS = 9
EVERY = 2
TASK = regression()


def go(name="scaffold", engine=None, **options):
    given = {
        "rounds": ROUNDS,
        "observe": [fedax.observe.TrainLoss()],
        "observe_every": 3,
        "checkpoint_every": EVERY,
    }
    schedule = fedax.Schedule(cohort=3, steps=2, batch_size=4)
    return fedax.run(
        make_algorithm(name), TASK, schedule=schedule, engine=engine, **given | options
    )


def same(a, b):
    leaves = [
        jax.tree.leaves(
            jax.tree.map(np.asarray, (h.params, h.state, h.metrics, h.logged, h.bits.up))
        )
        for h in (a, b)
    ]
    assert len(leaves[0]) == len(leaves[1])
    assert all(
        x.dtype == y.dtype and x.tobytes() == y.tobytes() for x, y in zip(*leaves, strict=True)
    )
    assert a.rounds.tolist() == b.rounds.tolist()
    assert a.outcome == b.outcome


def kill_at(round):
    """A hook after which nothing of the process is left but its files."""

    def hook(progress):
        if progress.round == round:
            raise RuntimeError("killed")

    return hook


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedbc", "fedadam"])
def test_a_broken_run_continues_to_the_bit(name, tmp_path):
    straight = go(name)
    with pytest.raises(RuntimeError, match="killed"):
        go(name, checkpoint=tmp_path, progress=kill_at(6))
    assert sorted(p.name for p in tmp_path.glob("*-*")) == ["round-000000002", "round-000000004"]
    heard = []
    again = go(name, checkpoint=tmp_path, progress=lambda progress: heard.append(progress.round))
    assert heard == [6, 9], "rounds before the checkpoint are not run again"
    same(again, straight)
    # it was done: nothing is run
    same(go(name, checkpoint=tmp_path, progress=kill_at(9)), straight)


DAMAGES = {
    "cut": lambda b: b[: len(b) // 2],
    "one bit": lambda b: b[: len(b) - 700] + bytes([b[len(b) - 700] ^ 8]) + b[len(b) - 699 :],
    "foreign": lambda b: b"PK" + b,
}


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_checkpoint_is_refused_and_the_one_before_continues(tmp_path, damage):
    with pytest.raises(RuntimeError, match="killed"):
        go(checkpoint=tmp_path, progress=kill_at(6))
    newest = tmp_path / "round-000000004"
    newest.write_bytes(damage(newest.read_bytes()))
    with pytest.raises(InvalidInput, match=r"round-000000004"):
        go(checkpoint=tmp_path)
    newest.unlink()
    same(go(checkpoint=tmp_path), go())


def test_a_full_disk_is_reported_and_the_checkpoint_before_resumes(tmp_path, monkeypatch):
    real = os.fsync
    written = []

    def fsync(handle):
        written.append(handle)
        if len(written) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(WriteFailed, match=r"round-000000004: .*No space left on device"):
        go(checkpoint=tmp_path)
    assert [p.name for p in tmp_path.glob("round-*")] == ["round-000000002"]
    monkeypatch.undo()
    same(go(checkpoint=tmp_path), go())


def test_only_the_same_run_continues(tmp_path):
    go(checkpoint=tmp_path, rounds=4)
    refused = {
        "run(checkpoint=...)": [{"seed": 1}, {"name": "fedbc"}],
        "run(rounds=...)": [{"rounds": 3}],
        "run(checkpoint_every=...)": [{"checkpoint_every": 0}],
    }
    for field, cases in refused.items():
        for options in cases:
            with pytest.raises(InvalidInput) as refusal:
                go(**{"checkpoint": tmp_path} | options)
            assert refusal.value.field == field


HOLDER = """
import sys, time
from pathlib import Path
from fedax.utils.lock import held
with held(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_two_processes_never_share_a_folder(tmp_path):
    left = tmp_path / ".round-begun"  # the other process writes it
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "held\n"
        left.touch()
        with pytest.raises(RunExists, match="is in use by another process"):
            go(checkpoint=tmp_path)
        assert left.exists()
        other.kill()
    same(go(checkpoint=tmp_path), go())
    assert not left.exists()
