"""The long demo: FedDANE, correct and as released, over seeds, draws of synthetic data and a grid of mu."""

import dataclasses
import functools
import json
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path

from rich.console import Console

from fedax.core import RunExists
from fedax.core.files import write
from fedax.engines.loop import run_grid
from fedax.experiments.demo import SYNTHETIC, judged
from fedax.experiments.design import BASELINES, FORMS, MUS, SELECTION_SEED, TASKS, at, members
from fedax.experiments.directory import make_folder, slug
from fedax.experiments.findings import Findings, best_mu
from fedax.experiments.setup import set_up_jax
from fedax.experiments.spec import Experiment, Plan
from fedax.report import Page, Record, render
from fedax.report.record import to_csv


@dataclasses.dataclass(frozen=True)
class Job:
    """One method on one draw of one data set; files of finished runs are not made again.

    Args:
        labels: the members of the method's grid that are run, as one compiled program.
        seeds: of the runs.
    """

    folder: Path
    task: str
    draw: int
    method: str
    rounds: int
    labels: Sequence[str]
    seeds: Sequence[int]

    def file(self, seed: int, label: str) -> Path:
        return self.folder / "runs" / f"{slug(self.task)}.draw-{self.draw}.seed-{seed}.{slug(label.replace('.', 'p'))}.npz"

    def missing(self) -> list[int]:
        """The seeds that are not complete."""
        return [s for s in self.seeds if not all(self.file(s, label).exists() for label in self.labels)]

    def run(self) -> float:
        """Makes what is missing; the seconds it took. An interrupted grid leaves no file."""
        begun, plan = time.perf_counter(), _plan(self.task, self.draw, self.rounds)
        for seed in self.missing():
            histories = run_grid([plan.algorithms[label] for label in self.labels], plan.task, seed=seed, **plan.arguments)
            if any(history.outcome.kind == "interrupted" for history in histories):
                raise KeyboardInterrupt
            for label, history in zip(self.labels, histories, strict=True):
                record = judged(Record.of(history, task=self.task, label=label, seed=seed, draw=self.draw))
                write(self.file(seed, label), record.to_bytes())
        return time.perf_counter() - begun


