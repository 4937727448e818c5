"""Attacks: harm that a part of the clients does, as a part of a `fedax.Channel`.

- `SignFlip`: a step in the opposite direction.
- `Noise`: noise in place of a step.
- `LabelFlip`: honest work on wrong labels.
- `ATTACKS`: attacks by their name in experiment files; `make_attack` makes one.
"""

from fedax.communication.attacks import ATTACKS as ATTACKS
from fedax.communication.attacks import Attack as Attack
from fedax.communication.attacks import LabelFlip as LabelFlip
from fedax.communication.attacks import Noise as Noise
from fedax.communication.attacks import SignFlip as SignFlip
from fedax.communication.attacks import make_attack as make_attack

__all__ = ["ATTACKS", "Attack", "LabelFlip", "Noise", "SignFlip", "make_attack"]
