"""Attacks: harm that a part of the clients does, as a part of a `fedax.Channel`.

- `SignFlip`: a step in the opposite direction.
- `Noise`: noise in place of a step.
- `LabelFlip`: honest work on wrong labels.
- `ALIE`, `IPM`, `MinMax`: hostile clients agree on a vector, knowing what others send.
- `ATTACKS`: attacks by their name in experiment files; `make_attack` makes one.
"""

from fedax.communication.attacks import ALIE as ALIE
from fedax.communication.attacks import ATTACKS as ATTACKS
from fedax.communication.attacks import IPM as IPM
from fedax.communication.attacks import Attack as Attack
from fedax.communication.attacks import Collusion as Collusion
from fedax.communication.attacks import LabelFlip as LabelFlip
from fedax.communication.attacks import MinMax as MinMax
from fedax.communication.attacks import Noise as Noise
from fedax.communication.attacks import SignFlip as SignFlip
from fedax.communication.attacks import make_attack as make_attack

__all__ = [
    "ALIE",
    "ATTACKS",
    "IPM",
    "Attack",
    "Collusion",
    "LabelFlip",
    "MinMax",
    "Noise",
    "SignFlip",
    "make_attack",
]