def experiment(task: str, draw: int, rounds: int) -> Experiment:
    """All methods on one draw of one data set."""
    algorithms = [{"label": label, **section} for label, section in BASELINES.items()]
    algorithms += [
        {"name": "feddane", "label": at(form, mu), "mu": mu, "correction": correction, "cohorts": cohorts}
        for form, (correction, cohorts) in FORMS.items()
        for mu in MUS
    ]
    options = {"name": "synthetic", **TASKS[task], "seed": draw}
    every = max(rounds // 50, 1)
    return Experiment.of(name=task, rounds=rounds, observe_every=every, task=options, algorithm=algorithms, **SYNTHETIC)


@functools.lru_cache(maxsize=1)
def _plan(task: str, draw: int, rounds: int) -> Plan:
    """Kept, because the compiled programs of a task serve all its methods and seeds."""
    return experiment(task, draw, rounds).plan()


@dataclasses.dataclass(frozen=True)
class FullDemo:
    """The whole comparison in one folder; run again, it continues.

    Args:
        folder: new, empty, or one of an earlier call with the same numbers.
        rounds: of every run.
        draws: data sets drawn for each kind, with seeds 0, 1, ...
        seeds: runs on each of them, with seeds 0, 1, ...
    """

    folder: Path
    rounds: int = 200
    draws: int = 3
    seeds: int = 3

    def selecting(self) -> Iterator[Job]:
        """The methods without a grid, and every grid with one seed: what selects mu."""
        for task in TASKS:
            for draw in range(self.draws):
                for method in (*BASELINES, *FORMS):
                    seeds = (SELECTION_SEED,) if method in FORMS else range(self.seeds)
                    yield Job(self.folder, task, draw, method, self.rounds, members(method), seeds)

    def confirming(self) -> Iterator[Job]:
        """The other seeds with the selected mu."""
        grid = self._records()
        for task in TASKS:
            for draw in range(self.draws):
                for form in FORMS:
                    label = at(form, best_mu(grid, task, form))
                    yield Job(self.folder, task, draw, form, self.rounds, (label,), range(self.seeds))

    def run(self, processes: int, console: Console) -> bool:
        """Runs what is missing and writes `metrics.csv`, `grid.csv`, `report.html` and `README.md`; whether it got to that.

        Raises:
            RunExists: the folder holds something else, or was made with other numbers.
            InvalidInput: it cannot be written.
        """
        self._open()
        try:
            for stage in (self.selecting, self.confirming):
                jobs = list(stage())
                left = [job for job in jobs if job.missing()]
                done = f"{len(jobs) - len(left)} jobs done before, {len(left)} to do"
                console.print(f"{self.folder}, {stage.__name__}: {done}.", highlight=False)
                self._work(left, processes, console)
        except KeyboardInterrupt:
            console.print(
                f"Interrupted. Finished runs are kept in {self.folder}; the same command continues.", style="yellow"
            )
            return False
        findings = Findings(self._records(), self.rounds, self.draws, self.seeds)
        write(self.folder / "grid.csv", findings.grid_csv())
        write(self.folder / "metrics.csv", to_csv(findings.chosen))
        write(self.folder / "README.md", findings.readme())
        write(self.folder / "report.html", render(self._page(findings)))
        console.print(findings.readme(), markup=False, highlight=False, soft_wrap=True)
        console.print(f"Report: {self.folder / 'report.html'}", markup=False, highlight=False, soft_wrap=True)
        return True

    def _open(self) -> None:
        kept, numbers = self.folder / "settings.json", {"rounds": self.rounds, "draws": self.draws, "seeds": self.seeds}
        if not kept.exists():
            make_folder(self.folder)
            write(kept, json.dumps(numbers) + "\n")
            return
        before = json.loads(kept.read_text(encoding="utf-8"))
        if before != numbers:
            different = f"{self.folder} holds a run with {before}, not {numbers}"
            raise RunExists(f"{different}; nothing was overwritten. Choose another folder.")

    def _work(self, jobs: list[Job], processes: int, console: Console) -> None:
        begun = time.perf_counter()

        def tell(number: int, job: Job, seconds: float) -> None:
            rest = (time.perf_counter() - begun) / number * (len(jobs) - number)
            what = f"[{number}/{len(jobs)}] {job.task}, draw {job.draw}: {job.method}"
            line = f"{what}, {seconds:.0f} s; about {rest / 60:.0f} min left"
            console.print(line, markup=False, highlight=False, soft_wrap=True)

        if processes == 1:
            for number, job in enumerate(jobs, start=1):
                tell(number, job, job.run())
            return
        context = multiprocessing.get_context("spawn")
        cpus = max((os.cpu_count() or 1) // processes, 1)
        with ProcessPoolExecutor(processes, context, initializer=set_up_jax, initargs=(cpus,)) as pool:
            waiting: dict[Future[float], Job] = {pool.submit(job.run): job for job in jobs}
            try:
                for number, done in enumerate(as_completed(waiting), start=1):
                    tell(number, waiting[done], done.result())
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _records(self) -> dict[tuple[str, str], list[Record]]:
        """All runs there are by task and label, in the order of draws and seeds."""
        found: dict[tuple[str, str], list[Record]] = {}
        for job in self.selecting():
            for label in job.labels:
                files = [job.file(seed, label) for seed in range(self.seeds)]
                runs = [Record.from_bytes(file.read_bytes()) for file in files if file.exists()]
                found.setdefault((job.task, label), []).extend(runs)
        return found

    def _page(self, findings: Findings) -> Page:
        settings = {f"{task}, draw 0": experiment(task, 0, self.rounds).toml() for task in TASKS}
        notes = {task: findings.note(task) for task in TASKS}
        kept = json.loads((self.folder / "versions.json").read_text(encoding="utf-8"))
        return Page("FedDANE, correct and as released", findings.line(), findings.chosen, notes, settings, kept)
