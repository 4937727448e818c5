"""A client with a registered key that answers every order of its own accord: python rogue.py
SITE.

Round 0: the answer three times. Round 1: another shape. Round 2: not-a-number. Round 3: the answer of
round 0. Round 4: an answer whose parts never come. Round 5: parts that are none of an answer.
"""

import hashlib
import os
import re
import sys
import time
from pathlib import Path

from fedax.flower.deploy.worker import worker_for
from fedax.flower.protocol.quiet import QUIET
from fedax.flower.protocol.records import record_of

os.environ |= QUIET

import numpy as np
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message, RecordDict
from flwr.app.message.arraychunk import ArrayChunk
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_connection import http_request_response

AGAIN, SHAPE, NAN, OLD, NOTHING, SENSELESS = range(6)
PARTS = 3


def part(i):
    """A part of an array, in the form in which Flower sends parts; none is like another."""
    return ArrayChunk(memoryview(i.to_bytes(4, "big") * 100)).deflate()


class Client:
    """The connection of a node, and its answers."""

    def __init__(self, connection, worker):
        self.node, self.receive, self.send, _, _, self.pull, self.push, self.confirm = connection
        self.worker = worker
        self.first = None

    def serve(self):
        while True:
            received = self.receive()
            if received is None:
                time.sleep(0.05)
                continue
            self.answer(*received)

    def answer(self, message, tree):
        run = message.metadata.run_id
        names = [one.object_id for one in iterate_object_tree(tree)]
        parts = pull_objects(names, lambda name: self.pull(run, name), initial_backoff=0.05)
        self.confirm(run, tree.object_id)
        order = inflate_object_from_contents(tree.object_id, parts)
        order.metadata.__dict__["_message_id"] = tree.object_id
        TaskIdentity.run_id = run
        TaskIdentity.task_id = 1
        TaskIdentity.node_id = self.node
        content = self.worker.answer(order.content)
        round = (
            order.content["order"].get("round") if order.metadata.message_type == "train" else None
        )
        if round == SHAPE:
            content = with_vector(content, np.zeros(7, np.float32))
        if round == NAN:
            content = with_vector(content, np.full(650, np.nan, np.float32))
        if round == OLD:
            content = self.first.content
        reply = Message(content, reply_to=order)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        if round == AGAIN:
            self.first = reply
        if round == SENSELESS:
            self.upload_other_parts(reply, run)
            return
        missing, session = self.send(reply, get_object_tree(reply), 0.1)
        if round == NOTHING:
            return
        objects = get_all_nested_objects(reply)
        for name in missing:
            self.push(run, session, name, objects[name].deflate())
        if round == AGAIN:
            for _ in range(2):
                missing, session = self.send(reply, get_object_tree(reply), 0.1)
                print("sent again, asked for", len(missing), flush=True)

    def upload_other_parts(self, reply, run):
        """Announces parts of an array as those of an answer, and sends them."""
        names = [hashlib.sha256(part(i)).hexdigest() for i in range(PARTS)]
        tree = ObjectTree(
            object_id=reply.object_id, children=[ObjectTree(object_id=name) for name in names]
        )
        _, session = self.send(reply, tree, 0.1)
        objects = {name: part(i) for i, name in enumerate(names)} | {
            reply.object_id: reply.deflate()
        }
        for name, content in objects.items():
            self.push(run, session, name, content)


def with_vector(content, vector):
    return RecordDict({"answer": content["answer"], "up": record_of(vector)})


def main(site):
    key = load_ssh_private_key((site / "client.key").read_bytes(), None)
    certificate = (site / "ca.crt").read_bytes()
    address = re.search('--superlink "(.*?)"', (site / "client.sh").read_text())[1]
    with http_request_response(address, False, certificate, (key, key.public_key())) as connection:
        Client(connection, worker_for(site)).serve()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
