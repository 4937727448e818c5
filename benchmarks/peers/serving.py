"""Shared by all contestants, with nothing but NumPy: the work of a file, and the answers to the
driver.

The driver writes a line "rounds file" to standard input. A contestant trains so many rounds from
the initial model, answers with the seconds that they took, then leaves the model in the file as one
vector and answers again."""

import itertools
import json
import os
import sys
import time
from functools import cached_property
from pathlib import Path

import numpy as np


class Work:
    """A workload as `workloads.py` wrote it.

    The vector of a model has its layers from the input on, of each the kernel, then the bias.
    Kernels are (inputs, outputs) or (rows, columns, inputs, outputs); what is flattened before a
    dense layer is in the order rows, columns, channels."""

    def __init__(self, path):
        with np.load(path) as file:
            self.arrays = {name: file[name] for name in file.files}
        about = json.loads(str(self.arrays["about"]))
        self.name = about["name"]
        self.rate = about["rate"]
        self.batch = about["batch"]
        self.epochs = about["epochs"]
        self.rounds = about["rounds"]
        self.cohort = about["cohort"]
        self.seed = about["seed"]
        self.shapes = [tuple(shape) for shape in about["shapes"]]
        self.image = about["image"] and tuple(about["image"])
        self.padding = about["padding"]
        self.x, self.y, self.offsets = (self.arrays[name] for name in ("x", "y", "offsets"))
        self.initial = self.arrays["initial"]
        self.cohorts = self.arrays["cohorts"]

    @cached_property
    def sizes(self):
        return np.diff(self.offsets)

    def batches(self, round, place):
        """The rows of all steps of the client at a place of the round's cohort, an array for each
        step."""
        first, last = self.arrays["jobs"][round * self.cohort + place :][:2]
        ends = self.arrays["ends"][first : last + 1]
        rows = self.arrays["rows"]
        return [rows[a:b] for a, b in itertools.pairwise(ends)]

    def leaves(self, vector):
        """The kernels and biases in a vector, as views."""
        sizes = [int(np.prod(shape)) for shape in self.shapes]
        return [
            part.reshape(shape)
            for part, shape in zip(
                np.split(vector, np.cumsum(sizes)[:-1]), self.shapes, strict=True
            )
        ]

    def samples(self, rounds):
        """Examples that so many rounds pass through the model in training, counted once for each
        epoch."""
        return int(self.sizes[self.cohorts[:rounds]].sum()) * self.epochs

    @property
    def convolutional(self):
        return self.image is not None


def serve(prepare):
    """`prepare(work)` gives a function from a number of rounds to the vector of the model after
    them."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer
    work = Work(Path(sys.argv[-1]))
    train = prepare(work)
    answers.write("ready\n")
    for line in sys.stdin:
        rounds, path = line.split(maxsplit=1)
        begun = time.perf_counter()
        vector = train(int(rounds))
        answers.write(f"{time.perf_counter() - begun}\n")
        np.save(path.strip(), np.asarray(vector, np.float32))
        answers.write("saved\n")
