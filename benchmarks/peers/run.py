"""fedax beside other libraries on the same work: python benchmarks/peers/run.py, after
make_environments.py.

Every contestant is a process (or several) of its own, in its own environment. All start from one
model and take the steps of one file; they work in turns, a block of rounds each. After every block
the loss of the model on all training examples is compared with that of the bare JAX loop after as
many rounds: there is no table if they differ. CPU seconds are those of all processes of a
contestant, as Linux counts them."""

import argparse
import contextlib
import datetime
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import numpy as np
from make_environments import HERE
from serving import Work
from workloads import WORKLOADS, loss_of, write

CONTESTANTS = {  # environment, arguments of Python, distribution for the version
    "fedax": (None, ["fedax_.py"], "fedax"),
    "bare JAX loop": (None, ["bare_jax.py"], "jax"),
    "PyTorch eager": ("torch", ["torch_.py"], "torch"),
    "torch.compile": ("torch", ["torch_.py", "--compiled"], "torch"),
    "Flower": ("flower", ["flower.py"], "flwr"),
    "pfl": (
        "pfl",
        ["-m", "torch.distributed.run", "--nproc-per-node", str(os.cpu_count()), "pfl_.py"],
        "pfl",
    ),
    "FedLab": ("fedlab", ["fedlab_.py"], "fedlab"),
    "FedJAX": ("fedjax", ["fedjax_.py"], "fedjax"),
}
COMPILED = ("fedax", "bare JAX loop")
"""The contestants that run the long number of rounds."""
FRAMEWORKS = ("Flower", "pfl", "FedLab", "FedJAX")
TARGETS = {"softmax": 60, "2nn": 5, "lenet": 5, "mnist_cnn": 2}
"""Whole rounds of fedax against the fastest framework."""


def python_of(environment, folder):
    return sys.executable if environment is None else str(folder / environment / "bin" / "python")


