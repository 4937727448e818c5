"""Attacks on runs: processes that are killed and resumed, and ranks that meet a fault."""

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import NamedTuple

from fedax.experiments.results.store import RunDirectory

MPIEXEC = Path(sysconfig.get_path("scripts")) / "mpiexec"
RANKS = [str(MPIEXEC), "-n", "4", "--allow-run-as-root", "--oversubscribe"]
PROGRAM = Path(__file__).parent / "fails.py"
LIMIT = 10.0
"""Seconds within which all ranks have to end."""

FILE = """\
name = "attacked"
rounds = {rounds}
seeds = {seeds}
checkpoint_every = 1
observe = ["train_loss"]
[task]
name = "synthetic"
clients = 4
[schedule]
cohort = 3
steps = 3
[[algorithm]]
name = "scaffold"
"""
GRID = "[grid]\nscaffold.lr = [0.5, 1.0]\n"
KINDS = {
    "simulation": (FILE.format(rounds=100, seeds=[0, 1]), [], False),
    "jobs": (FILE.format(rounds=100, seeds=[0, 1]), ["--jobs", "2"], False),
    "grid": (FILE.format(rounds=100, seeds=[0, 1]) + GRID, [], False),
    "MPI": ('engine = "mpi"\n' + FILE.format(rounds=40, seeds=[0]), [], True),
}
"""The file, further arguments of `run` and `resume`, and whether ranks do it."""


class Faulty(NamedTuple):
    """The end of a job with a fault: its exit code, what it said, and the seconds since the
    fault."""

    code: int
    said: str
    seconds: float


def environment(**more):
    own = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2", "COLUMNS": "200", "TERM": "dumb"}
    return (
        os.environ | own | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)} | more
    )


def command(kind, *arguments):
    _, more, ranks = KINDS[kind]
    return [*(RANKS if ranks else []), sys.executable, "-m", "fedax", *map(str, arguments), *more]


def complete(kind, folder, *arguments):
    done = subprocess.run(
        command(kind, *arguments),
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]


def results(folder):
    """All numbers of a run directory but the times."""
    directory = RunDirectory.load(folder)
    assert directory.status == "finished"
    return {
        (record.label, record.seed): [
            record.rounds.tobytes(),
            *(record.metrics[name].tobytes() for name in record.metrics),
        ]
        for record in directory.records
    }


def straight(kind, folder):
    """The results of an uninterrupted run."""
    (folder / f"{kind}.toml").write_text(KINDS[kind][0])
    complete(kind, folder, "run", f"{kind}.toml", "--out", f"{kind}-straight")
    return results(folder / f"{kind}-straight")


def process_of(rank, token):
    """The process of a rank of the job whose environment holds a token."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            held = (entry / "environ").read_bytes() if entry.name.isdigit() else b""
            if (
                f"FEDAX_ATTACK={token}".encode() in held
                and f"OMPI_COMM_WORLD_RANK={rank}\0".encode() in held
            ):
                return int(entry.name)
    return None


def kill_and_resume(kind, number, folder):
    """The results of a run that is killed at a random moment, of ranks the one whose turn it is,
    and then resumed."""
    out = folder / f"{kind}-{number}"
    token = f"{os.getpid()}-{kind}-{number}"
    chance = random.Random(f"{kind} {number}")
    (folder / f"{kind}.toml").write_text(KINDS[kind][0])
    begin = command(kind, "run", f"{kind}.toml", "--out", out)
    tools = {"cwd": folder, "env": environment(FEDAX_ATTACK=token), "start_new_session": True}
    with subprocess.Popen(
        begin, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **tools
    ) as process:
        end = time.monotonic() + 300
        while (
            not list(out.glob("checkpoints/*/round-*"))
            and process.poll() is None
            and time.monotonic() < end
        ):
            time.sleep(0.01)
        time.sleep(chance.uniform(0.0, 0.5))
        assert process.poll() is None, "it was over before it was killed"
        if KINDS[kind][2]:
            os.kill(process_of(number % 4, token), signal.SIGKILL)
            assert process.wait(timeout=60) != 0
        else:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=60)
    complete(kind, folder, "resume", out)
    return results(out)


def faulty(fault, rank, folder):
    """A job of four ranks in which one meets a fault."""
    moment = folder / "moment"
    begin = [*RANKS, sys.executable, str(PROGRAM), fault, str(rank), str(moment)]
    return timed(begin, folder, moment)


def refused(arguments, folder):
    """A command of four ranks that rank 0 refuses; the seconds are since its start, so they count
    the imports too."""
    moment = folder / "moment"
    moment.write_text(str(time.time()))
    return timed([*RANKS, sys.executable, "-m", "fedax", *map(str, arguments)], folder, moment)


def timed(begin, folder, moment):
    with subprocess.Popen(
        begin,
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=240)
            ended = time.time()
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said = process.communicate()[0] + "\nIT HUNG"
            ended = float("inf")
    return Faulty(process.returncode, said, ended - float(moment.read_text()))


D = "the ranks disagree about .*"
FAULTS = {
    "exception": "rank {rank}.*RuntimeError: something went wrong",
    "bad data": "DataError: .*(NaN|finite)",
    "data type": D + "task.arrays",
    "precision": D + "model",
    "exit": "rank {rank}.*SystemExit: 3",
    "left": "rank {rank}: it has ended its program",
    "left before": "Exit code: 3",
    "stop": "rank 0: interrupted after round 3",
    "Ctrl-C": "rank {rank}.*KeyboardInterrupt",
    "killed": "rank {rank} .*signal 9",
    "terminated": "rank {rank} .*signal 15",
    "learning rate": D + "solver.learning_rate",
    "momentum": D + "solver.momentum",
    "hyperparameter": D + r"algorithm.lr",
    "algorithm": D + r"algorithm",
    "seed": D + "seed",
    "schedule": D + "schedule.steps",
    "cohort": D + "schedule.cohort",
    "rounds": D + "rounds",
    "observers": D + "observers",
    "cadence": D + "observe_every",
    "channel": D + "channel",
    "stop rule": D + "stop",
    "refused": r"InvalidInput: .*seed=...\): got -1",
}
"""Each fault with a pattern of the text that says it, whichever rank has it."""
OF_RANK_0 = {
    "folder is a file": "WriteFailed: .*: File exists",
    "full disk": "WriteFailed: .*round-000000002: cannot be written",
}
"""Faults of the rank that keeps files."""


def complaint(fault, rank, found):
    """A sentence if a fault did not end as it should, or nothing."""
    pattern = (FAULTS | OF_RANK_0)[fault].replace("{rank}", str(rank))
    if found.code == 0:
        return "exit code 0"
    if found.seconds > LIMIT:
        return f"{found.seconds:.1f} seconds"
    return (
        "" if re.search(pattern, " ".join(found.said.split())) else f"said {found.said[-1500:]!r}"
    )
