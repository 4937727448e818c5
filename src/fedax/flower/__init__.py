"""Flower: rounds in a ServerApp, work on clients' machines, and deployment.

- `in_process`: an engine whose clients are all in this process, to try a method first.
- `Assignment`: a run that clients take part in.
- `Worker`: a client that answers the server's messages, for a ClientApp that you write.

The engine for a ServerApp is `fedax.Flower`. These names need Flower, and load it when first used.
"""

from typing import TYPE_CHECKING

import lazy_loader as _lazy

if TYPE_CHECKING:
    from fedax.flower.client.worker import Worker as Worker
    from fedax.flower.protocol.plan import Assignment as Assignment
    from fedax.flower.server.in_process import in_process as in_process

__getattr__, __dir__, __all__ = _lazy.attach(
    __name__,
    submod_attrs={
        "client.worker": ["Worker"],
        "protocol.plan": ["Assignment"],
        "server.in_process": ["in_process"],
    },
)
