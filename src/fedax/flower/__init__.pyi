"""The public names of fedax.flower; `fedax/flower/__init__.py` loads each when it is first used."""

from .client.worker import Worker as Worker
from .protocol.plan import Assignment as Assignment
from .server.in_process import in_process as in_process
