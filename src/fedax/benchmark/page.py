"""The page of the benchmark: one HTML file with leaderboards and profiles."""

import math
from typing import Any

from fedax.benchmark.measures import COSTS, QUALITIES
from fedax.benchmark.scores import typical
from fedax.benchmark.standing import LEAST, Standing, draw_profiles
from fedax.benchmark.task import BenchTask
from fedax.results.page import fill_template


def render(standing: Standing) -> str:
    """Renders the page; it opens without a network, in light and dark, and fits a phone."""
    measures = {name: cost.title for name, cost in COSTS.items()} | QUALITIES
    return fill_template(
        "benchmark/page.html",
        title="fedax benchmark",
        summary=(
            "Every method with the same budget of tuning, selected and reported on different "
            "seeds. Costs are medians of five seeds, qualities means."
        ),
        choice="Measure",
        axes=measures,
        tables=[
            _describe(standing, family, measure)
            for family in standing.families
            for measure in measures
        ],
        refused=[
            f"{method} on {task.title}: {reason}"
            for task in standing.tasks
            for method, reason in standing.refused[task.name].items()
        ],
    )


def _describe(standing: Standing, family: str, measure: str) -> dict[str, Any]:
    """Returns the table of a family by one measure, with the figure of its profiles."""
    measured = standing.tasks_of(family)
    tasks = [task for task in measured if measure in (*task.measures, *task.quality)]
    methods = dict.fromkeys(name for task in tasks for name in standing.entries[task.name])
    placed = standing.placed(family, measure) if measure in COSTS else []
    places = {one.method: one for one in placed}
    others = sorted((name for name in methods if name not in places), key=str.lower)
    cells = {task.name: _cells(standing, task, measure) for task in tasks}
    figure, ranking = None, "No ranking by final values."
    if measure in COSTS:
        done = sum(bool(entries) for entries in cells.values())
        ranking = f"No ranking yet: {done} of {len(tasks)} tasks have results."
    if placed:
        rows = standing.profiles(measure)
        is_own = rows["family"].str.startswith(f"{family.capitalize()} (")
        figure = draw_profiles(rows.loc[is_own & rows["shown"]])
        ranking = (
            "Ranked by the area under the performance profile, with its 95 % interval over tasks."
        )
        if len(tasks) < LEAST:
            ranking = f"No ranking: {len(tasks)} tasks, and {LEAST} are the least for one."
    return {
        "measure": measure,
        "family": family,
        "heading": COSTS[measure].heading if measure in COSTS else QUALITIES[measure],
        "ranking": ranking,
        "references": ", ".join(dict.fromkeys(standing.reference(task) for task in tasks)),
        "tasks": [task.title for task in tasks],
        "rows": [
            (name, places.get(name), [cells[task.name].get(name, ("", "")) for task in tasks])
            for name in (*places, *others)
        ],
        "placed": bool(placed),
        "figure": figure,
    }


def _cells(standing: Standing, task: BenchTask, measure: str) -> dict[str, tuple[str, str]]:
    """Returns by method the number and the verdict against the reference."""
    told, cells = standing.differences(task, measure), {}
    for method in standing.entries[task.name]:
        numbers = standing.numbers(task, measure, method)
        # costs may be infinite, and have a median; qualities have a mean
        value = typical(numbers) if measure in COSTS else float(numbers.mean())
        text = f"{value:.4g}"
        if not math.isfinite(value):
            text = "never" if measure in COSTS else "diverged"
        cells[method] = text, told[method].verdict if method in told else ""
    return cells
