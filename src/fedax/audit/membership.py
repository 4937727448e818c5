"""Membership inference on federated training: the same method on halves of the data, one of which the attacker knows."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree

from fedax.audit.attacks import Curve, ShadowAttack, curve
from fedax.core import Algorithm, DataError, History, InvalidInput, Ragged, Task
from fedax.engines.loop import run
from fedax.tasks.classify import CrossEntropy

PIECE = 2048
"""Examples that pass through the model at once."""


@dataclasses.dataclass(frozen=True)
class Quarters:
    """A task's training examples in four parts, client by client.

    Attributes:
        target: the attacked task; its training examples are the members.
        target_out: examples of the same clients that it was not trained on.
        shadow: the attacker's own task, with other examples.
        shadow_out: examples that this one was not trained on.
    """

    target: Task
    target_out: dict[str, np.ndarray]
    shadow: Task
    shadow_out: dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Membership:
    """How well membership was guessed, after some rounds.

    Attributes:
        rounds: how many rounds the models were trained, shape (looks,).
        shadow: curve of the shadow attack at each look.
        calibrated: curve of the calibrated loss threshold at each look.
    """

    rounds: np.ndarray
    shadow: tuple[Curve, ...]
    calibrated: tuple[Curve, ...]

    @property
    def auc(self) -> dict[str, np.ndarray]:
        """The areas under the curves by attack, shape (looks,)."""
        return {name: np.array([look.auc for look in getattr(self, name)]) for name in ("shadow", "calibrated")}


def quarters(task: Task, seed: int = 0) -> Quarters:
    """Deals every client's training examples at random into four equal parts (sizes differ by at most one).

    Raises:
        DataError: a client with fewer than four examples.
    """
    rng, parts = np.random.default_rng(seed), [[], [], [], []]
    for k in range(task.train.clients):
        examples = {name: np.asarray(values) for name, values in task.train.client(k).items()}
        count = len(next(iter(examples.values())))
        if count < 4:
            raise DataError.of(f"train[{k}]", f"{count} examples", "at least 4 for each client, one for each part")
        for part, rows in zip(parts, np.array_split(rng.permutation(count), 4), strict=True):
            part.append({name: values[rows] for name, values in examples.items()})
    target, shadow = (dataclasses.replace(task, train=Ragged.of(parts[i])) for i in (0, 2))
    target_out, shadow_out = (
        {name: np.concatenate([client[name] for client in parts[i]]) for name in parts[i][0]} for i in (1, 3)
    )
    return Quarters(target, target_out, shadow, shadow_out)


def membership(
    algorithm: Algorithm[Any], task: Task, *, looks: Sequence[int] = (0, 10, 20), seed: int = 0, **options: Any
) -> Membership:
    r"""Trains a target and a shadow model by `algorithm` on halves of the data and guesses the target's members.

    Two attacks on the global model: `ShadowAttack`, and the threshold on the loss calibrated by the shadow model,
    $\ell(\text{shadow}, z) - \ell(\text{target}, z)$, which is high for examples that only the target knows.

    Args:
        task: a classification task; a quarter of its training examples is trained on, so accuracies are below those of all.
        looks: after how many rounds the models are attacked; at least 0, ascending.
        seed: of the split and the target's run; the shadow's is the next one.
        options: of `fedax.run`: solver, schedule, engine, channel.

    Raises:
        InvalidInput: not a task of `fedax.tasks.classification`, or looks that do not ascend.

    Source: Sun, Li and Wang, Decentralized Federated Averaging, 2021, sec. 6; calibration: Watson et al., On the Importance of
    Difficulty Calibration in Membership Inference Attacks, ICLR 2022.
    """
    if not isinstance(task.loss, CrossEntropy):
        raise InvalidInput.found("membership(task=...)", f"the task {task.name!r}", "classification tasks")
    if not looks or any(b <= a for a, b in zip([-1, *looks[:-1]], looks, strict=True)):
        raise InvalidInput.of("membership(looks=...)", list(looks), "ascending whole numbers >= 0")
    parts = quarters(task, seed)
    target: History | None = None
    shadow: History | None = None
    curves: list[tuple[Curve, Curve]] = []
    for rounds in looks:
        common = {"rounds": rounds, "observe_every": max(looks[-1], 1), **options}
        target = run(algorithm, parts.target, seed=seed, resume=target, **common)
        shadow = run(algorithm, parts.shadow, seed=seed + 1, resume=shadow, **common)
        curves.append(_attacked(parts, target.params, shadow.params, seed))
    return Membership(np.array(looks), tuple(a for a, _ in curves), tuple(b for _, b in curves))


def _attacked(parts: Quarters, target: PyTree, shadow: PyTree, seed: int) -> tuple[Curve, Curve]:
    """The shadow attack and the calibrated threshold on a pair of models."""
    model = parts.target.loss.model  # type: ignore[attr-defined]
    known, unknown = parts.target.train.arrays, parts.target_out
    inside, outside = (answers(model, target, examples["x"]) for examples in (known, unknown))
    attack = ShadowAttack(
        np.exp(answers(model, shadow, parts.shadow.train.arrays["x"])),
        np.exp(answers(model, shadow, parts.shadow_out["x"])),
        seed,
    )
    by_shadow = curve(attack.scores(np.exp(inside)), attack.scores(np.exp(outside)))
    gains = [
        _at_label(mine - answers(model, shadow, examples["x"]), examples["y"])
        for mine, examples in ((inside, known), (outside, unknown))
    ]
    return by_shadow, curve(*gains)


def answers(model: Any, params: PyTree, x: Any) -> Float[np.ndarray, "some classes"]:
    """The logarithms of the class probabilities."""
    log = jax.jit(lambda params, x: jax.nn.log_softmax(model(params, x), axis=1))
    pieces = [log(params, jnp.asarray(x[i : i + PIECE])) for i in range(0, len(x), PIECE)]
    return np.concatenate([np.asarray(piece) for piece in pieces])


def _at_label(values: Float[np.ndarray, "some classes"], labels: Any) -> Float[np.ndarray, "some"]:
    return np.take_along_axis(values, np.asarray(labels)[:, None].astype(np.int64), axis=1)[:, 0]
