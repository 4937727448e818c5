"""One experiment: several algorithms and seeds on one task, as a validated TOML file."""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import numpy as np
import tomli_w
from pydantic import Field, PrivateAttr, ValidationError

from fedax import tasks
from fedax.audit import check_auditable
from fedax.communication.channel import Channel
from fedax.core import Algorithm, InvalidInput, Schedule, Solver, SpecError, Task
from fedax.core.hyper import bound_to, check_population, declared
from fedax.engine.backends.simulation import Simulation
from fedax.engine.driver.early_stopping import Budget, Divergence, EarlyStopping
from fedax.engine.round.engine import Engine
from fedax.experiments.config.observers import (
    OBSERVERS,
    default_observers,
    make_observer,
)
from fedax.experiments.config.plan import Member, Plan
from fedax.experiments.config.sections import (
    BY_THEORY,
    ENGINES,
    TEXT,
    AlgorithmSection,
    AuditSection,
    ChannelSection,
    ClockSection,
    ClusterSection,
    Count,
    CountOrZero,
    GridSection,
    Section,
    Seeds,
    SolverSection,
    Table,
    check_labels,
    made,
    schedule_of,
)
from fedax.experiments.config.toml import KeyPath, Source, explain_error, map_texts, to_toml_values
from fedax.experiments.config.user_code import (
    check_sources,
    refuse_code,
    resolve_code_path,
    resolve_data_paths,
)
from fedax.observe.base import Observer
from fedax.results.tables.reductions import ValueReduction
from fedax.tasks.sources import find_task, task_options
from fedax.theory.constants import Measured
from fedax.utils.numbers import python_tree
from fedax.utils.plugins import title_of

MOST_MEMBERS = 1_000
"""Algorithms of an experiment with its grid."""
WRITTEN = ("rounds", "observe_every", "seeds", "solver", "schedule")
"""Keys that are written out at their defaults too."""
_NEEDS_CLOCK = "a table [clock], whose virtual clock it needs"


