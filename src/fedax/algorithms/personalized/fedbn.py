"""FedBN: every client has norms of its own."""

from fedax.algorithms.personalized.parted import Parted
from fedax.core import Citation, InvalidInput, Layout, Reduction, Task, Which, hyper
from fedax.utils.leaf_names import names_of, overlooked_norms


class FedBN(Parted):
    r"""FedAvg of everything but the norms: their scales and shifts, and their statistics, stay at
    each client.

    With client i's norms $\beta_i$ and all other parameters w:

    $$ (w_i, \beta_i) \leftarrow \text{local solver on } f_i \text{ from } (w, \beta_i), \qquad
       w \leftarrow \frac{\sum_S p_i w_i}{\sum_S p_i}. $$

    The statistics are the model's state, which no gradient trains: it stays at each client by the
    task's `state_policy="local"`. FedBN refuses a task that averages it. The published mean has
    equal weights (`weights="equal"`).

    Args:
        norms: the leaves of the norms, as `head` of `FedPer`; `"norms"` are those with "norm" in a
            part of their name, or "bn" at its beginning. A model without any is refused, and so is
            one with a layer of another name that has a running mean, such as `downsample.1` of
            torchvision's ResNets: name its norms, `norms=["bn*", "downsample.1"]`. Norms of other
            names without statistics are averaged unless they are named. Without leaves (`()`) it
            is FedAvg.

    Example:
        >>> import fedax
        >>> method = fedax.FedBN()

    Source: Li, Jiang, Zhang, Kamp and Dou, FedBN: Federated Learning on Non-IID Features via Local
    Batch Normalization, ICLR 2021 (arXiv:2102.07623), Sec. 4, and the authors' code
    (github.com/med-air/FedBN).
    """

    chooses = "norms"
    norms: Which = hyper("norms", leaves=True, doc="leaves that stay at each client")

    citation = Citation(
        paper="Li, Jiang, Zhang, Kamp and Dou, FedBN: Federated Learning on Non-IID Features, "
        "ICLR 2021",
        read=("paper", "authors' code"),
        equation="Sec. 4",
        reductions=(Reduction({"norms": ()}, "fedavg"),),
    )

    def check_model(self, task: Task, layout: Layout) -> None:
        overlooked = overlooked_norms(names_of(task.state))
        if self.norms == "norms" and overlooked:
            listed = ", ".join(overlooked)
            got = f"'norms', by which the layers of {listed} are averaged"
            hint = "Name the norms: norms=['bn*', 'downsample.1', ...]."
            raise InvalidInput.found(self.field, got, "the leaves of all norms", hint)
        super().check_model(task, layout)
        refuse_averaged_state(task, "FedBN")


def refuse_averaged_state(task: Task, method: str) -> None:
    """Refuses a model with a state that the server averages, for a method whose clients use
    different models.

    Raises:
        InvalidInput: the model has such a state.
    """
    if task.state is not None and task.state_policy == "average":
        field = f"{method}, with Task(state_policy=...)"
        hint = "With state_policy='local' every client keeps its own statistics."
        raise InvalidInput.of(field, "average", "'local' or 'frozen'", hint)
