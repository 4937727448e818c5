"""The container of federated data, under the name that sources import it by."""

from fedax.examples.federated import MOST_CLASSES as MOST_CLASSES
from fedax.examples.federated import FederatedData as FederatedData
from fedax.examples.ragged import Examples as Labelled

__all__ = ["Labelled"]
