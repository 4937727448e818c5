"""Flower's SuperLink with bounds: a program that takes the most bytes of an upload, and then the
arguments of `flower-superlink`.

Flower's own takes and keeps whatever a client sends. Here a request is refused as soon as it is too
long, and so is an upload that becomes too large: what came of it is dropped, and the run hears that
there will be no answer. Flower's own also hands on an answer of which parts are missing, for which
a run waits a second, or past its deadline; here an answer is handed on when it is whole. All of it
is in memory, because what lasts is in checkpoints and at the clients. Nothing of fedax is imported,
as in `node.py`.
"""

import logging
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

LOG = logging.getLogger("fedax.flower.deploy")
REQUEST = 16 << 20
"""The most bytes of a request: Flower sends arrays in parts of 5 MB, and apps of up to 10 MB."""
KEPT = 10_000
"""Uploads of which the bytes are counted at a time; each is one answer to an order."""
TOO_LARGE = 413


class Requests:
    """An app of ASGI that reads no more of a request than is allowed.

    Args:
        app: which answers.
        most: bytes of a request.
    """

    def __init__(self, app: Any, most: int) -> None:
        self.app, self.most = app, most

    async def __call__(
        self,
        scope: Any,
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[Any], Awaitable[None]],
    ) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        body, more = bytearray(), True
        while more and len(body) <= self.most:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        if len(body) > self.most:
            LOG.warning(
                "request %s of %s refused: more than %d bytes",
                scope["path"],
                scope.get("client"),
                self.most,
            )
            await send(
                {
                    "type": "http.response.start",
                    "status": TOO_LARGE,
                    "headers": [(b"connection", b"close")],
                }
            )
            await send({"type": "http.response.body", "body": b"more bytes than are taken"})
            return
        whole = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def again() -> Any:
            return whole.pop() if whole else await receive()

        await self.app(scope, again, send)


class Uploads:
    """Takes the parts of uploads as Flower does, and refuses an upload that becomes too large.

    Args:
        push: Flower's function for a part.
        most: bytes of an upload.
    """

    def __init__(self, push: Callable[[Any, Any], Any], most: int) -> None:
        self.push, self.most = push, most
        self._taken: dict[str, int] = {}
        self._lock = threading.Lock()

    def __call__(self, request: Any, state: Any) -> Any:
        from fastapi import HTTPException

        session = str(request.session_id)
        with self._lock:
            before = self._taken.get(session, 0)
            self._taken[session] = taken = before + len(request.object_content)
            if len(self._taken) > KEPT:
                del self._taken[next(iter(self._taken))]
        if taken <= self.most:
            return self.push(request, state)
        if before <= self.most:
            node = _node(request.node.node_id, state)
            LOG.warning(
                "upload of %s (node %d) refused: more than %d bytes",
                node.name,
                node.node_id,
                self.most,
            )
            _drop(session, state)
        raise HTTPException(TOO_LARGE, "more bytes than are taken")


def _drop(session: str, state: Any) -> None:
    """Forgets an answer, its parts, and the message that it answers: whoever asks for an answer to
    it is told that it is gone.
    """
    found = state._object_push_sessions.get(session)
    with state.lock:
        answers = set() if found is None else found.root_object_ids & state.message_res_store.keys()
        asked = {state.message_res_store[answer].metadata.reply_to_message_id for answer in answers}
    state._cleanup_push_session(session, cleanup_messages=True)
    state.delete_messages(asked)


class Answers:
    """Hands on the answers that are whole.

    Args:
        pull: Flower's function for the answers to some messages.
    """

    def __init__(self, pull: Callable[..., Any]) -> None:
        self.pull = pull

    def __call__(self, request: Any, state: Any, task: Any) -> Any:
        whole: list[str] = []
        partial: dict[str, int] = {}
        with state.lock:  # an answer and its session are stored together
            for name in request.message_ids:
                session = state._object_push_session_by_root.get(
                    state.message_ins_id_to_message_res_id.get(name)
                )
                found = state._object_push_sessions.get(session)
                # none are of an answer that was announced again
                if found is None or not found.pending_object_ids:
                    whole.append(name)
                else:
                    partial[session] = state.message_ins_store[name].metadata.dst_node_id
        for session, node in partial.items():
            if _node(node, state).status != "online":
                # the rest will not come
                state._cleanup_push_session(session, cleanup_messages=True)
        return self.pull(type(request)(message_ids=whole), state, task)


def _node(number: int, state: Any) -> Any:
    (found,) = state.get_node_info(node_ids=[number])
    return found


def main() -> None:
    """Runs the server until it is interrupted."""
    from flwr.superlink import extensions
    from flwr.superlink.cli import flower_superlink
    from flwr.superlink.servicer.fleet import fleet_handlers
    from flwr.superlink.servicer.runtime import runtime_handlers
    from starlette.middleware import Middleware

    most = int(sys.argv.pop(1))
    changed: list[tuple[Any, str, Any]] = [
        (extensions, "get_middleware", lambda: (Middleware(Requests, most=REQUEST),)),
        (fleet_handlers, "push_object", Uploads(fleet_handlers.push_object, most)),
        (runtime_handlers, "pull_messages", Answers(runtime_handlers.pull_messages)),
    ]
    for module, name, value in changed:
        assert hasattr(module, name), f"another version of Flower: no {name} in {module.__name__}"
        setattr(module, name, value)
    flower_superlink()


if __name__ == "__main__":
    main()
