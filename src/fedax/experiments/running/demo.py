"""The first comparison for new users: five methods on three tasks, in at most three minutes."""

from typing import Any

from fedax.experiments.config.experiment import Experiment

TITLE = "Federated optimizers on heterogeneous data"
SYNTHETIC = {
    "solver": {"name": "sgd", "learning_rate": 0.01},
    "schedule": {"cohort": 10, "epochs": 20, "batch_size": 10},
}
"""Solver and schedule of the synthetic data in the FedProx and FedDANE papers."""

READING = (
    "Do not rank the methods by these tables. They share a learning rate and have one seed, and "
    "only FedDANE's mu was selected. `fedax new experiment` writes a file that tunes each method.\n"
    "Worst tenth: the mean accuracy over the tenth of the clients with the lowest accuracy. Here "
    "these are two or three clients, some with a handful of test examples, so 0 % is possible.\n"
    "FedProx has mu = 1 on the synthetic data, as in its paper. This keeps local models close to "
    "the global one, so FedProx needs more rounds, most of all where clients are alike (IID).\n"
    "FedBC weighs clients by its multipliers and not by their examples. This helps small clients "
    "and costs accuracy over all examples. The step of the multipliers is the default."
)
"""What the tables of the demo say, and what they do not."""


def methods(prox: float, dane: float) -> list[dict[str, Any]]:
    """Returns the methods of the demo, with the proximal weights of FedProx and FedDANE."""
    released = {"correction": "as_released", "cohorts": "shared"}
    return [
        {"name": "fedavg", "label": "FedAvg"},
        {"name": "fedprox", "label": "FedProx", "mu": prox},
        {"name": "feddane", "label": "FedDANE", "mu": dane},
        {"name": "feddane", "label": "FedDANE as released", "mu": dane, **released},
        {"name": "fedbc", "label": "FedBC", "start": "global"},  # the released form
    ]


def experiments(rounds: int | None = None) -> list[Experiment]:
    """Returns the three comparisons of the demo.

    FedDANE's mu is the best of {0, 0.001, 0.01, 0.1, 1} by training loss, as the paper chooses it.

    Args:
        rounds: of every task, instead of the demo's own.
    """
    digits = {
        "solver": {"name": "sgd", "learning_rate": 0.05},
        "schedule": {"cohort": 10, "epochs": 5, "batch_size": 10},
    }
    shards = {"name": "digits", "partition": "shards", "clients": 20}
    comparisons = (
        ("Digits by label", 60, shards, digits, methods(0.1, 0.0)),
        (
            "Synthetic IID",
            100,
            {"name": "synthetic", "iid": True},
            SYNTHETIC,
            methods(1.0, 0.0),
        ),
        (
            "Synthetic (1, 1)",
            100,
            {"name": "synthetic", "alpha": 1.0, "beta": 1.0},
            SYNTHETIC,
            methods(1.0, 1.0),
        ),
    )
    return [
        Experiment.of(
            name=name, rounds=rounds or usual, task=task, algorithm=algorithms, **settings
        )
        for name, usual, task, settings, algorithms in comparisons
    ]
