"""Pages that follow from the benchmark's archive: on choosing an algorithm, and its findings.

    make generate        # after new results in the archive, or a change of choose.txt

The frame of the first is `choose.txt`. Its other numbers stand beside links to folders of runs,
against which tests check them.
"""

from pathlib import Path

from fedax.algorithms import algorithm_classes
from fedax.benchmark.archive import SHIPPED, Archive
from fedax.benchmark.measures import COSTS, QUALITIES
from fedax.benchmark.standing import LEAST, Difference, Placed, Standing
from fedax.benchmark.task import BenchTask, load_tasks
from fedax.results.drawing import save

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
        tasks = _results(standing, family)
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


ARTICLE = """# The benchmark: which methods beat tuned FedAvg

<!-- Written by `make generate` from the benchmark's archive. -->

All methods have the same tasks, seeds and budget of tuning ([protocol](../benchmark/protocol.md)).
The reference is tuned FedAvg, or tuned DSGD where there is no server. Methods have the form of their
paper's text, which is the default; the released code of some is another method ([why](papers.md)).
FedADMM is there in both forms.

A cell counts the tasks on which a method is significantly better and worse than the reference: five
paired seeds, Student's t-test, Holm's correction over the methods of a task, p < 0.05. Costs are
those until the target, and a run that never reaches it has speed 0. *Area* is the area under the
performance profile by rounds, with its 95 % bootstrap interval over the tasks; it is in [0, 1], and
a method that is best on every task has 1. *Gradients* is the number of gradients that all clients compute,
divided by the number of clients, so that a method that uses every client in a round costs more than
one that samples a cohort. {missing}
Every single difference with its interval, the profiles and the curves are on the page that
`fedax bench --tier standard` writes.

![Share of the tasks on which a method needs at most so many times the rounds of the best one, for each family](../benchmark/profiles-rounds.png)

*Performance profiles by rounds to the target: the best six methods of each family and the reference,
with the number of tasks in brackets.*

"""
HEADS = {
    "rounds": "rounds",
    "gigabits": "traffic",
    "gradients": "gradients",
    "hours": "clock",
    "final": "final quality",
    "mean": "mean over clients",
    "worst_tenth": "worst tenth",
}


def article(standing: Standing | None = None) -> str:
    """Returns the article with the findings of every family; by default from the archive in the
    package."""
    standing = archived() if standing is None else standing
    families = [family for family in NAMES if _results(standing, family)]
    findings = "\n".join(_findings_of(standing, family) for family in families)
    return ARTICLE.replace("{missing}", _missing(standing, families)) + findings


def _missing(standing: Standing, families: list[str]) -> str:
    """Returns a sentence about the methods of fedax without any result."""
    having = set[str]()
    for family in families:
        for task in _results(standing, family):
            having |= {standing.reference(task), *standing.differences(task, "rounds")}
    names = {kind.__name__ for kind in algorithm_classes().values()} - having
    return f"Without results so far: {', '.join(sorted(names, key=str.lower))}." if names else ""


def _results(standing: Standing, family: str) -> list[BenchTask]:
    return [task for task in standing.tasks_of(family) if compared(standing, task)]


def _findings_of(standing: Standing, family: str) -> str:
    tasks = _results(standing, family)
    reference, total = standing.reference(tasks[0]), len(standing.tasks_of(family))
    measures = [
        measure
        for measure in (*COSTS, *QUALITIES)
        if any(measure in (*task.measures, *task.quality) for task in tasks)
    ]
    told = {measure: _by_method(standing, tasks, measure) for measure in measures}
    placed = {one.method: one for one in standing.placed(family, "rounds")}
    is_ranked = len(tasks) >= LEAST

    def rank(method: str) -> tuple[float, str]:
        # by area, then those that lack a task of the family; few tasks have no ranking
        area = -placed[method].area if method in placed else 1.0
        return area if is_ranked else 0.0, method.lower()

    methods = sorted(told["rounds"], key=rank)
    order = f"In alphabetical order: there is no ranking with fewer than {LEAST} tasks."
    lines = [
        f"## {NAMES[family]}",
        "",
        f"{len(tasks)} of {total} tasks have results. {_overall(told['rounds'], reference)} Better on "
        f"at least half of the tasks and worse on none, of {len(methods)} methods, by",
        "",
        *(
            f"- {HEADS[measure]}: {_often_better(told[measure], tasks, measure)}"
            for measure in measures
        ),
        "",
        *([] if is_ranked else [order, ""]),
        f"| method | tasks | area | {' | '.join(HEADS[measure] for measure in measures)} |",
        "| --- " * (3 + len(measures)) + "|",
    ]
    for method in methods:
        area = _area(placed[method], tasks) if method in placed else ""
        counts = [_counted(told[measure].get(method, [])) for measure in measures]
        lines.append(
            f"| {method} | {len(told['rounds'][method])} | {area} | {' | '.join(counts)} |"
        )
    if reference in placed:
        area, blank = _area(placed[reference], tasks), "| - " * len(measures)
        lines.append(f"| {reference}, the reference | {len(tasks)} | {area} {blank}|")
    return "\n".join(lines) + "\n"


def _area(one: Placed, tasks: list[BenchTask]) -> str:
    """Returns an area with its interval over tasks, which a single task does not have."""
    return f"{one.area:.2f}" + (f" [{one.low:.2f}, {one.high:.2f}]" if len(tasks) > 1 else "")


def _by_method(
    standing: Standing, tasks: list[BenchTask], measure: str
) -> dict[str, list[Difference]]:
    """Returns the differences to the reference on all tasks that have the measure."""
    found: dict[str, list[Difference]] = {}
    for task in tasks:
        if measure in (*task.measures, *task.quality):
            for method, told in standing.differences(task, measure).items():
                found.setdefault(method, []).append(told)
    return found


def _counted(told: list[Difference]) -> str:
    """Returns how many differences are better, and how many worse."""
    verdicts = [one.verdict for one in told]
    return f"{verdicts.count('better')} / {verdicts.count('worse')}" if told else ""


def _overall(told: dict[str, list[Difference]], reference: str) -> str:
    """Returns how many of all differences by rounds are significant."""
    verdicts = [one.verdict for differences in told.values() for one in differences]
    return (
        f"Of {len(verdicts)} comparisons with tuned {reference} by rounds, a method is significantly "
        f"better in {verdicts.count('better')} and worse in {verdicts.count('worse')}."
    )


def _often_better(told: dict[str, list[Difference]], tasks: list[BenchTask], measure: str) -> str:
    """Returns the methods that are better on at least half of the tasks that have the measure and
    worse on none, with the number of these tasks."""
    having = sum(measure in (*task.measures, *task.quality) for task in tasks)
    good = {}
    for method, differences in told.items():
        verdicts = [one.verdict for one in differences]
        if 2 * verdicts.count("better") >= having and "worse" not in verdicts:
            good[method] = verdicts.count("better")
    ranked = sorted(good.items(), key=lambda one: (-one[1], one[0].lower()))
    return ", ".join(f"{method} ({count})" for method, count in ranked) or "none"


def main() -> None:
    (DOCS / "choose.md").write_text(page(), encoding="utf-8")
    path, text = DOCS / "findings" / "benchmark.md", article()
    # other versions of matplotlib draw other bytes, so the picture is drawn with new results only
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    path.write_text(text, encoding="utf-8")
    picture = archived().picture("rounds")
    save([picture] if picture else [], DOCS / "benchmark", ["png"])


if __name__ == "__main__":
    main()
