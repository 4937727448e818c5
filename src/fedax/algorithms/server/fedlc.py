"""FedLC: cross entropy whose logits are calibrated by a client's numbers of examples by class."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from fedax.algorithms.server.on_classes import Gradient, OnClasses, logits_from
from fedax.core import Citation, Client, Minibatch, Scalar, Vector, hyper


class FedLC(OnClasses):
    r"""FedAvg on a cross entropy that asks for larger margins where a client has few examples of a
    class.

    With the client's numbers of examples $n_c$ of each class and the logits z, the local loss of an
    example of class y is

    $$ -\log \frac{\exp(z_y - \tau\, n_y^{-1/4})}{\sum_{c \neq y} \exp(z_c - \tau\,
    n_c^{-1/4})} . $$

    The true class is not in the sum, so that the loss has no minimum: a long run with a large
    learning rate can diverge. `form="fl_bench"` has it in the sum, as the code of FL-bench does,
    which says that training collapses otherwise. That is another method.

    Classes of which the client has no example are left out of the sum: their logits get no gradient
    from this client. A client with one class gets no gradient as written. Needs integer labels `y`
    and class probabilities as predictions.

    Args:
        tau: $\tau$, at least 0; with 0 the form "fl_bench" is FedAvg where every client has all
            classes.
        form: "as_written" or "fl_bench".

    Example:
        >>> import fedax
        >>> method = fedax.FedLC(tau=1.0)
        >>> other = fedax.FedLC(tau=1.0, form="fl_bench")

    Source: Zhang et al., Federated Learning with Label Distribution Skew via Logits Calibration,
    ICML 2022, with the formula as quoted in issue 5 of github.com/KarhouTam/FL-bench; that
    repository's src/client/fedlc.py, which is not the authors' code.
    """

    tau: Scalar = hyper(1.0, low=0.0, doc="strength of the calibration")
    form: str = hyper(
        "as_written",
        choices=("as_written", "fl_bench"),
        doc="whether the true class is left out of the sum",
    )

    citation = Citation(
        paper="Zhang et al., Federated Learning with Label Distribution Skew via Logits "
        "Calibration, ICML 2022",
        read=("abstract", "others' code"),
    )

    def gradient(self, client: Client, w: Vector) -> Gradient:
        counts = jnp.asarray(client.size, w.dtype) * class_frequencies(client, w)
        calibration = jnp.exp(-self.tau * jnp.maximum(counts, 0.5) ** -0.25)
        factors = jnp.where(counts < 0.5, 0, calibration)
        return weighted_softmax_gradient(client, factors, sums_true=self.form == "fl_bench")


def class_frequencies(client: Client, w: Vector) -> Float[Array, "classes"]:
    """Computes the share of each class among the client's training examples."""
    predict: Any = client.task.predictor

    def classes(params: PyTree, examples: Any, key: Any) -> Float[Array, "batch classes"]:
        probabilities = predict(params, examples, key)
        return jax.nn.one_hot(examples["y"], probabilities.shape[1], dtype=probabilities.dtype)

    return client.mean_of(classes, w)


def weighted_softmax_gradient(
    client: Client, factors: Float[Array, "classes"], sums_true: bool = True
) -> Gradient:
    """Returns `(minibatch, params) -> gradient` of the cross entropy with the classes' exponentials
    multiplied by factors, and the task's l2.

    Without `sums_true` the denominator is the sum over the classes other than the true one.
    """
    task = client.task
    predict = task.predictor
    assert predict is not None, "tasks without classes are refused"

    present = factors > 0
    shift = jnp.log(jnp.where(present, factors, 1))[None]

    def loss(params: PyTree, examples: Any, key: Any) -> Float[Array, "batch"]:
        z = logits_from(predict(params, examples, key)) + shift
        true = jax.nn.one_hot(examples["y"], z.shape[1], dtype=bool)
        z_true = jnp.where(true, z, 0).sum(1)
        summed = present[None] & (sums_true | ~true)
        # a sum over no class has no gradient, and would make that of the loss NaN
        has_sum = summed.any(1)
        total = jax.nn.logsumexp(z, axis=1, where=summed | ~has_sum[:, None])
        return jnp.where(has_sum, total - z_true, 0)

    def gradient(batch: Minibatch, params: PyTree) -> PyTree:
        return optax.tree.add_scale(batch.gradient_of(loss, params), task.l2, params)

    return gradient
