"""Rounds that do not wait for all clients: the server asks more than it needs, or ends a round at a
deadline.

Who answers when follows from the devices alone, so the clients that count are known before a round
is trained.
"""

import math

import numpy as np
from jaxtyping import Bool, Float, Int


def first_answers(
    clients: Int[np.ndarray, "asked"],
    seconds: Float[np.ndarray, "asked"],
    most: int | None = None,
    deadline: float = math.inf,
) -> tuple[Bool[np.ndarray, "asked"], float]:
    """Returns which clients of a round count, and when it ends.

    It ends with the last answer that it takes, or at the deadline where fewer than `most` have come
    and others have not.

    Args:
        clients: their numbers, all different; the smaller one counts first at equal times.
        seconds: when their uploads arrive, from the start of the round.
        most: how many answers it takes, at least 1; None for all.
        deadline: the last moment at which an answer counts.

    >>> counts, end = first_answers(np.array([7, 2, 4]), np.array([3.0, 1.0, 3.0]), most=2)
    >>> counts.tolist(), end
    ([False, True, True], 3.0)

    Source: Bonawitz et al., Towards Federated Learning at Scale: System Design, MLSys 2019, Sec.
    2.2, 3.3 and 9 (the paper was not read).
    """
    order = np.lexsort((clients, seconds))
    accepted = order[seconds[order] <= deadline][:most]
    counts = np.zeros(len(clients), bool)
    counts[accepted] = True
    # with enough answers, or all of them, the server waits no longer
    is_complete = len(accepted) in (most, len(clients))
    return counts, float(seconds[accepted].max(initial=0.0)) if is_complete else deadline
