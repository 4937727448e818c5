"""Writes the tables of docs/robust.md from docs/findings/robust/runs.csv, between two marks.

make generate
"""

import csv
import statistics
from collections import defaultdict
from pathlib import Path

DOCS = Path(__file__).parents[2]
PAGE = DOCS / "robust.md"
RUNS = DOCS / "findings" / "robust" / "runs.csv"
BEGIN = "<!-- measured: begin -->"
END = "<!-- measured: end -->"


def page() -> str:
    """Returns the page with the tables of the runs as they are."""
    text = PAGE.read_text(encoding="utf-8")
    before = text[: text.index(BEGIN)]
    after = text[text.index(END) :]
    return f"{before}{BEGIN}\n\n{tables()}\n{after}"


def tables() -> str:
    """Returns one table for each partition, methods by attacks, of mean final accuracies in %."""
    accuracies: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    with RUNS.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["metric"] == "test_accuracy":
                partition, _, attack = row["task"].rpartition(", ")
                accuracies[partition, attack, row["algorithm"]].append(float(row["last"]))
    partitions, attacks, methods = (list(dict.fromkeys(column)) for column in zip(*accuracies))
    blocks = []
    for partition in partitions:
        lines = [
            f"{partition}:\n",
            f"| method | {' | '.join(attacks)} |",
            f"| --- |{' --- |' * len(attacks)}",
        ]
        for method in methods:
            means = [statistics.fmean(accuracies[partition, a, method]) for a in attacks]
            lines.append(f"| {method} | {' | '.join(f'{mean:.1f}' for mean in means)} |")
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
