"""Constants of a task that hyperparameters can be made from."""

from abc import ABC, abstractmethod

import numpy as np
from jaxtyping import Float


class Constants(ABC):
    """Constants of a task under a schedule, each computed when it is first asked for."""

    @property
    @abstractmethod
    def smoothness(self) -> Float[np.ndarray, "clients"]:
        """L_k, the smoothness of each client's loss, or an estimate of it; above 0."""

    @property
    @abstractmethod
    def estimated(self) -> bool:
        """Whether `smoothness` is an estimate, which the true constants may exceed."""

    @property
    @abstractmethod
    def interval(self) -> int:
        """H, the most local steps of a client in a round."""
