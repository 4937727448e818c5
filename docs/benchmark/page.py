"""Writes the pages that follow from the benchmark's results: on choosing a method, and all results.

    python docs/benchmark/page.py    # part of `make generate`

The frame of docs/choose.md is `choose.txt`, in which `{{benchmark}}` stands for what the results
say. docs/findings/benchmark.md has the sentences, the bars of areas and the tables of all families.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fedax.algorithms import algorithm_classes
from fedax.benchmark.command import Bench
from fedax.benchmark.standing import compare_methods, gain_text, verdict_of
from fedax.benchmark.task import QUALITY, BenchTask

HERE = Path(__file__).parent
STANDING, BY_TASK = HERE / "standing.csv", HERE / "tasks.csv"
ARTICLE, CHOOSE = HERE.parent / "findings" / "benchmark.md", HERE.parent / "choose.md"
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
MOST = 6
"""Methods of a sentence with their numbers."""


def listed(rows: pd.DataFrame, measure: str, verdict: str = "better", prices: bool = False) -> str:
    """Returns the methods with a verdict, largest gain first, the better ones with their gains."""
    ranked = rows.sort_values(f"gain_{measure}", ascending=False).T.to_dict()
    chosen = [name for name, row in ranked.items() if verdict_of(row, measure) == verdict]
    if verdict != "better":
        return ", ".join(chosen) or "none"
    texts = []
    for name in chosen[:MOST]:
        row = ranked[name]
        price = (
            f"; a round costs {row['round_gradients']:.2g} times the gradients and "
            f"{row['round_gigabits']:.2g} times the traffic"
        )
        texts.append(f"{name} ({gain_text(row, measure)}{price * prices})")
    if more := chosen[MOST:]:
        texts.append(f"{len(more)} more")
    return ", ".join(texts) or "none"


def sentences(frame: pd.DataFrame, reference: str) -> list[str]:
    """Returns what the comparison of a family says, the first sentences on what to choose."""
    others = frame.drop(index=reference)
    prices = others[["round_gradients", "round_gigabits"]].max(axis=1)
    # where no run arrives the cost of a round is not known, and does not matter
    cheap, dear = others[~(prices > CHEAP)], others[prices > CHEAP]
    found = np.expm1(others["detectable_rounds"].iloc[0])
    known = [name for name in QUALITY if f"p_{name}" in others]
    edges = frame["edges"][frame["edges"] > 0]
    return [
        f"Of the {len(cheap)} methods whose round costs no more than that of {reference}, faster "
        f"are: {listed(cheap, 'rounds')}. Not distinguishable from it: "
        f"{listed(cheap, 'rounds', '')}. Slower: {listed(cheap, 'rounds', 'worse')}.",
        f"Of the {len(dear)} methods with dearer rounds, these need fewer: "
        f"{listed(dear, 'rounds', prices=True)}. By gradients faster than {reference}: "
        f"{listed(dear, 'gradients')}; by traffic: {listed(dear, 'gigabits')}.",
        f"By the virtual clock faster: {listed(others, 'hours')}.",
        *(f"Better by {name.replace('_', ' ')} quality: {listed(others, name)}." for name in known),
        f"The test by rounds finds a gain of {100 * found:.0f} % with a chance of about 80 %.",
        "The selected setting is at the edge of its range, beyond which a better one may lie, on "
        f"so many tasks: {', '.join(f'{name} ({count})' for name, count in edges.items())}.",
    ]


def table(frame: pd.DataFrame) -> list[str]:
    """Returns the table of a family, by area; methods in which all clients work come last."""
    rows = [["method", *(f"area, {cost}" for cost in DRAWN), *SHOWN]]
    for name, row in frame.sort_values("everyone", kind="stable").T.to_dict().items():
        cells = [f"{name}, all clients" if row["everyone"] else name]
        cells += [f"{row[f'area_{cost}']:.2f}" for cost in DRAWN]
        for measure in SHOWN:
            gain = gain_text(row, measure)
            cells.append(f"**{gain}**" if verdict_of(row, measure) else gain)
        rows.append(cells)
    return rows_of(rows)


def by_task(results: pd.DataFrame, tasks: Sequence[BenchTask]) -> pd.DataFrame:
    """Returns each method's speed by rounds on the single tasks, with intervals."""
    found = {task.title: compare_methods(results, [task]) for task in tasks}
    frame = pd.concat(found, names=["task", "method"])
    return frame[[f"{part}_rounds" for part in ("gain", "low", "high")]]


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
paper's text, which is the default; the released code of some is another method ([why](../reproduction/README.md)).
FedADMM is there in both forms.

*Speed* is one over the cost until the target, against the reference's: +50 % needs two thirds of its
cost. Each run is paired with the reference's run of the same seed, and factors beyond 4 count as 4,
also those of runs that never arrive. The columns are speeds by `rounds`, `gradients` and `gigabits`
(traffic). [A table](../benchmark/standing.csv) has all measures, also by the virtual clock and of
final quality, the mean over the clients and the worst tenth of them, with costs as logarithms of
factors; [another](../benchmark/tasks.csv) has the single tasks, which are not tested. Numbers are
means over the tasks of a family, with the 95 % interval over
the seeds. **Bold** numbers are significant: one test over all tasks of the family by sign flips of
the paired runs, with Holm's correction over the methods, p < 0.05. *Area* is the area under the
performance profile, with its 95 % interval over the tasks; a method that is best on every task has
1. *Gradients* are those of all clients over their number, so that a method in which every client
works in every round costs more than one with cohorts. Such methods stand last, with grey bars.

What is averaged so far: five seeds on one draw of the data, with one tuning study. Intervals contain
neither the draw nor the tuning. Twenty seeds, three draws and three studies of the best methods are
left, about 12 core-hours. Final quality is that of settings which were selected for speed. Without
results: {missing}.
"""


def write(bench: Bench) -> dict[Path, str]:
    """Returns the texts of the pages."""
    results, frames = bench.results(), bench.compare()
    titles = {name.partition(" ")[0] for name in results["method"]}
    missing = {kind.__name__ for kind in algorithm_classes().values()} - titles
    parts = [HEAD.format(missing=", ".join(sorted(missing, key=str.lower)))]
    advice, single = [], []
    for family, frame in frames.items():
        tasks = [task for task in bench.tasks if task.target.family == family and task.target.value]
        reference, title = tasks[0].reference.label, TITLES[family]
        told = sentences(frame, reference)
        advice += [f"**{title}** ({len(tasks)} tasks). {told[0]} {told[1]}", ""]
        lines = [
            f"## {title}",
            "",
            f"{len(tasks)} tasks, {len(frame)} methods. The reference is {reference}.",
            "",
            *(f"- {text}" for text in told),
            "",
            *(f"![Areas by {c}: {title}](../benchmark/{family}-{c}.png)" for c in DRAWN),
            "",
            *table(frame),
            "",
        ]
        parts.append("\n".join(lines))
        single.append(by_task(results, tasks))
    choose = (HERE / "choose.txt").read_text().replace("{{benchmark}}\n", "\n".join(advice))
    return {
        ARTICLE: "\n".join(parts),
        CHOOSE: choose,
        STANDING: pd.concat(frames, names=["family", "method"]).round(4).to_csv(),
        BY_TASK: pd.concat(single).round(4).to_csv(),
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
