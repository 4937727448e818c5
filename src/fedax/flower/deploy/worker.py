"""A client's process: takes the tasks of its SuperNode one after the other, and stays warm in
between.

Flower's own way is a process for every message, which would load JAX and compile anew each time.
The code that comes with a task is not run here: a client runs the fedax and the experiment that are
on its own disk.
"""

import logging
import runpy
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import numpy as np

from fedax.core import DataError, InvalidInput, Task
from fedax.core.task import Ragged
from fedax.flower.client.device import Device
from fedax.flower.deploy.settings import Deployment
from fedax.flower.protocol.plan import Assignment

LOG = logging.getLogger("fedax.flower.deploy")
PAUSES = 0.02, 0.25
"""Seconds between two looks for a task: after one, and at most."""


def device_for(deployment: Deployment, partition: int, data: Path | None = None) -> Device:
    """Returns the device of a client, by the experiment in its folder.

    Args:
        deployment: the client's copy of the folder.
        partition: its number.
        data: a file of Python with its own examples, see `load_client_data`; by default its part of
            the experiment's task.
    """
    experiment = deployment.experiment("simulation")
    plan = experiment.plan()
    task = plan.task if data is None else load_client_data(plan.task, partition, data)
    assignments = []
    for label, algorithm in plan.algorithms.items():
        given = plan.arguments_of(label)
        assignments.append(
            Assignment(algorithm, given["solver"], given["schedule"], given["channel"])
        )
    return Device(
        task, partition, deployment.path("clients", partition), assignments, deployment.secure > 0
    )


def load_client_data(task: Task, partition: int, path: Path) -> Task:
    """Returns the task with one client's examples instead of all others.

    The file defines `examples(partition)`, which returns the training examples, a dictionary of
    arrays with one row each, or a pair of those and test examples. Names, types and shapes of rows
    are those of the task.

    Raises:
        InvalidInput: no such file or function.
        DataError: examples of another form.
    """
    if not path.is_file():
        raise InvalidInput.of(
            "--data", str(path), "a file of Python that defines examples(partition)"
        )
    examples = runpy.run_path(str(path)).get("examples")
    if not callable(examples):
        raise InvalidInput.found(
            "--data", f"{path} without examples(partition)", "a file that defines this function"
        )
    given = examples(partition)
    train, test = given if isinstance(given, tuple) else (given, None)
    own = eqx.tree_at(
        lambda t: t.train, task, _checked(task.train, train, f"{path}, training examples")
    )
    if task.test is None:
        return own
    nothing = {name: values[:0] for name, values in task.test.arrays.items()}
    rows = _checked(
        task.test, nothing if test is None else test, f"{path}, test examples", allow_empty=True
    )
    return eqx.tree_at(lambda t: t.test, own, rows)


def _checked(like: Ragged, given: Any, where: str, allow_empty: bool = False) -> Ragged:
    forms = {name: (values.shape[1:], str(values.dtype)) for name, values in like.arrays.items()}
    if not isinstance(given, Mapping) or set(given) != set(forms):
        got = sorted(given) if isinstance(given, Mapping) else given
        raise DataError.of(where, got, f"a dictionary of arrays {sorted(forms)}")
    own = Ragged.of([given], where=where, allow_empty=allow_empty)
    for name, (shape, dtype) in forms.items():
        values, known = np.asarray(own.arrays[name]), np.asarray(like.arrays[name])
        if values.shape[1:] != shape or values.dtype.kind != known.dtype.kind:
            got = f"{values.dtype} rows of shape {values.shape[1:]}"
            raise DataError.found(
                f"{where}, {name!r}",
                got,
                f"{dtype} rows of shape {shape}, as in the experiment's task",
            )
        if known.dtype.kind in "iu" and values.size and known.size:
            least, most = int(known.min()), int(known.max())
            if values.min() < least or values.max() > most:
                got = f"numbers from {values.min()} to {values.max()}"
                raise DataError.found(
                    f"{where}, {name!r}", got, f"{least} to {most}, as in the experiment's task"
                )
    return eqx.tree_at(
        lambda data: data.arrays,
        own,
        {name: np.asarray(v, forms[name][1]) for name, v in own.arrays.items()},
    )


_DEVICES: dict[tuple[str, int, str], Device] = {}


def device_of(config: Mapping[str, Any]) -> Device:
    """Returns the device that a node's configuration names, with `deployment`, `partition-id` and
    `data`; made once.
    """
    key = str(config["deployment"]), int(config["partition-id"]), str(config.get("data", ""))
    if key not in _DEVICES:
        folder, k, data = key
        _DEVICES[key] = device_for(Deployment.load(Path(folder)), k, Path(data) if data else None)
    return _DEVICES[key]


def work(device: Device, address: str, going: Callable[[], bool]) -> None:
    """Answers the messages that a SuperNode hands on.

    Args:
        device: the client.
        address: of the SuperNode's runtime API, on this machine.
        going: asked between two tasks whether to go on.
    """
    import httpx
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType

    client, pause = _client(address), PAUSES[0]
    while going():
        try:
            found = client.AcquireTask(
                AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
            )
        except httpx.HTTPError:  # not up yet, or no longer
            time.sleep(PAUSES[1])
            continue
        if found.HasField("task") and found.token:
            _answer(device, address, found.token)
            pause = PAUSES[0]
        else:
            time.sleep(pause)
            pause = min(1.5 * pause, PAUSES[1])


def _client(address: str, token: str | None = None) -> Any:
    from flwr.supercore.interceptors import (
        RuntimeTokenHttpInterceptor,
        RuntimeVersionHttpInterceptor,
    )
    from flwr.supercore.runtime import RuntimeHttpClient

    kept: list[Any] = [RuntimeVersionHttpInterceptor(component_name="flwr-clientapp")]
    kept += [] if token is None else [RuntimeTokenHttpInterceptor(token)]
    return RuntimeHttpClient.from_server_address(
        server_address=address, insecure=True, root_certificates=None, interceptors=kept
    )


def _answer(device: Device, address: str, token: str) -> None:
    """Works on one task, from its message to its reply. A failure leaves the worker as it was."""
    import httpx
    from flwr.app import Message
    from flwr.common.constant import SubStatus
    from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
    from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

    client = _client(address, token)
    heart = HeartbeatSender(make_task_heartbeat_fn_http(client))
    context, status, details = None, SubStatus.FAILED, "the worker failed"
    heart.start()
    try:
        message, context, _, _ = pull_task_input(client)
        push_message(client, Message(device.answer(message.content), reply_to=message), context)
        status, details = SubStatus.COMPLETED, ""
    except httpx.HTTPError as error:
        LOG.warning(
            "a task was lost, because the node of this client has ended or lost the server: %s",
            error,
        )
        details = repr(error)
    except Exception as error:
        LOG.exception("a task was lost: %s", error)
        details = repr(error)
    finally:
        push_task_output(client=client, context=context, sub_status=status, details=details)
        heart.stop()
        client.close()
