"""The pieces of work of an experiment: runs that one compiled program can serve together."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedax.audit import membership
from fedax.core import Algorithm
from fedax.data import data_folder
from fedax.engine.driver.run import Progress, program_key, run_grid
from fedax.engine.round.footprint import footprint
from fedax.experiments.config.experiment import Experiment, Member, Plan
from fedax.experiments.config.plan import majority_of
from fedax.experiments.config.run_ids import RunId, data_seed, list_run_ids
from fedax.experiments.config.sections import AuditSection, schedule_of
from fedax.experiments.results.models import arrays_of, check_own_models
from fedax.results import Record
from fedax.results.tables.summary import counted

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
    def is_single(self) -> bool:
        """Whether it is a single run."""
        return len(self.numbers) == 1

    def folder(self, out: Path) -> Path:
        """Returns the folder of its checkpoints."""
        return out / "checkpoints" / f"{self.numbers[0]:04d}"

    def heading(self, experiment: Experiment, several: bool) -> str:
        """Returns the heading of its progress bar."""
        # such as "FedAvg and 3 more"
        title = self.labels[0] + (
            f" and {len(self.labels) - 1} more" if len(self.labels) > 1 else ""
        )
        seed_list = ", ".join(str(seed) for seed in self.seeds)
        seed_word = "selection seed" if self.selecting else "seed"
        several_seeds = (
            f", {seed_word}s {seed_list}" if len(self.seeds) > 1 else f", {seed_word} {seed_list}"
        )
        seed = several_seeds if self.selecting or len(experiment.seeds) > 1 else ""
        draw = f", draw {data_seed(experiment)}" if several else ""
        return (f"{experiment.name}{draw}: " if several else "") + title + seed

    def run(self, experiment: Experiment, out: Path, hook: Hook | None = None) -> list[Record]:
        """Runs it, from its newest checkpoint on if there is one."""
        plan = plan_of(experiment)
        every = experiment.checkpoint_every
        every = max(experiment.rounds // 10, 1) if every is None else every
        # 0 means no checkpoints
        checkpoints = {"checkpoint": self.folder(out), "checkpoint_every": every} if every else {}
        common = {"task": experiment.name, "draw": data_seed(experiment), "hook": hook}
        if experiment.audit is not None:
            # an audit is always a batch of one run
            record = run_audited(
                plan, experiment.audit, self.labels[0], self.seeds[0], **common, **checkpoints
            )
            return [_with_data_hashes(record, experiment)]
        # runs that only select are many: their models are kept only with `all`
        keep = experiment.keep_models in (
            ("all",) if self.selecting else ("all", "reported", "personal")
        )
        keep_personal = (
            keep
            and experiment.keep_models == "personal"
            and _has_own_models(plan.algorithms[self.labels[0]])
        )
        if keep_personal:
            check_own_models(plan.task)
        records = run_batch(
            plan,
            self.labels,
            self.seeds,
            keep=keep,
            personal=keep_personal,
            **common,
            **checkpoints,
        )
        return [_with_data_hashes(record, experiment) for record in records]


def _with_data_hashes(record: Record, experiment: Experiment) -> Record:
    """Returns a record that says with which data it was made."""
    plan = plan_of(experiment)
    settings = (record.settings or {}) | {"data": plan.data_hashes}
    if plan.task.encoding is not None:
        settings["encoding"] = plan.task.encoding.to_json()
    # clients of a deployment have examples of their own
    if experiment.engine != "flower":
        settings["majority"] = majority_of(plan.task)
    return dataclasses.replace(record, settings=settings)


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
    batches: list[Batch] = []
    run_ids = list_run_ids(experiments)
    for position, experiment in enumerate(experiments):
        # by program, then by label; the ids are in the order of the seeds
        groups: dict[Any, dict[str, list[RunId]]] = {}
        for run_id in run_ids:
            member = run_id.member
            is_wanted = (
                run_id.selecting
                if chosen is None
                else not run_id.selecting and _is_reported(experiment, member, chosen)
            )
            if run_id.experiment != position or not is_wanted:
                continue
            groups.setdefault(_batch_key(experiment, member), {}).setdefault(
                member.label, []
            ).append(run_id)
        for group in groups.values():
            # every label of a group has the same seeds
            seeds = [run_id.seed for run_id in next(iter(group.values()))]
            # positions of the seeds of each batch
            seed_groups = (
                [range(len(seeds))]
                if shares_program(experiment)
                else [[i] for i in range(len(seeds))]
            )
            for seed_indices in seed_groups:
                # the first label with all seeds, then the next
                numbers = tuple(group[label][i].number for label in group for i in seed_indices)
                batches.append(
                    Batch(
                        position,
                        tuple(group),
                        tuple(seeds[i] for i in seed_indices),
                        numbers,
                        chosen is None,
                    )
                )
    return batches


def _batch_key(experiment: Experiment, member: Member) -> Any:
    """Returns a key that is equal for the members that one compiled program can serve."""
    shares = experiment.grid and not experiment.audit
    compiled = shares and experiment.engine == "simulation"
    # privacy and devices use numbers of the schedule before the program runs
    private = experiment.channel is not None and experiment.channel.privacy is not None
    separate = not compiled or private or experiment.devices is not None
    return (
        member.method,
        program_key(member.solver.make()) if compiled else str(member.solver),
        str(member.schedule)
        if separate or "asynchronous" in member.schedule
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
    programs = {member.label: _batch_key(experiment, member) for member in members}
    separate = dict[str, None]()
    for key in dict.fromkeys(key for member in members for key in member.settings):
        # by the other settings, the programs of members that differ in this key only
        alike = dict[Any, set[Any]]()
        for member in members:
            other_settings = str({k: v for k, v in member.settings.items() if k != key})
            alike.setdefault((member.method, other_settings), set()).add(programs[member.label])
        if any(len(group_programs) > 1 for group_programs in alike.values()):
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
    breakdown = f": {selecting} to select in the grid, {reporting} to report" if selecting else ""
    return f"The experiment makes {runs} of {rounds}{breakdown}."


def _is_reported(
    experiment: Experiment, member: Member, chosen: Mapping[str, Mapping[str, str]]
) -> bool:
    return member.label == chosen.get(experiment.name, {}).get(member.method, member.label)


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
    cost = footprint(members[0], plan.task, solver=arguments["solver"])
    # a list has one solver or schedule for each member; equal ones are passed once
    for name in ("solver", "schedule"):
        values = [plan.arguments_of(label)[name] for label in labels]
        all_equal = all(value is values[0] or str(value) == str(values[0]) for value in values)
        arguments[name] = values[0] if all_equal else values
    histories = run_grid(members, plan.task, seed=seeds, progress=hook, **arguments)
    # minibatch gradients of a client in a round, in the mean over the clients
    gradients = dict[str, float]()
    for label in labels:
        schedule = plan.arguments_of(label)["schedule"]
        by_client = [
            cost.gradients(schedule.mean_steps(int(n)), schedule.mean_epoch(int(n)))
            for n in client_sizes(plan) or plan.task.train.sizes
        ]
        gradients[label] = float(np.mean(by_client))
    n = len(histories)
    # wall time is divided evenly: the runs were one program
    shares = [
        dataclasses.replace(h, seconds=h.seconds / n, compiling=h.compiling / n) for h in histories
    ]
    runs = zip(shares, itertools.product(labels, seeds), strict=True)
    return [
        dataclasses.replace(
            Record.of(
                history, task=task, label=label, seed=seed, draw=draw, gradients=gradients[label]
            ),
            models=arrays_of(history) if keep else {},
        )
        for history, (label, seed) in runs
    ]


def client_sizes(plan: Plan) -> list[int] | None:
    """Returns the number of training examples of each client.

    Deployed clients may have other examples than the task: None until they have said how many.
    """
    engine: Any = plan.arguments.get("engine")
    if hasattr(engine, "client_sizes"):
        return engine.client_sizes
    return [int(n) for n in plan.task.train.sizes]


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
    attack_rounds, algorithm = audit.looks(arguments["rounds"]), plan.algorithms[label]
    result = membership(
        algorithm,
        plan.task,
        looks=attack_rounds,
        seed=seed,
        attack=audit.make(),
        progress=hook,
        **options,
    )
    history, areas = result.history, result.auc
    # the observations at which an attack was made, so that all curves have one length
    is_attacked = np.isin(history.rounds, result.rounds)
    metrics = {"auc": areas["shadow"], "auc_calibrated": areas["calibrated"]}
    metrics |= {name: values[is_attacked] for name, values in history.metrics.items()}
    attacked_history = dataclasses.replace(
        history, rounds=history.rounds[is_attacked], metrics=metrics, seconds=result.seconds
    )
    return Record.of(attacked_history, task=task, label=label, seed=seed, draw=draw)
