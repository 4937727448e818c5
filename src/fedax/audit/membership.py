"""Membership inference on federated training: the same method on halves of the data, one of which
the attacker knows.
"""

import dataclasses
import json
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree

from fedax.core import Algorithm, DataError, History, InvalidInput, Outcome, Ragged, Task
from fedax.engine.compilation.identity import check_same, describe
from fedax.engine.driver.options import Progress
from fedax.engine.driver.run import run
from fedax.tasks.from_model import OfOutputs, cross_entropy
from fedax.utils.files import write

PIECE = 2048
"""Examples that pass through the model at once."""


@dataclasses.dataclass(frozen=True)
class Attack:
    """The attack model: one hidden layer on the largest class probabilities in falling order,
    trained by Adam.

    Args:
        top: how many of the largest probabilities it sees, at least 1; all of them if there are
            fewer classes.
        hidden: units of the hidden layer, at least 1.
        epochs: passes over the shadow model's answers, at least 1.
        learning_rate: of Adam, above 0.

    Source: Salem et al., ML-Leaks, NDSS 2019, attack 1, as in Sun, Li and Wang, Decentralized
    Federated Averaging, 2021, sec. 6, which names 64 units and the top three (two for two classes),
    and neither optimizer nor epochs.

    >>> Attack().hidden
    64
    """

    top: int = 3
    hidden: int = 64
    epochs: int = 50
    learning_rate: float = 1e-3


def area(members: Float[np.ndarray, "some"], others: Float[np.ndarray, "more"]) -> float:
    """Returns the area under the ROC curve of an attack's scores, which are high for examples that
    it takes for members; 0.5 is guessing.

    >>> import numpy as np
    >>> area(np.array([0.9, 0.4]), np.array([0.5, 0.1]))
    0.75
    """
    # takes a second to import, so only on demand
    from sklearn.metrics import roc_auc_score

    truth = np.repeat([1, 0], [len(members), len(others)])
    return float(roc_auc_score(truth, np.concatenate([members, others])))


