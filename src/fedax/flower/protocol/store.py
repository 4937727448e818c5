"""A client's memories on its own disk: every version whole, none overwritten, none lost while the
server may ask for it.

A version has the name of the order that made it, which is a hash of all that went into it. So an
order that comes twice writes the same content under the same name, one that comes late writes a
version that nobody asks for, and a server that continues from a checkpoint finds the versions of
that round.
"""

import hashlib
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from fedax.errors import FedaxError
from fedax.utils.files import write, writing

NEVER = "0" * 32
"""The version of a memory before its first change."""


class Version(NamedTuple):
    """One version of a memory: the round of the order that made it, its name, and that of the
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
        """Returns a version of a client's state; `like` has its structure.

        Raises:
            FedaxError: it is not there, or is damaged.
        """
        version = next((version for version in self._versions(slot) if version.name == name), None)
        if version is None:
            raise FedaxError(f"memory {slot} of order {name} is not in {self.folder}")
        leaves = read_stored(self._path(slot, version))
        return jax.tree.unflatten(jax.tree.structure(like), map(jnp.asarray, leaves))

    def keep(self, slot: str, version: Version, tree: PyTree) -> None:
        """Keeps a version; one that is there already stays as it is.

        Raises:
            WriteFailed: a full disk, for example.
        """
        path = self._path(slot, version)
        if not path.exists():
            with writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                write_stored(path, [np.asarray(leaf) for leaf in jax.tree.leaves(tree)])

    def forget(self, slot: str, name: str, floor: int) -> None:
        """Drops versions that nobody will ask for again.

        Those of rounds before `floor` go, but for the newest of them on the way to version `name`:
        that is what the memory was when round `floor` began.
        """
        versions = {version.name: version for version in self._versions(slot)}
        while name in versions and versions[name].round >= floor:
            name = versions[name].before
        for version in versions.values():
            if version.round < floor and version.name != name:
                self._path(slot, version).unlink(missing_ok=True)

    def _path(self, slot: str, version: Version) -> Path:
        return self.folder / slot / f"{version.round:09d}-{version.name}-{version.before}"

    def _versions(self, slot: str) -> list[Version]:
        # others are files that are being written
        names = [path.name.split("-") for path in (self.folder / slot).glob("[0-9]*-*-*")]
        return [Version(int(round), name, before) for round, name, before in names]


def write_stored(path: Path, value: Any) -> None:
    """Writes a value of Python with a hash of its bytes, for its owner alone."""
    content = pickle.dumps(value)
    write(path, hashlib.sha256(content).digest() + content, 0o600)


def read_stored(path: Path) -> Any:
    """Returns the value that `write_stored` wrote.

    Raises:
        FedaxError: the file was cut off or changed.
    """
    stored = path.read_bytes()
    digest, content = stored[:32], stored[32:]
    if hashlib.sha256(content).digest() != digest:
        raise FedaxError(f"{path} is damaged")
    return pickle.loads(content)
