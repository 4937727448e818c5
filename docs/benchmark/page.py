"""Writes the pages that follow from the benchmark's results: on choosing a method, and all results.

    python docs/benchmark/page.py    # part of `make generate`

docs/choose.md is `choose.txt` with the numbers of the results. docs/findings/benchmark.md has the
sentences, the bars of areas and the tables of all families.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fedax.algorithms import algorithm_classes
from fedax.benchmark.command import Bench
from fedax.benchmark.run import COSTS
from fedax.benchmark.standing import gain_text, verdict_of
from fedax.benchmark.task import QUALITY, BenchTask

HERE = Path(__file__).parent
STANDING = HERE / "standing.csv"
SETTINGS = HERE / "settings.csv"
ARTICLE = HERE.parent / "findings" / "benchmark.md"
CHOOSE = HERE.parent / "choose.md"
TITLES = {
    "convex": "Training loss of a linear model",
    "networks": "Accuracy of a classifier",
    "asynchronous": "A server that does not wait",
    "personal": "A model for every client",
    "decentralised": "No server",
}
DRAWN = ("rounds", "gradients")
"""Costs whose areas are drawn."""
SHOWN = ("rounds", "gradients", "gigabits")
"""Costs whose speeds are in the tables of the page; the CSV has all measures."""
CHEAP = 1.05
"""Most that a round may cost, over the reference's, to count as no dearer."""
MOST = 4
"""Most methods of a sentence with their numbers."""


def cost_text(row: Mapping[str, float], measure: str) -> str:
    """Returns the cost to the target where the reference's is 100, with its interval."""
    cost, low, high = (
        f"{100 * np.exp(-row[f'{part}_{measure}']):.0f}" for part in ("gain", "high", "low")
    )
    return f"{cost} [{low}, {high}]"


def listed(rows: pd.DataFrame, measure: str, verdict: str = "better") -> str:
    """Returns the methods with a verdict, largest gain first, the better ones with numbers."""
    ranked = rows.sort_values(f"gain_{measure}", ascending=False).T.to_dict()
    chosen = [name for name, row in ranked.items() if verdict_of(row, measure) == verdict]
    if verdict != "better":
        return ", ".join(chosen)
    text = cost_text if measure in COSTS else gain_text
    return ", ".join(f"{name} {text(ranked[name], measure)}" for name in chosen[:MOST]) or "none"


