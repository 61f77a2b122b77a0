"""Attributes and arrays as an HDF5 file in memory, and back.

Types and sizes are checked before an array is made.  Numbers and strings only; opening a file never executes
anything.
"""

import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from mpi_ata.arrays import State
from mpi_ata.errors import DamagedError, UsageError

if TYPE_CHECKING:
    import h5py

KINDS = "biufS"  # numpy's letters for numbers, and for strings of a fixed length

Attributes = Mapping[str, int | float | str | bool]
Tree = Mapping[str, State]


def load_library() -> None:
    """Load HDF5, which takes longer than writing a small file does."""
    import h5py  # noqa: F401


def to_image(attributes: Attributes, groups: Tree) -> bytes:
    """Return the HDF5 file proper."""
    import h5py

    image = io.BytesIO()  # of a closed file: the image of an open one has a wrong checksum before HDF5 2.0
    with h5py.File(image, "w", libver=("v108", "v110")) as file:
        for name, value in attributes.items():
            file.attrs[name] = np.bytes_(value.encode() or b"\0") if isinstance(value, str) else value
        for group, arrays in groups.items():
            members = file.create_group(group)
            for name, array in arrays.items():
                members.create_dataset(name, data=_savable(f"{group}: {name!r}", name, array))
    return image.getvalue()


def _savable(what: str, name: str, array: Any) -> Any:
    """Return an array that can be read again; reject others."""
    if not name.strip(".") or set(name) & set("/\0"):
        raise UsageError(f"{what} cannot be saved: a name may not be empty, nor contain '/'; choose another")
    array = np.asarray(array)
    if array.dtype.kind not in KINDS:
        wanted = "only real numbers and bytes can be saved; let state() return such"
        raise UsageError(f"{what} cannot be saved: it is of {array.dtype}, but {wanted}")
    return array


def from_image(image: bytes) -> tuple[dict[str, Any], dict[str, State]]:
    """Return the attributes and groups of an HDF5 file, checked."""
    return read_tree(io.BytesIO(image), len(image))


def read_tree(
    source: BinaryIO, most: int, only: str | None = None
) -> tuple[dict[str, Any], dict[str, State]]:
    """Return the attributes and groups, or `only` one of them, of an HDF5 file with at most so many bytes."""
    import h5py

    try:
        with h5py.File(source, "r") as file:
            names = _unfiltered(file["/"]) if only is None else [only]
            attributes = {name: _attribute(file, name, most) for name in file.attrs}
            own = {name: _unfiltered(_own(file, name, h5py.Group)) for name in names}
            arrays = {
                name: {member: _checked(_own(group, member, h5py.Dataset)) for member in group}
                for name, group in own.items()
            }
            _check_claims([array for group in arrays.values() for array in group.values()], most)
            groups = {
                name: {member: np.asarray(array[()]) for member, array in group.items()}
                for name, group in arrays.items()
            }
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        if isinstance(error, UsageError):
            raise
        raise DamagedError(f"is not readable as HDF5: {error}") from None
    return attributes, groups


def _attribute(file: "h5py.File", name: str, most: int) -> Any:
    kind = file.attrs.get_id(name)
    if kind.dtype.kind not in KINDS or kind.shape != () or kind.dtype.itemsize > most:
        raise DamagedError(f"has an attribute {name} that is not a plain number or string")
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


FILTERS = 11  # the number of the message by which an HDF5 object is filtered


def _unfiltered(group: "h5py.Group") -> "h5py.Group":
    """Return a group whose names are not compressed: these are read before anything can be checked."""
    import h5py

    if h5py.h5o.get_info(group.id).hdr.mesg.present >> FILTERS & 1:
        raise DamagedError(f"has a group {group.name} that is filtered")
    return group


def _check_claims(arrays: "Sequence[h5py.Dataset]", most: int) -> None:
    """Reject arrays that are larger than their file; as lists, also rows without columns take memory."""
    claimed = sum(_bytes(array.shape, array) for array in arrays)
    rows = [_bytes([length or 1 for length in array.shape], array) for array in arrays]
    if (claimed := max([claimed, *rows])) > most:
        raise DamagedError(f"claims to hold arrays of {claimed:,} bytes, but can have at most {most:,}")


def _bytes(shape: Sequence[int], array: "h5py.Dataset") -> int:
    return math.prod(shape) * int(array.dtype.itemsize)  # in Python's integers, which never overflow
