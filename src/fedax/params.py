"""Models as files: safetensors with the names of their leaves."""

from fedax.models.storage import Weights as Weights
from fedax.models.storage import leaf_names as leaf_names
from fedax.models.storage import load_params as load_params
from fedax.models.storage import load_state as load_state
from fedax.models.storage import read_weights as read_weights
from fedax.models.storage import save_params as save_params

__all__ = [
    "Weights",
    "leaf_names",
    "load_params",
    "load_state",
    "read_weights",
    "save_params",
]
