"""Networks: fedax's models, PyTorch's modules in fedax, and PyTorch eager, in one run on the same
machine.

A few rounds of FedAvg: every client takes an epoch of plain SGD in each. PyTorch takes the same
steps on batches of the same sizes, with the same model: one process with all threads, and one
process for each core with one thread. The benchmark itself only coordinates; every contestant has a
process of its own, is warmed up, and they run in turns. Beside the samples per second of wall time
stand those per second of CPU time, which other programs on the machine disturb less.

With `--gpu` all contestants work on one GPU, with eight times as many clients. PyTorch is one
process then, also with its step captured as a CUDA graph. Both libraries may use TF32.

    python benchmarks/layers.py            # tables; --workload, --repeat to change
    python benchmarks/layers.py --gpu      # on a GPU, with JAX and PyTorch built for it
"""

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import time

# clients, examples of each, batch, classes; an even number of clients keeps two cores busy
SIZES = {
    "lenet": (8, 500, 64, 10),
    "mnist_cnn": (4, 200, 50, 10),
    "cifar_cnn": (4, 200, 50, 10),
    "lstm": (4, 40, 10, 80),
    "resnet20": (4, 100, 50, 10),
}
ROUNDS = {
    "lenet": 20,
    "mnist_cnn": 4,
    "cifar_cnn": 8,
    "lstm": 4,
    "resnet20": 2,
}  # in each turn, a second or two
GPU = "FEDAX_LAYERS_GPU" in os.environ
"""Whether the contestants work on a GPU; they inherit the variable from `main`."""
if GPU:
    SIZES = {name: (8 * clients, *rest) for name, (clients, *rest) in SIZES.items()}
RATE = 0.01
TEXTS = ("lstm",)


def inputs(name, count):
    import numpy as np

    rng = np.random.default_rng(0)
    if name in TEXTS:
        return rng.integers(1, 80, (count, 80)).astype(np.int32)
    return rng.random((count, 784 if name == "mnist_cnn" else 3072), np.float32)


def fedax_runner(name, kind, devices, threads):
    if not GPU:
        os.environ["XLA_FLAGS"] = (
            f"--xla_cpu_multi_thread_eigen={'true' if threads > 1 else 'false'}"
        )
    import jax
    import numpy as np

    jax.config.update("jax_num_cpu_devices", devices)
    assert (jax.default_backend() != "cpu") == GPU, jax.default_backend()

    import fedax

    clients, size, batch, classes = SIZES[name]
    x = inputs(name, size)
    y = np.arange(size, dtype=np.int32) % classes
    task = (own_task if kind == "fedax" else torch_task)(name, x, y)
    schedule = fedax.Schedule(epochs=1, batch_size=batch)
    engine = fedax.Simulation(devices=devices)

    def once():
        history = fedax.run(
            fedax.FedAvg(), task, solver=fedax.SGD(RATE), schedule=schedule, rounds=ROUNDS[name], engine=engine, observe=[]
        )  # fmt: skip
        assert history.outcome.ok

    return once, ROUNDS[name] * clients * size


def own_task(name, x, y):
    import fedax
    from fedax.models import CharLSTM, ResNet, cifar_cnn, lenet, mnist_cnn
    from fedax.tasks import classification

    models = {"lenet": lenet, "mnist_cnn": mnist_cnn, "cifar_cnn": cifar_cnn, "resnet20": ResNet}
    models["lstm"] = lambda: CharLSTM(80, biases=2)
    clients, _, _, classes = SIZES[name]
    return classification(
        fedax.FederatedData.from_arrays([{"x": x, "y": y}] * clients, classes=classes),
        models[name](),
    )


def torch_task(name, x, y):
    import optax

    import fedax

    def cross_entropy(logits, examples):
        return optax.softmax_cross_entropy_with_integer_labels(logits, examples["y"])

    client = {"x": x if name in TEXTS else x.reshape(images(name, len(x))), "y": y}
    model = fedax.models.torch(torch_model(name), client["x"])
    return fedax.from_model(model, cross_entropy, [client] * SIZES[name][0])


def images(name, count):
    return (count, 1, 28, 28) if name == "mnist_cnn" else (count, 3, 32, 32)


