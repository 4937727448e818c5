"""The pieces of work of an experiment: runs that one compiled program can serve together."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedax.audit import membership
from fedax.core import Algorithm
from fedax.core.hyper import SYMBOLIC
from fedax.data import data_folder
from fedax.engine.driver.run import Progress, program_key, run, run_grid
from fedax.engine.round.footprint import footprint
from fedax.experiments.config.experiment import Experiment, Member, Plan
from fedax.experiments.config.run_ids import RunId, draw_of, list_run_ids
from fedax.experiments.config.sections import AuditSection, schedule_of
from fedax.experiments.results.models import arrays_of, check_own_models
from fedax.report import Record
from fedax.report.tables.summary import counted

Hook = Callable[[Progress], bool | None]


@dataclasses.dataclass(frozen=True)
class Batch:
    """Members of an experiment that differ in real hyperparameters and seeds only: one compiled
    program.

    Args:
        experiment: its place among those of the directory.
        labels: of the members.
        seeds: of each.
        numbers: of the runs: the first label with all seeds, then the next.
        selecting: whether the runs only select among the members of a grid.
    """

    experiment: int
    labels: tuple[str, ...]
    seeds: tuple[int, ...]
    numbers: tuple[int, ...]
    selecting: bool = False

    @property
    def alone(self) -> bool:
        """Whether it is a single run."""
        return len(self.numbers) == 1

    def folder(self, out: Path) -> Path:
        """Returns the folder of its checkpoints."""
        return out / "checkpoints" / f"{self.numbers[0]:04d}"

    def heading(self, experiment: Experiment, several: bool) -> str:
        """Returns the heading of its progress bar."""
        # such as "FedAvg and 3 more"
        what = self.labels[0] + (
            f" and {len(self.labels) - 1} more" if len(self.labels) > 1 else ""
        )
        listed = ", ".join(str(seed) for seed in self.seeds)
        word = "selection seed" if self.selecting else "seed"
        several_seeds = f", {word}s {listed}" if len(self.seeds) > 1 else f", {word} {listed}"
        seed = several_seeds if self.selecting or len(experiment.seeds) > 1 else ""
        draw = f", draw {draw_of(experiment)}" if several else ""
        return (f"{experiment.name}{draw}: " if several else "") + what + seed

    def run(self, experiment: Experiment, out: Path, hook: Hook | None = None) -> list[Record]:
        """Runs it, from its newest checkpoint on if there is one."""
        plan = plan_of(experiment)
        every = experiment.checkpoint_every
        every = max(experiment.rounds // 10, 1) if every is None else every
        # 0 means no checkpoints
        checkpoints = {"checkpoint": self.folder(out), "checkpoint_every": every} if every else {}
        common = {"task": experiment.name, "draw": draw_of(experiment), "hook": hook}
        if experiment.audit is not None:
            # an audit is always a batch of one run
            return [
                run_audited(
                    plan, experiment.audit, self.labels[0], self.seeds[0], **common, **checkpoints
                )
            ]
        # runs that only select are many: their models are kept only with `all`
        keep = experiment.keep_models in (
            ("all",) if self.selecting else ("all", "reported", "personal")
        )
        own = (
            keep
            and experiment.keep_models == "personal"
            and _has_own_models(plan.algorithms[self.labels[0]])
        )
        if own:
            check_own_models(plan.task)
        return run_batch(
            plan, self.labels, self.seeds, keep=keep, personal=own, **common, **checkpoints
        )


def _has_own_models(algorithm: Algorithm[Any]) -> bool:
    """Returns whether its clients use other models than the global one."""
    return type(algorithm).personal is not Algorithm.personal


_newest: dict[str, Plan] = {}


def plan_of(experiment: Experiment) -> Plan:
    """Returns the plan of an experiment. The newest plan is kept, because the compiled programs of
    a task serve all its methods and seeds.
    """
    # with the data folder: another one may hold other files of the same name
    key = repr((str(data_folder()), experiment.model_dump()))
    if key not in _newest:
        _newest.clear()  # before the next data are made
        _newest[key] = experiment.plan()
    return _newest[key]


def batches_of(
    experiments: Sequence[Experiment], chosen: Mapping[str, Mapping[str, str]] | None = None
) -> list[Batch]:
    """Returns all batches of one stage, in the order of experiments, algorithms and seeds.

    Args:
        experiments: of the directory.
        chosen: by task and algorithm, the label of the member that was selected. Then the runs to
            report; without, those that select (none, where there is nothing to select).
    """
    made: list[Batch] = []
    slots = list_run_ids(experiments)
    for position, experiment in enumerate(experiments):
        # by program, then by label; the ids are in the order of the seeds
        groups: dict[Any, dict[str, list[RunId]]] = {}
        for slot in slots:
            member = slot.member
            wanted = (
                slot.selecting
                if chosen is None
                else not slot.selecting and _reported(experiment, member, chosen)
            )
            if slot.experiment != position or not wanted:
                continue
            groups.setdefault(_program_of(experiment, member), {}).setdefault(
                member.label, []
            ).append(slot)
        for group in groups.values():
            # every label of a group has the same seeds
            seeds = [slot.seed for slot in next(iter(group.values()))]
            # positions of the seeds of each batch
            places = (
                [range(len(seeds))]
                if shares_program(experiment)
                else [[i] for i in range(len(seeds))]
            )
            for part in places:
                # the first label with all seeds, then the next
                numbers = tuple(group[label][i].number for label in group for i in part)
                made.append(
                    Batch(
                        position,
                        tuple(group),
                        tuple(seeds[i] for i in part),
                        numbers,
                        chosen is None,
                    )
                )
    return made


def _program_of(experiment: Experiment, member: Member) -> Any:
    """Returns a key that is equal for the members that one compiled program can serve."""
    shares = experiment.grid and not experiment.audit
    compiled = shares and experiment.engine == "simulation"
    # privacy, devices and symbolic values use numbers of the schedule before the program runs
    private = experiment.channel is not None and experiment.channel.privacy is not None
    apart = not compiled or private or experiment.devices is not None or _has_symbolic(experiment)
    return (
        member.method,
        program_key(member.solver.make()) if compiled else str(member.solver),
        str(member.schedule)
        if apart or "asynchronous" in member.schedule
        else program_key(schedule_of(member.schedule)),
        program_key(member.algorithm.make()) if shares else member.label,
    )


def varied_programs(experiment: Experiment) -> tuple[int, list[str]]:
    """Returns the programs that the members of an experiment's grid need, and the keys of the grid
    of which each value needs one.

    >>> experiment = Experiment.of(
    ...     name="a",
    ...     task={"name": "digits"},
    ...     algorithm=[{"name": "fedavg"}],
    ...     grid={"schedule": {"cohort": [5, 10], "dropouts": [0.0, 0.1, 0.2]}},
    ... )
    >>> varied_programs(experiment)
    (2, ['cohort'])
    """
    members = experiment.members()
    programs = {member.label: _program_of(experiment, member) for member in members}
    separate = dict[str, None]()
    for key in dict.fromkeys(key for member in members for key in member.settings):
        # by the other settings, the programs of members that differ in this key only
        alike = dict[Any, set[Any]]()
        for member in members:
            others = str({k: v for k, v in member.settings.items() if k != key})
            alike.setdefault((member.method, others), set()).add(programs[member.label])
        if any(len(several) > 1 for several in alike.values()):
            separate[key] = None
    return len(set(programs.values())), list(separate)


def stages_of(experiment: Experiment) -> tuple[list[Batch], list[Batch]]:
    """Returns the batches that select among the members of a grid, and those of the runs to report.

    Which members are reported is known only after the selection, their number before.

    >>> experiment = Experiment.of(
    ...     name="a",
    ...     task={"name": "digits"},
    ...     algorithm=[{"name": "fedavg"}, {"name": "fedprox"}],
    ...     grid={"schedule": {"cohort": [5, 10]}},
    ... )
    >>> [len(stage) for stage in stages_of(experiment)]
    [4, 2]
    """
    # whichever member is selected, its method needs as many batches
    chosen = {member.method: member.label for member in experiment.members()}
    return batches_of([experiment]), batches_of([experiment], {experiment.name: chosen})


def count_runs(experiment: Experiment) -> str:
    """Returns a sentence with the number of runs of an experiment."""
    selecting, reporting = (
        sum(len(batch.numbers) for batch in stage) for stage in stages_of(experiment)
    )
    runs, rounds = counted(selecting + reporting, "run"), counted(experiment.rounds, "round")
    parts = f": {selecting} to select in the grid, {reporting} to report" if selecting else ""
    return f"The experiment makes {runs} of {rounds}{parts}."


def _reported(
    experiment: Experiment, member: Member, chosen: Mapping[str, Mapping[str, str]]
) -> bool:
    return member.label == chosen.get(experiment.name, {}).get(member.method, member.label)


def shares_program(experiment: Experiment) -> bool:
    """Returns whether all seeds of an algorithm run as one program.

    An audit is two runs, which no program has together with others. Symbolic hyperparameters may
    resolve to another number for each seed.
    """
    if experiment.audit is not None or _has_symbolic(experiment):
        return False
    if experiment.seeds_together is None:
        return experiment.engine == "simulation" and not experiment.trackers
    return experiment.seeds_together


def _has_symbolic(experiment: Experiment) -> bool:
    """Returns whether a solver, an algorithm or a grid of the experiment has a value such as
    "theory" instead of a number.
    """

    def found(value: Any) -> bool:
        if isinstance(value, dict):
            return any(found(each) for each in value.values())
        return any(found(each) for each in value) if isinstance(value, list) else value in SYMBOLIC

    parts = [
        experiment.solver.options,
        *(section.options | section.solver for section in experiment.algorithm),
    ]
    return found([*parts, experiment.grid.model_dump() if experiment.grid else None])


def run_batch(
    plan: Plan,
    labels: Sequence[str],
    seeds: Sequence[int],
    *,
    task: str,
    draw: int,
    hook: Callable[[Progress], bool | None] | None = None,
    keep: bool = False,
    **checkpoints: Any,
) -> list[Record]:
    """Runs algorithms of a plan that one program can serve, each with all seeds (see
    `fedax.run_grid`).

    With `keep` the records come with the models; `checkpoints` are further arguments of the run.

    Returns:
        The records of the first label with all seeds, then of the next. Each has its part of the
        time they took together.
    """
    arguments = plan.arguments_of(labels[0]) | checkpoints
    members = [plan.algorithms[label] for label in labels]
    # a single run needs no axis over runs
    if len(members) == len(seeds) == 1:
        histories = [run(members[0], plan.task, seed=seeds[0], progress=hook, **arguments)]
    else:
        # a list has one solver or schedule for each member; equal ones are passed once
        for name in ("solver", "schedule"):
            each = [plan.arguments_of(label)[name] for label in labels]
            same = all(one is each[0] or str(one) == str(each[0]) for one in each)
            arguments[name] = each[0] if same else each
        histories = run_grid(members, plan.task, seed=seeds, progress=hook, **arguments)
    cost = footprint(members[0], plan.task, solver=plan.arguments_of(labels[0])["solver"])
    schedules = {label: plan.arguments_of(label)["schedule"] for label in labels}
    # minibatch gradients of a client in a round, in the mean over the clients
    gradients = {
        label: float(
            np.mean(
                [
                    cost.gradients(schedule.mean_steps(int(n)), schedule.mean_epoch(int(n)))
                    for n in plan.task.train.sizes
                ]
            )
        )
        for label, schedule in schedules.items()
    }
    n = len(histories)
    # wall time is divided evenly: the runs were one program
    shares = [
        dataclasses.replace(h, seconds=h.seconds / n, compiling=h.compiling / n) for h in histories
    ]
    names = [{"label": label, "seed": seed} for label in labels for seed in seeds]
    return [
        dataclasses.replace(
            Record.of(
                history, task=task, draw=draw, gradients=gradients[str(name["label"])], **name
            ),
            models=arrays_of(history) if keep else {},
        )
        for history, name in zip(shares, names, strict=True)
    ]


def run_audited(
    plan: Plan,
    audit: AuditSection,
    label: str,
    seed: int,
    *,
    task: str,
    draw: int,
    hook: Callable[[Progress], bool | None] | None = None,
    **checkpoints: Any,
) -> Record:
    """Runs membership inference on one algorithm of a plan.

    The record has the curves of the attacked model at the attacks, with `auc` (the shadow attack)
    and `auc_calibrated` (the calibrated loss).
    """
    arguments = plan.arguments_of(label)
    names = ("solver", "schedule", "engine", "channel", "devices", "observe", "on_bad_client")
    options = {name: arguments[name] for name in names} | checkpoints
    looks, algorithm = audit.looks(arguments["rounds"]), plan.algorithms[label]
    found = membership(
        algorithm, plan.task, looks=looks, seed=seed, attack=audit.make(), progress=hook, **options
    )
    history, areas = found.history, found.auc
    # the observations at which an attack was made, so that all curves have one length
    seen = np.isin(history.rounds, found.rounds)
    metrics = {"auc": areas["shadow"], "auc_calibrated": areas["calibrated"]}
    metrics |= {name: values[seen] for name, values in history.metrics.items()}
    shown = dataclasses.replace(
        history, rounds=history.rounds[seen], metrics=metrics, seconds=found.seconds
    )
    return Record.of(shown, task=task, label=label, seed=seed, draw=draw)
