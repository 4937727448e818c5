"""A client's memories on its own disk: every version whole, none overwritten, none lost while the
server may ask for it.

A version has the name of the order that made it, which is a hash of all that went into it. So an
order that comes twice writes the same content under the same name, one that comes late writes a
version that nobody asks for, and a server that continues from a checkpoint finds the versions of
that round.
"""

import io
import re
import zipfile
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
DAMAGED = OSError, ValueError, EOFError, zipfile.BadZipFile
"""The errors of reading a file of arrays that is cut off or changed."""


class Version(NamedTuple):
    """One version of a memory: the round of the order that made it, its name, and that of the
    version before.
    """

    round: int
    name: str
    before: str


class MemoryLost(FedaxError):
    """A version of a memory that is asked for is not there."""


class Store:
    """The memories of one run of one client.

    Args:
        folder: of the client; made if it does not exist.
        run: the run's name.
    """

    def __init__(self, folder: Path, run: str) -> None:
        self.folder = folder / _check_name(run, "run", r"[0-9a-f]{1,64}")

    def read(self, slot: str, name: str, like: PyTree) -> PyTree:
        """Returns a version of a client's state; `like` has its shapes and types.

        Raises:
            MemoryLost: it is not there, or is damaged.
        """
        version = next((version for version in self._versions(slot) if version.name == name), None)
        if version is None:
            raise MemoryLost(f"memory {slot} of order {name} is not in {self.folder}")
        leaves, structure = jax.tree.flatten(like)
        try:
            # NumPy leaves a damaged file open if it has opened it itself
            with (
                self._path(slot, version).open("rb") as file,
                np.load(file, allow_pickle=False) as stored,
            ):
                arrays = [
                    stored[f"leaf {i}"].view(leaf.dtype).reshape(leaf.shape)
                    for i, leaf in enumerate(leaves)
                ]
        except (*DAMAGED, KeyError) as error:
            raise MemoryLost(
                f"memory {slot} of order {name} in {self.folder} is damaged: {error}"
            ) from error
        return jax.tree.unflatten(structure, [jnp.asarray(array) for array in arrays])

    def keep(self, slot: str, version: Version, tree: PyTree) -> None:
        """Keeps a version; one that is there already stays as it is.

        Raises:
            WriteFailed: a full disk, for example.
        """
        path = self._path(slot, version)
        if path.exists():
            return
        arrays: dict[str, Any] = {}
        for i, leaf in enumerate(jax.tree.leaves(tree)):
            array = np.asarray(leaf)
            arrays[f"leaf {i}"] = (
                array.reshape(-1).view(np.uint8) if array.dtype.kind == "V" else array
            )
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path, buffer.getvalue())

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
        name, previous = (_check_name(text, "order", r"[0-9a-f]{32}") for text in version[1:])
        return self._slot_folder(slot) / f"{version.round:09d}-{name}-{previous}.npz"

    def _slot_folder(self, slot: str) -> Path:
        return self.folder / _check_name(slot, "memory", r"[a-z0-9-]{1,40}")

    def _versions(self, slot: str) -> list[Version]:
        matches = [
            re.fullmatch(r"(\d{9})-([0-9a-f]{32})-([0-9a-f]{32})\.npz", p.name)
            for p in self._slot_folder(slot).glob("*.npz")
        ]
        return [Version(int(match[1]), match[2], match[3]) for match in matches if match]


def _check_name(name: str, what: str, allowed: str) -> str:
    """Returns a name that becomes part of a path."""
    if not re.fullmatch(allowed, name):
        raise FedaxError(f"{what} {name!r} is no name that there can be")
    return name
