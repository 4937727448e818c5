"""Checks the arguments of runs and builds the program that serves them."""

import dataclasses
import json
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, SupportsIndex

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from fedax.communication.attacks import Collusion
from fedax.communication.channel import Channel
from fedax.core.algorithm import Algorithm
from fedax.core.bound_model import evaluated_state
from fedax.core.carry import RunCarry
from fedax.core.client import Solver
from fedax.core.hyper import Hyper, as_arrays, bound_to, check_population, declared
from fedax.core.scheduling.schedule import Schedule, as_inputs
from fedax.core.task import Given, Task, initial_params
from fedax.core.validation.own_methods import call_model
from fedax.engine.backends.simulation.engine import Simulation, first_round
from fedax.engine.compilation.identity import (
    Identity,
    describe,
    environment,
    hash_arrays,
    hash_program,
    merge,
    task_identity,
)
from fedax.engine.distributed.process_group import ProcessGroup
from fedax.engine.driver.early_stopping import Budget
from fedax.engine.driver.options import RunOptions, check_kind
from fedax.engine.round.client import Setup
from fedax.engine.round.engine import Program, ProgramInputs, Setting
from fedax.engine.round.evaluation import ModelsOfClients
from fedax.engine.round.privacy import private_of
from fedax.engine.round.timeline import timing_of
from fedax.engine.round.trace import trace
from fedax.errors import InvalidInput
from fedax.models.storage import initial_model
from fedax.utils.random import MOST_SEED

_SHOWN = 64
"""Of longer arrays only the ends of their range are among the settings of a history."""
_CHOICES = ("channel", "clock", "observe", "keep_best", "on_bad_client")
"""Options on which the results of runs depend."""


class Member(NamedTuple):
    """One run of a grid: its setting and its seed."""

    setting: Setting
    seed: int


