"""The folder of a deployment and the file in it that says where everything is."""

import dataclasses
import ipaddress
import re
import tomllib
import unicodedata
from pathlib import Path
from typing import Any

import tomli_w

from fedax.core import InvalidInput
from fedax.core.scheduling.local_work import counts
from fedax.experiments.config.experiment import Experiment
from fedax.flower.protocol.quiet import need_flower
from fedax.flower.server.engine import RANGES, check_ranges
from fedax.utils.files import write, writing

FILE = "deployment.toml"
HIGHEST_PORT = 65535
MEGABYTE = 1 << 20
LONGEST_NAME = 253
"""The most letters of a host's name."""
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?", re.IGNORECASE | re.ASCII)
"""A part of a host's name; those of containers have underscores."""


@dataclasses.dataclass(frozen=True)
class Deployment:
    """An experiment, a server and its clients.

    The folder has `deployment.toml` with these settings, `experiment.toml`, the Flower app in
    `app`, certificates and keys in `keys`, and what a server and clients on this machine keep, in
    `flower` and `clients`.

    Attributes:
        folder: where all of it is.
        clients: how many there are, at least 1.
        host: the server's name or IP address, as clients reach it, without a port. A name with
            letters outside of ASCII is kept in its ASCII form, `xn--...`.
        port: the server's, 1 to 65535.
        deadline: seconds for the answers of a phase, above 0.
        minimum: the fewest uploads of a phase that count, at least 1.
        patience: seconds to wait for all clients at the start, at least 0.
        checkpoint_seconds: the most seconds between checkpoints, above 0; the first one follows the
            first round.
        most_examples: the most training or test examples that a client may claim, on which its
            weight depends; 0 for as many as can be counted.
        upload_limit: the most megabytes of an upload, above 0; the server takes no more of a larger
            one.
        secure: the largest size of an entry of an upload where uploads are added up under masks,
            which hide them from the server; 0 for uploads in the open.

    Raises:
        InvalidInput: a setting out of range.
    """

    folder: Path
    clients: int = 5
    host: str = "127.0.0.1"
    port: int = 9093
    deadline: float = 600.0
    minimum: int = 1
    patience: float = 600.0
    checkpoint_seconds: float = 60.0
    most_examples: int = 0
    upload_limit: float = 256.0
    secure: float = 0.0

    def __post_init__(self) -> None:
        need_flower()
        values = {name: getattr(self, name) for name in RANGES.keys() & vars(self).keys()}
        if self.most_examples == 0:
            del values["most_examples"]
        check_ranges(f"{FILE}, {{}}", values)
        checks = {
            "port": (
                counts(self.port) and self.port <= HIGHEST_PORT,
                f"whole numbers from 1 to {HIGHEST_PORT}",
            ),
            "minimum": (self.minimum <= self.clients, f"whole numbers from 1 to {self.clients}"),
        }
        for name, (fits, allowed) in checks.items():
            if not fits:
                raise InvalidInput.of(f"{FILE}, {name}", getattr(self, name), allowed)
        if (host := ascii_host(self.host)) is None:
            allowed = "the name or the IP address of a machine, such as fl.example.org or 10.0.0.7"
            hint = (
                "Leave out https://, ports, paths, brackets and spaces."
                if str(self.host).isascii()
                else "Write the name in its ASCII form, xn--..."
            )
            raise InvalidInput.of(f"{FILE}, host", self.host, allowed, hint)
        object.__setattr__(self, "host", host)  # the dataclass is frozen

    @classmethod
    def load(cls, folder: Path) -> "Deployment":
        """Returns the deployment in a folder.

        Raises:
            InvalidInput: there is none, or its file cannot be read.
        """
        path = folder / FILE
        try:
            values = tomllib.loads(path.read_text())
        except (OSError, ValueError) as error:
            hint = "`fedax deploy init` makes a folder for a deployment."
            raise InvalidInput.because(str(path), f"cannot be read ({error})", hint) from error
        setting_names = {field.name for field in dataclasses.fields(cls)} - {"folder"}
        for name in values:
            if name not in setting_names:
                raise InvalidInput.of(
                    str(path), name, "settings " + ", ".join(sorted(setting_names))
                )
        return cls(folder.absolute(), **values)

    def save(self) -> None:
        """Writes the file."""
        values = {
            name: value for name, value in dataclasses.asdict(self).items() if name != "folder"
        }
        path = self.folder / FILE
        with writing(path):
            write(path, tomli_w.dumps(values))

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def largest(self) -> int:
        """The most bytes of an upload."""
        return int(self.upload_limit * MEGABYTE)

    def path(self, *parts: Any) -> Path:
        """Returns a path in the folder."""
        return self.folder.joinpath(*map(str, parts))

    def require_server(self) -> "Deployment":
        """Returns the deployment itself, if it is the server's.

        Raises:
            InvalidInput: a client's copy of the folder.
        """
        if not self.path("keys", "server.key").exists():
            hint = "Run the command where the server runs."
            what = f"{self.folder} without keys/server.key, such as a client's copy"
            raise InvalidInput.found("FOLDER", what, "the server's folder", hint)
        return self

    def experiment(self, engine: str) -> Experiment:
        """Returns the experiment, on an engine."""
        return Experiment.read(self.path("experiment.toml"), [f'engine="{engine}"'])


def ascii_host(host: Any) -> str | None:
    """Returns a host in ASCII, as certificates and addresses have it, or None for a text that is
    neither an IP address nor a host's name.

    >>> ascii_host("müller.example.org"), ascii_host("::1"), ascii_host("fl.example.org:9093")
    ('xn--mller-kva.example.org', '::1', None)
    """
    if not isinstance(host, str):
        return None
    try:
        ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        return None if "%" in host else host  # no certificate has a scope, such as of fe80::1%eth0
    name = host
    if not host.isascii():
        try:
            name = host.encode("idna").decode("ascii")
            # letters that this form changes, such as ß to ss, would name another machine
            is_same = name.encode().decode("idna") == unicodedata.normalize("NFC", host).lower()
        except UnicodeError:
            return None
        if not is_same:
            return None
    labels = name.split(".")
    # addresses that are cut off or out of range end with a number, names do not
    is_name = all(map(_LABEL.fullmatch, labels)) and not labels[-1].isdecimal()
    return name if is_name and len(name) <= LONGEST_NAME else None


def quote(value: Any) -> str:
    """Returns a text as TOML."""
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'