def version_of(python, distribution):
    code = f"import importlib.metadata as m; print(m.version({distribution!r}))"
    return subprocess.run(
        [python, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def family(root):
    """The process and all that descend from it."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                parents[int(entry.name)] = int(
                    (entry / "stat").read_text().rsplit(")", 1)[1].split()[1]
                )
    members = {root}
    before = 0
    while len(members) > before:
        before = len(members)
        members |= {process for process, parent in parents.items() if parent in members}
    return members


def cpu_seconds(root):
    """CPU time of a process, of all that descend from it, and of those that have ended."""
    ticks = 0
    for process in family(root):
        with contextlib.suppress(OSError):
            ticks += sum(
                map(int, Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[11:15])
            )
    return ticks / os.sysconf("SC_CLK_TCK")


class Contestant:
    """A process that waits for its turns."""

    def __init__(self, name, path, folder, logs):
        environment, arguments, _ = CONTESTANTS[name]
        workload = WORKLOADS[path.stem]
        self.name = name
        self.rounds = workload.long if name in COMPILED else workload.short
        self.walls = []
        self.cpus = []
        self.differences = []
        self.vector = path.with_name(f"{environment or name}.npy")
        command = [
            python_of(environment, folder),
            *(str(HERE / a) if a.endswith(".py") else a for a in arguments),
            str(path),
        ]
        self.log = logs / f"{path.stem}-{name.replace(' ', '-')}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                env=os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])},
            )  # fmt: skip

    def answer(self):
        line = self.process.stdout.readline().strip()
        if not line:
            raise SystemExit(f"{self.name} has ended; see {self.log}")
        return line

    def train(self, rounds):
        """Wall and CPU seconds of so many rounds, and the model."""
        busy = cpu_seconds(self.process.pid)
        self.process.stdin.write(f"{rounds} {self.vector}\n")
        self.process.stdin.flush()
        wall = float(self.answer())
        busy = cpu_seconds(self.process.pid) - busy
        self.answer()
        return wall, busy, np.load(self.vector)

    def close(self):
        members = family(self.process.pid)
        self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        for member in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(member, signal.SIGKILL)
        self.process.wait()


def checked(contestant, work, vector, expected, tolerance):
    """The difference of the losses; ends the run where it is too large."""
    difference = abs(loss_of(work, vector) - expected)
    if not difference <= tolerance:
        raise SystemExit(f"{contestant.name} does other work: its loss differs by {difference:.2g}")
    return difference


def measure(name, names, folder, repeat, logs):
    workload = WORKLOADS[name]
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        path = Path(scratch) / f"{name}.npz"
        origin = write(name, path)
        work = Work(path)
        contestants = []
        for each in names:
            contestants.append(Contestant(each, path, folder, logs))
            stack.callback(contestants[-1].close)
            contestants[-1].answer()  # starts do not disturb each other
        bare = contestants[names.index("bare JAX loop")]
        expected = {
            count: loss_of(work, bare.train(count)[2]) for count in {workload.short, workload.long}
        }
        first = loss_of(work, work.initial)
        if abs(first - expected[workload.short]) < 20 * workload.tolerance:
            raise SystemExit(
                f"{name}: the loss has hardly moved, from {first} to {expected[workload.short]}"
            )
        for turn in range(repeat + 1):  # the first one warms up
            for contestant in contestants:
                wall, busy, vector = contestant.train(contestant.rounds)
                contestant.differences.append(
                    checked(
                        contestant, work, vector, expected[contestant.rounds], workload.tolerance
                    )
                )
                if turn:
                    contestant.walls.append(wall)
                    contestant.cpus.append(busy)
        print(f"\n{workload.title} ({origin}); medians of {repeat} interleaved blocks\n")
        report(name, work, contestants, (first, expected))


def report(name, work, contestants, losses):
    first, expected = losses
    # samples, because rounds have cohorts of different sizes and not all contestants run equally
    # many
    walls = {c.name: work.samples(c.rounds) / statistics.median(c.walls) for c in contestants}
    cpus = {c.name: work.samples(c.rounds) / statistics.median(c.cpus) for c in contestants}
    columns = [
        "rounds in a block",
        "s per round",
        "samples/s",
        "samples per CPU second",
        "fedax of it",
        "per CPU second",
    ]
    columns.append("loss off by")
    print("| |", " | ".join(columns), "|")
    print("|---" * (len(columns) + 1) + "|")
    for c in contestants:
        cells = [
            f"{c.rounds}",
            f"{statistics.median(c.walls) / c.rounds:.4f}",
            f"{walls[c.name]:,.0f}",
            f"{cpus[c.name]:,.0f}",
        ]
        cells += [
            f"{walls['fedax'] / walls[c.name]:.1f}",
            f"{cpus['fedax'] / cpus[c.name]:.1f}",
            f"{max(c.differences):.0e}",
        ]
        print(f"| {c.name} | {' | '.join(cells)} |")
    ends = ", ".join(f"{loss:.4f} after {count} rounds" for count, loss in sorted(expected.items()))
    print(f"\nThe loss: {first:.4f} at first, {ends}.")
    if name == "flute":
        shown = ", ".join(
            f"{c.name} {statistics.median(c.walls) * 100 / c.rounds:.2f}" for c in contestants
        )
        print(f"Seconds of the 100 rounds: {shown}.")
    peers = [c.name for c in contestants if c.name in FRAMEWORKS]
    if peers and name in TARGETS:
        fastest = max(peers, key=walls.get)
        ratio = walls["fedax"] / walls[fastest]
        target = TARGETS[name]
        verdict = "met" if ratio >= target else "missed"
        print(
            f"fedax is {ratio:.1f} times as fast as the fastest framework, {fastest}; target "
            f"{target}: {verdict}."
        )
    sys.stdout.flush()


def processor():
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    return "unknown processor"


def main(given):
    names = [
        name
        for name in CONTESTANTS
        if name in given.contestant or name in ("fedax", "bare JAX loop")
    ]
    missing = [
        name
        for name in names
        if not Path(python_of(CONTESTANTS[name][0], given.environments)).exists()
    ]
    for name in missing:
        print(f"{name}: no environment; see make_environments.py")
    names = [name for name in names if name not in missing]
    versions = {
        CONTESTANTS[name][2]: version_of(
            python_of(CONTESTANTS[name][0], given.environments), CONTESTANTS[name][2]
        )
        for name in names
    }
    load = f"load {os.getloadavg()[0]:.1f}"
    print(
        f"{datetime.date.today()}, {os.cpu_count()} cores of {processor()}, {load}, Python "
        f"{sys.version.split()[0]}: ",
        end="",
    )
    print(
        ", ".join(f"{distribution} {version}" for distribution, version in versions.items()),
        flush=True,
    )
    given.logs.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    for name in given.workload:
        measure(name, names, given.environments, 1 if given.quick else given.repeat, given.logs)
    print(f"\n{time.monotonic() - begun:.0f} s in all.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workload", nargs="*", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument(
        "--contestant", nargs="*", choices=list(CONTESTANTS), default=list(CONTESTANTS)
    )
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument(
        "--quick", action="store_true", help="one block of each in place of --repeat"
    )
    parser.add_argument("--environments", type=Path, default=HERE / ".environments")
    parser.add_argument("--logs", type=Path, default=HERE / ".environments" / "logs")
    main(parser.parse_args())
