"""One global model of all leaves, and second values of some of them at each client; what such
methods share.
"""

from fedax.algorithms.personalized.parted import Parted, Parts
from fedax.core import Federation, Vector


class FullyAveraged(Parted):
    """FedAvg of all leaves, which are the global model. For some leaves a client stores values of
    its own beside them.
    """

    def round(self, fed: Federation, state: Parts) -> Parts:
        w, states = fed.average(self.train, fed.sample(), state.whole, states=state.clients)
        return Parts(w, states, state.own)

    def model(self, state: Parts) -> Vector:
        return state.whole
