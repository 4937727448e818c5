"""The ClientApp's side of a client's worker: hands a message on over a Unix socket.

Imports neither JAX nor the rest of fedax, see `fedax.flower.protocol.wire`.
"""

import socket

from flwr.app import RecordDict

from fedax.flower.protocol.wire import pack, unpack


def relay(content: RecordDict, address: str) -> RecordDict:
    """Returns a client's answer to a message.

    Args:
        content: the order.
        address: the socket of the worker of `fedax deploy client`.

    Raises:
        OSError: there is no worker.
        ValueError: the worker failed. Its log has the reason.
    """
    with socket.socket(socket.AF_UNIX) as worker:
        worker.connect(address)
        worker.sendall(pack(content))
        worker.shutdown(socket.SHUT_WR)  # the end of the message
        with worker.makefile("rb") as reply:
            answer = reply.read()
    if not answer:
        raise ValueError("the worker of this client failed; its log has the reason")
    return unpack(answer)
