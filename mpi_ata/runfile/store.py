"""The run file as bytes: one HDF5 file that is replaced as a whole, preceded by its checksum.

Everything is checked before it is used: the checksum before HDF5 opens the file, types and sizes before an
array is made.  Numbers and strings only; opening a file never executes anything.
"""

import errno
import glob
import io
import math
import os
import secrets
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpi_ata.arrays import State
from mpi_ata.errors import RunError, UsageError

if TYPE_CHECKING:
    import h5py

FORMAT = 1
BLOCK = 512  # bytes before the HDF5 file proper, which HDF5 leaves to us (its user block)
TITLE = "mpi_ata run file"
KINDS = "biufS"  # numpy's letters for numbers, and for strings of a fixed length

Attributes = Mapping[str, int | float | str | bool]
Tree = Mapping[str, State]


class DamagedError(UsageError):
    """A file that is not, or no longer, what a run wrote."""


class TakenError(RunError):
    """A run file that another process has written meanwhile."""


class RunFile:
    """The file of one run, and the save before it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._target = Path(os.path.realpath(path))  # links stay links, and a problem may change the folder
        self.previous = self._target.with_name(f"{self._target.name}.previous")
        self._new = self._target.with_name(f"{self._target.name}.new-{secrets.token_hex(4)}")
        self._swept = False
        self._seal: bytes | None = None  # of the file that is there, as far as this run knows
        self._intact = False  # only a file known to be whole may replace the save before it

    def exists(self) -> bool:
        """Return whether there is a save to resume from."""
        return self._target.exists() or self.previous.exists()

    def load(self) -> tuple[dict[str, Any], dict[str, State], str]:
        """Return attributes and groups of the newest intact save, and a complaint about a damaged one."""
        self._seal = _seal_of(self._target)
        if self._seal is None and self.previous.exists():
            return *read(self.previous), ""
        try:
            attributes, groups = read(self.path)
        except DamagedError as error:
            if not self.previous.exists():
                raise
            return *self._load_previous(
                str(error)
            ), f"{error}; using {self.previous.name}, the save before it"
        self._intact = True
        return attributes, groups, ""

    def _load_previous(self, complaint: str) -> tuple[dict[str, Any], dict[str, State]]:
        try:
            return read(self.previous)
        except UsageError as error:
            raise type(error)(f"{complaint}; and {error}") from None

    def save(self, attributes: Attributes, groups: Tree) -> None:
        """Write a new save; whatever happens, the earlier ones stay until this one is whole on disk."""
        data = _sealed(_image(attributes, groups))
        try:
            if not self._swept:
                self._sweep()
            _write(self._new, data)
            if (found := _seal_of(self._target)) not in (None, self._seal):
                raise TakenError(f"{self.path} was written by another run in the meantime")
            if self._intact and found is not None:
                os.replace(self._target, self.previous)
            os.replace(self._new, self._target)
        except BaseException:
            self._new.unlink(missing_ok=True)
            raise
        self._intact, self._seal = True, data[:BLOCK]
        _sync_folder(self._target.parent)

    def _sweep(self) -> None:
        """Remove what killed runs left half written."""
        for left in self._target.parent.glob(f"{glob.escape(self._target.name)}.new-*"):
            left.unlink(missing_ok=True)
        self._swept = True


def read(path: Path) -> tuple[dict[str, Any], dict[str, State]]:
    """Return attributes and groups of one file, checked."""
    try:
        data = path.read_bytes()
    except OSError as error:
        kind = DamagedError if error.errno == errno.EIO else UsageError
        raise kind(f"{path}: cannot be read: {error.strerror}") from None
    try:
        return _parsed(_unsealed(data))
    except UsageError as error:
        raise type(error)(f"{path}: {error}") from None


def peek(path: Path, group: str) -> tuple[dict[str, Any], State]:
    """Return the attributes and one small group of a file, without reading or verifying the rest of it.

    HDF5 itself keeps a checksum of attributes.
    """
    import h5py

    try:
        _check_format(_check_size(_first_block(path), path.stat().st_size - BLOCK))
        with h5py.File(path, "r", locking=False) as file:
            attributes = {name: _attribute(file, name) for name in file.attrs}
            arrays = _arrays(_own(file, group, h5py.Group))
            return attributes, {name: np.asarray(array[()]) for name, array in arrays.items()}
    except UsageError as error:
        raise type(error)(f"{path}: {error}") from None
    except FileNotFoundError:
        raise
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        raise DamagedError(f"{path}: is not readable as HDF5: {error}") from None


def check_writable_path(path: Path) -> None:
    """Reject a path where no run file can be written, before time is spent on the run."""
    folder = path.parent
    if path.is_dir():
        raise UsageError(f"--out {path} is a folder; name a file in it, such as {path / 'run.h5'}")
    if path.exists() and not path.stat().st_mode & 0o222:
        raise UsageError(f"{path}: is read-only; make it writable, or choose another file with --out")
    if not folder.is_dir():
        raise UsageError(f"--out {path}: there is no folder {folder}; create it, or choose another file")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"--out {path}: the folder {folder} is not writable; choose another file")


def _image(attributes: Attributes, groups: Tree) -> bytes:
    """Return the HDF5 file proper."""
    import h5py

    with h5py.File("run", "w", driver="core", backing_store=False, libver=("v108", "v110")) as file:
        for name, value in attributes.items():
            file.attrs[name] = np.bytes_(value.encode() or b"\0") if isinstance(value, str) else value
        for group, arrays in groups.items():
            members = file.create_group(group)
            for name, array in arrays.items():
                members.create_dataset(name, data=_savable(f"{group}: {name!r}", name, array))
        file.flush()
        image: bytes = file.id.get_file_image()
    return image


def _savable(what: str, name: str, array: Any) -> Any:
    """Return an array that can be read again; reject others."""
    if not name.strip(".") or set(name) & set("/\0"):
        raise UsageError(f"{what} cannot be saved: a name may not be empty, nor contain '/'; choose another")
    array = np.asarray(array)
    if array.dtype.kind not in KINDS:
        wanted = "only real numbers and bytes can be saved; let state() return such"
        raise UsageError(f"{what} cannot be saved: it is of {array.dtype}, but {wanted}")
    return array


def _sealed(image: bytes) -> bytes:
    return _seal(FORMAT, image) + image


def _seal(number: int, image: bytes) -> bytes:
    """Return the first block of a file: every bit of the file is under the checksum, or fixed."""
    words = f"{TITLE}\nformat {number}\nbytes {len(image)}\n".encode()
    return (words + f"sha256 {sha256(words + image).hexdigest()}\n".encode()).ljust(BLOCK, b"\n")


def _seal_of(path: Path) -> bytes | None:
    """Return the first block of a file, which no two saves share; None where there is no file."""
    try:
        with path.open("rb", buffering=0) as file:
            return file.read(BLOCK)
    except FileNotFoundError:
        return None
    except OSError:
        return b""  # it exists, but nothing else is known


def _first_block(path: Path) -> bytes:
    with path.open("rb", buffering=0) as file:
        return file.read(BLOCK)


def _check_size(block: bytes, found: int) -> int:
    """Return the format number in the first block of a file that has `found` bytes after it."""
    if not block:
        raise DamagedError("is empty")
    words = block.split(b"\n")
    if words[0] != TITLE.encode() or len(block) < BLOCK:
        raise DamagedError("is not a run file of mpi_ata, or not a whole one")
    try:
        number, size = int(words[1].removeprefix(b"format ")), int(words[2].removeprefix(b"bytes "))
    except (ValueError, IndexError):
        raise DamagedError("is damaged: its first lines are not those of a run file") from None
    if found < size:
        raise DamagedError(f"is truncated: {found:,} of {size:,} bytes")
    return number


def _check_format(number: int) -> None:
    if number > FORMAT:
        raise UsageError(f"has format {number}, but this mpi_ata knows up to {FORMAT}; use a newer mpi_ata")


def _unsealed(data: bytes) -> bytes:
    """Return the HDF5 file behind the seal, if the seal is whole."""
    image = data[BLOCK:]
    number = _check_size(data[:BLOCK], len(image))
    if data[:BLOCK] != _seal(number, image):
        raise DamagedError("is damaged: its checksum does not match")
    _check_format(number)
    return image


def _parsed(image: bytes) -> tuple[dict[str, Any], dict[str, State]]:
    import h5py

    try:
        with h5py.File(io.BytesIO(image), "r") as file:
            attributes = {name: _attribute(file, name) for name in file.attrs}
            arrays = {name: _arrays(_own(file, name, h5py.Group)) for name in file}
            size = sum(_bytes(array) for group in arrays.values() for array in group.values())
            if size > len(image):
                raise DamagedError(f"claims to hold arrays of {size:,} bytes, but has {len(image):,}")
            groups = {
                name: {member: np.asarray(array[()]) for member, array in group.items()}
                for name, group in arrays.items()
            }
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        if isinstance(error, UsageError):
            raise
        raise DamagedError(f"is not readable as HDF5: {error}") from None
    return attributes, groups


def _attribute(file: "h5py.File", name: str) -> Any:
    kind = file.attrs.get_id(name)
    if kind.dtype.kind not in KINDS or kind.shape != ():
        raise DamagedError(f"has an attribute {name} that is no plain number or string")
    value = file.attrs[name]
    return value.decode().rstrip("\0") if isinstance(value, bytes) else value.item()


def _own(group: "h5py.Group", name: str, kind: type[Any]) -> Any:
    """Return a member of a group; reject one of another kind, or a link to somewhere else."""
    import h5py

    link, found = group.get(name, getlink=True), None
    if isinstance(link, h5py.HardLink):
        found = group.get(name, getclass=True)
    if found is not kind:
        where, what = f"{group.name.rstrip('/')}/{name}", kind.__name__.lower()
        raise DamagedError(f"has an entry {where} that is no {what} of its own")
    return group[name]


def _arrays(group: "h5py.Group") -> dict[str, "h5py.Dataset"]:
    import h5py

    return {name: _checked(_own(group, name, h5py.Dataset)) for name in group}


def _checked(array: "h5py.Dataset") -> "h5py.Dataset":
    """Return a dataset that holds plain numbers or strings; nothing of it has been read yet."""
    import h5py

    if array.dtype.kind not in KINDS or array.shape is None:
        what = "only numbers and strings are read"
        raise DamagedError(f"has an array {array.name} of {array.dtype}, but {what}")
    plan = array.id.get_create_plist()
    plain = plan.get_layout() in (h5py.h5d.CONTIGUOUS, h5py.h5d.COMPACT)
    if not plain or plan.get_nfilters() or plan.get_external_count():
        raise DamagedError(f"has an array {array.name} that is filtered, chunked or stored elsewhere")
    return array


def _bytes(array: "h5py.Dataset") -> int:
    shape: tuple[int, ...] = array.shape
    return math.prod(shape) * int(array.dtype.itemsize)  # in Python's integers, which never overflow


def _write(path: Path, data: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(handle, rest) :]
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_folder(folder: Path) -> None:
    """Make a rename durable; some file systems cannot, and need not."""
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
    """Return strings as an array that HDF5 stores without pointers."""
    encoded = [value.encode() for value in values]
    return np.array(encoded, f"S{max(map(len, encoded), default=0) or 1}")


def untexts(array: Any) -> list[str]:
    """Return the strings in such an array."""
    return [value.decode() for value in array.tolist()]
