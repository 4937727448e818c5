"""The runs and the table of docs/models.md: full fine-tuning, low-rank adapters and DiLoCo on a
made language.

python study.py run      all runs, kept as rates.csv and runs.csv beside this file
python study.py table    the table, from the two files
"""

import csv
import functools
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optax
import pandas as pd

import fedax

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[2] / "examples"))
from language_model import Transformer, loss, sequences  # noqa: E402

LETTERS = "abcdefghijkl"
LENGTH = 16
CLIENTS = 4
SEQUENCES = 250
STEPS = 10
BATCH = 10
ROUNDS = 16
EVERY = 2
RANK = 4
SEEDS = (0, 1, 2, 3, 4)
TUNING_SEED = 100
RATES = (1e-3, 3e-3, 1e-2)
ADAPTER_RATES = (1e-2, 3e-2, 1e-1, 3e-1)
MODEL = Transformer(len(LETTERS))
OUTER = optax.sgd(0.7, momentum=0.9, nesterov=True)


class Method(NamedTuple):
    """One way to fine-tune.

    Attributes:
        server: the server's optimizer, None for plain means.
        keep: whether clients keep the state of AdamW between rounds.
        average: of `fedax.lora`; None trains the whole model.
    """

    server: Any = None
    keep: bool = False
    average: Any = None


METHODS = {
    "FedAvg, AdamW reset": Method(),
    "FedAvg, AdamW kept": Method(keep=True),
    "Nesterov outside, AdamW reset": Method(OUTER),
    "DiLoCo": Method(OUTER, keep=True),
    "LoRA, mean of factors": Method(average="factors"),
    "FFA-LoRA": Method(average="exact"),
}


def table(rng: np.random.Generator) -> np.ndarray:
    """Returns the probabilities of a letter after two others, shape (12, 12, 12)."""
    n = len(LETTERS)
    return rng.dirichlet(np.full(n, 0.05), size=(n, n))


def text(rng: np.random.Generator, probabilities: np.ndarray, count: int) -> str:
    """Returns letters that a table makes."""
    limits = probabilities.cumsum(-1)
    found = [0, 1]
    for draw in rng.random(count):
        next_letter = int((limits[found[-2], found[-1]] < draw).sum())
        found.append(min(next_letter, len(LETTERS) - 1))
    return "".join(LETTERS[i] for i in found[2:])


@functools.cache
def scene(seed: int) -> tuple[fedax.Task, Any]:
    """Returns the clients' task and the model that was trained on the common language before.

    A client's language is half the common one, 0.3 another one that all share, and 0.2 its own.
    """
    rng = np.random.default_rng(seed)
    common = table(rng)
    shared = table(rng)
    own = [0.5 * common + 0.3 * shared + 0.2 * table(rng) for _ in range(CLIENTS)]

    def task(texts: Sequence[str]) -> fedax.Task:
        train = []
        test = []
        for each in texts:
            arrays = sequences(each, LETTERS, LENGTH)
            count = len(arrays["y"]) * 4 // 5
            train.append({name: rows[:count] for name, rows in arrays.items()})
            test.append({name: rows[count:] for name, rows in arrays.items()})
        model = fedax.models.linen(MODEL, train[0]["x"])
        return fedax.from_model(model, loss, fedax.FederatedData.from_arrays(train, test=test))

    before = fedax.run(
        fedax.FedAvg(),
        task([text(rng, common, 1000 * LENGTH + 1)]),
        solver=fedax.Optax(optax.adamw(3e-3)),
        schedule=fedax.Schedule(steps=400, batch_size=32),
        rounds=1,
        seed=seed,
        observe=[],
    )
    return task([text(rng, each, SEQUENCES * LENGTH + 1) for each in own]), before.params


def run(name: str, rate: float, seed: int, rounds: int = ROUNDS) -> fedax.History:
    """Returns a run of one method."""
    method = METHODS[name]
    task, params = scene(seed)
    if method.average is not None:
        targets = ["*.attention.kernel", "*.wide.kernel", "*.narrow.kernel"]
        task = fedax.lora(task, RANK, targets=targets, params=params, average=method.average)
        params = None
    return fedax.run(
        fedax.FedAvg(server=method.server),
        task,
        solver=fedax.Optax(optax.adamw(rate, weight_decay=0.1), keep=method.keep),
        schedule=fedax.Schedule(steps=STEPS, batch_size=BATCH),
        rounds=rounds,
        seed=seed,
        params=params,
        engine=fedax.Simulation(devices=1),
        observe=[fedax.observe.TestLoss()],
        observe_every=EVERY,
    )


def bits(history: fedax.History) -> np.ndarray:
    """Returns the loss of the test sequences in bits a letter, by observation."""
    return np.asarray(history.metrics["test_loss"]) / np.log(2)


def write(name: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Writes a file beside this one, line by line."""
    with (HERE / name).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(head)
        for row in rows:
            writer.writerow(row)
            file.flush()


def best_rates() -> dict[str, float]:
    """Returns each method's learning rate with the lowest last loss on the draw for tuning."""
    rows = pd.read_csv(HERE / "rates.csv").sort_values("bits a letter")
    return rows.drop_duplicates("method").set_index("method")["learning rate"].to_dict()


def run_all() -> None:
    """Chooses the learning rates on one draw of the languages, and runs the others with them."""
    fedax.keep_programs()
    tuned = (
        (name, rate, f"{bits(run(name, rate, TUNING_SEED))[-1]:.4f}")
        for name in METHODS
        for rate in (RATES if METHODS[name].average is None else ADAPTER_RATES)
    )
    write("rates.csv", ["method", "learning rate", "bits a letter"], tuned)
    rates = best_rates()

    def rows() -> Iterable[Sequence[Any]]:
        for seed in SEEDS:
            for name, rate in rates.items():
                history = run(name, rate, seed)
                sent = int(history.bits.up[0]) // 8 // CLIENTS
                for i, value in enumerate(bits(history)):
                    yield name, seed, i * EVERY, f"{value:.4f}", sent

    write("runs.csv", ["method", "seed", "round", "bits a letter", "bytes of a client"], rows())


def results() -> str:
    """Returns the table of the methods."""
    rows = pd.read_csv(HERE / "runs.csv")
    ends = rows[rows["round"] == ROUNDS].groupby("method")
    lines = ["| method | bytes of a client a round | bits a letter |", "| --- | ---: | ---: |"]
    for name in METHODS:
        last = ends.get_group(name)
        mean, spread = last["bits a letter"].agg(["mean", "std"])
        sent = last["bytes of a client"].iloc[0]
        lines.append(f"| {name} | {sent:,} | {mean:.3f} ± {spread:.3f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1] == "run":
        run_all()
    print(results())
