"""Membership inference on federated training: the same method on halves of the data, one of which
the attacker knows.
"""

import dataclasses
import io
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree

from fedax.audit.attacks import Attack, Curve, ShadowAttack, curve
from fedax.core import Algorithm, DataError, History, InvalidInput, Outcome, Ragged, Task
from fedax.engine.driver.run import Progress, run
from fedax.tasks.from_model import OfOutputs, cross_entropy
from fedax.utils.files import write

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
    """The success of membership inference after some rounds.

    Attributes:
        rounds: how many rounds the models were trained, shape (looks,). After an interruption, or
            if a model is not finite, there are fewer looks than were asked for.
        shadow: curve of the shadow attack at each look.
        calibrated: curve of the calibrated loss threshold at each look.
        seconds: wall time until each look, both models and the attacks, shape (looks,).
        history: of the attacked model.
        accuracy: of the attacked model on its members, and on the others, about as many examples
            that it was not trained on, shape (looks, 2). Their difference is what gives members
            away.
        members: how many examples the attacked model was trained on.
        others: how many other examples the attacks have to tell them from.
    """

    rounds: np.ndarray
    shadow: tuple[Curve, ...]
    calibrated: tuple[Curve, ...]
    seconds: np.ndarray
    history: History
    accuracy: np.ndarray
    members: int
    others: int

    @property
    def auc(self) -> dict[str, np.ndarray]:
        """The areas under the curves by attack, shape (looks,)."""
        return {
            name: np.array([look.auc for look in getattr(self, name)])
            for name in ("shadow", "calibrated")
        }


def quarters(task: Task, seed: int = 0) -> Quarters:
    """Deals every client's training examples at random into four parts of nearly equal size.

    The parts of a client, and those of all clients together, differ by at most one example: what is
    left of a client after four equal shares goes to the parts in turn, beginning after the last
    part that got one.

    Raises:
        DataError: a client with fewer than four examples.
        InvalidInput: no classification task.
    """
    check_auditable(task)
    # four lists with a dictionary of arrays for each client
    rng, groups = np.random.default_rng(seed), [[], [], [], []]
    next_part = 0
    for k in range(task.train.clients):
        examples = {name: np.asarray(values) for name, values in task.train[k].items()}
        count = len(next(iter(examples.values())))
        # `array_split` gives the remainder to its first pieces
        for i, rows in enumerate(np.array_split(rng.permutation(count), 4)):
            groups[(next_part + i) % 4].append(
                {name: values[rows] for name, values in examples.items()}
            )
        next_part = (next_part + count) % 4
    # parts 0 and 2 are trained on, parts 1 and 3 are the examples that were not
    target, shadow = (
        dataclasses.replace(task, data=dataclasses.replace(task.data, train=Ragged.of(groups[i])))
        for i in (0, 2)
    )
    target_out, shadow_out = (
        {name: np.concatenate([client[name] for client in groups[i]]) for name in groups[i][0]}
        for i in (1, 3)
    )
    return Quarters(target, target_out, shadow, shadow_out)


