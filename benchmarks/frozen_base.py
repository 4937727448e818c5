"""Memory of fine-tuning a large frozen base in a federation of 100 clients, against the base
itself.

    python benchmarks/frozen_base.py                 # 50 million, with adapters of 0.1 million
    python benchmarks/frozen_base.py --width 1024    # a quarter of them
    python benchmarks/frozen_base.py --numpy         # the base as NumPy arrays, as files are read

Two processes do the same: one with the base, one with a base of next to nothing. What the peak of
the first is above that of the second is what the base takes, copies of it included; without copies,
that is its size. It is told of the task as it is made, where the peak is not hidden below what the
compiler takes later, and of the whole run. Both compile without optimisation, so that the
compiler's own memory, which is another one in every run, is small."""

import argparse
import json
import os
import resource
import subprocess
import sys
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedax

RANK = 2
CLIENTS = 100
EXAMPLES = 2
LAYERS = 12
NOTHING = 16
PLAIN = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_parallel_codegen_split_count=1"
)
if version("jaxlib").startswith("0.10."):
    PLAIN += " --xla_cpu_use_fusion_emitters=false"


def loss(params: Any, examples: Any) -> Any:
    """The mean square of what square layers with low-rank adapters give, less the target, for each
    example."""
    x = examples["x"]
    for kernel, (down, up) in zip(params["base"], params["adapter"], strict=True):
        x = x + jax.nn.relu(x @ kernel + x @ down @ up)
    return ((x - examples["y"][:, None]) ** 2).mean(1)


def model(width: int, library: Any) -> Any:
    """A base of arrays of JAX or NumPy, and adapters that begin at zero."""
    base = [library.full((width, width), 0.01 / width, library.float32) for _ in range(LAYERS)]
    return {
        "base": base,
        "adapter": [
            (jnp.full((width, RANK), 0.01), jnp.zeros((RANK, width))) for _ in range(LAYERS)
        ],
    }


def train(width: int, as_numpy: bool) -> None:
    """A round of everybody; prints the peaks of this process, and what was sent."""
    rng = np.random.default_rng(0)
    clients = [
        {
            "x": rng.normal(size=(EXAMPLES, width)).astype(np.float32),
            "y": np.ones(EXAMPLES, np.float32),
        }
        for _ in range(CLIENTS)
    ]
    task = fedax.Task(model(width, np if as_numpy else jnp), loss, clients, frozen="base")
    made = peak()
    history = fedax.run(fedax.FedAvg(), task, solver=fedax.SGD(0.001), rounds=1)
    assert history.metrics["train_loss"][-1] < history.metrics["train_loss"][0]
    print(json.dumps({"made": made, "ran": peak(), "sent": int(history.bits.up[0])}))


def peak() -> int:
    """The most bytes of memory that this process had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measured(width: int, as_numpy: bool) -> dict[str, int]:
    """The report of a process of its own."""
    command = [sys.executable, __file__, "--child", "--width", str(width), *["--numpy"] * as_numpy]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | {"XLA_FLAGS": PLAIN}
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Prints the table."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    options.add_argument("--width", type=int, default=2048, help="of the twelve square layers")
    options.add_argument("--numpy", action="store_true", help="the base as NumPy arrays")
    options.add_argument("--child", action="store_true", help="do the work in this process")
    given = options.parse_args()
    if given.child:
        train(given.width, given.numpy)
        return
    parameters = LAYERS * given.width**2
    adapter = 2 * LAYERS * given.width * RANK
    whole = measured(given.width, given.numpy)
    nothing = measured(NOTHING, given.numpy)
    assert whole["sent"] == CLIENTS * adapter * 32
    print(f"base: {parameters / 1e6:.1f} million parameters, {parameters * 4 / 1e6:.0f} MB")
    for name, when in (("made", "when the task is made"), ("ran", "after the run")):
        share = (whole[name] - nothing[name]) / (parameters * 4)
        print(
            f"peak {when}: {whole[name] / 1e6:.0f} MB with it, {nothing[name] / 1e6:.0f} MB "
            f"without: {share:.3f} of its size"
        )
    print(f"sent by a client: {adapter * 4 / 1e6:.2f} MB, the adapter alone")


if __name__ == "__main__":
    main()
