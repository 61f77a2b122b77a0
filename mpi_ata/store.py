"""The run file as bytes: one HDF5 file that is replaced whole, with its checksum in front.

What is read was checked before: the checksum before HDF5 sees the file, kinds and sizes before an array is
made.  Numbers and texts only; opening a file never executes anything.
"""

import errno
import io
import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpi_ata.arrays import State
from mpi_ata.errors import UsageError

if TYPE_CHECKING:
    import h5py

FORMAT = 1
BLOCK = 512  # HDF5 looks for its own beginning there too, and leaves what stands before to us
TITLE = "mpi_ata run file"

Attributes = Mapping[str, int | float | str | bool]
Tree = Mapping[str, State]


class DamagedError(UsageError):
    """A file that is not, or is no longer, what a run wrote."""


class RunFile:
    """One run's file and the generation before it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.previous = path.with_name(path.name + ".previous")
        self._new = path.with_name(path.name + ".new")
        self._intact = False  # only what is known to be whole may take the place of the generation before

    def exists(self) -> bool:
        """Whether there is a generation to go on from."""
        return self.path.exists() or self.previous.exists()

    def load(self) -> tuple[dict[str, Any], dict[str, State], str]:
        """Attributes and groups of the newest intact generation; and a word on a newer one that is not."""
        complaint = ""
        try:
            if self.path.exists() or not self.previous.exists():
                attributes, groups = read(self.path)
                self._intact = True
                return attributes, groups, ""
        except UsageError as error:
            if not self.previous.exists():
                raise
            complaint = f"{error}; the generation before it is used, {self.previous.name}"
        return *read(self.previous), complaint

    def save(self, attributes: Attributes, groups: Tree) -> None:
        """Write a new generation; whatever happens, what was there stays until this one is whole on disk."""
        data = _sealed(_image(attributes, groups))
        try:
            _write(self._new, data)
            if self._intact and self.path.exists():
                os.replace(self.path, self.previous)
            os.replace(self._new, self.path)
        except OSError:
            self._new.unlink(missing_ok=True)
            raise
        self._intact = True
        _sync_folder(self.path.parent)


def read(path: Path) -> tuple[dict[str, Any], dict[str, State]]:
    """Attributes and groups of one file, checked."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        return _parsed(_unsealed(data))
    except DamagedError as error:
        raise DamagedError(f"{path}: {error}") from None


def check_place(path: Path) -> None:
    """Refuse a place where no run file can be written, before time is spent on the run."""
    folder = path.parent
    if path.is_dir():
        raise UsageError(f"--out {path} is a folder; name a file in it, such as {path / 'run.h5'}")
    if path.exists() and not path.stat().st_mode & 0o222:
        raise UsageError(f"{path}: is read-only; make it writable, or choose another file with --out")
    if not folder.is_dir():
        raise UsageError(f"--out {path}: there is no folder {folder}; make it, or choose another file")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"--out {path}: the folder {folder} is not writable; choose another file")


def _image(attributes: Attributes, groups: Tree) -> bytes:
    """The HDF5 file itself."""
    import h5py

    with h5py.File("run", "w", driver="core", backing_store=False, libver=("v108", "v110")) as file:
        for name, value in attributes.items():
            file.attrs[name] = np.bytes_(value.encode() or b"\0") if isinstance(value, str) else value
        for group, arrays in groups.items():
            room = file.create_group(group)
            for name, array in arrays.items():
                room.create_dataset(name, data=array)
        file.flush()
        image: bytes = file.id.get_file_image()
    return image


def _sealed(image: bytes) -> bytes:
    seal = f"{TITLE}\nformat {FORMAT}\nbytes {len(image)}\nsha256 {sha256(image).hexdigest()}\n"
    return seal.encode().ljust(BLOCK, b"\n") + image


def _unsealed(data: bytes) -> bytes:
    """The HDF5 file behind the seal, if the seal is whole."""
    words = data[:BLOCK].decode(errors="replace").split("\n")
    if not data:
        raise DamagedError("is empty")
    if words[0] != TITLE or len(data) < BLOCK:
        raise DamagedError("is not a run file of mpi_ata")
    try:
        seal = dict(word.split(" ", 1) for word in words[1:4])
        known, size, digest = int(seal["format"]), int(seal["bytes"]), seal["sha256"]
    except (ValueError, KeyError):
        raise DamagedError("is damaged: its first lines are not those of a run file") from None
    if known > FORMAT:
        raise UsageError(f"has format {known}, but this mpi_ata knows up to {FORMAT}; use a newer mpi_ata")
    image = data[BLOCK:]
    if len(image) != size:
        raise DamagedError(f"is truncated: {len(image):,} of {size:,} bytes")
    if sha256(image).hexdigest() != digest:
        raise DamagedError("is damaged: its checksum does not match")
    return image


def _parsed(image: bytes) -> tuple[dict[str, Any], dict[str, State]]:
    import h5py

    try:
        with h5py.File(io.BytesIO(image), "r") as file:
            attributes = {name: _attribute(file, name) for name in file.attrs}
            groups = {name: _group(file, name, len(image)) for name in file}
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise DamagedError(f"is not readable as HDF5: {error}") from None
    return attributes, groups


def _attribute(file: "h5py.File", name: str) -> Any:
    kind = file.attrs.get_id(name)
    if kind.dtype.kind not in "biufS" or kind.shape != ():
        raise DamagedError(f"has an attribute {name} that is no plain number or text")
    value = file.attrs[name]
    return value.decode().rstrip("\0") if isinstance(value, bytes) else value.item()


def _group(file: "h5py.File", name: str, size: int) -> State:
    import h5py

    if (
        not isinstance(file.get(name, getlink=True), h5py.HardLink)
        or file.get(name, getclass=True) is not h5py.Group
    ):
        raise DamagedError(f"has an entry {name} that is no group of its own")
    group = file[name]
    return {member: _array(group, member, size) for member in group}


def _array(group: "h5py.Group", name: str, size: int) -> Any:
    import h5py

    link, kind = group.get(name, getlink=True), group.get(name, getclass=True)
    if not isinstance(link, h5py.HardLink) or kind is not h5py.Dataset:
        raise DamagedError(f"has an entry {group.name}/{name} that is no array of its own")
    array = group[name]
    plan = array.id.get_create_plist()
    if array.dtype.kind not in "biufS" or array.shape is None:
        raise DamagedError(
            f"has an array {array.name} of {array.dtype}, but numbers and texts are all that is read"
        )
    if (
        plan.get_nfilters()
        or plan.get_external_count()
        or plan.get_layout()
        not in (
            h5py.h5d.CONTIGUOUS,
            h5py.h5d.COMPACT,
        )
    ):
        raise DamagedError(f"has an array {array.name} that is filtered, chunked or stored elsewhere")
    if array.nbytes > size:
        raise DamagedError(f"has an array {array.name} of {array.nbytes:,} bytes in a file of {size:,}")
    return array[()] if array.shape else np.asarray(array[()])


def _write(path: Path, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
    with os.fdopen(os.open(path, flags, 0o666), "wb", buffering=0) as file:
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) :]
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Let a rename be on disk; some file systems cannot, and need not."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(handle)


def texts(values: list[str]) -> Any:
    """Texts as an array that HDF5 keeps without pointers."""
    encoded = [value.encode() for value in values]
    return np.array(encoded, f"S{max(map(len, encoded), default=0) or 1}")


def untexts(array: Any) -> list[str]:
    """The texts in such an array."""
    return [value.decode() for value in array.tolist()]