def shadow_classifier(
    members: Float[np.ndarray, "some classes"],
    others: Float[np.ndarray, "more classes"],
    seed: int = 0,
    attack: Attack = Attack(),
) -> Any:
    """Returns a classifier of scikit-learn of probability vectors into others (class 0) and members
    (class 1), learned on a shadow model whose members are known.

    Args:
        members: the shadow model's class probabilities of examples that it was trained on.
        others: the same of examples that it never saw.
        seed: of the classifier.
        attack: its shape and training.

    Source: as `Attack`.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, StandardScaler

    classifier = make_pipeline(
        FunctionTransformer(largest, kw_args={"top": attack.top}),
        StandardScaler(),
        MLPClassifier(
            (attack.hidden,),
            learning_rate_init=attack.learning_rate,
            # of Adam, `max_iter` counts passes over the examples
            max_iter=attack.epochs,
            random_state=seed,
        ),
    )
    with warnings.catch_warnings():
        # the number of epochs is part of the attack
        warnings.simplefilter("ignore", ConvergenceWarning)
        labels = np.repeat([1, 0], [len(members), len(others)])
        return classifier.fit(np.concatenate([members, others]), labels)


def largest(
    probabilities: Float[np.ndarray, "some classes"], top: int
) -> Float[np.ndarray, "some top"]:
    """Returns the largest probabilities of each row in falling order.

    >>> import numpy as np
    >>> largest(np.array([[0.1, 0.2, 0.3, 0.4]]), top=3).tolist()
    [[0.4, 0.3, 0.2]]
    """
    # sorted by the negative, because NumPy sorts upwards
    return -np.sort(-probabilities, axis=1)[:, :top]


@dataclasses.dataclass(frozen=True)
class Membership:
    """The success of membership inference after some rounds.

    Attributes:
        rounds: how many rounds the models were trained, shape (looks,). After an interruption, or
            if a model is not finite or a budget ends its run, there are fewer looks than were
            asked for.
        auc: by attack, `shadow` and `calibrated` (the threshold on the calibrated loss), the area
            under the ROC curve at each look; 0.5 is guessing.
        seconds: wall time until each look, both models and the attacks, shape (looks,).
        history: of the attacked model.
    """

    rounds: np.ndarray
    auc: dict[str, np.ndarray]
    seconds: np.ndarray
    history: History


def quarters(task: Task, seed: int = 0) -> list[Ragged]:
    """Deals every client's training examples at random into four parts of nearly equal size.

    The parts of a client, and those of all clients together, differ by at most one example: what is
    left of a client after four equal shares goes to the parts in turn, beginning after the last
    part that got one.

    Raises:
        DataError: a client with fewer than four examples.
        InvalidInput: no classification task.
    """
    check_auditable(task)
    rng = np.random.default_rng(seed)
    # of each part a dictionary of arrays for each client
    parts: list[list[dict[str, np.ndarray]]] = [[], [], [], []]
    next_part = 0
    for k, count in enumerate(task.train.sizes.tolist()):
        # `array_split` gives the remainder to its first pieces
        for i, rows in enumerate(np.array_split(rng.permutation(count), 4)):
            examples = {name: np.asarray(values)[rows] for name, values in task.train[k].items()}
            parts[(next_part + i) % 4].append(examples)
        next_part = (next_part + count) % 4
    return [Ragged.of(part) for part in parts]


def membership(
    algorithm: Algorithm[Any],
    task: Task,
    *,
    looks: Sequence[int] = (0, 10, 20),
    seed: int = 0,
    attack: Attack = Attack(),
    progress: Callable[[Progress], bool | None] | None = None,
    checkpoint: str | Path | None = None,
    **options: Any,
) -> Membership:
    r"""Trains a target and a shadow model by `algorithm` on halves of the data and guesses the
    target's members.

    Two attacks on the global model: a classifier learned on the shadow model (`Attack`), and the
    threshold on the loss calibrated by the shadow model,
    $\ell(\text{shadow}, z) - \ell(\text{target}, z)$, which is high for examples that only the
    target knows.

    Args:
        algorithm: the method.
        task: a classification task; a quarter of its training examples is trained on, so accuracies
            are below those of all.
        looks: after how many rounds the models are attacked; at least 0, ascending.
        seed: of the split and the target's run; the shadow's is the next one.
        attack: the shadow attack's model.
        progress: called after every observation of a model; returning True ends after the look.
        checkpoint: a folder; called again with the same arguments, it continues there, to the same
            numbers.
        options: of `fedax.run`: solver, schedule, engine, channel, observe, checkpoint_every.

    Raises:
        InvalidInput: not a task of `fedax.classification`, looks that do not ascend, or a folder of
            another run or attack.
        DataError: a client with fewer than four examples.

    Source: Sun, Li and Wang, Decentralized Federated Averaging, 2021, sec. 6; calibration: Watson
    et al., On the Importance of Difficulty Calibration in Membership Inference Attacks, ICLR 2022.
    """
    if not looks or looks[0] < 0 or list(looks) != sorted(set(looks)):
        raise InvalidInput.of("membership(looks=...)", list(looks), "ascending whole numbers >= 0")
    # parts 0 and 2 are trained on, parts 1 and 3 are examples that were not
    parts = quarters(task, seed)
    # a look in a folder is that of one attack
    identity = describe(attack, "attack")
    asked = False
    outcome = None

    def hook(observation: Progress) -> None:
        nonlocal asked
        asked = bool(progress and progress(observation._replace(rounds=looks[-1]))) or asked

    def train(part: int, run_seed: int, rounds: int) -> History:
        data = dataclasses.replace(task.data, train=parts[part])
        # observed at its end only, unless the options say otherwise
        common = {"observe_every": max(looks[-1], 1), "progress": hook, **options}
        # from its checkpoint on
        return run(
            algorithm,
            task.with_data(data),
            rounds=rounds,
            seed=run_seed,
            checkpoint=folder / str(part),
            **common,
        )

    results: list[dict[str, float]] = []
    target: History | None = None
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(checkpoint or scratch)
        for rounds in looks:
            file = folder / f"look-{rounds:09d}.json"
            # a look that is in a file is not made again, even if the models have to be
            if not file.exists():
                started = time.perf_counter()
                target = train(0, seed, rounds)
                shadow = train(2, seed + 1, rounds)
                # the history ends with the first outcome of both that is not ok, and no attack is
                # made
                outcomes = target.outcome, shadow.outcome
                outcome = next((each for each in outcomes if each.kind != "ok"), None)
                if outcome:
                    break
                look = _run_attacks(task.loss, parts, target.params, shadow.params, seed, attack)
                if look is None:
                    outcome = Outcome("diverged", rounds)
                    break
                about = {"attack": identity, "seconds": time.perf_counter() - started}
                write(file, json.dumps(about | look))
            look = json.loads(file.read_text(encoding="utf-8"))
            check_same(identity, look["attack"], "membership(checkpoint=...)")
            results.append(look)
            # the look during which the end was asked for is complete
            if asked and rounds < looks[-1]:
                outcome = Outcome("interrupted")
                break
        # all looks came from files: the target is trained, or read from its checkpoint
        history = target or train(0, seed, looks[-1])

    return Membership(
        np.array(looks[: len(results)]),
        {name: np.array([look[name] for look in results]) for name in ("shadow", "calibrated")},
        np.cumsum([look["seconds"] for look in results]),
        dataclasses.replace(history, outcome=outcome or history.outcome),
    )


def check_auditable(task: Task) -> None:
    """Refuses tasks whose models give no class probabilities, or whose clients have fewer than four
    examples.
    """
    loss = task.loss
    is_classifier = isinstance(loss, OfOutputs) and loss.measure is cross_entropy
    if not is_classifier or task.state is not None:
        got = f"the task {task.name!r}"
        raise InvalidInput.found("membership(task=...)", got, "classification tasks")
    sizes = task.train.sizes
    if sizes.min() < 4:
        got = f"{sizes.min()} examples"
        allowed = "at least 4 for each client, one for each part"
        raise DataError.of(f"train[{int(sizes.argmin())}]", got, allowed)


def _run_attacks(
    loss: Any,
    parts: Sequence[Ragged],
    target: PyTree,
    shadow: PyTree,
    seed: int,
    attack: Attack,
) -> dict[str, float] | None:
    """Returns the areas under the ROC curves of the shadow attack and of the calibrated threshold
    on a pair of models; None if a model gives no finite answers.
    """
    # log probabilities of all parts, each of shape (examples, classes)
    of_target = [answers(loss, target, part.arrays["x"]) for part in parts[:2]]
    of_shadow = [answers(loss, shadow, part.arrays["x"]) for part in parts]
    if not np.isfinite(np.concatenate([*of_target, *of_shadow])).all():
        return None
    classifier = shadow_classifier(np.exp(of_shadow[2]), np.exp(of_shadow[3]), seed, attack)
    guesses = [classifier.predict_proba(np.exp(values))[:, 1] for values in of_target]
    # how much larger the target's log probability of the true label is than the shadow's
    gains = [
        (a - b)[np.arange(len(a)), np.asarray(part.arrays["y"])]
        for a, b, part in zip(of_target, of_shadow, parts)
    ]
    return {"shadow": area(*guesses), "calibrated": area(*gains)}


def answers(loss: Any, params: PyTree, x: Any) -> Float[np.ndarray, "some classes"]:
    """Returns the logarithms of the class probabilities of a classification task's model, as in
    evaluation.
    """

    log = jax.jit(lambda params, x: jax.nn.log_softmax(loss.outputs(params, {"x": x}, None)[0]))
    # the last piece is shorter, so its size is compiled once more
    pieces = [log(params, jnp.asarray(x[i : i + PIECE])) for i in range(0, len(x), PIECE)]
    return np.concatenate(pieces)
