"""FedAvg, with any server optimizer."""

from typing import Any

import equinox as eqx
import optax

from fedax.algorithms.server.released import sample_as_released
from fedax.core import Algorithm, Citation, Client, Federation, InvalidInput, Upload, Vector, hyper


class ServerState(eqx.Module):
    """The global model and the server optimizer's own state."""

    w: Vector
    optimizer: Any


class FedAvg(Algorithm[ServerState]):
    r"""Federated averaging, generalised by a server optimizer as in FedOpt.

    $$ w_k = \text{local solver on } f_k \text{ from } w, \qquad
       \bar w = \frac{\sum_{k \in S} \omega_k w_k}{\sum_{k \in S} \omega_k}, \qquad
       w \leftarrow \text{server}(w,\; \Delta = w - \bar w). $$

    The pseudo-gradient $\Delta$ goes to `server`, any Optax optimizer. Without one the new model is
    the mean itself, which is a server SGD with learning rate 1.

    Args:
        server: an Optax optimizer, or None.
        ids: "aligned": a client's model has the client's own weight; "mixed": the weights of a
            cohort are permuted among its clients at random, which happens in the code released with
            FedAWARE (see there). Cohorts of all clients stay as they are.

    Example:
        >>> import fedax, optax
        >>> slow = fedax.FedAvg(server=optax.sgd(0.5))

    Source: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized
    Data, AISTATS 2017, Alg. 1, as in github.com/tensorflow/federated (examples/simple_fedavg) and
    in the papers of FedProx and FedNova; server optimizers: Reddi et al., Adaptive Federated
    Optimization, ICLR 2021, Alg. 1.
    """

    server: optax.GradientTransformation | None = eqx.field(static=True, default=None)
    ids: str = hyper(
        "aligned", choices=("aligned", "mixed"), later=True, doc="whose weight a client's model has"
    )

    citation = Citation(
        paper="McMahan et al., Communication-Efficient Learning of Deep Networks from "
        "Decentralized Data, AISTATS 2017",
        read=("abstract", "others' code"),
        equation="Alg. 1",
        by_examples=True,
    )

    def __check_init__(self) -> None:
        preset = type(self).optimizer is not FedAvg.optimizer
        if self.server is not None and (
            preset or not isinstance(self.server, optax.GradientTransformation)
        ):
            allowed = "None, or an Optax optimizer if the method has none of its own"
            raise InvalidInput.of(f"{type(self).__name__}(server=...)", self.server, allowed)

    def optimizer(self) -> optax.GradientTransformation:
        """Returns the server optimizer; presets override it."""
        return self.server or optax.sgd(1.0)

    def init(self, fed: Federation, w: Vector) -> ServerState:
        return ServerState(w, self.optimizer().init(w))

    def round(self, fed: Federation, state: ServerState) -> ServerState:
        cohort = fed.sample() if self.ids == "aligned" else sample_as_released(fed)
        mean = fed.average(self.train, cohort, state.w)
        step, optimizer = self.optimizer().update(state.w - mean, state.optimizer, state.w)
        return ServerState(optax.apply_updates(state.w, step), optimizer)  # type: ignore[arg-type]

    def train(self, client: Client, w: Vector) -> Upload[Vector]:
        return Upload(client.minimize(start=w))
