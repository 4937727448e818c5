"""The abstractions of fedax: what an algorithm file imports, and nothing of ours below it."""

from fedax.core.algorithm import Algorithm, Citation, ModelAndStates, Personal, Reduction, Solved
from fedax.core.client import Client, Minibatch, Solver
from fedax.core.federation import ClientStates, Cohort, Federation, Gathered, Upload
from fedax.core.history import Best, ClockReadings, History, Outcome
from fedax.core.hyper import PerClient, Scalar, entry, hyper
from fedax.core.local_problem import LocalProblem
from fedax.core.scheduling.asynchronous import Asynchronous
from fedax.core.scheduling.availability import Availability, Daily, Trace
from fedax.core.scheduling.clock import Clock
from fedax.core.scheduling.conditions import Conditions
from fedax.core.scheduling.schedule import Schedule
from fedax.core.solver import (
    SGD,
    Exact,
    Inexact,
    Optax,
    added_gradient,
    scaled_gradient,
    sharp_gradient,
)
from fedax.core.task import Ragged, Task
from fedax.core.traffic import Traffic
from fedax.errors import (
    DataError,
    FedaxError,
    InvalidInput,
    RankFailed,
    RunExists,
    RunFailed,
    SpecError,
    UnknownName,
    WorkError,
    WriteFailed,
)
from fedax.utils.layout import Layout, Part, Vector
from fedax.utils.leaf_names import Which

__all__ = [
    "SGD",
    "Algorithm",
    "Asynchronous",
    "Availability",
    "Best",
    "Citation",
    "Client",
    "ClientStates",
    "Clock",
    "ClockReadings",
    "Cohort",
    "Conditions",
    "Daily",
    "DataError",
    "Exact",
    "FedaxError",
    "Federation",
    "Gathered",
    "History",
    "Inexact",
    "InvalidInput",
    "Layout",
    "LocalProblem",
    "Minibatch",
    "ModelAndStates",
    "Optax",
    "Outcome",
    "Part",
    "PerClient",
    "Personal",
    "Ragged",
    "RankFailed",
    "Reduction",
    "RunExists",
    "RunFailed",
    "Scalar",
    "Schedule",
    "Solved",
    "Solver",
    "SpecError",
    "Task",
    "Trace",
    "Traffic",
    "UnknownName",
    "Upload",
    "Vector",
    "Which",
    "WorkError",
    "WriteFailed",
    "added_gradient",
    "entry",
    "hyper",
    "scaled_gradient",
    "sharp_gradient",
]