class Experiment(Table):
    r"""An experiment as written in a file; `fedax new experiment` writes one.

    Example:
        >>> source = (
        ...     'name = "a"\nrounds = 2\n[task]\nname = "digits"\n'
        ...     '[[algorithm]]\nname = "fedprox"\nmu = 1'
        ... )
        >>> Experiment.parse(source).algorithm[0].shown()
        'FedProx mu=1'
    """

    name: Annotated[str, Field(min_length=1, max_length=TEXT)]
    """Title, of which the names of folders are made."""
    rounds: CountOrZero = 100
    """Communication rounds, at least 0."""
    observe_every: Count = 1
    """Rounds between observations, at least 1."""
    engine: Literal["simulation", "eager", "mpi", "flower"] = "simulation"
    """Where it runs: `simulation`, with the options of its table, `eager`, `mpi` or `flower`."""
    seeds: Seeds = Field([0], min_length=1)
    """One run of every algorithm for each, at least one, all different."""
    observe: list[str] | None = None
    """Names of observers; by default those that fit the task and need not be asked for."""
    reads: ValueReduction = Field("last", alias="read")
    """How a curve becomes the number of a table or of the grid's selection: `last`, `best`,
    `mean_last_<k>_rounds`."""
    minimum: float | None = None
    """Minimum of the objective, if it is known; the observer `objective` then also gives the gap to
    it."""
    task: Section
    """A name of `fedax.task` and its options."""
    solver: SolverSection = SolverSection()
    """How clients minimise."""
    schedule: dict[str, Any] = {}
    """Arguments of `fedax.Schedule`, and of `fedax.Conditions` beside them."""
    algorithm: list[AlgorithmSection] = Field(min_length=1, max_length=MOST_MEMBERS)
    """The methods to compare, at least one; their labels differ."""
    stop: Annotated[Divergence | None, made(Divergence)] = None
    """Ends a run whose loss has risen: the options of `fedax.Divergence`."""
    early_stopping: Annotated[EarlyStopping | None, made(EarlyStopping)] = None
    """Ends a run that no longer becomes better: the options of `fedax.EarlyStopping`."""
    clock: ClockSection | None = None
    budget: Annotated[Budget | None, made(Budget)] = None
    """Ends a run that has spent its time or energy on the clock of `[clock]`: the options of
    `fedax.Budget`."""
    unseen_steps: Count | None = None
    """Local steps before unseen clients are evaluated a second time, at least 1."""
    grid: GridSection | None = None
    channel: ChannelSection | None = None
    cluster: ClusterSection | None = None
    simulation: Annotated[Simulation | None, made(Simulation)] = None
    """Options of `fedax.Simulation`, for the engine of that name."""
    audit: AuditSection | None = None
    trackers: list[Literal["tensorboard", "wandb"]] = []
    """Programs that get the curves as well."""
    checkpoint_every: CountOrZero | None = None
    """Rounds between checkpoints, 0 for none; by default a tenth of the rounds."""
    on_bad_client: Literal["stop", "drop"] = "stop"
    """What happens to a client whose upload is not finite, see `fedax.run`."""
    seeds_together: bool | None = None
    """Whether all seeds of an algorithm are one program, see `fedax.run_grid`. By default they are,
    unless trackers show single runs as they go, or the engine compiles no rounds. `false` lets
    `--jobs` spread them over processes."""
    keep_models: Literal["reported", "personal", "all", "none"] = "reported"
    """Which models are kept: of the reported runs, with the clients' own (`personal`), of runs that
    select in a grid too (`all`), or none."""
    sources: dict[str, str] = {}
    """SHA-256 of the files of your own code, by the names in the file; a run directory has it, and
    a file that has changed since is refused."""
    data: dict[str, str] = {}
    """Hashes of the data, see `Plan.data_hashes`; a run directory's copy has them."""

    _source: Source | None = PrivateAttr(None)

    @classmethod
    def read(cls, path: Path, settings: Sequence[str] = ()) -> "Experiment":
        """Reads and checks a TOML file, with some of its values replaced.

        Args:
            path: the file.
            settings: `path=value` each, as `fedax run --set` takes them: `task.alpha=0.5`,
                `algorithm.0.mu=1`.

        Raises:
            SpecError: unreadable, malformed, an unknown key, a value out of range; with file, line
                and what is allowed.
        """
        source = Source.read(path)
        document = map_texts(source.document, lambda text: resolve_code_path(text, path.parent))
        source.document = resolve_data_paths(document, path.parent)
        for setting in settings:
            source.override(setting)
        if settings:
            # those of the command line begin in the working directory
            source.document = resolve_data_paths(source.document, Path())
        return cls._from_source(source)

    @classmethod
    def parse(cls, text: str, name: str = "experiment", trust: bool = True) -> "Experiment":
        """Reads and checks TOML text.

        Args:
            text: of the file.
            name: for messages.
            trust: whether user code that it names may be loaded.

        Raises:
            SpecError: as `read`; user code that is not trusted.
        """
        return cls._from_source(Source(text, name), trust)

    @classmethod
    def of(cls, **sections: Any) -> "Experiment":
        """Makes and checks an experiment from Python values; problems are `InvalidInput`."""
        try:
            return cls.model_validate(python_tree(sections))._checked()
        except ValidationError as error:
            raise explain_error(error)[1] from error

    @classmethod
    def _from_source(cls, source: Source, trust: bool = True) -> "Experiment":
        experiment = source.validate(cls)
        experiment._source = source
        return experiment._checked(trust)

    def _checked(self, trust: bool = True) -> "Experiment":
        """Checks everything that needs no data and no single key says, and records user code.

        Raises:
            InvalidInput: the first problem; a `SpecError` with its line if read from a file.
        """
        members = self.members()
        with self._at("grid"):
            self._check_grid(len(members))
        with self._at("algorithm"):
            check_labels([section.shown() for section in self.algorithm])
            check_labels([member.label for member in members])
        if not trust:
            refuse_code(self)
        for position, name in enumerate(self.observe or ()):
            with self._at("observe", position):
                self._observer(name)
        with self._at("task"):
            find_task(self.task.name)
        self._make_common()
        with self._at("budget"):
            if self.budget is not None and self.clock is None:
                raise InvalidInput.found("budget", "no table [clock]", _NEEDS_CLOCK)
        for position, section in enumerate(self.algorithm):
            with self._at("algorithm", position):
                section.make()
        for member in members:
            self._make_member(member)
        return self.model_copy(update={"sources": check_sources(self)})

    def _check_grid(self, members: int) -> None:
        """Checks what the grid names, and the number of runs."""
        if self.grid is None:
            return
        owners = [owner for section in self.algorithm for owner in section.owners]
        self.grid.check(owners, self.seeds, self.validates)
        if members > MOST_MEMBERS:
            allowed = f"at most {MOST_MEMBERS}"
            raise InvalidInput.found("grid", f"more than {MOST_MEMBERS} algorithms", allowed)

    def _make_common(self) -> dict[str, Any]:
        """Makes what all members have in common, as arguments of `fedax.run`."""
        with self._at("solver"):
            self._make_solver(self.solver)
        with self._at("schedule"):
            self._make_schedule(self.schedule)
        with self._at("clock"):
            clock = self.clock and self.clock.make()
        messages: dict[str, Any] = {}
        for name, section in self.channel or ():
            with self._at("channel", name):
                messages[name] = section and section.make()
        with self._at("channel"):
            channel = Channel(**messages) if messages else None
        return {"clock": clock, "channel": channel}

    def _make_member(self, member: Member) -> tuple[Algorithm[Any], dict[str, Any]]:
        """Makes the algorithm of a member, and its solver and schedule by these names."""
        place = ("grid",) if self.grid else ("algorithm", member.position)
        with self._at(*place):
            algorithm = member.algorithm.make()
        with self._at(*place, "solver"):
            solver = self._make_solver(member.solver)
        with self._at(*place, "schedule"):
            schedule = self._make_schedule(member.schedule)
        return algorithm, {"solver": solver, "schedule": schedule}

    def _make_solver(self, section: SolverSection) -> Solver:
        """Makes a solver; one whose step size follows from the data with any number, to check its
        other options.
        """
        if not section.by_theory:
            return section.make()
        if self._is_private or self.engine not in ("simulation", "eager"):
            allowed = "numbers where examples are private or on other machines"
            raise InvalidInput.of("SGD(learning_rate=...)", BY_THEORY, allowed)
        return section.model_copy(update={"learning_rate": 1.0}).make()

    def _make_schedule(self, arguments: dict[str, Any]) -> Schedule:
        schedule = schedule_of(arguments)
        if schedule.timed_field and self.clock is None:
            raise InvalidInput.found(schedule.timed_field, "no table [clock]", _NEEDS_CLOCK)
        return schedule

    def only(self, chosen: Sequence[AlgorithmSection]) -> "Experiment":
        """Returns the experiment with some of its algorithms, and with what its grid says about
        them.
        """
        owners = [owner for section in chosen for owner in section.owners]
        grid = self.grid and self.grid.only(owners)
        return self.model_copy(update={"algorithm": list(chosen), "grid": grid})

    def _merge_solver(self, section: AlgorithmSection, **changes: Any) -> SolverSection:
        """Returns the solver of one algorithm: the common one with its own options, or another
        one.
        """
        own = section.solver | changes
        if own.get("name", self.solver.name) == self.solver.name:
            own = self.solver.options | own
        return SolverSection(**{"name": self.solver.name} | own)

    @property
    def validates(self) -> bool:
        """Whether the task keeps examples for validation."""
        return bool(self.task.options.get("validation"))

    @property
    def _is_private(self) -> bool:
        return self.channel is not None and self.channel.privacy is not None

    @property
    def select(self) -> str:
        """The metric that selects among the members of a grid."""
        return (self.grid or GridSection()).metric(self.validates)

    @property
    def best_by(self) -> str | None:
        """The metric by which the best model of a run is kept, if there is one on examples that are
        not trained on.
        """
        if self.early_stopping:
            return self.early_stopping.metric
        if not self.validates:
            return None
        return self.select if "validation" in self.select else "validation_loss"

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
        grid = self.grid or GridSection()
        members = (
            Member(
                position=position,
                method=section.shown(),
                algorithm=section.model_copy(update=point["algorithm"]),
                solver=self._merge_solver(section, **point["solver"]),
                schedule=self.schedule | section.schedule | point["schedule"],
                values=point,
            )
            for position, section in enumerate(self.algorithm)
            for point in grid.points(section)
        )
        # more are refused
        return list(itertools.islice(members, MOST_MEMBERS + 1))

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
        engine = self._make_engine()
        clients = clients or getattr(engine, "clients", None)
        task = task.for_clients(clients)
        sizes = np.asarray(task.train.sizes).tolist() * (clients or 1 if task.is_single else 1)
        common = self._make_common()
        algorithms: dict[str, Algorithm[Any]] = {}
        overrides: dict[str, dict[str, Any]] = {}
        for member in self.members():
            algorithm, made = self._make_member(member)
            with self._at("grid" if self.grid else "schedule"):
                made["schedule"].check_population(sizes)
                algorithms[member.label] = bound_to(algorithm, task.names, len(sizes))
                check_population(algorithms[member.label], len(sizes))
            overrides[member.label] = made
        with self._at("observe"):
            observers = self._make_observers(task)
        for section, metric in self.required_metrics().items():
            if metric in OBSERVERS and self._observer(metric) not in observers:
                with self._at(section):
                    self._observer(metric).check(task)
                    allowed = f"lists with {metric!r}, which `{section}` needs"
                    raise InvalidInput.of("observe", self.observe, allowed)
        best = self.best_by
        if best in OBSERVERS and self._observer(best) not in observers:
            best = None
        stop = [self.stop, self.early_stopping, self.budget]
        arguments = common | {
            "solver": self._make_solver(self.solver),
            "schedule": self._make_schedule(self.schedule),
            "rounds": self.rounds,
            "observe": observers,
            "engine": engine,
            "observe_every": self.observe_every,
            "stop": [rule for rule in stop if rule is not None],
            "on_bad_client": self.on_bad_client,
            "keep_best": best,
        }
        plan = Plan(task, algorithms, arguments, overrides)
        # a check with a stand-in would be one of a single client; its runs are checked at the start
        if len(sizes) == task.train.clients:
            with self._at("algorithm"):
                plan.check()
        return plan

    def _make_engine(self) -> Engine:
        if self.simulation is None:
            return ENGINES[self.engine]()
        if self.engine != "simulation":
            allowed = "simulation, where there is a table [simulation]"
            self.refuse(("simulation",), InvalidInput.of("engine", self.engine, allowed))
        return self.simulation

    def _make_task(self) -> Task:
        check_sources(self)
        with self._at("task"):
            task = tasks.task(self.task.name, **self.task.options)
            if self.engine == "mpi":
                engine: Any = ENGINES["mpi"]()
                engine.check_clients(task.train.clients)
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
        solver = self.solver
        algorithms: list[AlgorithmSection] = []
        with self._at("solver"):
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
        needed: dict[str, str] = {}
        if self.stop:
            needed["stop"] = "train_loss"
        if self.early_stopping:
            needed["early_stopping"] = self.early_stopping.metric
        if self.grid:
            needed["grid"] = self.select
        return needed

    def _observer(self, name: str) -> Observer:
        return make_observer(name, self.minimum, self.unseen_steps)

    def _make_observers(self, task: Task) -> list[Observer]:
        if self.observe is None:
            needed = self.required_metrics().values()
            return default_observers(task, self._observer, needed, self._is_private)
        observers = [self._observer(name) for name in self.observe]
        for observer in observers:
            observer.check(task)
        return observers

    def resolved(self) -> dict[str, Any]:
        """Returns the experiment with every default written out, as values that `of` takes."""
        values = self.model_dump(by_alias=True, exclude_none=True)
        changed = self.model_dump(by_alias=True, exclude_defaults=True).keys() | WRITTEN
        values = {key: value for key, value in values.items() if key in changed}
        options = task_options(self.task.name, self.task.options)
        defaults = {key: option.default for key, option in options.items()}
        plain = {key: v for key, v in defaults.items() if isinstance(v, int | float | str)}
        values["task"] = plain | values["task"]
        values["schedule"] = self._make_schedule(self.schedule).options
        values["solver"] = self._all_values(self.solver)
        values["algorithm"] = [
            self._all_values(section)
            | {
                "label": section.shown(),
                "solver": self._all_values(self._merge_solver(section)) if section.solver else None,
                "schedule": section.schedule or None,
            }
            for section in self.algorithm
        ]
        if self.grid:
            seeds = self.grid.selecting(self.seeds)
            values["grid"] |= {"select": self.select, "seeds": seeds}
        return to_toml_values(values)

    def _all_values(self, section: AlgorithmSection | SolverSection) -> dict[str, Any]:
        """Returns name and hyperparameters of a section."""
        values = {"name": section.name} | section.options
        is_by_theory = isinstance(section, SolverSection) and section.by_theory
        owner = self._make_solver(section) if isinstance(section, SolverSection) else section.make()
        values |= {name: getattr(owner, name) for name in declared(owner)}
        return values | ({"learning_rate": BY_THEORY} if is_by_theory else {})

    def hyperparameters_of(self, section: AlgorithmSection | SolverSection) -> dict[str, Any]:
        """Returns the class of an algorithm or a solver as `type`, and its hyperparameters by
        name.
        """
        values = self._all_values(section)
        title = title_of(values.pop("name"))
        if section.kind is None or section.name in self.sources:
            return {"type": title} | values
        # TOML has no word for None
        known = declared(section.kind)
        full = {name: values.get(name, limits.default) for name, limits in known.items()}
        return {"type": section.kind.__name__} | {
            name: value
            for name, value in full.items()
            if not (known[name].later and value == known[name].default)
        }

    def toml(self) -> str:
        """Returns `resolved` as TOML text: reading it gives the same runs."""
        return tomli_w.dumps(self.resolved())

    def refuse(self, key_path: KeyPath, error: InvalidInput) -> NoReturn:
        """Raises an error about one key; a `SpecError` with its line if the experiment was read
        from a file.
        """
        if self._source is None:
            raise error
        raise self._source.error(key_path, error) from error

    @contextlib.contextmanager
    def _at(self, *key_path: str | int) -> Iterator[None]:
        """Turns `InvalidInput` about a table into a `SpecError` with the line."""
        try:
            yield
        except SpecError:
            raise
        except InvalidInput as error:
            self.refuse(key_path, error)
