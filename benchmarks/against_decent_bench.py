"""DGD, EXTRA and NIDS on a quadratic problem of decent-bench, in decent-bench and in fedax.

decent-bench needs Python 3.13 and stays in an environment of its own; the two meet in a file.

    ENVIRONMENT/bin/python against_decent_bench.py theirs FILE
    python against_decent_bench.py ours FILE

The first command makes the problem and solves it with decent-bench. The second one solves it with
fedax and compares the models.
"""

import sys
import time
from pathlib import Path

import numpy as np

AGENTS = 20
SIZE = 10
ITERATIONS = 2000
STEP = 0.01
METHODS = ("DGD", "EXTRA", "NIDS")


def theirs(path: Path) -> None:
    import networkx as nx
    from decent_bench import benchmark, networks
    from decent_bench.agents import Agent
    from decent_bench.algorithms import p2p

    benchmark.configure("numpy", "cpu", seed=0, log_level=30)
    costs, _ = benchmark.create_quadratic_problem(size=SIZE, n_agents=AGENTS)
    network = networks.P2PNetwork(
        nx.cycle_graph(AGENTS), [Agent(cost, state_snapshot_period=ITERATIONS) for cost in costs]
    )
    problem = benchmark.BenchmarkProblem(network)
    numbers = {
        "a": [np.asarray(getattr(cost.A, "value", cost.A)) for cost in costs],
        "b": [np.asarray(getattr(cost.b, "value", cost.b)).ravel() for cost in costs],
    }
    for name in METHODS:
        method = getattr(p2p, name)(step_size=STEP)
        begin = time.perf_counter()
        result = benchmark.benchmark([method], problem, ITERATIONS, progress_step=None)
        print(f"decent-bench | {name} | {time.perf_counter() - begin:.2f} s", flush=True)
        (states,) = result.states.values()
        numbers[name] = [
            np.asarray(getattr(agent.x, "value", agent.x)).ravel() for agent in states[0].agents()
        ]
    np.savez(path, **numbers)


def ours(path: Path) -> None:
    import jax
    import jax.numpy as jnp
    import networkx as nx

    import fedax

    jax.config.update("jax_enable_x64", True)
    numbers = np.load(path)
    clients = [
        {"a": a[None], "b": b[None]} for a, b in zip(numbers["a"], numbers["b"], strict=True)
    ]

    def loss(x, examples):
        return 0.5 * jnp.einsum("nij,i,j->n", examples["a"], x, x) + examples["b"] @ x

    task = fedax.Task(jnp.zeros(SIZE), loss, clients)
    schedule = fedax.Schedule(steps=1, batch_size="full", weights="equal")
    for name in METHODS:
        method = getattr(fedax, name)(graph=fedax.Graph.of(nx.cycle_graph(AGENTS)))
        for turn in ("first", "again"):
            begin = time.perf_counter()
            history = fedax.run(
                method,
                task,
                solver=fedax.SGD(STEP),
                schedule=schedule,
                rounds=ITERATIONS,
                observe=[],
                observe_every=ITERATIONS,
            )
            jax.block_until_ready(history.state)
            seconds = time.perf_counter() - begin
            models = np.asarray(method.nodes(history.state).all())
            print(
                f"fedax, {turn} | {name} | {seconds:.2f} s | difference "
                f"{np.abs(models - numbers[name]).max():.1e}",
                flush=True,
            )


if __name__ == "__main__":
    {"theirs": theirs, "ours": ours}[sys.argv[1]](Path(sys.argv[2]))
