"""Messages of a client that must not be made twice: with noise, or under masks. Each is stored
before it is sent.

Noise protects one message. The same noise, or the same mask, on another content gives the
difference of both away, and fresh noise on the same content is a further message that counts. So an
order that comes again is answered with the stored message, and what differs from it under one name
is refused.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import RecordDict

from fedax.communication.accounting import epsilon_of_gaussians
from fedax.communication.privacy import Privacy
from fedax.flower.protocol.records import Refused, digest_of
from fedax.flower.protocol.store import read_stored, write_stored
from fedax.utils.files import write, writing
from fedax.utils.lock import locked

ACCOUNT = "account.json"


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
        """Uploads by noise multiplier.

        Raises:
            Refused: a file that cannot be read, because nobody knows then what was spent.
        """
        if not self.path.exists():
            return {}
        try:
            stored = json.loads(self.path.read_text("utf-8"))["uploads"]
            return {float(multiplier): int(count) for multiplier, count in stored.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise Refused(
                f"{self.path} cannot be read ({error}); it says what this client has spent"
            ) from error

    def epsilon(self, delta: float) -> float:
        """Returns what all uploads have spent, at some delta."""
        return epsilon_of_gaussians(self.uploads, delta)

    def spend(self, privacy: Privacy | None) -> None:
        """Adds one upload, before it is made: a crash in between costs privacy on paper alone.

        Args:
            privacy: of the upload, None for one without noise.

        Raises:
            Refused: the upload would exceed the budget.
        """
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with locked(self.path.with_name(".account.lock")):
                self._spend(privacy)

    def _spend(self, privacy: Privacy | None) -> None:
        multiplier = 0.0 if privacy is None else privacy.noise / 2
        uploads = self.uploads
        new_uploads = {**uploads, multiplier: uploads.get(multiplier, 0) + 1}
        if privacy is not None and privacy.budget < math.inf:
            spent = epsilon_of_gaussians(new_uploads, privacy.delta)
            if spent > privacy.budget:
                spent_before = epsilon_of_gaussians(uploads, privacy.delta)
                raise Refused(
                    f"Privacy(budget={privacy.budget:g}) of this client: it has spent epsilon "
                    f"{spent_before:.4g} in all its runs,"
                    f" and another upload makes it {spent:.4g}"
                )
        write(
            self.path,
            json.dumps(
                {"uploads": {str(noise): count for noise, count in new_uploads.items()}}, indent=1
            ),
            0o600,
        )


class Outbox:
    """The messages of a client that it makes once.

    Args:
        folder: of the client.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "sent"
        self.account = Account(folder)

    def send_once(self, kind: str, content: Any, make: Callable[[], RecordDict]) -> RecordDict:
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
        round = int(order["round"])
        path = self.folder / order["run"] / f"{round:010d}-{order['order']}-{kind}"
        digest = digest_of(content)
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            # a hidden upload may be made of a noisy one
            with locked(self.folder / f".{kind.partition('-')[0]}.lock"):
                if path.exists():
                    stored_digest, message = read_stored(path)
                    if stored_digest != digest:
                        raise Refused("an order that was answered before with another content")
                    return message
                if round < _read_floor(path.parent):
                    raise Refused(f"an order of round {round}, whose messages are no longer stored")
                message = make()
                write_stored(path, (digest, message))
                self._forget(path.parent, int(order["floor"]))
                return message

    def _forget(self, folder: Path, floor: int) -> None:
        """Drops the messages of rounds before `floor`, which the server does not ask for again."""
        if floor <= _read_floor(folder):
            return
        # first: orders of these rounds are refused from now on
        write_stored(folder / "floor", floor)
        for path in folder.glob("[0-9]*-*"):
            if int(path.name.partition("-")[0]) < floor:
                path.unlink(missing_ok=True)


def _read_floor(folder: Path) -> int:
    """Returns the first round whose messages are still stored.

    Raises:
        FedaxError: a damaged file; without it a message could be made a second time.
    """
    path = folder / "floor"
    return read_stored(path) if path.exists() else 0