def membership(
    algorithm: Algorithm[Any],
    task: Task,
    *,
    looks: Sequence[int] = (0, 10, 20),
    seed: int = 0,
    attack: Attack | None = None,
    progress: Callable[[Progress], bool | None] | None = None,
    checkpoint: str | Path | None = None,
    **options: Any,
) -> Membership:
    r"""Trains a target and a shadow model by `algorithm` on halves of the data and guesses the
    target's members.

    Two attacks on the global model: `ShadowAttack`, and the threshold on the loss calibrated by the
    shadow model, $\ell(\text{shadow}, z) - \ell(\text{target}, z)$, which is high for examples that
    only the target knows.

    Args:
        task: a classification task; a quarter of its training examples is trained on, so accuracies
            are below those of all.
        looks: after how many rounds the models are attacked; at least 0, ascending.
        seed: of the split and the target's run; the shadow's is the next one.
        attack: the shadow attack's model; `Attack()` by default.
        progress: called after every observation of a model; returning True ends after the look.
        checkpoint: a folder; called again with the same arguments, it continues there, to the same
            numbers.
        options: of `fedax.run`: solver, schedule, engine, channel, observe, checkpoint_every.

    Raises:
        InvalidInput: not a task of `fedax.classification`, or looks that do not ascend.
        DataError: a client with fewer than four examples.

    Source: Sun, Li and Wang, Decentralized Federated Averaging, 2021, sec. 6; calibration: Watson
    et al., On the Importance of Difficulty Calibration in Membership Inference Attacks, ICLR 2022.
    """
    check_auditable(task)
    if not looks or any(b <= a for a, b in zip([-1, *looks[:-1]], looks, strict=True)):
        raise InvalidInput.of("membership(looks=...)", list(looks), "ascending whole numbers >= 0")
    data, folder = quarters(task, seed), None if checkpoint is None else Path(checkpoint)
    models: dict[str, History | None] = {"target": None, "shadow": None}
    asked = False

    def hook(observation: Progress) -> bool:
        nonlocal asked
        asked = bool(progress and progress(observation._replace(rounds=looks[-1]))) or asked
        return False

    def train(name: str, rounds: int) -> History:
        # observed at its end only, unless the options say otherwise
        common = {"rounds": rounds, "observe_every": max(looks[-1], 1), "progress": hook, **options}
        train_task, run_seed = (data.target, seed) if name == "target" else (data.shadow, seed + 1)
        # without a folder a model goes on from its history, with one from its checkpoint
        resume_options = (
            {"resume": models[name]} if folder is None else {"checkpoint": folder / name}
        )
        models[name] = history = run(
            algorithm, train_task, seed=run_seed, **resume_options, **common
        )
        return history

    results: list[_Look] = []
    for rounds in looks:
        # a look that is in a file is not made again, even if the models have to be
        look = None if folder is None else _Look.read(folder, rounds)
        if look is None:
            started = time.perf_counter()
            target, shadow = train("target", rounds), train("shadow", rounds)
            # the history ends with the worse of both outcomes, and no attack is made
            if not (target.outcome.ok and shadow.outcome.ok):
                worse = target.outcome if not target.outcome.ok else shadow.outcome
                models["target"] = dataclasses.replace(target, outcome=worse)
                break
            findings = _run_attacks(data, target.params, shadow.params, seed, attack)
            if findings is None:
                models["target"] = dataclasses.replace(target, outcome=Outcome("diverged", rounds))
                break
            look = _Look(*findings, time.perf_counter() - started)
            if folder is not None:
                look.write(folder, rounds)
        results.append(look)
        # the look during which the end was asked for is complete
        if asked and rounds < looks[-1]:
            models["target"] = dataclasses.replace(
                models["target"] or train("target", rounds), outcome=Outcome("interrupted")
            )
            break
    # all looks came from files: the target is trained, or read from its checkpoint
    history = models["target"] or train("target", looks[-1])
    seconds = np.cumsum([look.seconds for look in results])
    # shape (looks, 2), also if nothing was attacked
    accuracy = np.array([result.accuracy for result in results]).reshape(-1, 2)
    shadows, calibrated = (
        tuple(result.shadow for result in results),
        tuple(result.calibrated for result in results),
    )
    return Membership(
        np.array(looks[: len(results)]),
        shadows,
        calibrated,
        seconds,
        history,
        accuracy,
        members=int(data.target.train.total),
        others=len(data.target_out["y"]),
    )


def check_auditable(task: Task) -> None:
    """Refuses tasks whose models give no class probabilities, or whose clients have fewer than four
    examples.
    """
    loss = task.loss
    is_classifier = isinstance(loss, OfOutputs) and loss.measure is cross_entropy
    if not is_classifier or task.state is not None:
        raise InvalidInput.found(
            "membership(task=...)", f"the task {task.name!r}", "classification tasks"
        )
    sizes = np.asarray(task.train.sizes)
    if sizes.min() < 4:
        got, allowed = f"{sizes.min()} examples", "at least 4 for each client, one for each part"
        raise DataError.of(f"train[{int(sizes.argmin())}]", got, allowed)