def split_by_price(frame: pd.DataFrame, reference: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Returns the methods whose round costs no more than the reference's, and the others."""
    others = frame.drop(index=reference)
    prices = others[["round_gradients", "round_gigabits"]].max(axis=1)
    # where no run arrives the cost of a round is not known, and does not matter
    return others[~(prices > CHEAP)], others[prices > CHEAP]


def sentences(frame: pd.DataFrame, reference: str) -> list[str]:
    """Returns what the comparison of a family says."""
    others = frame.drop(index=reference)
    found = 100 * np.exp(-others["detectable_rounds"].iloc[0])
    reach = "The pairs are too few for the test."
    if found > 0:
        reach = f"The test finds {found:.0f} rounds or fewer with a chance of 80 %."
    return [
        f"Less time on the virtual clock: {listed(others, 'hours')}.",
        *(
            f"Better {name.replace('_', ' ')} quality: {listed(others, name)}."
            for name in QUALITY
            if f"p_{name}" in others
        ),
        reach,
    ]


def table(frame: pd.DataFrame, reference: str) -> list[str]:
    """Returns the folded table of a family, fewest rounds first, with the intervals of rounds."""
    rows = [["method", *SHOWN]]
    ranked = frame.drop(index=reference).sort_values("gain_rounds", ascending=False).T.to_dict()
    for name, row in ranked.items():
        cells = [f"{name}, all clients" if row["everyone"] else name]
        for measure in SHOWN:
            number, _, interval = cost_text(row, measure).partition(" ")
            number = f"**{number}**" if verdict_of(row, measure) else number
            cells.append(f"{number} {interval}" if measure == "rounds" else number)
        rows.append(cells)
    summary = f"<summary>All {len(rows) - 1} methods where {reference} needs 100</summary>"
    return ["<details markdown>", summary, "", *rows_of(rows), "", "</details>", ""]


def fill(text: str, frames: Mapping[str, tuple[pd.DataFrame, str]]) -> str:
    """Returns a page with its marks filled in: `{{family.Method}}` is the rounds of a method that
    needs fewer than the reference, `{{family.same}}` and `{{family.more}}` list the others whose
    round costs no more.

    Raises:
        ValueError: the method does not need fewer rounds, so the sentence is wrong.
    """

    def number(match: re.Match[str]) -> str:
        frame, reference = frames[match[1]]
        if match[2] in ("same", "more"):
            verdict = {"same": "", "more": "worse"}[match[2]]
            return listed(split_by_price(frame, reference)[0], "rounds", verdict)
        row = frame.loc[match[2]].to_dict()
        if verdict_of(row, "rounds") != "better":
            raise ValueError(f"{match[0]} needs no fewer rounds")
        return cost_text(row, "rounds")

    return re.sub(r"\{\{(\w+)\.(\w+)\}\}", number, text)


def rows_of(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of a table in Markdown, the head first."""
    head, *others = [f"| {' | '.join(row)} |" for row in rows]
    return [head, "| --- " * len(rows[0]) + "|", *others]


def draw_areas(frame: pd.DataFrame, cost: str) -> Figure:
    """Draws a bar for each method's area with its interval over tasks."""
    order = frame.sort_values(["everyone", f"area_{cost}"], ascending=[True, False])
    # methods in which all clients work stand apart, below the others
    places = -np.arange(len(order)) - order["everyone"]
    # as wide as a phone, in inches
    figure = Figure((3.6, 0.6 + 0.19 * len(order)), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    mean, low, high = (order[f"{part}_{cost}"] for part in ("area", "area_low", "area_high"))
    colours = order["everyone"].map({False: "#77aadd", True: "#bbbbbb"})
    axes.barh(places, mean, color=colours)
    axes.hlines(places, low, high, color="#444444")
    axes.set_yticks(places, order.index, fontsize=8)
    axes.set(xlim=(0, 1), xlabel=f"area by {cost} (best 1)")
    return figure


HEAD = """# The benchmark: which methods beat tuned FedAvg

<!-- Written by docs/benchmark/page.py from src/fedax/benchmark/archive.csv. -->

All methods have the same tasks, seeds and budget of tuning ([protocol](../benchmark/protocol.md)).
The reference is tuned FedAvg, or tuned DSGD where there is no server. Methods have the form of their
paper's text, which is the default; as released FedBC
(`start=global,dual_momentum=0.5,dual_buffer=shared`) and FedAWARE
(`normalize=unit,startup=all,feedback=true,ids=mixed`) are other methods
([why](../reproduction/README.md)).

Numbers are costs to the target where the reference needs 100, in `rounds`, `gradients` and
`gigabits` (traffic): 50 is half of its cost. They are means over the tasks of a family, with their
95 % interval. Each run is paired with the reference's run of the same draw of the data and seed; of
several draws, each is one pair, the mean over its seeds. Factors
beyond 4 count as 4, also those of runs that never arrive, so 400 means at least that. **Bold**
numbers are significant: one test over all tasks of the family by sign flips of the pairs, with
Holm's correction over the methods, p < 0.05. *Gradients* are those of all clients over their number.

Bars are the *area* under the performance profile, with its 95 % interval over the tasks; a method
that is best on every task has 1. Methods in which all clients work stand last, with grey bars.

[A table](../benchmark/standing.csv) has all measures, with costs as logarithms of factors. `edges`
counts the tasks whose selected setting is at the edge of its range, beyond which a better one may
lie. Sentences name at most four methods. [Choosing an algorithm](../choose.md) says what follows.

The first draw of the data has twenty seeds, further ones five. Intervals over one draw say nothing of
others, and none contains the tuning, of which there was one study, on the first draw. Final quality is that of settings which were selected for speed.
Without results: {missing}.
"""


def describe(task: BenchTask) -> str:
    """Returns a task's name with its clients of a round, all clients, and the target."""
    clients, cohort = (
        task.sections[k].get(v) for k, v in (("task", "clients"), ("schedule", "cohort"))
    )
    return f"{task.name} ({cohort or 'all'} of {clients}, {task.target.value:g})"


def write(bench: Bench) -> dict[Path, str]:
    """Returns the texts of the pages."""
    results = bench.results()
    frames = bench.compare()
    titles = {name.partition(" ")[0] for name in results["method"]}
    missing = {kind.__name__ for kind in algorithm_classes().values()} - titles
    parts = [HEAD.format(missing=", ".join(sorted(missing)))]
    compared = {}
    for family, frame in frames.items():
        tasks = [task for task in bench.tasks if task.target.family == family and task.target.value]
        reference = tasks[0].reference.shown()
        draws = results.loc[results["task"] == tasks[0].name, "draw"].nunique()
        title = TITLES[family]
        compared[family] = frame, reference
        lines = [
            f"## {title}",
            "",
            f"{len(frame)} methods, draws of the data: {draws}. "
            f"Tasks (clients a round, target): {', '.join(map(describe, tasks))}.",
            "",
            *(f"- {text}" for text in sentences(frame, reference)),
            "",
            *(f"![Areas by {c}: {title}](../benchmark/{family}-{c}.png)" for c in DRAWN),
            "",
            *table(frame, reference),
        ]
        parts.append("\n".join(lines))
    return {
        ARTICLE: "\n".join(parts),
        CHOOSE: fill((HERE / "choose.txt").read_text(), compared),
        SETTINGS: results.drop_duplicates(["task", "method"])[
            ["task", "method", "settings", "edges"]
        ].to_csv(index=False),
        STANDING: pd.concat(frames, names=["family", "method"]).round(4).to_csv(),
    }


def main() -> None:
    bench = Bench.open("full")
    for path, text in write(bench).items():
        path.write_text(text)
    for family, frame in bench.compare().items():
        for cost in DRAWN:
            draw_areas(frame, cost).savefig(HERE / f"{family}-{cost}.png")


if __name__ == "__main__":
    main()
