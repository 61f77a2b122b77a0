"""Files in shared memory that an MPI library leaves behind when its ranks are killed."""

from collections.abc import Iterator
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path

FOLDER = "/dev/shm/"  # noqa: S108
NAMES = ("mpich_shm_*", "sm_segment.*", "vader_segment.*")  # of MPICH and Open MPI; others may be the user's


def segments_below(pid: int) -> set[Path]:
    """Return the files of MPI libraries that the descendants of a process have open on this node."""
    return {segment for child in descendants(pid) for segment in _segments(child)}


def remove_segments(segments: set[Path]) -> None:
    """Remove files of ranks that have ended."""
    for segment in segments:
        with suppress(OSError):
            segment.unlink(missing_ok=True)


def descendants(pid: int) -> Iterator[int]:
    """Yield the processes that a process and its descendants have started, as far as Linux lists them."""
    for child in children(pid):
        yield child
        yield from descendants(child)


def children(pid: int) -> list[int]:
    """Return the processes that a process has started, as far as Linux lists them."""
    with suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _segments(pid: int) -> Iterator[Path]:
    """Yield the files of MPI libraries in shared memory that a process has mapped."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            _, found, name = line.partition(FOLDER)
            if found and any(fnmatch(name, pattern) for pattern in NAMES):
                yield Path(FOLDER + name)
