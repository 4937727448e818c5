"""How far a backdoor opens."""

from typing import Any, ClassVar

from fedax.communication.attacks.poisoning import OTHERS, TRIGGERED, Backdoor
from fedax.core import InvalidInput, Task
from fedax.observe.accuracy import check_split_and_score
from fedax.observe.base import Observer, View


class AttackSuccess(Observer):
    """`attack_success`: the share of test examples of other classes that the global model takes for
    the target class once the trigger of a `fedax.attacks.Backdoor` is written into them, in [0, 1].

    On the global test set. NaN if all its examples are of the target class. Without hostile clients
    (`share=0`) it says how often the trigger misleads an honest model.

    Raises:
        InvalidInput: a run whose channel has no backdoor.

    Source: the attack success rate of Gu, Dolan-Gavitt and Garg, BadNets, 2017 (arXiv:1708.06733);
    the paper was not read.
    """

    lower_is_better: ClassVar[tuple[str, ...]] = ("attack_success",)

    def __call__(self, view: View) -> dict[str, Any]:
        hits, others = (view.overall("holdout", score) for score in (TRIGGERED, OTHERS))
        return {"attack_success": hits / others}

    def check(self, task: Task) -> None:
        check_split_and_score(self, task, "loss", task.test_set)

    def check_channel(self, channel: Any) -> None:
        if not isinstance(getattr(channel, "attack", None), Backdoor):
            allowed = "a channel with fedax.attacks.Backdoor(...)"
            raise InvalidInput.found("observe AttackSuccess", "a run without a backdoor", allowed)
