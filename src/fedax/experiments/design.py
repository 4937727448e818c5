"""What the long demo compares."""

TASKS = {
    "Synthetic IID": {"alpha": 0.0, "beta": 0.0, "iid": True},
    "Synthetic (0, 0)": {"alpha": 0.0, "beta": 0.0},
    "Synthetic (0.5, 0.5)": {"alpha": 0.5, "beta": 0.5},
    "Synthetic (1, 1)": {"alpha": 1.0, "beta": 1.0},
}
MUS = (0.0, 0.001, 0.01, 0.1, 1.0)
SELECTION_SEED = 0
"""The seed of the runs that select mu, one on each draw of the data; the other seeds run with the selected one."""
BASELINES = {"FedAvg": {"name": "fedavg"}, "FedProx": {"name": "fedprox", "mu": 1.0}, "FedBC": {"name": "fedbc"}}
FORMS = {
    "FedDANE": ("exact", "independent"),
    "FedDANE, shared cohorts": ("exact", "shared"),
    "FedDANE as released, independent cohorts": ("as_released", "independent"),
    "FedDANE as released": ("as_released", "shared"),
}
"""FedDANE's correction and cohorts by title. The published code has the last."""


def at(form: str, mu: float) -> str:
    """The label of one member of a form's grid."""
    return f"{form}, mu={mu:g}"


def members(method: str) -> list[str]:
    """The labels that a method is run under: one, or its grid."""
    return [at(method, mu) for mu in MUS] if method in FORMS else [method]
