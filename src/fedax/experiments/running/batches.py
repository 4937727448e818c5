"""The pieces of work of an experiment: runs that one compiled program can serve together."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedax.audit import membership
from fedax.core import Algorithm, History
from fedax.data import data_folder
from fedax.engine.driver.grid import program_key
from fedax.engine.driver.options import Progress
from fedax.engine.driver.run import run_grid
from fedax.engine.round.engine import Engine
from fedax.engine.round.trace import footprint
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.config.plan import Member, Plan, majority_of
from fedax.experiments.config.sections import AuditSection, schedule_of
from fedax.experiments.results.models import arrays_of
from fedax.experiments.results.planned import planned_runs
from fedax.experiments.results.runs import Run
from fedax.flower.server.engine import current_engine
from fedax.results import Record
from fedax.results.store import run_id
from fedax.results.tables.summary import counted
from fedax.results.versions import versions

Hook = Callable[[Progress], bool | None]


@dataclasses.dataclass(frozen=True)
class Batch:
    """Members of an experiment that differ in real hyperparameters and seeds only: one compiled
    program.

    Args:
        runs: the first member with all seeds, then the next.
    """

    runs: tuple[Run, ...]

    @property
    def experiment(self) -> Experiment:
        return self.runs[0].experiment

    @property
    def ids(self) -> list[str]:
        return [run.id for run in self.runs]

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(run.label for run in self.runs))

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(run.seed for run in self.runs))

    def folder(self, out: Path) -> Path:
        """Returns the folder of its checkpoints."""
        return out / "checkpoints" / run_id({"runs": self.ids})

    @property
    def title(self) -> str:
        """The task, the first algorithm and the seeds, for a line about its progress."""
        first, *others = self.labels
        labels = f"{first} and {len(others)} more" if others else first
        word = "selection seed" if self.runs[0].selects else "seed"
        return f"{self.runs[0].task}: {labels}, {word} {', '.join(map(str, self.seeds))}"

    def run(self, out: Path, hook: Hook | None = None) -> list[Record]:
        """Runs it, from its newest checkpoint on if there is one.

        Each record has its part of the time that the runs took together.
        """
        experiment = self.experiment
        label = self.labels[0]
        plan = plan_of(experiment)
        options: dict[str, Any] = {"progress": hook}
        every = experiment.checkpoint_every
        every = max(experiment.rounds // 10, 1) if every is None else every
        # 0 means no checkpoints
        if every:
            options |= {"checkpoint": self.folder(out), "checkpoint_every": every}
        kept = experiment.keep_models
        # runs that only select are many: their models are kept only with `all`
        if self.runs[0].selects and kept != "all":
            kept = "none"
        if experiment.audit is not None:
            kept = "none"
            # an audit is always a batch of one run
            histories = [run_audited(plan, label, self.seeds[0], experiment.audit, **options)]
            gradients = {}
        else:
            has_models = type(plan.algorithms[label]).personal is not Algorithm.personal
            options["personal"] = kept == "personal" and has_models
            histories = run_batch(plan, self.labels, self.seeds, **options)
            gradients = gradients_of(plan, self.labels)
        facts = dict[str, Any]()
        if plan.task.encoding is not None:
            facts["encoding"] = plan.task.encoding.to_json()
        # clients of a deployment have examples of their own
        if experiment.engine != "flower":
            facts["majority"] = majority_of(plan.task)
        return [
            dataclasses.replace(
                Record.of(history, **run.about, gradients=gradients.get(run.label)),
                seconds=history.seconds / len(histories),
                models={} if kept == "none" else arrays_of(history),
                settings=run.made_with | facts,
                versions=versions(),
            )
            for run, history in zip(self.runs, histories, strict=True)
        ]


_newest: dict[str, tuple[Engine | None, Plan]] = {}


def plan_of(experiment: Experiment) -> Plan:
    """Returns the plan of an experiment. The newest plan is kept, because the compiled programs of
    a task serve all its methods and seeds.
    """
    # a plan has the engine of this server, another of which needs a plan of its own; it is kept
    # with the plan, so that no other engine gets its id
    server = current_engine() if experiment.engine == "flower" else None
    # with the data folder: another one may hold other files of the same name
    values = experiment.model_dump(exclude={"data"})
    key = repr((str(data_folder()), id(server), values))
    if key not in _newest:
        _newest.clear()  # before the next data are made
        _newest[key] = server, experiment.plan()
    return _newest[key][1]


def batches_of(
    planned: Sequence[Run],
    chosen: Mapping[str, Mapping[str, str]] | None = None,
    done: Iterable[str] = (),
) -> list[Batch]:
    """Returns all batches of one stage, in the order of experiments, algorithms and seeds.

    Args:
        planned: the runs of experiments.
        chosen: by task and algorithm, the label of the member that was selected. Then the runs to
            report; without, those that select (none, where there is nothing to select).
        done: ids of the runs that are there.
    """
    # by experiment and label, the runs in the order of their seeds; each id once
    missing: dict[tuple[int, str], list[Run]] = {}
    ids = set(done)
    for run in planned:
        is_wanted = run.selects if chosen is None else run.is_reported(chosen)
        if is_wanted and run.id not in ids:
            ids.add(run.id)
            missing.setdefault((id(run.experiment), run.label), []).append(run)
    # members of one program that lack the same seeds, of all seeds together or of each
    batches: dict[Any, list[Run]] = {}
    for (position, _), runs in missing.items():
        experiment = runs[0].experiment
        program = _batch_key(experiment, runs[0].member)
        for part in [runs] if shares_program(experiment) else [[run] for run in runs]:
            seeds = tuple(run.seed for run in part)
            batches.setdefault((position, program, seeds), []).extend(part)
    return [Batch(tuple(runs)) for runs in batches.values()]


def _batch_key(experiment: Experiment, member: Member) -> Any:
    """Returns a key that is equal for the members that one compiled program can serve."""
    if experiment.audit is not None or experiment.engine != "simulation":
        return member.label
    # privacy and devices use numbers of the schedule before the program runs
    has_clock = experiment.clock is not None
    separate = experiment.is_private or has_clock or "asynchronous" in member.schedule
    return (
        member.method,
        program_key(member.solver.make()),
        str(member.schedule) if separate else program_key(schedule_of(member.schedule)),
        program_key(member.algorithm.make()),
    )


def count_runs(experiment: Experiment) -> str:
    """Returns a sentence with the number of runs of an experiment.

    >>> experiment = Experiment.of(
    ...     name="a",
    ...     task={"name": "digits"},
    ...     algorithm=[{"name": "fedavg"}, {"name": "fedprox"}],
    ...     grid={"schedule": {"cohort": [5, 10]}},
    ... )
    >>> count_runs(experiment)
    'The experiment makes 6 runs of 100 rounds, 4 of them to select in the grid.'
    """
    selecting = sum(run.selects for run in planned_runs([experiment]))
    # whichever member is selected, its method needs as many runs
    runs = selecting + len(experiment.algorithm) * len(experiment.seeds)
    rest = f", {selecting} of them to select in the grid" if selecting else ""
    return f"The experiment makes {counted(runs, 'run')} of {experiment.rounds} rounds{rest}."


def shares_program(experiment: Experiment) -> bool:
    """Returns whether all seeds of an algorithm run as one program.

    An audit is two runs, which no program has together with others.
    """
    if experiment.audit is not None:
        return False
    if experiment.seeds_together is None:
        return experiment.engine == "simulation" and not experiment.trackers
    return experiment.seeds_together


def run_batch(
    plan: Plan, labels: Sequence[str], seeds: Sequence[int], **options: Any
) -> list[History]:
    """Runs algorithms of a plan that one program can serve, each with all seeds; `options` are
    further ones of `fedax.run_grid`, whose histories it returns.
    """
    made = [plan.arguments_of(label) for label in labels]
    arguments = made[0] | options
    for name in ("solver", "schedule"):
        arguments[name] = [own[name] for own in made]
    members = [plan.algorithms[label] for label in labels]
    return run_grid(members, plan.task, seed=seeds, **arguments)


def gradients_of(plan: Plan, labels: Sequence[str], share: float = 1.0) -> dict[str, float]:
    """Returns by label the minibatch gradients of a client in a round, in the mean over the
    clients. One program serves the algorithms, so that the first stands for all.

    Args:
        plan: with the algorithms.
        labels: theirs.
        share: what counts of a phase in which a cohort works, and not everyone.
    """
    solver = plan.arguments_of(labels[0])["solver"]
    phases = footprint(plan.algorithms[labels[0]], plan.task, solver=solver).phases
    sizes = client_sizes(plan) or plan.task.train.sizes
    gradients = {}
    for label in labels:
        schedule = plan.arguments_of(label)["schedule"]
        steps = np.mean([schedule.mean_steps(n) for n in sizes])
        epoch = np.mean([schedule.mean_epoch(n) for n in sizes])
        gradients[label] = sum(
            float(phase.step_gradients * steps + phase.full_gradients * epoch)
            * (1.0 if phase.everyone else share)
            for phase in phases
        )
    return gradients


def client_sizes(plan: Plan) -> list[int] | None:
    """Returns the number of training examples of each client.

    Deployed clients may have other examples than the task: None until they have said how many.
    """
    engine = plan.arguments.get("engine")
    return getattr(engine, "client_sizes", plan.task.train.sizes.tolist())


def run_audited(plan: Plan, label: str, seed: int, audit: AuditSection, **options: Any) -> History:
    """Runs membership inference on one algorithm of a plan.

    The history has the curves of the attacked model at the attacks, with `auc` (the shadow attack)
    and `auc_calibrated` (the calibrated loss).
    """
    arguments = plan.arguments_of(label)
    names = ("solver", "schedule", "engine", "channel", "clock", "observe", "on_bad_client")
    options |= {name: arguments[name] for name in names}
    looks = audit.looks(arguments["rounds"])
    result = membership(plan.algorithms[label], plan.task, looks=looks, seed=seed, **options)
    history = result.history
    # the observations at which an attack was made, so that all curves have one length
    is_attacked = np.isin(history.rounds, result.rounds)
    metrics = {"auc": result.auc["shadow"], "auc_calibrated": result.auc["calibrated"]}
    metrics |= {name: values[is_attacked] for name, values in history.metrics.items()}
    return dataclasses.replace(
        history, rounds=history.rounds[is_attacked], metrics=metrics, seconds=result.seconds
    )
