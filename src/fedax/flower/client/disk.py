"""What a client keeps on its disk: its memories, the messages that it makes once, and the account
of its privacy. All files are for their owner alone.

- **Memories.** Every version is whole, none is overwritten, and none is lost while the server may
  ask for it. A version has the name of the order that made it, which is a hash of all that went
  into it but noise. So an order that comes twice writes the same content under the same name, one
  that comes late writes a version that nobody asks for, and a server that continues from a
  checkpoint finds the versions of that round. Of an order with noise, the version that counts is
  written last, just before its message is stored.
- **Messages with noise or under masks.** Noise protects one message. The same noise, or the same
  mask, on another content gives the difference of both away, and fresh noise on the same content is
  a further message that counts. So each is stored before it is sent, an order that comes again is
  answered with the stored message, and what differs from it under one name is refused.
"""

import hashlib
import json
import math
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from filelock import FileLock
from flwr.app import ArrayRecord
from jaxtyping import PyTree

from fedax.communication.accounting import epsilon_of_gaussians
from fedax.communication.privacy import Privacy
from fedax.errors import FedaxError, InvalidInput
from fedax.flower.protocol.records import Refused, digest_of, tree_of
from fedax.utils.files import OWNER, write, writing

ACCOUNT = "account.json"
SECRET_BYTES = 32
Message = TypeVar("Message")


class Version(NamedTuple):
    """One version of a state: the round of the order that made it, its name, and that of the
    version before.
    """

    round: int
    name: str
    before: str


class Store:
    """The memories of one run of one client.

    Args:
        folder: of the run; made if it does not exist.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, slot: str, name: str, like: PyTree) -> PyTree:
        """Returns a version of a client's state; `like` has its form.

        Raises:
            FedaxError: it is not there, or is damaged.
        """
        for path in (self.folder / slot).glob(f"[0-9]*-{name}-*"):
            return tree_of(_read_stored(path), like, "state")
        raise FedaxError(f"state {slot} of order {name} is not in {self.folder}")

    def keep(self, slot: str, version: Version, record: ArrayRecord, floor: int) -> None:
        """Keeps a version, and drops those that nobody will ask for again.

        Those of rounds before `floor` go, but for the newest of them on the way to this version:
        that is what the state was when round `floor` began.

        Raises:
            WriteFailed: a full disk, for example.
        """
        _write_stored(self._path(slot, version), record)
        versions = {version.name: version for version in self._versions(slot)}
        name = version.before
        while name in versions and versions[name].round >= floor:
            name = versions[name].before
        for other in versions.values():
            if other.round < floor and other.name != name:
                self._path(slot, other).unlink(missing_ok=True)

    def _path(self, slot: str, version: Version) -> Path:
        return self.folder / slot / f"{version.round:09d}-{version.name}-{version.before}"

    def _versions(self, slot: str) -> list[Version]:
        # others are files that are being written
        names = [path.name.split("-") for path in (self.folder / slot).glob("[0-9]*-*-*")]
        return [Version(int(round), name, before) for round, name, before in names]


class Outbox:
    """The messages of a client that it makes once.

    Args:
        folder: of the client.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.account = Account(folder)

    def send_once(self, kind: str, content: Any, make: Callable[[], Message]) -> Message:
        """Returns the message that answers an order, made and stored at the first time.

        Args:
            kind: tells several messages for one order apart.
            content: the order, all of which the message depends on.
            make: makes the message.

        Raises:
            Refused: the order was answered before with another content, or its message is no longer
                stored.
        """
        order = content["order"]
        round = order["round"]
        folder = self.folder / "sent" / order["run"]
        path = folder / f"{round:010d}-{order['order']}-{kind}"
        digest = digest_of(content)
        with writing(path):
            folder.mkdir(parents=True, exist_ok=True)
            # a hidden upload may be made of a noisy one
            with FileLock(folder.with_name(f".{kind.partition('-')[0]}.lock")):
                if path.exists():
                    stored_digest, message = _read_stored(path)
                    if stored_digest != digest:
                        raise Refused("an order that was answered before with another content")
                    return message
                if round < _read_floor(folder):
                    raise Refused(f"an order of round {round}, whose messages are no longer stored")
                message = make()
                _write_stored(path, (digest, message))
                _forget(folder, order["floor"])
                return message


