"""One experiment: several algorithms and seeds on one task, as a validated TOML file."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import Field, model_validator

from fedax import tasks
from fedax.algorithms import algorithm_class
from fedax.audit import check_auditable
from fedax.core import Algorithm, InvalidInput, Task
from fedax.core.hyper import bound_to
from fedax.core.scheduling.clock import Clock
from fedax.engine.backends.simulation import Simulation
from fedax.engine.driver.early_stopping import Budget, Divergence, EarlyStopping
from fedax.engine.round.engine import Engine
from fedax.experiments.config.observers import default_observers, make_observer, observers_of
from fedax.experiments.config.plan import Member, Plan
from fedax.experiments.config.sections import (
    ENGINES,
    TEXT,
    AlgorithmSection,
    AuditSection,
    ChannelSection,
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
    values_of,
)
from fedax.experiments.config.toml import (
    map_texts,
    override,
    parse_toml,
    read_toml,
    spec_errors,
    to_toml_values,
    validate,
)
from fedax.experiments.config.user_code import (
    check_sources,
    refuse_code,
    resolve_code_path,
    resolve_data_paths,
)
from fedax.observe.base import Observer, modes_of
from fedax.observe.modes import is_higher_better
from fedax.results.tables.reductions import ValueReduction
from fedax.tasks.sources import find_task, task_options

MOST_MEMBERS = 1_000
"""Algorithms of an experiment with its grid."""
WRITTEN = ("rounds", "observe_every", "seeds", "solver", "schedule")
"""Keys that are written out at their defaults too."""


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
    clock: dict[str, Any] | None = None
    """The arguments of `fedax.Clock`; arrays and functions are `"FILE:NAME"`."""
    budget: Annotated[Budget | None, made(Budget)] = None
    """Ends a run that has spent its time or energy on the clock of `[clock]`: the options of
    `fedax.Budget`."""
    unseen_steps: Count = 5
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
    """Hashes of the data, see `data_hashes`; a run directory's copy has them."""

    @classmethod
    def read(cls, path: Path, settings: Sequence[str] = ()) -> "Experiment":
        """Reads and checks a TOML file, with some of its values replaced.

        Args:
            path: the file.
            settings: `path=value` each, as `fedax run --set` takes them: `task.alpha=0.5`,
                `algorithm.0.mu=1`.

        Raises:
            SpecError: unreadable, malformed, an unknown key, a value out of range; with the file
                and what is allowed.
        """
        document = map_texts(read_toml(path), lambda text: resolve_code_path(text, path.parent))
        document = resolve_data_paths(document, path.parent)
        for setting in settings:
            override(document, setting)
        # those of the command line begin in the working directory
        document = resolve_data_paths(document, Path())
        with spec_errors(str(path)):
            return validate(cls, document)

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
        document = parse_toml(text, name)
        with spec_errors(name):
            if not trust:
                refuse_code(document)
            return validate(cls, document)

    @classmethod
    def of(cls, **sections: Any) -> "Experiment":
        """Makes and checks an experiment from Python values; problems are `InvalidInput`."""
        return validate(cls, sections)

    @model_validator(mode="after")
    def check(self) -> "Experiment":
        """Refuses what needs no data to be seen, and no single key says."""
        check_sources(self)
        members = self.members()
        if self.audit and self.endings:
            raise InvalidInput.because("audit", "its runs take no rule that ends them early")
        if self.grid:
            owners = [owner for section in self.algorithm for owner in section.owners]
            self.grid.check(owners, self.seeds)
        if len(members) > MOST_MEMBERS:
            allowed = f"at most {MOST_MEMBERS}"
            raise InvalidInput.found("grid", f"more than {MOST_MEMBERS} algorithms", allowed)
        check_labels([section.shown() for section in self.algorithm])
        check_labels([member.label for member in members])
        find_task(self.task.name)
        self._make_conditions()
        for member in members:
            member.make()
        return self

    def _make_conditions(self) -> dict[str, Any]:
        """Makes the channel and the clock, as arguments of `fedax.run`."""
        clock = None if self.clock is None else Clock.of(self.clock)
        return {"clock": clock, "channel": self.channel and self.channel.make()}

    def only(self, labels: Sequence[str] | None) -> "Experiment":
        """Returns the experiment with some of its algorithms, or all, and with what its grid says
        about them.
        """
        if labels is None:
            return self
        chosen = [section for section in self.algorithm if section.shown() in labels]
        owners = [owner for section in chosen for owner in section.owners]
        grid = self.grid and self.grid.only(owners)
        return self.model_copy(update={"algorithm": chosen, "grid": grid})

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
    def is_private(self) -> bool:
        """Whether clients' updates are clipped and get noise."""
        return self.channel is not None and self.channel.privacy is not None

    @property
    def endings(self) -> list[Any]:
        """The rules that end runs before their last round."""
        return [rule for rule in (self.stop, self.early_stopping, self.budget) if rule]

    @property
    def select(self) -> str:
        """The metric that selects among the members of a grid."""
        if self.grid and self.grid.select:
            return self.grid.select
        if not self.validates:
            return "train_loss"
        return "local_validation_loss_pooled" if self.is_personal else "validation_loss"

    @property
    def is_personal(self) -> bool:
        """Whether a method has models that its clients use themselves."""
        kinds = [algorithm_class(section.name) for section in self.algorithm]
        return any(kind.personal is not Algorithm.personal for kind in kinds)

    @property
    def best_by(self) -> str | None:
        """The metric by which the best model of a run is kept, if there is one on examples that are
        not trained on.
        """
        if self.early_stopping:
            return self.early_stopping.metric
        if not self.validates:
            return None
        return self.select if self.select.startswith("validation") else "validation_loss"

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
                method=section.shown(),
                algorithm=section.model_copy(update=point["algorithm"]),
                solver=self._merge_solver(section, **point["solver"]),
                schedule=self.schedule | section.schedule | point["schedule"],
                values=point,
            )
            for section in self.algorithm
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
            InvalidInput: options that do not fit the task or its data.
        """
        made = {member.label: member.make() for member in self.members()}
        if task is None:
            check_sources(self)
            task = tasks.task(self.task.name, **self.task.options)
        engine: Any = self._make_engine()
        if self.engine == "mpi":
            engine.check_clients(task.train.clients)
        if self.audit is not None:
            check_auditable(task)
        clients = clients or getattr(engine, "clients", None)
        task = task.for_clients(clients)
        count = task.train.clients * (clients or 1 if task.is_single else 1)
        algorithms = {
            label: bound_to(algorithm, task.names, count) for label, (algorithm, _) in made.items()
        }
        observers = self._make_observers(task)
        if self.grid:
            # refuses a metric that cannot select, before anything runs
            is_higher_better(self.select, [modes_of(observers.values(), task)])
        best = self.best_by
        if best == "validation_loss" and best not in observers:
            best = None
        arguments = self._make_conditions() | {
            "rounds": self.rounds,
            "observe": list(observers.values()),
            "engine": engine,
            "observe_every": self.observe_every,
            "stop": self.endings,
            "on_bad_client": self.on_bad_client,
            "keep_best": best,
        }
        own = {label: options for label, (_, options) in made.items()}
        own[""] = {"solver": self.solver.make(), "schedule": schedule_of(self.schedule)}
        plan = Plan(task, algorithms, arguments, own)
        # a check with a stand-in would be one of a single client; its runs are checked at the start
        if count == task.train.clients:
            plan.check()
        return plan

    def _make_engine(self) -> Engine:
        if self.simulation is None:
            return ENGINES[self.engine]()
        if self.engine != "simulation":
            allowed = "simulation, where there is a table [simulation]"
            raise InvalidInput.of("engine", self.engine, allowed)
        return self.simulation

    def required_metrics(self) -> list[str]:
        """Returns the metrics that sections need."""
        needed = ["train_loss"] if self.stop else []
        needed += [self.early_stopping.metric] if self.early_stopping else []
        return needed + ([self.select] if self.grid else [])

    def _make_observers(self, task: Task) -> dict[str, Observer]:
        """Makes the observers that are named, or else fit the task, and those that are needed."""
        names = self.observe
        known = observers_of(task, self.minimum, self.unseen_steps)
        if names is None:
            names = default_observers(task, known, self.is_private, self.is_personal)
        # one of an own observer ends runs, but selects nothing
        names = [*names, *(n for n in self.required_metrics() if n in (*known, self.select))]
        observers = {name: make_observer(name, known) for name in dict.fromkeys(names)}
        for observer in observers.values():
            observer.check(task)
        return observers

    def resolved(self) -> dict[str, Any]:
        """Returns the experiment with every default written out, as values that `of` takes."""
        changed = self.model_dump(exclude_defaults=True).keys() | WRITTEN
        values = self.model_dump(by_alias=True, exclude_none=True, include=changed)
        plain = {
            key: option.default
            for key, option in task_options(self.task.name, self.task.options).items()
            if isinstance(option.default, int | float | str)
        }
        values["task"] = plain | values["task"]
        values["schedule"] = schedule_of(self.schedule).options
        values["solver"] = values_of(self.solver)
        values["algorithm"] = [
            values_of(section)
            | {
                "label": section.shown(),
                "solver": values_of(self._merge_solver(section)) if section.solver else None,
                "schedule": section.schedule or None,
            }
            for section in self.algorithm
        ]
        if self.grid:
            seeds = self.grid.selecting(self.seeds)
            values["grid"] |= {"select": self.select, "seeds": seeds}
        return to_toml_values(values)

    def toml(self) -> str:
        """Returns `resolved` as TOML text: reading it gives the same runs."""
        return tomli_w.dumps(self.resolved())
