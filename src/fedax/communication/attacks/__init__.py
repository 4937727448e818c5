"""Attacks of a part of the clients; `fedax.attacks` lists them."""

from typing import Any

from fedax.communication.attacks.base import Attack as Attack
from fedax.communication.attacks.collusion import ALIE as ALIE
from fedax.communication.attacks.collusion import IPM as IPM
from fedax.communication.attacks.collusion import Collusion as Collusion
from fedax.communication.attacks.collusion import MinMax as MinMax
from fedax.communication.attacks.messages import Noise as Noise
from fedax.communication.attacks.messages import SignFlip as SignFlip
from fedax.communication.attacks.poisoning import LabelFlip as LabelFlip
from fedax.core.hyper import make

ATTACKS: dict[str, type[Attack]] = {
    "sign_flip": SignFlip,
    "noise": Noise,
    "label_flip": LabelFlip,
    "alie": ALIE,
    "ipm": IPM,
    "min_max": MinMax,
}
"""Attacks by their name in experiment files."""


def make_attack(name: str, **options: Any) -> Attack:
    """Makes an attack by name.

    >>> make_attack("sign_flip", share=0.1).share
    0.1

    Raises:
        UnknownName: no such attack or option.
        InvalidInput: an option out of its range.
    """
    return make("attack", ATTACKS, name, Attack, options)
