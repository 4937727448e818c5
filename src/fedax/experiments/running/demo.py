"""The first comparison for new users: five methods on three tasks, in at most three minutes."""

from fedax.experiments.config.experiment import Experiment

TITLE = "Federated optimizers on heterogeneous data"
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


def experiments(rounds: int | None = None) -> list[Experiment]:
    """Returns the three comparisons of the demo.

    The synthetic data have the solver and the schedule of the FedProx and FedDANE papers. FedDANE's
    mu is the best of {0, 0.001, 0.01, 0.1, 1} by training loss, as the paper chooses it.

    Args:
        rounds: of every task, instead of the demo's own.
    """
    shards = {"name": "digits", "partition": "shards", "clients": 20}
    alike = {"name": "synthetic", "iid": True}
    unlike = {"name": "synthetic", "alpha": 1.0, "beta": 1.0}
    # title, task, learning rate, epochs, rounds, and mu of FedProx and of FedDANE
    rows = [
        ("Digits by label", shards, 0.05, 5, 60, 0.1, 0.0),
        ("Synthetic IID", alike, 0.01, 20, 100, 1.0, 0.0),
        ("Synthetic (1, 1)", unlike, 0.01, 20, 100, 1.0, 1.0),
    ]
    released = {"label": "FedDANE as released", "correction": "as_released", "cohorts": "shared"}
    return [
        Experiment.of(
            name=title,
            rounds=rounds or usual,
            task=task,
            solver={"name": "sgd", "learning_rate": rate},
            schedule={"cohort": 10, "epochs": epochs, "batch_size": 10},
            algorithm=[
                {"name": "fedavg", "label": "FedAvg"},
                {"name": "fedprox", "label": "FedProx", "mu": prox},
                {"name": "feddane", "label": "FedDANE", "mu": dane},
                {"name": "feddane", "mu": dane, **released},
                {"name": "fedbc", "label": "FedBC", "start": "global"},  # the released form
            ],
        )
        for title, task, rate, epochs, usual, prox, dane in rows
    ]