def _forget(folder: Path, floor: int) -> None:
    """Drops the messages of rounds before `floor`, which the server does not ask for again."""
    if floor <= _read_floor(folder):
        return
    # first: orders of these rounds are refused from now on
    _write_stored(folder / "floor", floor)
    for path in folder.glob("[0-9]*-*"):
        if int(path.name.partition("-")[0]) < floor:
            path.unlink(missing_ok=True)


def _read_floor(folder: Path) -> int:
    """Returns the first round whose messages are still stored.

    Raises:
        FedaxError: a damaged file; without it a message could be made a second time.
    """
    path = folder / "floor"
    return _read_stored(path) if path.exists() else 0


class Account:
    """The privacy that a client has spent, over all runs: a count of its uploads by the noise
    multiplier that each had.

    Neighbours are any two inputs of this client, between which a clipped upload moves by up to 2C:
    the multiplier of an upload is half of `Privacy.noise`. It is 0 for an upload without noise.
    Losses and scores that an observer asks for are not in it.

    Args:
        folder: of the client.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / ACCOUNT

    @property
    def uploads(self) -> dict[float, int]:
        """Uploads by noise multiplier. A file that cannot be read is an error, because nobody knows
        then what was spent.
        """
        if not self.path.exists():
            return {}
        stored = json.loads(self.path.read_text("utf-8"))["uploads"]
        return {float(multiplier): int(count) for multiplier, count in stored.items()}

    def spend(self, privacy: Privacy | None) -> None:
        """Adds one upload, before it is made: a crash in between costs privacy on paper alone.

        Args:
            privacy: of the upload, None for one without noise.

        Raises:
            Refused: the upload would exceed the budget.
        """
        multiplier = 0.0 if privacy is None else privacy.noise / 2
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(self.path.with_name(".account.lock")):
                uploads = self.uploads
                uploads[multiplier] = uploads.get(multiplier, 0) + 1
                if privacy is not None and privacy.budget < math.inf:
                    spent = epsilon_of_gaussians(uploads, privacy.delta)
                    if spent > privacy.budget:
                        raise Refused(
                            f"Privacy(budget={privacy.budget:g}) of this client: another upload "
                            f"makes epsilon {spent:.4g} over all its runs"
                        )
                counts = {str(noise): count for noise, count in uploads.items()}
                write(self.path, json.dumps({"uploads": counts}, indent=1), OWNER)


def load_secret(path: Path) -> bytes:
    """Returns the secret in a file, which is made if there is none. A run that is continued has the
    same.

    Raises:
        InvalidInput: a file that is cut off, or that others may read.
    """
    if not path.exists():
        write(path, os.urandom(SECRET_BYTES), OWNER)
    secret = path.read_bytes()
    mode = path.stat().st_mode & 0o777
    is_private = os.name != "posix" or not mode & 0o077
    if len(secret) != SECRET_BYTES or not is_private:
        got = f"{len(secret)} bytes of mode {mode:04o}"
        raise InvalidInput.found(str(path), got, f"{SECRET_BYTES} bytes of mode 0600")
    return secret


def _write_stored(path: Path, value: Any) -> None:
    """Writes a value of Python with a hash of its bytes."""
    content = pickle.dumps(value)
    write(path, hashlib.sha256(content).digest() + content, OWNER)


def _read_stored(path: Path) -> Any:
    """Returns the value that `_write_stored` wrote.

    Raises:
        FedaxError: the file was cut off or changed.
    """
    stored = path.read_bytes()
    if hashlib.sha256(stored[32:]).digest() != stored[:32]:
        raise FedaxError(f"{path} is damaged")
    return pickle.loads(stored[32:])
