"""The page on choosing an algorithm: what follows from the benchmark's archive, in a frame.

    make generate        # after new results in the archive, or a change of choose.txt

The frame is `choose.txt`. Its other numbers stand beside links to folders of runs, against which
tests check them.
"""

from pathlib import Path

from fedax.benchmark.archive import SHIPPED, Archive
from fedax.benchmark.standing import LEAST, Standing
from fedax.benchmark.task import BenchTask, load_tasks

DOCS = Path(__file__).parents[1]
FRAME = Path(__file__).with_suffix(".txt")
PLACE = "{{benchmark}}\n"
NAMES = {
    "convex": "Training loss of a linear model",
    "networks": "Accuracy of a network",
    "text": "Text",
    "asynchronous": "A server that does not wait",
    "personal": "A model for every client",
    "decentralised": "No server",
}


def archived() -> Standing:
    """Returns the places of all methods in the archive of the package."""
    return Standing.of(list(load_tasks().values()), Archive([SHIPPED]))


def page(standing: Standing | None = None) -> str:
    """Returns the page; by default from the archive in the package."""
    standing = archived() if standing is None else standing
    return FRAME.read_text(encoding="utf-8").replace(PLACE, findings(standing))


def findings(standing: Standing) -> str:
    """Returns a paragraph and a table for each family, and the families without results."""
    parts, empty = [], []
    for family in NAMES:
        tasks = [task for task in standing.tasks_of(family) if compared(standing, task)]
        if tasks:
            parts.append(_family(standing, family, tasks))
        else:
            empty.append(NAMES[family].lower())
    if empty:
        parts.append(
            f"The archive has no results yet for: {'; '.join(empty)}. This section says nothing about them."
        )
    return "\n\n".join(parts) + "\n"


def compared(standing: Standing, task: BenchTask) -> list[str]:
    """Returns the methods that stand beside the reference on a task."""
    return list(standing.differences(task, "rounds"))


def _family(standing: Standing, family: str, tasks: list[BenchTask]) -> str:
    reference = standing.reference(tasks[0])
    rows: dict[str, list[tuple[float, str]]] = {}
    for task in tasks:
        for method, told in standing.differences(task, "rounds").items():
            rows.setdefault(method, []).append((told.effect.mean, told.verdict))
    lines = [
        f"| method | tasks | faster | slower | speed against tuned {reference} |",
        "| --- | --- | --- | --- | --- |",
    ]
    good = []
    for method in sorted(rows, key=str.lower):
        gains, verdicts = zip(*rows[method], strict=True)
        better, worse = verdicts.count("better"), verdicts.count("worse")
        if 2 * better >= len(tasks) and not worse:
            good.append(f"{method} ({better})")
        ends = dict.fromkeys(f"{100 * gain:+.0f} %" for gain in (min(gains), max(gains)))
        lines.append(f"| {method} | {len(gains)} | {better} | {worse} | {' to '.join(ends)} |")
    total = len(standing.tasks_of(family))
    told = f"{', '.join(good)}" if good else "none"
    caution = (
        ""
        if len(tasks) >= LEAST
        else f" With fewer than {LEAST} tasks this is a first impression, and no ranking."
    )
    text = (
        f"**{NAMES[family]}**: {len(tasks)} of {total} tasks have results. Faster than tuned "
        f"{reference} on at least half of these, and slower on none: {told}.{caution}"
    )
    return "\n".join([text, "", *lines])


if __name__ == "__main__":
    (DOCS / "choose.md").write_text(page(), encoding="utf-8")
