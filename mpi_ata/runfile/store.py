"""The run file on disk: one HDF5 file that is replaced as a whole, preceded by its checksum.

The checksum is verified before HDF5 opens the file; the save before the newest one is kept.
"""

import errno
import glob
import os
import secrets
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from mpi_ata.arrays import State
from mpi_ata.errors import DamagedError, TakenError, UsageError, prefix_errors
from mpi_ata.runfile.hdf5 import Attributes, Tree, from_image, read_tree, to_image

FORMAT = 1
BLOCK = 512  # bytes before the HDF5 file proper, which HDF5 leaves to us (its user block)
TITLE = "mpi_ata run file"
SMALL_BYTES = 1 << 26  # of a group that is read without the rest; a file with holes is larger than its data


class RunFile:
    """The file of one run, and the save before it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._target = Path(os.path.realpath(path))  # links stay links, and a problem may change the folder
        self.previous = self._target.parent / f"{self._target.name}.previous"
        self._new = self._target.parent / f"{self._target.name}.new-{secrets.token_hex(4)}"
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
            found = self._load_previous(str(error))
            return *found, f"{error}; using {self.previous.name}, the save before it"
        self._intact = True
        return attributes, groups, ""

    def _load_previous(self, complaint: str) -> tuple[dict[str, Any], dict[str, State]]:
        try:
            return read(self.previous)
        except UsageError as error:
            raise type(error)(f"{complaint}; and {error}") from None

    def save(self, attributes: Attributes, groups: Tree) -> None:
        """Write a new save; whatever happens, the earlier ones stay until this one is whole on disk."""
        image = to_image(attributes, groups)
        data = _seal(FORMAT, image) + image
        try:
            if not self._swept:
                self._sweep()
            _write(self._new, data, _permissions(self._target))
            if (found := _seal_of(self._target)) not in (None, self._seal):
                raise self.taken()
            if self._intact and found is not None:
                os.replace(self._target, self.previous)
            os.replace(self._new, self._target)
        except BaseException:
            self._new.unlink(missing_ok=True)
            raise
        self._intact, self._seal = True, data[:BLOCK]
        _sync_folder(self._target.parent)

    def taken(self) -> TakenError:
        """Return the error for a file that another process has saved since this one read or saved it."""
        way_out = "resume it to continue from there"
        return TakenError(f"{self.path} was saved by another process in the meantime; {way_out}")

    def remove(self) -> bool:
        """Remove the file, if it is still the one that this run wrote, and return whether it was."""
        if self._seal is None or _seal_of(self._target) != self._seal:
            return False
        try:
            self._target.unlink()
        except OSError:
            return False
        self.remove_previous()
        return True

    def remove_previous(self) -> None:
        """Remove the save before the newest one, where that is all that is needed."""
        with suppress(OSError):
            self.previous.unlink()

    def _sweep(self) -> None:
        """Remove what killed runs left half written."""
        for left in self._target.parent.glob(f"{glob.escape(self._target.name)}.new-*"):
            left.unlink(missing_ok=True)
        self._swept = True


def read(path: Path) -> tuple[dict[str, Any], dict[str, State]]:
    """Return attributes and groups of one file, checked."""
    with prefix_errors(f"{path}: "):
        try:
            data = path.read_bytes()
        except OSError as error:
            kind = DamagedError if error.errno == errno.EIO else UsageError
            raise kind(f"cannot be read: {error.strerror}") from None
        return from_image(_unsealed(data))


def peek(path: Path, group: str) -> tuple[dict[str, Any], State]:
    """Return the attributes and one small group of a file, without reading or verifying the rest of it."""
    with prefix_errors(f"{path}: "), path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size - BLOCK
        _check_format(_check_size(file.read(BLOCK), size))
        attributes, groups = read_tree(file, min(size, SMALL_BYTES), group)
        return attributes, groups[group]


def verify(path: Path) -> None:
    """Raise DamagedError where a file is not whole."""
    with prefix_errors(f"{path}: "):
        _unsealed(path.read_bytes())


def is_run_file(path: Path) -> bool:
    """Return whether a file begins like a run file, damaged or not."""
    return (_seal_of(path) or b"").startswith(TITLE.encode())


def check_writable_path(path: Path) -> None:
    """Reject a path where no run file can be written, before time is spent; its folder is created."""
    folder = path.parent
    if path.is_dir():
        raise UsageError(f"{path}: is a folder; name a file in it, such as {path / 'run.h5'}")
    if path.exists() and not path.stat().st_mode & 0o222:
        raise UsageError(f"{path}: is read-only; make it writable, or choose another file")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = f"the folder {folder} cannot be created: {error.strerror}"
        raise UsageError(f"{path}: {why}; choose another file") from None
    if not os.access(folder, os.W_OK):
        raise UsageError(f"{path}: the folder {folder} is not writable; choose another file")


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


def _permissions(path: Path) -> int:
    """Return the permissions of a file, which whatever replaces it must not exceed; all if there is none."""
    try:
        return 0o666 & path.stat().st_mode
    except OSError:
        return 0o666


def _write(path: Path, data: bytes, mode: int) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
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
