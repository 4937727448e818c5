"""The paired differences of methods to the best one, for reports."""

from collections.abc import Mapping, Sequence

from fedax.results.compare import compare_runs
from fedax.results.page import Sheet
from fedax.results.record import Record, by_task
from fedax.results.tables.statistics import LEVEL, interval_text
from fedax.results.tables.summary import columns_of, quantity_of


def differences_sheet(records: Sequence[Record], reads: Mapping[str, str]) -> list[Sheet]:
    """Returns the paired differences of every method to the best one, for reports; nothing without
    several seeds or methods.
    """
    if not records:
        return []
    brief = [
        (task, column.metric)
        for task, runs in by_task(records).items()
        for column in columns_of(runs)
        if column.brief
    ]
    rows = []
    for row in compare_runs(records, reads).to_dict("records"):
        # a single pair decides nothing
        if row["pairs"] < 2 or (row["task"], row["metric"]) not in brief:
            continue
        difference = interval_text(row["difference"], row["low"], row["high"], "+")
        rows.append(
            [
                row["task"],
                row["method"],
                row["best"],
                f"{difference} {quantity_of(row['metric'], row['read'])}",
                str(row["pairs"]),
                f"{row['p']:.2g}",
                "worse" if row["p"] <= LEVEL else "not distinguishable",
            ]
        )
    head = ["Task", "Algorithm", "Best", "Difference", "Pairs", "p", "Verdict"]
    note = (
        "Mean difference to the best, positive where the algorithm is worse, with its 95 % "
        "interval, over the seeds and draws that all algorithms have. p is that of a paired "
        f"t-test, corrected by Holm over the algorithms of a task and metric; at most {LEVEL:g} "
        "counts as a difference."
    )
    return [Sheet("Paired differences", head, rows, note)] if rows else []
