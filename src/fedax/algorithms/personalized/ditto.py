"""Ditto: personal models tied to the global one."""

from fedax.core import (
    Algorithm,
    Citation,
    Client,
    Federation,
    LocalProblem,
    ModelAndStates,
    Personal,
    Scalar,
    Upload,
    Vector,
    hyper,
)


class Ditto(Algorithm[ModelAndStates]):
    r"""FedAvg, and beside it a personal model of every client, pulled to the global one.

    $$ w_k \approx \arg\min f_k \text{ from } w, \qquad
       v_k \leftarrow \text{local solver on } f_k(v) + \tfrac{\lambda}{2} \lVert v - w \rVert^2
       \text{ from } v_k, \qquad w \leftarrow \frac{\sum_S p_k w_k}{\sum_S p_k}. $$

    The personal model takes as many steps as the global one. $\lambda = 0$ is training alone. The
    released mean has equal weights (`weights="equal"`). A model's state, such as the statistics of
    batch norm, is trained by the global model alone, and personal models are evaluated with it.

    Args:
        lam: $\lambda$, at least 0.

    Example:
        >>> import fedax
        >>> method = fedax.Ditto(lam=0.1)

    Source: Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021,
    Alg. 1, as in the authors' code (github.com/litian96/ditto, flearn/trainers_MTL/ditto.py).
    """

    lam: Scalar = hyper(0.1, low=0.0, doc="pull of the personal models to the global one")

    citation = Citation(
        paper="Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, "
        "ICML 2021",
        read=("authors' code",),
        equation="Alg. 1",
    )

    def init(self, fed: Federation, w: Vector) -> ModelAndStates:
        return ModelAndStates(w, fed.client_states(w))

    def round(self, fed: Federation, state: ModelAndStates) -> ModelAndStates:
        return ModelAndStates(*fed.average(self.train, fed.sample(), state.w, states=state.clients))

    def personal(self, state: ModelAndStates) -> Personal:
        return Personal.remembered(state.clients)

    def train(self, client: Client, w: Vector, v: Vector) -> Upload[Vector]:
        # the statistics of a batch norm are the global model's
        with client.frozen_state():
            v = client.minimize(LocalProblem(anchor=w, prox=self.lam), start=v)
        return Upload(client.minimize(start=w), state=v)
