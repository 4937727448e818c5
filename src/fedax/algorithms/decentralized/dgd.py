"""DGD: decentralized gradient descent."""

from fedax.algorithms.decentralized.gossip import Gossip
from fedax.core import Citation, Client, Upload, Vector


class DGD(Gossip):
    r"""Everybody averages with the neighbours and takes a step along its full gradient.

    $$ x_i \leftarrow \sum_{l \in N(i)} w_{il} x_l - \eta\, \nabla f_i(x_i). $$

    With a constant step it settles at distance $O(\eta / (1 - \lambda))$ from the optimum of
    $\frac1m \sum_i f_i$. The step is the solver's learning rate (SGD without momentum), with the
    schedule's decay; batches and epochs have no effect.

    Args:
        topology, graph: as in `DFedAvgM`.

    Example:
        >>> import fedax
        >>> method = fedax.DGD()

    Source: Nedic and Ozdaglar, Distributed Subgradient Methods for Multi-Agent Optimization, IEEE
    Transactions on Automatic Control 54(1), 2009, eq. (3); Yuan, Ling and Yin, On the Convergence
    of Decentralized Gradient Descent, SIAM Journal on Optimization 26(3), 2016. The recursion as
    decent-bench documents it.
    """

    needs = ("both", "row")

    citation = Citation(
        paper="Nedic and Ozdaglar, Distributed Subgradient Methods for Multi-Agent "
        "Optimization, IEEE TAC 54(1), 2009",
        read=("others' code",),
        equation="eq. (3)",
    )

    def send(self, client: Client, state: Vector) -> Upload[Vector]:
        return Upload(state)

    def receive(self, client: Client, state: Vector, received: Vector) -> Vector:
        return received - client.plain_learning_rate * client.gradient(state)
