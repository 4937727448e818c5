"""Rounds on two CPU devices beside rounds on one: whole rounds of the same program, interleaved.

One device is one core's worth of work: its process is held to one core, and products have one
thread. Two devices have two cores. Without that, XLA gives large products and convolutions of one
device to all cores, and the ratio compares two ways of using two cores; such a process is the third
contestant. All are warmed up, wait while another one works, and time the same rounds again and
again, without starting or observing. Turns in which other programs compute do not count; the ratio
of all turns stands beside that.

The ideal ratio is that of the loads: the examples in all steps of these rounds, over those of the
device with more of them, as the simulation deals the clients.

    python benchmarks/devices.py    # a table; --workload, --repeat, --patience to change

It runs on Linux only. Workloads are those of `benchmarks/peers`."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

CONTESTANTS = {
    "one": "1 device, 1 core",
    "free": "1 device, all cores",
    "two": "2 devices, 2 cores",
}
WORKLOADS = ("softmax", "2nn", "lenet", "mnist_cnn")
TARGET = 1.7
QUIET = 0.1
"""The ratio that is aimed at; the cores that others may use in a turn that counts."""


def started(contestant):
    """JAX and fedax as the contestant has them; nothing may have imported them before."""
    cores = sorted(os.sched_getaffinity(0))[: {"one": 1, "two": 2}.get(contestant)]
    os.sched_setaffinity(0, cores)
    os.environ["XLA_FLAGS"] = (
        f"--xla_cpu_multi_thread_eigen={'true' if contestant == 'free' else 'false'}"
    )
    sys.path.insert(0, str(Path(__file__).parent / "peers"))
    import jax

    jax.config.update("jax_num_cpu_devices", 2 if contestant == "two" else 1)
    import workloads

    import fedax

    return fedax, workloads


def setting(fedax, workloads, name):
    work = workloads.WORKLOADS[name]
    task = workloads.task_of(work, workloads.data_of(name, workloads.mnist_file())[0])
    options = {
        "solver": fedax.SGD(work.rate),
        "schedule": workloads.schedule_of(work),
        "observe": (),
    }
    return task, options, work.long


class Rounds:
    """The rounds of a workload, compiled; every call of `seconds` takes the same ones."""

    def __init__(self, contestant, name):
        fedax, workloads = started(contestant)
        from fedax.engine.driver.grid import Grid
        from fedax.engine.driver.options import RunOptions

        self.task, options, self.count = setting(fedax, workloads, name)
        options |= {"rounds": self.count, "observe_every": self.count}
        options |= {"engine": fedax.Simulation(devices=2 if contestant == "two" else 1)}
        self.grid = Grid([fedax.FedAvg()], self.task, [0], RunOptions.of(options))
        self.seconds()

    def seconds(self):
        state = self.grid.init()
        begun = time.perf_counter()
        self.grid.program.advance(state, 0, self.count)  # reads the log, so that it is done
        return time.perf_counter() - begun

    def ideal(self):
        """The work of all over that of the busier device."""
        import jax
        import numpy as np

        from fedax.engine.backends.simulation.backend import assign_longest_first
        from fedax.utils.random import stream

        sizes = np.asarray(self.task.train.sizes)
        schedule = self.grid.options.schedule
        whole = busier = 0
        for t in range(self.count):
            ids, count = schedule.draw(
                stream(self.grid.program.roots, "cohort", t, 0), self.task.train.offsets
            )
            load = sizes[np.asarray(ids)] * schedule.epochs
            table, held = map(np.asarray, assign_longest_first(jax.numpy.asarray(load), count, 2))
            whole += load.sum()
            busier += max(load[table[d, : held[d]]].sum() for d in range(2))
        return float(whole / busier)


def worker(contestant, name):
    rounds = Rounds(contestant, name)
    for line in sys.stdin:
        print(
            json.dumps(rounds.seconds() if line.strip() == "turn" else rounds.ideal()), flush=True
        )


def asked(process, word):
    process.stdin.write(word + "\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def busy():
    """CPU seconds of all programs since the machine started."""
    user, nice, system = map(int, Path("/proc/stat").read_text().split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def own(process):
    """CPU seconds of a process."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def turn(process):
    """The seconds of a turn, and the cores that other programs kept busy meanwhile."""
    begun = time.perf_counter()
    before = busy() - own(process)
    seconds = asked(process, "turn")
    return seconds, (busy() - own(process) - before) / (time.perf_counter() - begun)


def measure(name, repeat, patience):
    """The ideal ratio, the turns in which nobody else computed, and all turns."""
    command = [sys.executable, __file__, "--workload", name, "--worker"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = {
        contestant: subprocess.Popen([*command, contestant], **pipes) for contestant in CONTESTANTS
    }
    quiet, everything = ({contestant: [] for contestant in CONTESTANTS} for _ in range(2))
    try:
        for process in processes.values():
            ideal = asked(process, "ideal")  # waits until it is warm
        end = time.monotonic() + patience
        while time.monotonic() < end and min(map(len, quiet.values())) < repeat:
            for contestant, process in processes.items():
                seconds, others = turn(process)
                everything[contestant].append(seconds)
                quiet[contestant] += [seconds] if others < QUIET else []
    finally:
        for process in processes.values():
            process.stdin.close()
            process.wait()
    return ideal, quiet, everything


def table(names, repeat, patience):
    titles = " | ".join(CONTESTANTS.values())
    print(
        f"Load {os.getloadavg()[0]:.2f}. Milliseconds of a turn, medians of those in which "
        f"others used less than {QUIET} cores.\n"
    )
    print(
        f"| | {titles} | 2 devices over 1 | ideal | over 1 on all cores | turns that count | 2 "
        "over 1, all turns | target |"
    )
    print("|---" * (len(CONTESTANTS) + 7) + "|")
    for name in names:
        ideal, quiet, everything = measure(name, repeat, patience)
        mid, all_ = (
            {c: statistics.median(times or [float("nan")]) for c, times in t.items()}
            for t in (quiet, everything)
        )
        row = [f"{1e3 * mid[c]:.0f}" for c in CONTESTANTS]
        row += [f"{mid['one'] / mid['two']:.2f}", f"{ideal:.2f}", f"{mid['free'] / mid['two']:.2f}"]
        row += [
            ", ".join(f"{len(quiet[c])}" for c in CONTESTANTS)
            + f" of {len(everything['one'])} each"
        ]
        row += [f"{all_['one'] / all_['two']:.2f}", str(TARGET)]
        print(f"| {name} | " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workload", choices=WORKLOADS, nargs="*", default=list(WORKLOADS))
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--patience", type=float, default=90, help="the most seconds of a workload")
    parser.add_argument("--worker", choices=list(CONTESTANTS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.worker, arguments.workload[0])
    else:
        table(arguments.workload, arguments.repeat, arguments.patience)