def torch_model(name):
    import torch
    from torch import nn

    if name == "lstm":

        class Text(nn.Module):
            def __init__(self):
                super().__init__()
                self.vectors = nn.Embedding(80, 8)
                self.layers = nn.LSTM(8, 256, 2)
                self.last = nn.Linear(256, 80)

            def forward(self, x):
                return self.last(self.layers(self.vectors(x.T))[0][-1])

        return Text()
    if name == "resnet20":

        class Block(nn.Module):
            def __init__(self, inputs, outputs):
                super().__init__()
                self.stride = outputs // inputs
                self.one = nn.Conv2d(inputs, outputs, 3, self.stride, 1, bias=False)
                self.two = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
                self.norms = nn.ModuleList([nn.GroupNorm(2, outputs), nn.GroupNorm(2, outputs)])

            def forward(self, x):
                h = self.norms[1](self.two(torch.relu(self.norms[0](self.one(x)))))
                if self.stride == 2:
                    x = nn.functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, x.shape[1]))
                return torch.relu(h + x)

        widths = [16] * 4 + [32] * 3 + [64] * 3
        blocks = [Block(a, b) for a, b in itertools.pairwise(widths)]
        first = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.GroupNorm(2, 16), nn.ReLU()]
        return nn.Sequential(
            *first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
        )
    stages, size, padding, widths = {
        "lenet": ([(3, 6), (6, 16)], 5, 0, (400, 120, 84, 10)),
        "mnist_cnn": ([(1, 32), (32, 64)], 5, 2, (3136, 512, 10)),
        "cifar_cnn": ([(3, 32), (32, 64)], 3, 0, (1024, 64, 10)),
    }[name]
    layers = []
    for a, b in stages:
        layers += [nn.Conv2d(a, b, size, padding=padding), nn.MaxPool2d(2), nn.ReLU()]
    layers += [nn.Conv2d(64, 64, 3), nn.ReLU()] if name == "cifar_cnn" else []
    layers.append(nn.Flatten())
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def torch_runner(name, threads, channels_last, captured):
    import torch

    device = "cuda" if GPU else "cpu"
    clients, size, batch, classes = SIZES[name]
    if GPU:
        torch.set_float32_matmul_precision("high")
    else:
        torch.set_num_threads(threads)
        # a process with one of the threads has its share of the clients
        clients = clients * threads // (os.cpu_count() or 1)
    x = torch.from_numpy(inputs(name, size)).to(device)
    y = torch.arange(size, device=device)
    y = y % classes
    model = torch_model(name).to(device)
    x = x.long() if name in TEXTS else x.reshape(images(name, size))
    if channels_last and name not in TEXTS:
        model = model.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    criterion = torch.nn.CrossEntropyLoss()

    def step(rows):
        optimizer.zero_grad()
        criterion(model(x[rows]), y[rows]).backward()
        optimizer.step()

    def once():
        for _ in range(ROUNDS[name] * clients):
            order = torch.randperm(size, device=device)
            for begin in range(0, size, batch):
                steps(order[begin : begin + batch])
        if GPU:
            torch.cuda.synchronize()

    steps = capture(step, x, size, batch) if captured else step
    return once, ROUNDS[name] * clients * size


def capture(step, x, size, batch):
    """Returns the step as one CUDA graph for each size of a batch, which reads its rows from one
    place."""
    import torch

    graphs = {}
    for rows in {batch, size % batch} - {0}:
        place = torch.arange(rows, device=x.device)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # as PyTorch asks for before it captures
            for _ in range(3):
                step(place)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step(place)
        graphs[rows] = place, graph

    def replay(rows):
        place, graph = graphs[len(rows)]
        place.copy_(rows)
        graph.replay()

    return replay


def serve(name, kind, first, second):
    """Warms up, then runs once for every line on standard input, and answers with the seconds."""
    once, samples = (
        torch_runner(name, first, second, kind == "captured")
        if kind in ("torch", "captured")
        else fedax_runner(name, kind, first, second)
    )
    begun = time.perf_counter()
    once()
    print(samples, time.perf_counter() - begun, flush=True)
    for _ in sys.stdin:
        begun = time.perf_counter()
        busy = time.process_time()
        once()
        print(time.perf_counter() - begun, time.process_time() - busy, flush=True)


