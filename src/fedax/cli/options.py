"""Arguments and options that several commands share."""

import re
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

import fedax

_FILE = Argument(help="Experiment file; `fedax new experiment` writes one.", metavar="FILE.toml")
File = Annotated[Path, _FILE]
OptionalFile = Annotated[Path | None, _FILE]
Settings = Annotated[
    list[str] | None,
    Option(
        "--set",
        help="Replaces a value of the file, such as rounds=5, task.alpha=0.5 or "
        "algorithm.0.mu=1; may be repeated.",
        metavar="PATH=VALUE",
        show_default=False,
    ),
]
Out = Annotated[
    Path | None,
    Option(
        help="Folder for the results; runs that it has are not made again.",
        show_default="below runs/",
    ),
]
Jobs = Annotated[int, Option(min=1, help="Processes.")]
OnSlurm = Annotated[
    bool,
    Option(
        "--slurm",
        help="Submit the work as jobs of a Slurm cluster, see the table [cluster] "
        "(needs the extra `slurm`).",
    ),
]
OnHosts = Annotated[
    bool, Option("--hosts", help="This is one of several hosts; see the guide to hosts.")
]
Folder = Annotated[Path, Argument(help="A run directory.", metavar="DIR")]
Folders = Annotated[list[Path], Argument(help="One or more run directories.", metavar="DIR...")]
Run = Annotated[
    str | None,
    Option(
        "--run",
        help="The beginning of the run's id, as summary.json lists them, or the end of its title, "
        "such as 'FedAvg, seed 0'.",
        show_default="the only run",
    ),
]
Client = Annotated[
    str | None,
    Option(
        help="Take this client's own model, for all rows. The run needs keep_models = 'personal'.",
        show_default="none",
    ),
]
Best = Annotated[
    bool, Option("--best", help="The best model on validation examples, not the final one.")
]
TrustCode = Annotated[
    bool,
    Option(
        "--trust-code",
        help="Run what the directory names: your own code, and the commands of [cluster].",
    ),
]


def _complete_algorithm() -> list[str]:
    # from the list of names, because a shell does not wait for JAX
    names = Path(fedax.__file__).with_suffix(".pyi").read_text("utf-8").lower()
    return re.findall(r"algorithms\..* as (\w+)", names)


Algorithms = Annotated[
    list[str],
    Argument(
        autocompletion=_complete_algorithm,
        help="One or more of name:key=value,...; your own is path/to/file.py:Class:key=value,...",
        metavar="ALGORITHM...",
    ),
]
Solver = Annotated[str, Option(help="Local solver, as name:key=value,...")]
Schedule = Annotated[str, Option(help="Sampling and local work, as key=value,...")]
