"""A server killed at random moments and continued: python tests/flower/kills.py [--kills 10]
[--seed 0].

A SuperLink with TLS, three clients that stay, SCAFFOLD with its memory on their disks. Every run is
killed with -9 once, server and training together, at a moment that is uniform over a run's length,
continued by a new server, and compared to the bit with the run that nobody killed."""

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from deployed import experiment, fedax_command, server_process

from fedax.flower.deploy.processes import free_port
from fedax.flower.deploy.settings import Deployment
from fedax.flower.deploy.trial import client_process, follow, run_server, submit

CLIENTS, ROUNDS = 3, 8


def quiet(line):
    """Nobody reads along."""


def final(out):
    """The bytes of the final models."""
    found = sorted((out / "models").glob("*.safetensors"))
    assert found, f"{out} has no final model"
    return [path.read_bytes() for path in found]


def checkpoint(out):
    """The newest round of which a run has a checkpoint, 0 for none."""
    return max((int(path.name.removeprefix("round-")) for path in out.rglob("round-*")), default=0)


def whole(deployment, out, resume):
    """A run to its end; the seconds from its order."""
    with run_server(deployment, quiet):
        begun = time.monotonic()
        result = follow(deployment, submit(deployment, out, resume), quiet)
        assert result.complete, result.details
        return time.monotonic() - begun


def killed(deployment, out, after):
    """A run whose server is killed some seconds after its order; whether it was still running."""
    with run_server(deployment, quiet):
        submit(deployment, out, False)
        time.sleep(after)
        os.killpg(server_process(deployment.port), signal.SIGKILL)
    return not (out / "models").exists()


def main(kills, seed):
    rng, equal = random.Random(seed), 0
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        place = Path(name)
        file = experiment(place / "experiment.toml", ["scaffold"], rounds=ROUNDS, clients=CLIENTS)
        options = ["--clients", CLIENTS, "--port", free_port()]
        made = fedax_command("deploy", "init", place / "d", "--experiment", file, *options)
        assert made.returncode == 0, made.stderr
        deployment = Deployment.load(place / "d")
        for k in range(CLIENTS):
            stack.enter_context(client_process(deployment, k))
        whole(deployment, place / "first", False)  # programs are compiled now
        seconds = whole(deployment, place / "straight", False)
        print(f"nobody killed: {seconds:.1f} s", flush=True)
        for number in range(kills):
            out, moment, begun = (
                place / f"killed-{number}",
                rng.uniform(0, seconds),
                time.monotonic(),
            )
            open_still = killed(deployment, out, moment)
            kept, resume = checkpoint(out), out.exists() and any(out.iterdir())
            try:
                whole(deployment, out, resume)
                same = final(out) == final(place / "straight")
            except Exception as error:
                print(f"{type(error).__name__}: {error}", flush=True)
                same = False
            equal += same
            how = f"continued from round {kept}" if resume else "begun anew"
            words = (
                f"killed after {moment:5.1f} s{'' if open_still else ', when it had ended'}, {how}"
            )
            print(
                f"{number}: {words}: {'equal' if same else 'NOT EQUAL'} "
                f"({time.monotonic() - begun:.0f} s)",
                flush=True,
            )
    print(f"{equal} of {kills} equal")
    return kills - equal


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    sys.exit(bool(main(given.kills, given.seed)))
