"""Flower: rounds in a ServerApp, work on clients' machines, and deployment.

- `in_process`: an engine whose clients are all in this process, to try a method first.
- `Assignment`: a run that clients take part in.
- `Worker`: a client that answers the server's messages, for a ClientApp that you write.

The engine for a ServerApp is `fedax.Flower`. These names need Flower, and load it when first used.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