class Contestant:
    """One or more processes that do a share of the work each."""

    def __init__(self, name, kind, first, second, copies=1):
        command = [sys.executable, __file__, "--serve", name, kind, str(first), str(int(second))]
        self.parts = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(copies)
        ]
        answers = [part.stdout.readline().split() for part in self.parts]
        self.samples = sum(int(a[0]) for a in answers)
        self.first = max(float(a[1]) for a in answers)
        self.times = []
        self.busy = []

    def once(self):
        for part in self.parts:
            part.stdin.write("\n")
            part.stdin.flush()
        answers = [
            [float(number) for number in part.stdout.readline().split()] for part in self.parts
        ]
        self.times.append(max(wall for wall, _ in answers))
        self.busy.append(sum(busy for _, busy in answers))

    def close(self):
        for part in self.parts:
            part.stdin.close()
            part.wait()


def cpu_entries(name):
    """Returns the arguments of `Contestant` for every contestant on the machine's cores."""
    cores = os.cpu_count() or 1
    entries = {
        f"fedax, {cores} devices": ("fedax", cores, 1),
        f"fedax, 1 device with {cores} threads": ("fedax", 1, cores),
        f"models.torch, {cores} devices": ("models.torch", cores, 1),
        f"PyTorch, {cores} threads": ("torch", cores, False),
        f"PyTorch, {cores} processes": ("torch", 1, False, cores),
    }
    if name not in TEXTS:
        entries[f"PyTorch channels last, {cores} threads"] = ("torch", cores, True)
        entries[f"PyTorch channels last, {cores} processes"] = ("torch", 1, True, cores)
    return entries


def gpu_entries(name):
    """Returns the arguments of `Contestant` for every contestant on one GPU."""
    entries = {
        "fedax": ("fedax", 1, 1),
        "models.torch": ("models.torch", 1, 1),
        "PyTorch": ("torch", 1, False),
        "PyTorch, CUDA graph": ("captured", 1, False),
    }
    if name not in TEXTS:
        entries["PyTorch channels last, CUDA graph"] = ("captured", 1, True)
    return entries


def measure(name, repeat, only):
    entries = gpu_entries(name) if GPU else cpu_entries(name)
    contestants = {
        label: Contestant(name, *entry)
        for label, entry in entries.items()
        if not only or any(word in label for word in only)
    }
    for _ in range(repeat):  # interleaved, so that noise meets all alike
        for contestant in contestants.values():
            contestant.once()
    for contestant in contestants.values():
        contestant.close()
    rates = {
        label: (
            c.samples / statistics.median(c.times),
            c.samples / min(c.times),
            c.samples / min(c.busy),
        )
        for label, c in contestants.items()
    }
    best = [
        max(column)
        for column in zip(*(rate for label, rate in rates.items() if label.startswith("PyTorch")))
    ]
    clients, size, batch, _ = SIZES[name]
    print(
        f"\n{name}: {clients} clients of {size}, batches of {batch}; {repeat} interleaved "
        "repetitions"
    )
    print(
        "| | samples/s, median | of the best PyTorch | fastest | of the best | per CPU second | "
        "of the best | first turn, s |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for label, rate in rates.items():
        cells = [f"{value:,.0f} | {value / top:.2f}" for value, top in zip(rate, best)]
        print(f"| {label} | {' | '.join(cells)} | {contestants[label].first:.1f} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    else:
        parser = argparse.ArgumentParser(
            description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        parser.add_argument("--workload", choices=list(SIZES), nargs="*", default=list(SIZES))
        parser.add_argument("--repeat", type=int, default=7)
        parser.add_argument(
            "--only",
            nargs="*",
            default=[],
            help="contestants whose names contain one of these words",
        )
        parser.add_argument("--gpu", action="store_true", help="all contestants on one GPU")
        arguments = parser.parse_args()
        if arguments.gpu and not GPU:  # once more, with the sizes for a GPU
            # JAX leaves memory to the other contestants
            shared = {"FEDAX_LAYERS_GPU": "1", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
            os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | shared)
        for workload in arguments.workload:
            measure(workload, arguments.repeat, arguments.only)