class Grid:
    """Runs that one program serves: the first algorithm with all seeds, then the next.

    Construction checks everything before anything is compiled, in steps: resolve the arguments,
    check that all ranks got the same ones, put the setup of a round together, and make the engine's
    program of rounds. Without seeds it only checks.

    Args:
        algorithms: of one class, which differ in real hyperparameters only.
        task: what is learned.
        seeds: of every algorithm, at least 0.
        options: of the runs.
        solvers, schedules: for each algorithm its own; by default those of the options.

    Attributes:
        begun: the time when the construction began.
        members: the runs.
        identity: makes the identity of all runs, by which their checkpoints are known.
        private: the account of privacy; None without.
        rounds: of the runs, as many as the budget of privacy allows.
        seen_task: the task with the training examples that the clients see, which an attack may
            have poisoned.

    Raises:
        InvalidInput: what does not fit together, before anything is compiled; ranks that disagree.
    """

    program: Program

    def __init__(
        self,
        algorithms: Sequence[Algorithm[Any]],
        task: Task,
        seeds: Sequence[SupportsIndex],
        options: RunOptions,
        solvers: Sequence[Solver] = (),
        schedules: Sequence[Schedule] = (),
    ) -> None:
        self.begun = time.perf_counter()
        solvers = solvers or [options.solver] * len(algorithms)
        schedules = schedules or [options.schedule] * len(algorithms)
        settings = [Setting(*row) for row in zip(algorithms, solvers, schedules, strict=True)]
        engine = options.engine
        # without seeds only the arguments are checked, which one rank may do alone
        group = engine.process_group if seeds else ProcessGroup()
        with group.raise_on_all_ranks():
            setup, roots = self._resolve(settings, task, seeds, options)
        if seeds:
            traced = setup
            config = {
                "rounds": self.options.rounds,
                "observe_every, checkpoint_every": self.options.periods,
                "personal": self.options.personal,
            }
            self.identity = group.check_same_config(
                lambda: merge(self.identities(traced)), **config
            )
            # on several ranks the setup has this rank's examples only
            setup = engine.prepared(setup)
        with group.raise_on_all_ranks():
            setup = self._check_setup(setup)
        self.private = setup.private
        self.published = setup.published
        self.seen_task = setup.task
        self.rounds = self.options.rounds
        if self.private is not None:
            self.rounds = self.private.affordable_rounds(self.rounds)
        if seeds:
            # the static number of rows that a call's log has
            longest = min(self.options.observe_every, max(self.options.rounds, 1))
            algorithms, solvers, schedules = zip(*self.settings, strict=True)
            arrays = as_arrays((algorithms, solvers), self.layout.dtype)
            inputs = [*map(Setting, *arrays, as_inputs(schedules))]
            self.program = engine.program(ProgramInputs(inputs, setup, roots, longest))
            observers = [*(self.options.observe or ())]
            if self.options.personal:
                observers.append(ModelsOfClients())
            self.program.check(observers)

    def _resolve(
        self,
        settings: Sequence[Setting],
        task: Task,
        seeds: Sequence[SupportsIndex],
        options: RunOptions,
    ) -> tuple[Setup, list[Key[Array, ""]]]:
        """Checks the arguments and resolves what they leave open: observers, directions of metrics
        and initial models.

        Returns the setup of a round, and the root key of each seed.
        """
        check_kind("run(task=...)", task, Task)
        # clients of a deployment, of which the task may be a stand-in
        task = task.for_clients(getattr(options.engine, "clients", None))
        for setting in settings:
            check_kind("run(algorithm=...)", setting.algorithm, Algorithm)
        self.options = options = options.resolve(task, settings[0].algorithm)
        for seed in seeds:
            Hyper("seed", 0, low=0, high=MOST_SEED).check("run", seed)
        names = task.names
        clients = task.train.clients
        self.settings = [
            s._replace(algorithm=bound_to(s.algorithm, names, clients)) for s in settings
        ]
        self._check_one_program()
        if options.params is not None:
            model, task = initial_model(task, options.params, "run")
            task = dataclasses.replace(task, start=Given(model))
        self.task = task
        setup = Setup.of(
            self.settings[0].algorithm, task, options.schedule, options.solver, options.channel
        )
        self.layout = setup.layout
        starts = [initial_params(task, int(seed)) for seed in seeds]
        self.models = [model for model, _ in starts]
        self.members = [Member(setting, int(seed)) for setting in self.settings for seed in seeds]
        setup = dataclasses.replace(setup, drop=options.on_bad_client == "drop")
        return setup, [root for _, root in starts]

    def _check_one_program(self) -> None:
        """Refuses members that differ in more than what one program takes as inputs."""
        options = self.options
        is_private = options.channel is not None and options.channel.privacy is not None
        # these use numbers of the schedule before the program runs
        is_fixed = (
            is_private or options.clock is not None or options.schedule.asynchronous is not None
        )
        simulates = isinstance(options.engine, Simulation)
        can_vary = {
            "algorithms": True,
            "solver": simulates,
            "schedule": simulates and not is_fixed,
        }
        columns = zip(*self.settings, strict=True)
        for (name, are_inputs), values in zip(can_vary.items(), columns, strict=True):
            is_input = are_inputs or eqx.tree_equal(*values)
            if len(set(map(program_key, values))) > 1 or not is_input:
                hint = "Call it once for each. An experiment file has grids of several programs."
                allowed = f"all alike but for {_INPUTS[name]}"
                raise InvalidInput.of(f"run_grid({name}=...)", values, allowed, hint)

    def _check_setup(self, setup: Setup) -> Setup:
        """Checks that algorithm, schedule, data and model fit; adds attacks, clocks and privacy."""
        options = self.options
        clients = setup.population.clients
        engine = options.engine
        channel = options.channel
        clock = options.clock
        if channel is not None and channel.attack is not None:
            channel.attack.check_share(clients)
            poisoned = channel.attack.poison(setup.task, setup.first, clients)
            setup = dataclasses.replace(setup, task=poisoned)
        sizes = np.asarray(setup.population.sizes).tolist()
        for algorithm, _, schedule in self.settings:
            schedule.check_population(sizes, setup.task.couples)
            check_population(algorithm, clients)
            algorithm.check(schedule, sizes)
            algorithm.check_model(self.task, self.layout)
        # members differ in real hyperparameters only, so the first one has the phases of all
        timing = timing_of(setup, clock, options.rounds)
        # only a round tells whether its clients solve one problem
        if getattr(options.solver, "keep", False):
            trace(setup)
        if channel is not None and isinstance(channel.attack, Collusion):
            _check_collusion(channel, options)
        if clock is not None:
            if not engine.in_process:
                reason = f"the engine {type(engine).__name__} has no virtual clock"
                hint = "Simulation and Eager have one."
                raise InvalidInput.because("run(clock=...)", reason, hint)
            clock.check(clients)
        private = private_of(setup)
        if private is not None and options.personal:
            reason = "with privacy, what clients keep for themselves is not published"
            hint = "Observers tell how good their models are."
            raise InvalidInput.because("run(personal=...)", reason, hint)
        return dataclasses.replace(setup, private=private, timing=timing)

    def identities(self, traced: Setup | None = None) -> list[Identity]:
        """Returns for each run what its results depend on.

        Args:
            traced: for checkpoints: the setup of a round, of which the program counts too. Then
                data count as a whole, which costs more.
        """
        options = self.options
        models = self.models
        shared = environment() | task_identity(self.task, self.layout, traced is not None)
        if traced is None and self.private is not None:
            # two populations could be told apart by hashes in a history
            shared = {name: fact for name, fact in shared.items() if not name.startswith("data.")}
        for client, examples in options.engine.describe_clients().items():
            shared[f"examples of {client}"] = examples
        for name in _CHOICES:
            shared |= describe(getattr(options, name), name)
        rules = [rule for rule in options.rules if not isinstance(rule, Budget)]
        shared |= describe(rules, "stop")
        # budgets say when a run ends, not what its rounds do
        shared.pop("channel.privacy.budget", None)
        # a rank that has its own client alone, and a stand-in, do not know the round of all
        count = getattr(options.engine, "clients", None) or options.engine.process_group.size
        if traced is not None and self.task.train.clients >= count:
            # all runs share the program of a round and its metrics
            seed = jax.random.key(0), jnp.zeros(self.layout.dim, self.layout.dtype)
            arguments = traced, seed, jnp.int32(0), tuple(options.observe or ())
            shared["program of a round"] = hash_program(first_round, *arguments)
        identities = []
        for i, member in enumerate(self.members):
            facts = {
                "seed": member.seed,
                "start": hash_arrays(models[i % len(models)], sampled=True),
            }
            facts |= shared
            algorithm, solver, schedule = member.setting
            facts |= describe(as_arrays(algorithm, self.layout.dtype), "algorithm")
            facts |= describe(solver, "solver")
            facts |= describe(schedule, "schedule")
            identities.append(facts)
        return identities

    def facts(self) -> list[dict[str, Any]]:
        """Returns for each run `algorithm`, `settings` and `origin` of its history."""
        facts: list[dict[str, Any]] = []
        channel = self.options.channel
        for member, identity in zip(self.members, self.identities()):
            algorithm, solver, schedule = member.setting
            settings = {
                "algorithm": hyperparameters_of(algorithm),
                "solver": hyperparameters_of(solver),
                "schedule": schedule.options,
                "channel": channel and type(channel).__name__,
                "on_bad_client": self.options.on_bad_client,
            }
            plain = json.loads(json.dumps(settings, sort_keys=True, default=_to_plain))
            name = type(algorithm).__name__
            facts.append({"algorithm": name, "settings": plain, "origin": identity})
        return facts

    def init(self) -> Any:
        """Returns the states of all runs before round 0."""
        return self.program.start([self.layout.ravel(params) for params in self.models])

    def flat(self, params: PyTree) -> Float[Array, "dim"]:
        """Returns the trained leaves of a model in the user's pytree as one vector."""
        trained = jax.tree.map(
            lambda form, leaf: None if form is None else leaf,
            self.layout.form,
            params,
            is_leaf=lambda node: node is None,
        )
        return self.layout.ravel(trained)

    def params(self, member: Member, carry: RunCarry) -> PyTree:
        """Returns the global model of a run as the user's own pytree."""
        state = self.published(carry.state)
        return self.to_params(call_model(member.setting.algorithm, state, self.layout.dim))

    def evaluated_state(self, carry: RunCarry) -> PyTree:
        """Returns the state of the model in which a run's global model is evaluated."""
        # the grid's task: in the state that came with `params`
        return evaluated_state(self.published(carry.model_state), self.task.state)

    def to_params(self, w: Float[Array, "dim"]) -> PyTree:
        """Returns a flat model as the user's own pytree."""
        return self.task.assembled(self.layout.unravel(w))


