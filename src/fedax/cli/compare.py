"""`fedax compare`: algorithms on one task, described by options."""

from pathlib import Path
from typing import Annotated

from typer import Option

from fedax.cli.options import Algorithms, Out, Schedule, Solver


def compare(
    algorithms: Algorithms,
    *,
    task: Annotated[str, Option(help="Task, as name:key=value,...")] = "synthetic:alpha=1,beta=1",
    rounds: Annotated[int, Option(help="Communication rounds.")] = 50,
    seeds: Annotated[str, Option(help="Seeds, separated by commas.")] = "0",
    solver: Solver = "sgd:learning_rate=0.01",
    schedule: Schedule = "",
    observe: Annotated[
        str,
        Option(
            help="Observers, separated by commas, such as train_loss.",
            show_default="those that fit the task",
        ),
    ] = "",
    observe_every: Annotated[int, Option(help="Rounds between observations.")] = 1,
    out: Out = None,
) -> None:
    """Compare algorithms on one task, with one or several seeds.

    `fedax algorithms` lists the algorithms and their hyperparameters.

    Example: `fedax compare fedavg fedprox:mu=1 feddane:mu=0.01,cohorts=shared --schedule
    cohort=10,epochs=20,batch_size=10 --rounds 50 --seeds 0,1,2`
    """
    from fedax.cli.summary import run_and_print
    from fedax.experiments.config.experiment import Experiment
    from fedax.experiments.config.shorthand import parse_options, parse_section, parse_value
    from fedax.experiments.config.user_code import resolve_data_paths

    experiment = Experiment.of(
        # a path may be longer than a name
        name=task[:200],
        rounds=rounds,
        observe_every=observe_every,
        seeds=parse_value(f"[{seeds}]"),
        observe=[observer.strip() for observer in observe.split(",")] if observe else None,
        task=resolve_data_paths({"task": parse_section(task)}, Path())["task"],
        solver=parse_section(solver),
        schedule=parse_options(schedule),
        algorithm=[parse_section(text) for text in algorithms],
    )
    run_and_print(experiment, out)
