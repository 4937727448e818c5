"""One experiment: several algorithms and seeds on one task, as a validated TOML file."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import tomli_w
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from fedax import tasks
from fedax.audit import check_auditable
from fedax.communication.channel import Channel
from fedax.core import Algorithm, InvalidInput, Schedule, SpecError, Task, UnknownName
from fedax.core.hyper import MOST_COUNT, bound_to, check_population, declared
from fedax.engine.driver.options import BAD_CLIENT, no_shared_memory
from fedax.engine.driver.settings import hyperparameters_of
from fedax.errors import shown
from fedax.experiments.config.grids import GridSection, check_labels, expand_members
from fedax.experiments.config.observers import (
    OBSERVERS,
    Optimum,
    check_examples,
    default_observers,
    observer_of,
    select_observers,
)
from fedax.experiments.config.plan import Member, Plan
from fedax.experiments.config.sections import (
    BY_THEORY,
    ENGINES,
    KEEP_MODELS,
    MOST_MEMBERS,
    MOST_RUNS,
    SEEDS,
    TEXT,
    TRACKERS,
    AlgorithmSection,
    AuditSection,
    BudgetSection,
    ChannelSection,
    ClusterSection,
    CostSection,
    DevicesSection,
    EarlyStoppingSection,
    Section,
    SimulationSection,
    SolverSection,
    StopSection,
    are_seeds,
    check_ranks,
    engine_of,
    explain_error,
    owners_of,
    rule_name,
    schedule_of,
)
from fedax.experiments.config.toml import KeyPath, Source, to_toml_values
from fedax.experiments.config.user_code import (
    check_sources,
    resolve_code_paths,
    resolve_data_paths,
)
from fedax.observe.base import Observer
from fedax.results.tables.reductions import check_reduction
from fedax.tasks.sources import find_task, task_options
from fedax.theory.constants import Measured
from fedax.utils.numbers import python_tree
from fedax.utils.plugins import is_reference, title_of


class Experiment(BaseModel):
    r"""An experiment as written in a file; `fedax new experiment` writes one.

    Args:
        name: for titles and folder names.
        rounds: communication rounds, at least 0.
        observe_every: rounds between observations, at least 1.
        engine: where it runs: `simulation`, with the options of its table, `eager`, `mpi` or
            `flower`.
        seeds: one run of every algorithm for each, at least one, all different.
        observe: names of observers; by default those that fit the task and need not be asked for.
        read: how a curve becomes the number of a table or of the grid's selection: `last`, `best`,
            `mean_last_<k>_rounds`.
        minimum: of the objective, if it is known; the observer `objective` then also gives the gap
            to it.
        task: a name of `fedax.task` and its options.
        solver: how clients minimise.
        schedule: arguments of `fedax.Schedule`.
        algorithm: the methods to compare, at least one; their labels differ.
        stop, early_stopping, budget: end runs early that diverge, no longer become better, or have
            spent their time or energy.
        devices: the clients' devices, whose virtual clock the results have.
        unseen_steps: local steps before unseen clients are evaluated a second time.
        grid: values to try, and the rule that selects among them.
        channel: codecs of what is sent; nothing is coded by default.
        cost: prices of a simulated time.
        cluster: the jobs of `fedax run FILE --slurm`.
        audit: makes every run one of membership inference.
        trackers: programs that get the curves as well: `tensorboard`, `mlflow`, `wandb`.
        checkpoint_every: rounds between checkpoints, 0 for none; by default a tenth of the rounds.
        on_bad_client: `stop` or `drop`, of a client whose upload is not finite (see `fedax.run`).
        seeds_together: whether all seeds of an algorithm are one program (see `fedax.run_grid`); by
            default they are, unless trackers show single runs as they go, or the engine compiles no
            rounds. False lets `--jobs` spread them over processes.
        sources: of your own code that the file names, the SHA-256 of its files by the name; a run
            directory's copy has it, and a file that has changed since is refused.
        keep_models: `reported`, `personal` (with the clients' own), `all` (of runs that select in a
            grid too) or `none` are kept.

    Example:
        >>> source = (
        ...     'name = "a"\nrounds = 2\n[task]\nname = "digits"\n'
        ...     '[[algorithm]]\nname = "fedprox"\nmu = 1'
        ... )
        >>> Experiment.parse(source).algorithm[0].shown()
        'FedProx mu=1'
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str = Field(min_length=1, max_length=TEXT)
    rounds: int = 100
    observe_every: int = 1
    engine: str = "simulation"
    seeds: list[int] = [0]
    observe: list[str] | None = None
    reads: str = Field(default="last", alias="read")  # `read` is the way to make one from a file
    minimum: float | None = None
    task: Section
    solver: SolverSection = SolverSection()
    schedule: dict[str, Any] = {}
    algorithm: list[AlgorithmSection] = Field(min_length=1, max_length=MOST_MEMBERS)
    stop: StopSection | None = None
    early_stopping: EarlyStoppingSection | None = None
    devices: DevicesSection | None = None
    budget: BudgetSection | None = None
    unseen_steps: int | None = None
    grid: GridSection | None = None
    channel: ChannelSection | None = None
    cost: CostSection | None = None
    cluster: ClusterSection | None = None
    simulation: SimulationSection | None = None
    audit: AuditSection | None = None
    trackers: list[str] = []
    checkpoint_every: int | None = None
    on_bad_client: str = "stop"
    seeds_together: bool | None = None
    keep_models: str = "reported"
    sources: dict[str, str] = {}

    _source: Source | None = PrivateAttr(None)
    _is_stored: bool = PrivateAttr(False)

    @classmethod
    def read(cls, path: Path, settings: Sequence[str] = (), kept: bool = False) -> "Experiment":
        """Reads and checks a TOML file, with some of its values replaced.

        Args:
            path: the file.
            settings: `path=value` each, as `fedax run --set` takes them: `task.alpha=0.5`,
                `algorithm.0.mu=1`.
            kept: whether it is a run directory's copy, in which older spellings of `read` are
                valid. No user code that it names is loaded: the directory may come from somebody
                else. `user_code.with_code` gives an experiment that can be run.

        Raises:
            SpecError: unreadable, malformed, an unknown key, a value out of range; with file, line
                and what is allowed.
        """
        source = Source.read(path)
        if not kept:
            source.document = resolve_code_paths(source.document, path.parent)
            source.document = resolve_data_paths(source.document, path.parent)
        for setting in settings:
            source.override(setting)
        if settings:
            # those of the command line begin in the working directory
            source.document = resolve_data_paths(source.document, Path())
        return cls._from_source(source, kept)

    @classmethod
    def parse(cls, text: str, name: str = "experiment") -> "Experiment":
        """Reads and checks TOML text; `name` is for messages."""
        return cls._from_source(Source(text, name))

    @classmethod
    def of(cls, **sections: Any) -> "Experiment":
        """Makes and checks an experiment from Python values; problems are `InvalidInput`."""
        try:
            experiment = cls.model_validate(python_tree(sections))
        except ValidationError as error:
            raise InvalidInput(explain_error(error, cls)[1]) from error
        experiment._check()
        return experiment.model_copy(update={"sources": check_sources(experiment)})

    @classmethod
    def _from_source(cls, source: Source, is_stored: bool = False) -> "Experiment":
        try:
            experiment = cls.model_validate(source.document)
        except ValidationError as error:
            raise source.error(*explain_error(error, cls)) from error
        experiment._source, experiment._is_stored = source, is_stored
        experiment._check()
        return (
            experiment
            if is_stored
            else experiment.model_copy(update={"sources": check_sources(experiment)})
        )

    def _check(self) -> None:
        """Checks everything that needs no data, in the order of the file's keys and tables.

        Raises:
            InvalidInput: the first problem; a `SpecError` with its line if read from a file.
        """
        self._check_numbers()
        self._check_choices()
        self._check_common_sections()
        self._check_algorithms()
        if self.budget is not None and self.devices is None:
            error = InvalidInput.found("budget", "no table [devices]", NEEDS_CLOCK)
            self.refuse(("budget",), error)
        with self._locate_errors("grid"):
            self._check_grid()

    def _check_numbers(self) -> None:
        """Checks the numbers at the top of the file, and the reduction of curves."""
        lowest = {"rounds": 0, "observe_every": 1, "checkpoint_every": 0, "unseen_steps": 1}
        for key, low in lowest.items():
            value = getattr(self, key)
            if value is not None and not low <= value <= MOST_COUNT:
                allowed = f"whole numbers from {low} to {MOST_COUNT}"
                self.refuse((key,), InvalidInput.of(key, value, allowed))
        if self.minimum is not None and not math.isfinite(self.minimum):
            self.refuse(("minimum",), InvalidInput.of("minimum", self.minimum, "finite numbers"))
        if not are_seeds(self.seeds):
            self.refuse(("seeds",), InvalidInput.of("seeds", self.seeds, SEEDS))
        with self._locate_errors():
            check_reduction(self.reads, of_values=True)

    def _check_choices(self) -> None:
        """Checks keys and tables whose value is a name from a list."""
        for position, name in enumerate(self.trackers):
            if name not in TRACKERS:
                self.refuse(("trackers", position), UnknownName.among("trackers", name, TRACKERS))
        for position, name in enumerate(self.observe or []):
            with self._locate_errors("observe"):
                if self._is_stored and is_reference(name):
                    continue
                try:
                    self._observer(name)
                except UnknownName as error:
                    self.refuse(("observe", position), error)
        for key, choices in (("on_bad_client", BAD_CLIENT), ("keep_models", KEEP_MODELS)):
            if getattr(self, key) not in choices:
                allowed = f"one of {choices}"
                self.refuse((key,), InvalidInput.of(key, getattr(self, key), allowed))
        if self.engine not in ENGINES:
            self.refuse(("engine",), UnknownName.among("engine", self.engine, ENGINES))
        with self._locate_errors("task"):
            if self.loads(self.task.name):
                find_task(self.task.name)

    def _check_common_sections(self) -> None:
        """Makes what the tables describe: constructors check the ranges of their arguments."""
        with self._locate_errors("solver"):
            self._make(self.solver)
        with self._locate_errors("schedule"):
            self._make_schedule(self.schedule)
        channel_parts: dict[str, Any] = {}
        for name in ChannelSection.model_fields:
            with self._locate_errors("channel", name):
                if (section := getattr(self.channel, name, None)) is not None:
                    channel_parts[name] = self._make(section)
        with self._locate_errors("channel"):
            channel = Channel(**channel_parts)
        if channel.shares_memory and not getattr(ENGINES[self.engine], "shares_memory", False):
            self.refuse(("engine",), no_shared_memory("engine", channel, self.engine))
        for name in ("audit", *ENDS, *(() if self._is_stored else ("devices",))):
            with self._locate_errors(name):
                if (section := getattr(self, name)) is not None:
                    section.make()
        for name in ("cost", "cluster"):
            with self._locate_errors(name):
                if (section := getattr(self, name)) is not None:
                    section.check()

    def _check_algorithms(self) -> None:
        """Checks each algorithm with its own solver and schedule, and that labels differ."""
        labels: set[str] = set()
        for position, section in enumerate(self.algorithm):
            with self._locate_errors("algorithm", position):
                self._make(section)
                if section.shown() in labels:
                    reason = f"{section.shown()!r} is that of another algorithm of the experiment"
                    raise InvalidInput.because("label", reason)
                labels.add(section.shown())
            # without tables of its own an algorithm has the common ones, which are checked already
            if section.solver:
                with self._locate_errors("algorithm", position, "solver"):
                    self._make(self._merge_solver(section))
            if section.schedule:
                with self._locate_errors("algorithm", position, "schedule"):
                    self._make_schedule(self.schedule | section.schedule)

    def _check_grid(self) -> None:
        """Checks the number of runs, and every member of the grid."""
        if self.grid:
            names = (section.name for section in self.algorithm)
            labels = (section.shown() for section in self.algorithm)
            self.grid.check(["solver", "schedule", *names, *labels], self.seeds, self.validates)
        # before the grid is expanded, which may take more memory than there is
        self._check_size()
        if not self.grid:
            return
        check_labels(members := self.members())
        checked: list[dict[str, Any]] = []
        for member in members:
            self._make(member.algorithm)
            self._make(member.solver)
            # most members share their schedule, which is slow to make
            if member.schedule not in checked:
                checked.append(member.schedule)
                self._make_schedule(member.schedule)

    def _check_size(self) -> None:
        """Limits the number of algorithms and runs, without expanding the grid."""
        members = sum(
            self.grid.size(owners_of(section)) if self.grid else 1 for section in self.algorithm
        )
        if members > MOST_MEMBERS:
            raise InvalidInput.found(
                "algorithm",
                f"{members} algorithms with those of the grid",
                f"at most {MOST_MEMBERS}",
            )
        seeds = len(self.seeds) + len(self.grid.selecting(self.seeds) if self.grid else ())
        if members * seeds > MOST_RUNS:
            raise InvalidInput.found(
                "seeds", f"{members} algorithms with {seeds} seeds", f"at most {MOST_RUNS} runs"
            )

    @property
    def is_stored(self) -> bool:
        """Whether it is a run directory's copy, which loads no user code."""
        return self._is_stored

    def loads(self, name: Any) -> bool:
        """Returns whether the object of a name may be made: the user code of a stored experiment
        stays a name.
        """
        return not self._is_stored or not (is_reference(name) or name in self.sources)

    def _make(self, section: Any) -> Any:
        """Makes what a section describes; returns None if it is code that a run directory names, or
        a solver whose step size follows from the data.
        """
        if isinstance(section, SolverSection) and section.by_theory:
            is_private = self.channel is not None and self.channel.privacy is not None
            if is_private or self.engine not in ("simulation", "eager"):
                allowed = "numbers where examples are private or on other machines"
                raise InvalidInput.of("SGD(learning_rate=...)", BY_THEORY, allowed)
            # with any number, to check the other options
            section.model_copy(update={"learning_rate": 1.0}).make()
            return None
        names = (getattr(owner, "name", "") for owner in (section, getattr(section, "codec", None)))
        return section.make() if all(map(self.loads, names)) else None

    def _make_schedule(self, arguments: dict[str, Any]) -> Schedule | None:
        """The same for a schedule, whose sampling or availability may be user code.

        Raises:
            InvalidInput: a schedule that does not fit, or one that needs devices without any.
        """
        rules = (rule_name(arguments.get(key)) for key in ("sampling", "availability"))
        if not all(self.loads(rule) for rule in rules):
            return None
        schedule = schedule_of(arguments)
        field = "Schedule(asynchronous=...)" if schedule.server else schedule.cutoff_field
        if field is not None and self.devices is None:
            raise InvalidInput.found(field, "no table [devices]", NEEDS_CLOCK)
        return schedule

    def only(self, chosen: Sequence[AlgorithmSection]) -> "Experiment":
        """Returns the experiment with some of its algorithms, and with what its grid says about
        them.
        """
        owners = ("solver", "schedule", *(s.name for s in chosen), *(s.shown() for s in chosen))
        return self.model_copy(
            update={"algorithm": list(chosen), "grid": self.grid and self.grid.only(owners)}
        )

    def _merge_solver(self, section: AlgorithmSection, **changes: Any) -> SolverSection:
        """Returns the solver of one algorithm: the common one with its own options, or another
        one.
        """
        common = (
            self.solver.options
            if section.solver.get("name", self.solver.name) == self.solver.name
            else {}
        )
        return SolverSection(**{"name": self.solver.name} | common | section.solver | changes)

    @property
    def validates(self) -> bool:
        """Whether the task keeps examples for validation."""
        return bool(self.task.options.get("validation"))

    @property
    def select(self) -> str:
        """The metric that selects among the members of a grid."""
        return (self.grid or GridSection()).metric(self.validates)

    @property
    def best_by(self) -> str | None:
        """The metric by which the best model of a run is kept, if there is one on examples that are
        not trained on.
        """
        default = (
            (self.select if "validation" in self.select else "validation_loss")
            if self.validates
            else None
        )
        return self.early_stopping.metric if self.early_stopping else default

    def members(self) -> list[Member]:
        """Returns every algorithm of the file, and of its grid, in order.

        >>> sections = {
        ...     "task": {"name": "digits"},
        ...     "algorithm": [{"name": "fedprox"}],
        ...     "grid": {"fedprox": {"mu": [0.0, 1.0]}},
        ... }
        >>> [member.label for member in Experiment.of(name="a", **sections).members()]
        ['FedProx, mu=0.0', 'FedProx, mu=1.0']
        """
        return expand_members(self.algorithm, self.grid, self._merge_solver, self.schedule)

    def plan(self, task: Task | None = None, clients: int | None = None) -> Plan:
        """Makes the task (which may read or draw data) and everything else that `fedax.run` needs.

        Args:
            task: what the table `[task]` makes, where that was done before.
            clients: how many take part, where the task is a stand-in with one.

        Raises:
            InvalidInput: options that do not fit the task or its data; a `SpecError` with the line
                if read from a file.
        """
        task = self._make_task() if task is None else task
        resolved = self.with_step_sizes(task)
        if resolved is not self:
            return resolved.plan(task, clients)
        with self._locate_errors("simulation"):
            engine = engine_of(self.engine, self.simulation)
        clients = clients or getattr(engine, "clients", None)
        task = task.for_clients(clients)
        sizes = np.asarray(task.train.sizes).tolist() * (clients or 1 if task.is_single else 1)
        with self._locate_errors("schedule"):
            schedule = schedule_of(self.schedule)
            schedule.check_population(sizes)
        members = self.members()
        algorithms = {member.label: member.algorithm.make() for member in members}
        overrides = {
            m.label: {"solver": m.solver.make(), "schedule": schedule_of(m.schedule)}
            for m in members
        }
        needed = [("observe", name) for name in self.observe or ()]
        check_examples([*needed, *self.required_metrics().items()], task, self.refuse)
        with self._locate_errors("observe"):
            observers = self._observers(
                task, [(algorithms[label], overrides[label]["schedule"]) for label in algorithms]
            )
        with self._locate_errors("grid"):
            for member, arguments in overrides.items():
                arguments["schedule"].check_population(sizes)
                algorithms[member] = bound_to(algorithms[member], task.names, len(sizes))
                check_population(algorithms[member], len(sizes))
        stop = [
            section.make()
            for section in (self.stop, self.early_stopping, self.budget)
            if section is not None
        ]
        for section, metric in self.required_metrics().items():
            if metric in OBSERVERS and self._observer(metric) not in observers:
                if self.observe is None:  # all that fit the task are there
                    with self._locate_errors(section):
                        self._observer(metric).check(task)
                allowed = f"lists with {metric!r}, which `{section}` needs"
                self.refuse((section,), InvalidInput.of("observe", self.observe, allowed))
        observed = self.best_by not in OBSERVERS or self._observer(str(self.best_by)) in observers
        arguments = {
            "solver": self.solver.make(),
            "schedule": schedule,
            "rounds": self.rounds,
            "observe": observers,
            "engine": engine,
            "channel": self.channel and self.channel.make(),
            "observe_every": self.observe_every,
            "stop": stop,
            "on_bad_client": self.on_bad_client,
            "keep_best": self.best_by if observed else None,
            "devices": self.devices and self.devices.make(),
        }
        plan = Plan(task, algorithms, arguments, overrides)
        # a check with a stand-in would be one of a single client; its runs are checked at the start
        if len(sizes) == task.train.clients:
            with self._locate_errors("algorithm"):
                plan.check()
        return plan

    def _make_task(self) -> Task:
        check_sources(self)
        with self._locate_errors("task"):
            check_ranks(self.engine, self.task)
            task = tasks.task(self.task.name, **self.task.options)
            if self.audit is not None:
                check_auditable(task)
        return task

    def with_step_sizes(self, task: Task | None = None) -> "Experiment":
        """Returns the experiment with numbers for `learning_rate = {theory = true}`.

        They are those of `fedax.theory.step_size` for the seeds and each algorithm's schedule; of
        several schedules in a grid, the smallest.

        Args:
            task: what the table `[task]` makes, where that was done before.

        Raises:
            InvalidInput: losses without curvature.
        """
        members = self.members()
        if not any(owner.solver.by_theory for owner in (self, *members)):
            return self
        constants = Measured(self._make_task() if task is None else task, seeds=self.seeds)
        solver, algorithms = self.solver, list[AlgorithmSection]()
        with self._locate_errors("solver"):
            if solver.by_theory:
                step_size = constants.step_size(schedule_of(self.schedule))
                solver = solver.model_copy(update={"learning_rate": step_size})
            for section in self.algorithm:
                step_sizes = [
                    constants.step_size(schedule_of(member.schedule))
                    for member in members
                    if member.solver.by_theory and member.method == section.shown()
                ]
                numbers = {"learning_rate": min(step_sizes)} if step_sizes else {}
                algorithms.append(section.model_copy(update={"solver": section.solver | numbers}))
        return self.model_copy(update={"solver": solver, "algorithm": algorithms})

    def required_metrics(self) -> dict[str, str]:
        """Returns the metrics that sections need, by section."""
        early = self.early_stopping and self.early_stopping.metric
        needed = {
            "stop": self.stop and "train_loss",
            "early_stopping": early,
            "grid": self.grid and self.select,
        }
        return {section: metric for section, metric in needed.items() if metric}

    def _observer(self, name: str, best: Optimum | None = None) -> Observer:
        return observer_of(name, self.minimum, self.unseen_steps, best)

    def _observers(
        self, task: Task, runs: Sequence[tuple[Algorithm[Any], Schedule]]
    ) -> list[Observer]:
        if self.observe is None:
            needed = self.required_metrics().values()
            is_private = self.channel is not None and self.channel.privacy is not None
            return default_observers(task, self._observer, needed, is_private)
        return select_observers(self.observe, self._observer, task, runs)

    def resolved(self) -> dict[str, Any]:
        """Returns the experiment with every default written out, as values that `of` takes."""
        options = (
            task_options(self.task.name, self.task.options) if self.loads(self.task.name) else {}
        )
        defaults = {
            name: option.default
            for name, option in options.items()
            if isinstance(option.default, int | float | str)
        }
        grid = self.grid and self.grid.model_dump() | {
            "select": self.select,
            "seeds": self.grid.selecting(self.seeds),
        }
        # `to_toml_values` leaves None out
        values = {
            "name": self.name,
            "rounds": self.rounds,
            "observe_every": self.observe_every,
            "seeds": self.seeds,
            "observe": self.observe,
            "read": None if self.reads == "last" else self.reads,
            "minimum": self.minimum,
            "task": {"name": self.task.name, **defaults, **self.task.options},
            "solver": self._solver_values(self.solver),
            "schedule": self._schedule_options(self.schedule),
            "algorithm": [
                {
                    "name": section.name,
                    "label": section.shown(),
                    **self._all_values(section),
                    "solver": self._solver_values(self._merge_solver(section))
                    if section.solver
                    else None,
                    "schedule": section.schedule or None,
                }
                for section in self.algorithm
            ],
            "grid": grid,
            "trackers": self.trackers or None,
            "sources": self.sources or None,
            "checkpoint_every": self.checkpoint_every,
            "seeds_together": self.seeds_together,
            "unseen_steps": self.unseen_steps,
        }
        for name in (*ENDS, "devices", "channel", "cost", "cluster", "simulation", "audit"):
            section = getattr(self, name)
            values[name] = section and section.model_dump()
        for key, usual in USUAL.items():
            value = getattr(self, key)
            values[key] = None if value == usual else value
        return to_toml_values(values)

    def _solver_values(self, solver: SolverSection) -> dict[str, Any]:
        return {"name": solver.name, **self._all_values(solver)}

    def _all_values(self, section: AlgorithmSection | SolverSection) -> dict[str, Any]:
        """Returns all hyperparameters of a section; a run directory's copy has written them all."""
        owner = self._make(section)
        return (
            section.options
            if owner is None
            else {name: getattr(owner, name) for name in declared(owner)}
        )

    def limits_of(self, member: Member, key: str) -> tuple[float, float]:
        """Returns the ends of the range of a number that the grid varies; infinite ones where it is
        not known.
        """
        owner = "" if self.grid is None else self.grid.owner_of(member, key)
        made = self._make(getattr(member, owner)) if owner in ("algorithm", "solver") else None
        hyper = None if made is None else declared(made).get(key.rpartition(".")[2])
        return (-math.inf, math.inf) if hyper is None else (hyper.low, hyper.top)

    def hyperparameters_of(self, section: AlgorithmSection | SolverSection) -> dict[str, Any]:
        """Returns the class of an algorithm or a solver as `type`, and its hyperparameters by
        name.
        """
        # the reader of a run does not load user code: it has the values that were stored
        if section.name in self.sources:
            return self._all_values(section) | {"type": title_of(section.name)}
        return hyperparameters_of(self._make(section))

    def _schedule_options(self, arguments: dict[str, Any]) -> dict[str, Any]:
        schedule = self._make_schedule(arguments)
        return arguments if schedule is None else schedule.options

    def toml(self) -> str:
        """Returns `resolved` as TOML text: reading it gives the same runs."""
        return tomli_w.dumps(self.resolved())

    def refuse(self, key_path: KeyPath, error: InvalidInput) -> NoReturn:
        """Raises an error about one key; a `SpecError` with its line if the experiment was read
        from a file.
        """
        if self._source is None:
            raise error
        raise self._source.error(key_path, str(error)) from error

    @contextlib.contextmanager
    def _locate_errors(self, *key_path: str | int) -> Iterator[None]:
        """Turns `InvalidInput` about a section into a `SpecError` with the line of the key that the
        message names.
        """
        try:
            yield
        except SpecError:
            raise
        except InvalidInput as error:
            section, text = self._source.find(key_path) if self._source else None, str(error)
            clues = ("({key}=", "got {key!r};", "got {value};")
            pairs = section.items() if isinstance(section, dict) else list(enumerate(section or ()))
            named_keys = [
                k for clue in clues for k, v in pairs if clue.format(key=k, value=shown(v)) in text
            ]
            self.refuse((*key_path, *named_keys[:1]), error)


NEEDS_CLOCK = "a table [devices], whose virtual clock it needs"
ENDS = ("stop", "early_stopping", "budget")
USUAL = {"engine": "simulation", "on_bad_client": "stop", "keep_models": "reported"}
