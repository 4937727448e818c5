"""Premises of theorems, checked from what a run was made with.

Each function returns None where all premises hold, else the reason why the theorem is not about the
run, to follow "the statement".
"""

from collections.abc import Iterable, Mapping
from typing import Any

Settings = Mapping[str, Any]
"""See `fedax.History.settings`; those of an experiment's records have the same form."""

UNKNOWN = "needs the run's settings, which are not known"
_SOLVED = ("Exact", "Inexact")


def first_unmet(premises: Iterable[tuple[bool, str]]) -> str | None:
    """Returns the reason of the first premise that does not hold."""
    return next((reason for holds, reason in premises if not holds), None)


def local_gd(settings: Settings | None) -> str | None:
    """Returns the premises of Lemmas 2 and 3: full gradients, equal weights, one step size."""
    if settings is None:
        return UNKNOWN
    schedule = settings["schedule"]
    return first_unmet(
        [
            (method_of(settings) == "LocalGD", f"is about Local GD, not {method_of(settings)}"),
            *_step_premises(settings),
            (
                schedule.get("weights") == "equal",
                'is about clients that count alike, weights="equal"',
            ),
            (schedule.get("batch_size") == "full", 'is about full gradients, batch_size="full"'),
            *_channel_premises(settings),
        ]
    )


def local_gd_mean(settings: Settings | None) -> str | None:
    """Returns the premises of Theorem 1 beside those of the lemmas: it bounds the mean of all
    iterates.
    """
    if (reason := local_gd(settings)) is not None or settings is None:
        return reason
    returned = settings["algorithm"].get("returned", "last")
    return (
        None
        if returned == "mean"
        else ('is about the mean of all iterates, returned="mean"; the run shows the last one')
    )


def feddane(settings: Settings | None, clients: int, *, by_device: bool = False) -> str | None:
    """Returns the premises of Theorems 3 and 5, for cohorts of all clients or drawn by their
    shares.

    With `by_device` several devices may have several mu, as in Theorem 7.
    """
    if settings is None:
        return UNKNOWN
    algorithm, schedule = settings["algorithm"], settings["schedule"]
    # with all clients nothing is drawn, so premises about the draws do not matter
    all_clients = everyone_works(settings, clients)
    return first_unmet(
        [
            (method_of(settings) == "FedDANE", f"is about FedDANE, not {method_of(settings)}"),
            (algorithm.get("correction", "exact") == "exact", 'is about correction="exact"'),
            (
                not algorithm.get("pipelined", False),
                "is not about the pipelined form, which corrects by an older gradient",
            ),
            (algorithm.get("decay", 1.0) == 1, "is not about a decayed correction"),
            (
                by_device or _is_single_value(algorithm.get("mu")),
                "is about one mu, and the devices have several; Theorem 7 is about those",
            ),
            (
                all_clients or algorithm.get("cohorts", "independent") == "independent",
                'needs both draws of a round to be independent, cohorts="independent"',
            ),
            (
                all_clients or schedule.get("sampling") == "proportional",
                "needs cohorts drawn by the clients' shares with replacement, "
                'sampling="proportional", or all clients',
            ),
            *_availability_premises(settings),
            *_channel_premises(settings),
            (
                _is_repeatable(settings)
                and (all_clients or settings["solver"].get("type") in _SOLVED),
                "needs the inexactness of the run's own solutions, which was measured for other "
                "minibatches or gradients",
            ),
        ]
    )


def dfedavgm(settings: Settings | None, period: float | None) -> str | None:
    """Returns the premises of Lemmas 4 and 5 that do not depend on the rounding."""
    if settings is None:
        return UNKNOWN
    algorithm, method = settings["algorithm"], method_of(settings)
    mode = algorithm.get("mode", "paper")
    return first_unmet(
        [
            (method in ("DFedAvgM", "QuantizedDFedAvgM"), f"is about DFedAvgM, not {method}"),
            (
                method == "DFedAvgM" or mode != "paper",
                "is about models that are mixed whole (16); under eq. (7) there is no bound",
            ),
            (
                method == "DFedAvgM" or mode == "replica",
                f'is about models that are mixed whole (16), not mode="{mode}"',
            ),
            (
                period is not None,
                "needs to know whether the graph changes, which the run did not record",
            ),
            (period == 1, "is about one mixing matrix, and the graph changes from round to round"),
            *_step_premises(settings, momentum=True),
            *_availability_premises(settings),
            *_channel_premises(settings),
        ]
    )


