"""IFCA: one model for each of several clusters of clients."""

from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedax.algorithms.personalized.fedbn import refuse_averaged_state
from fedax.core import (
    Algorithm,
    Citation,
    Client,
    Federation,
    Layout,
    Personal,
    Reduction,
    Scalar,
    Task,
    Upload,
    Vector,
    hyper,
)

Models: TypeAlias = Float[Array, "clusters dim"]
"""One model for each cluster."""


class IFCA(Algorithm[Models]):
    r"""Clustered federated learning: every client trains the model that fits its examples best.

    The server sends all models $\theta_1, \dots, \theta_k$; client i takes the one of least loss
    and trains it, and the server averages those of each cluster:

    $$ j_i = \arg\min_j f_i(\theta_j), \qquad \tilde\theta_i = \text{local solver on } f_i \text{
    from } \theta_{j_i}, \qquad
       \theta_j \leftarrow \frac{\sum_{i \in S,\, j_i = j} p_i \tilde\theta_i}{\sum_{i \in S,\, j_i
       = j} p_i}. $$

    A model that nobody takes stays. A client uses the model of least loss on its training examples;
    the global model is the mean of all k. The starts differ by normal noise, less its mean: equal
    models would be one cluster for ever. The paper starts at random, several times; what is logged
    tells such runs apart. Batch statistics belong to one model, so a task that averages them over
    all clusters is refused.

    Notes: `members`, the clients of each cluster in the cohort.

    Args:
        clusters: k, at least 1; 1 is FedAvg.
        spread: the standard deviation of the noise at the start, at least 0.

    Example:
        >>> import fedax
        >>> method = fedax.IFCA(clusters=2)

    Source: Ghosh, Chung, Yin and Ramchandran, An Efficient Framework for Clustered Federated
    Learning, NeurIPS 2020, Alg. 1 with model averaging (option II), as in the authors' code
    (github.com/jichan3751/ifca, mnist/train_cluster_mnist.py), where all clients work and count
    alike.
    """

    clusters: int = hyper(2, low=1, high=1000, doc="models, one for each cluster")
    spread: Scalar = hyper(
        0.1, low=0.0, doc="standard deviation of the noise that tells the models apart at the start"
    )

    citation = Citation(
        paper="Ghosh, Chung, Yin and Ramchandran, An Efficient Framework for Clustered "
        "Federated Learning, NeurIPS 2020",
        read=("authors' code",),
        equation="Alg. 1, option II",
        reductions=(Reduction({"clusters": 1}, "fedavg"),),
    )

    def check_model(self, task: Task, layout: Layout) -> None:
        refuse_averaged_state(task, "IFCA")

    def init(self, fed: Federation, w: Vector) -> Models:
        noise = jax.random.normal(fed.key("clusters"), (self.clusters, w.shape[0]), w.dtype)
        return w[None] + self.spread * (noise - noise.mean(0, keepdims=True))

    def round(self, fed: Federation, state: Models) -> Models:
        uploads = fed.gather(self.train, fed.sample(), *state)
        models, choices = uploads.value
        # clusters x capacity
        is_member = (
            choices[None] == jnp.arange(self.clusters, dtype=jnp.int32)[:, None]
        ) & uploads.valid[None]
        fed.log(members=is_member.sum(1, dtype=jnp.int32))
        weights = jnp.where(is_member, uploads.shares()[None], 0)
        total = weights.sum(1, keepdims=True)
        return jnp.where(total > 0, weights @ models / jnp.where(total > 0, total, 1), state)

    def model(self, state: Models) -> Vector:
        return state.mean(0)

    def personal(self, state: Models) -> Personal:
        return Personal(
            lambda client, models: models[self.choose_cluster(client, models)], (state,)
        )

    def choose_cluster(self, client: Client, models: Models) -> Int[Array, ""]:
        return jnp.argmin(jnp.stack([client.loss(model) for model in models])).astype(jnp.int32)

    # models one by one, since channels code vectors
    def train(self, client: Client, *sent: Vector) -> Upload[tuple[Vector, Int[Array, ""]]]:
        models = jnp.stack(sent)
        cluster = self.choose_cluster(client, models)
        return Upload((client.minimize(start=models[cluster]), cluster), reference=models[cluster])