def program_key(owner: Algorithm[Any] | Solver | Schedule) -> Any:
    """Returns a key that is equal for algorithms, solvers or schedules that one compiled program
    can serve.
    """
    leaves, structure = jax.tree.flatten(as_arrays(owner, np.float32))
    # what is no array is a constant of the program
    return structure, tuple(np.shape(leaf) if eqx.is_array(leaf) else leaf for leaf in leaves)


def hyperparameters_of(owner: object) -> dict[str, Any]:
    """Returns the class of an algorithm or a solver as `type`, and its hyperparameters by name."""
    return {"type": type(owner).__name__} | {name: getattr(owner, name) for name in declared(owner)}


def _to_plain(value: Any) -> Any:
    if not hasattr(value, "tolist"):
        return repr(value)
    array = np.asarray(value)
    return array.tolist() if array.size <= _SHOWN else [float(array.min()), float(array.max())]


_INPUTS = {
    "algorithms": "real hyperparameters",
    "solver": "real hyperparameters, in a simulation",
    "schedule": "probabilities, in a simulation without devices, privacy and an asynchronous "
    "server",
}
"""In what the runs of one program may differ."""


def _check_collusion(channel: Channel, options: RunOptions) -> None:
    """Refuses a collusion where the uploads of a cohort do not meet as their clients made them."""
    others = [name for name in ("up", "down", "privacy") if getattr(channel, name) is not None]
    refusals = {
        "runs in this process: Simulation, Eager or MPI": not options.engine.is_simulated,
        f"a channel without {others[0] if others else ''}=...": others,
        "a server that waits for its cohorts": options.schedule.asynchronous is not None,
    }
    for allowed, is_refused in refusals.items():
        if is_refused:
            raise InvalidInput.of("Channel(attack=...)", channel.attack, f"{allowed}, for this one")