def fedbc(settings: Settings | None) -> str | None:
    """Returns the premise of the multipliers' interval."""
    if settings is None:
        return UNKNOWN
    return first_unmet(
        [(method_of(settings) == "FedBC", f"is about FedBC, not {method_of(settings)}")]
    )


def fedbc_consensus(settings: Settings | None, clients: int) -> str | None:
    """Returns the premises of Lemma B.2: all devices work."""
    if (reason := fedbc(settings)) is not None or settings is None:
        return reason
    participation = (everyone_works(settings, clients), "is about rounds of all devices")
    return first_unmet(
        [participation, *_availability_premises(settings), *_channel_premises(settings)]
    )


def fedaware(settings: Settings | None) -> str | None:
    """Returns the premise of Theorem 4.1."""
    if settings is None:
        return UNKNOWN
    return first_unmet(
        [(method_of(settings) == "FedAWARE", f"is about FedAWARE, not {method_of(settings)}")]
    )


def method_of(settings: Settings) -> str:
    """Returns the class of the algorithm."""
    return str(settings["algorithm"].get("type"))


def everyone_works(settings: Settings, clients: int) -> bool:
    """Returns whether each round's cohort is all clients."""
    schedule = settings["schedule"]
    cohort, without_replacement = (
        schedule.get("cohort"),
        schedule.get("sampling") in ("uniform", "proportional_without_replacement"),
    )
    # drawn with replacement, a cohort of that size may lack clients
    return cohort is None or (without_replacement and cohort == clients)


def is_deterministic(settings: Settings | None) -> bool:
    """Returns whether a round of all clients has no chance in it: full gradients, and no rounding
    at random.
    """
    if settings is None or settings["schedule"].get("batch_size") != "full":
        return False
    return settings["algorithm"].get("rounding") != "stochastic"


def _step_premises(settings: Settings, momentum: bool = False) -> list[tuple[bool, str]]:
    """Returns the premises that steps are along gradients, all of one size; `momentum` allows
    heavy-ball momentum.
    """
    solver = settings["solver"]
    changed = solver.get("clip") not in (None, float("inf")) or solver.get("weight_decay", 0.0) != 0
    return [
        (solver.get("type") == "SGD", f"is about SGD, not {solver.get('type')}"),
        (momentum or not solver.get("momentum", 0.0), "is about steps without momentum"),
        (
            not changed,
            "is about gradients that are not clipped and have no weight decay of the solver",
        ),
        (solver.get("decay", 1.0) == 1, "is about one step size, and the solver's decays"),
    ]


def _availability_premises(settings: Settings) -> list[tuple[bool, str]]:
    schedule = settings["schedule"]
    always_answers = not schedule.get("dropouts", 0.0) and schedule.get("availability") is None
    always_answers = (
        always_answers and schedule.get("over_select", 1) == 1 and schedule.get("deadline") is None
    )
    return [(always_answers, "is about clients that always answer")]


def _channel_premises(settings: Settings) -> list[tuple[bool, str]]:
    return [
        (settings.get("channel") is None, "is about messages that no channel codes"),
        (
            settings.get("on_bad_client") in (None, "stop"),
            "is about rounds that leave no client out",
        ),
    ]


def _is_repeatable(settings: Settings) -> bool:
    """Returns whether a local solution depends on no draw and no count of rounds, so that an
    observer's is that of the round.
    """
    solver, schedule = settings["solver"], settings["schedule"]
    if solver.get("type") in _SOLVED:
        return True
    # a list is a range that amounts are drawn from
    amounts = [schedule.get(name) for name in ("epochs", "steps", "batch_size")]
    by_chance = schedule.get("stragglers", 0.0) > 0 or schedule.get("sync_probability") is not None
    is_random = by_chance or any(isinstance(amount, list) for amount in amounts)
    ordered = schedule.get("batch_size") == "full" or schedule.get("order") == "given"
    return (
        solver.get("decay", 1.0) == 1
        and ordered
        and not is_random
        and schedule.get("times") is None
    )


def _is_single_value(mu: Any) -> bool:
    return not isinstance(mu, list) or len(set(mu)) == 1
