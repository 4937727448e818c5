"""Warnings about results that cannot mean anything."""

from collections.abc import Sequence

from fedax.results.record import Record, by_task, finished

MARGIN = 0.005
"""How much better than the most frequent class an accuracy has to be."""


def find_doubts(records: Sequence[Record]) -> list[str]:
    """Returns a sentence for each task whose runs are all equal, none of whose methods is better
    than always answering the most frequent class, or whose deployed clients may be left out.

    Runs say the share of that class among the test examples in `settings["majority"]`, if they know
    it, and how many clients answered all measurements in the metric `measured_clients`.
    """
    sentences = []
    for task, runs in by_task(finished(records)).items():
        finals = [{name: values[-1] for name, values in run.scalars.items()} for run in runs]
        if len(runs) > 1 and all(final == finals[0] for final in finals):
            sentences.append(
                f"{task}: all {len(runs)} runs end with the same numbers, so nothing is compared. "
                "Look at the learning rate and the number of rounds."
            )
        shares = [(run.settings or {}).get("majority") or 0.0 for run in runs]
        # of the models that clients use, where these are observed
        accuracies = [
            final.get("local_accuracy_pooled", final.get("test_accuracy", 1.0)) for final in finals
        ]
        if all(a <= share + MARGIN for a, share in zip(accuracies, shares, strict=True)):
            sentences.append(
                f"{task}: no method is better than always answering the most frequent class, which "
                f"is right for {100 * shares[0]:.1f} % of the test examples. Bring the features to "
                "similar ranges, and try other learning rates and more rounds."
            )
        measured = [final["measured_clients"] for final in finals if "measured_clients" in final]
        if measured:
            sentences.append(f"{task}: {min(measured):.0f} clients answered all last measurements.")
    return sentences
