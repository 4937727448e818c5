"""Changes of tasks as a whole: validation, unseen clients, another starting point."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Bool, Int

from fedax.core import DataError, InvalidInput, Ragged, Task
from fedax.core.task import Given
from fedax.data.limits import SEED, SPLIT, TEST_FRACTION, check
from fedax.data.overlap import are_repeated, choose_unseen_clients, draw_rows, number_copies
from fedax.models.storage import place_model, read_weights
from fedax.utils.numbers import with_python_numbers

SPLITS = ("train", "test", "validation")
Clear: TypeAlias = dict[str, Bool[np.ndarray, "examples"]]
"""By split, marks of its examples."""
COMMON = ("validation", "unseen", "params")
"""Options that every task by name has."""


@with_python_numbers
def with_validation(
    task: Task, share: float, seed: int = 0, split: str = "shuffled", together: str | None = None
) -> Task:
    """Returns the task with a share of each client's training examples kept for validation.

    A client of n examples keeps the whole part of (1 - share) n, but at least one, for training.
    The draw is each client's own. Copies stay on one side. Of windows that fedax cut from a text
    (`tinyshakespeare`, `shakespeare`) the last ones are put aside, without those that overlap with
    the others.

    Args:
        task: without validation examples.
        share: in [0, 1).
        seed: of the draw.
        split: `"shuffled"` draws the examples, `"in_order"` takes each client's last ones;
            `"shuffled_rows"` and `"in_order_rows"` do so without regard to copies and overlaps.
        together: an array of the examples, such as the number of the picture that each was made of:
            examples with the same number stay on one side. Needed for changed copies (cropped,
            mirrored, with noise, with another label or id). None otherwise.

    Raises:
        InvalidInput: a share out of range, a task that has validation examples.
        DataError: no client has enough examples for one of validation.

    >>> import fedax
    >>> task = fedax.tasks.from_loss(
    ...     lambda w, x: (w - x) ** 2, 0.0, clients=[[1.0, 2.0, 3.0, 4.0], [5.0, 6.0]]
    ... )
    >>> parts = with_validation(task, 0.25)
    >>> parts.train.sizes.tolist(), parts.validation.sizes.tolist()
    ([3, 1], [1, 1])
    """
    check(
        "with_validation",
        {"share": TEST_FRACTION, "seed": SEED, "split": SPLIT},
        {"share": share, "seed": seed, "split": split},
    )
    if not share:
        return task
    if task.validation is not None:
        raise InvalidInput.because(
            "with_validation(task=...)", f"task {task.name!r} already has validation examples"
        )
    arrays = {name: np.asarray(values) for name, values in task.train.arrays.items()}
    offsets = np.asarray(task.train.offsets)
    train_rows, validation_rows = draw_rows(
        arrays, offsets, share, seed, split, together, gap=task.train.gap
    )
    return dataclasses.replace(
        task,
        train=_select_rows(task.train, train_rows),
        validation=_select_rows(task.train, validation_rows),
    )


@with_python_numbers
def with_unseen(task: Task, share: float, seed: int = 0) -> Task:
    """Returns the task without a share of its clients, which never take part.

    They become its `unseen`; see `observe.Unseen`.

    The other clients keep their order, and get new numbers. Their central test set, if the task
    has none, is theirs. Clients who share half of their examples or more are drawn
    together, and examples that those who take part train on are no longer examples of the others.

    Args:
        task: of several clients, without unseen ones.
        share: of the clients, in [0, 1); rounded to whole ones, at least one is unseen and at
            least one takes part.
        seed: of the draw.

    Raises:
        InvalidInput: a share out of range, a task of one client, or one that has held some back.
        DataError: the clients have their examples in common.

    >>> import fedax
    >>> task = with_unseen(fedax.tasks.digits(clients=10), 0.2)
    >>> task.train.clients, task.unseen.train.clients
    (8, 2)
    """
    check("with_unseen", {"share": TEST_FRACTION, "seed": SEED}, {"share": share, "seed": seed})
    if not share:
        return task
    clients = task.train.clients
    if task.unseen is not None or clients == 1:
        got = f"task {task.name!r} " + (
            "already holds clients back" if task.unseen is not None else "has one client only"
        )
        raise InvalidInput.because("with_unseen(task=...)", got)
    # clients that never take part; whoever shares half of their examples comes along
    count = min(max(round(share * clients), 1), clients - 1)
    order = np.random.default_rng([seed, 3]).permutation(clients)
    splits: dict[str, Ragged] = {
        split: data for split in SPLITS if (data := getattr(task, split)) is not None
    }
    names = task.train.arrays
    # examples of all splits together, so that copies across them are found; training comes first
    copies = number_copies(
        {
            name: np.concatenate([np.asarray(data.arrays[name]) for data in splits.values()])
            for name in names
        }
    )
    drawn = choose_unseen_clients(
        copies[: task.train.total], np.asarray(task.train.sizes).tolist(), order, count
    )
    # of their examples, those that no other client trains on
    participants = np.setdiff1d(np.arange(clients), drawn)
    clear = _mark_clear(
        copies,
        splits,
        np.flatnonzero(~np.isin(np.repeat(np.arange(clients), task.train.sizes), drawn)),
    )
    # clients with at least one training example that no other client trains on
    unseen_clients = drawn[
        [bool(clear["train"][_client_slice(task.train, k)].any()) for k in drawn.tolist()]
    ]
    if not len(unseen_clients):
        hint = "Give the clients different examples, or hold back a smaller share."
        raise DataError.of(
            "unseen",
            share,
            "a share of clients who have examples that no other client trains on",
            hint,
        )
    # a central test set stays with the clients that take part
    unseen = dataclasses.replace(task, **_select_clients(task, unseen_clients, clear), central=None)
    return dataclasses.replace(task, **_select_clients(task, participants), unseen=unseen)


def _client_slice(data: Ragged, client: int) -> slice:
    return slice(int(data.offsets[client]), int(data.offsets[client + 1]))


def _mark_clear(
    copies: Int[np.ndarray, "_"], splits: dict[str, Ragged], trained: Int[np.ndarray, "_"]
) -> Clear:
    """Marks, for each part, the examples of which none that is trained on is a copy."""
    is_clear = np.ones(len(copies), bool)
    if are_repeated(copies):
        is_clear = ~np.isin(copies, copies[trained])
    # all splits lie one after the other
    ends = np.cumsum([data.total for data in splits.values()])
    return dict(zip(splits, np.split(is_clear, ends[:-1]), strict=True))


def apply_common_options(
    task: Task,
    name: str,
    options: Mapping[str, Any],
    validation: Any = None,
    unseen: Any = None,
    params: Any = None,
) -> Task:
    """Applies the options that all tasks have; `options`, the task's own, has the seed."""
    for option, share in (("validation", validation), ("unseen", unseen)):
        check(name, {option: TEST_FRACTION}, {} if share is None else {option: share})
    if validation and options.get("frozen"):
        hint = "Draw crops and flips in every step: frozen = false."
        raise InvalidInput.because(
            f"{name}(validation=...)", "the examples would be cropped and flipped too", hint
        )
    if params is not None and not isinstance(params, str):
        raise InvalidInput.of(f"{name}(params=...)", params, "the path of a file")
    seed = options.get("seed", 0)
    # unseen clients first: validation examples are taken from those that take part
    changed = with_validation(with_unseen(task, unseen or 0, seed), validation or 0, seed)
    if params is None:
        return changed
    start, changed = place_model(read_weights(Path(params)).arrays, changed, params)
    return dataclasses.replace(changed, start=Given(start))


def _select_rows(data: Ragged, rows: list[Int[np.ndarray, "_"]]) -> Ragged:
    """Selects rows of all arrays, by client."""
    flat = np.concatenate(rows)
    return Ragged.flat(
        {name: np.asarray(a)[flat] for name, a in data.arrays.items()},
        [len(client_rows) for client_rows in rows],
        gap=data.gap,
    )


def _select_clients(
    task: Task, clients: Int[np.ndarray, "some"], clear: Clear | None = None
) -> dict[str, Any]:
    """Selects the parts of a task that some of its clients have, and their names.

    Of the examples those that are `clear`.
    """

    def select(split: str) -> Ragged | None:
        data: Ragged | None = getattr(task, split)
        if data is None:
            return None
        offsets = np.asarray(data.offsets)
        # none of these clients has examples in this split
        if not any(offsets[k + 1] > offsets[k] for k in clients):
            return None
        rows = [np.arange(int(offsets[k]), int(offsets[k + 1])) for k in clients]
        return _select_rows(
            data,
            rows
            if clear is None
            else [client_rows[clear[split][client_rows]] for client_rows in rows],
        )

    splits: dict[str, Any] = {split: select(split) for split in SPLITS}
    return splits | {"names": task.names and task.names.taken(clients)}