@dataclasses.dataclass(frozen=True)
class _Look:
    """The findings of the attacks after some rounds; kept in a file, because the models go on from
    there.
    """

    shadow: Curve
    calibrated: Curve
    accuracy: tuple[float, float]
    seconds: float

    @classmethod
    def read(cls, folder: Path, rounds: int) -> "_Look | None":
        path = folder / f"look-{rounds:09d}.npz"
        if not path.exists():
            return None
        with np.load(path, allow_pickle=False) as archive:

            def curve_of(name: str) -> Curve:
                return Curve(
                    archive[f"{name}/false"], archive[f"{name}/true"], float(archive[f"{name}/auc"])
                )

            inside, outside = (
                map(float, archive["accuracy"]) if "accuracy" in archive else (np.nan, np.nan)
            )  # older files have none
            return cls(
                curve_of("shadow"),
                curve_of("calibrated"),
                (inside, outside),
                float(archive["seconds"]),
            )

    def write(self, folder: Path, rounds: int) -> None:
        curves = {name: getattr(self, name) for name in ("shadow", "calibrated")}
        arrays = {
            f"{name}/{key}": value
            for name, c in curves.items()
            for key, value in dataclasses.asdict(c).items()
        }
        buffer = io.BytesIO()
        save: Callable[..., None] = np.savez_compressed
        save(buffer, seconds=self.seconds, accuracy=self.accuracy, **arrays)
        write(folder / f"look-{rounds:09d}.npz", buffer.getvalue())


def _run_attacks(
    data: Quarters, target: PyTree, shadow: PyTree, seed: int, attack: Attack | None
) -> tuple[Curve, Curve, tuple[float, float]] | None:
    """Runs the shadow attack and the calibrated threshold on a pair of models.

    Also returns the target's accuracy on members and others.

    None if a model gives no finite answers.
    """
    loss = data.target.loss
    # log probabilities, each of shape (examples, classes)
    trained_on, held_out = data.target.train.arrays, data.target_out
    inside, outside = (answers(loss, target, examples["x"]) for examples in (trained_on, held_out))
    shadow_inside, shadow_outside = (
        answers(loss, shadow, x) for x in (data.shadow.train.arrays["x"], data.shadow_out["x"])
    )
    if not all(
        np.isfinite(values).all() for values in (inside, outside, shadow_inside, shadow_outside)
    ):
        return None
    shadow_attack = ShadowAttack(np.exp(shadow_inside), np.exp(shadow_outside), seed, attack)
    by_shadow = curve(shadow_attack.scores(np.exp(inside)), shadow_attack.scores(np.exp(outside)))
    # how much larger the target's log probability of the true label is than the shadow's
    gains = [
        _pick_label(outputs - answers(loss, shadow, examples["x"]), examples["y"])
        for outputs, examples in ((inside, trained_on), (outside, held_out))
    ]
    accuracies = [
        float((outputs.argmax(axis=1) == np.asarray(examples["y"])).mean())
        for outputs, examples in ((inside, trained_on), (outside, held_out))
    ]
    return by_shadow, curve(*gains), (accuracies[0], accuracies[1])


def answers(loss: Any, params: PyTree, x: Any) -> Float[np.ndarray, "some classes"]:
    """Returns the logarithms of the class probabilities of a classification task's model, as in
    evaluation.
    """

    def log(params: PyTree, x: Any) -> Any:
        return jax.nn.log_softmax(loss.outputs(params, {"x": x}, None)[0], axis=1)

    log = jax.jit(log)
    # the last piece is shorter, so its size is compiled once more
    pieces = [log(params, jnp.asarray(x[i : i + PIECE])) for i in range(0, len(x), PIECE)]
    return np.concatenate([np.asarray(piece) for piece in pieces])


def _pick_label(
    values: Float[np.ndarray, "some classes"], labels: Any
) -> Float[np.ndarray, "some"]:
    return np.take_along_axis(values, np.asarray(labels)[:, None].astype(np.int64), axis=1)[:, 0]
