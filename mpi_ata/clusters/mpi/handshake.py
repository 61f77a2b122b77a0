"""What the ranks exchange about themselves before the clock starts, and what must succeed on all of them."""

import atexit
import errno
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mpi_ata.clusters.identity import HARDWARE_BYTES, WorkerIdentity, drawn_identity, hardware
from mpi_ata.clusters.mpi.channel import BEGIN, EMPTY, Payload
from mpi_ata.clusters.mpi.introductions import LOOPBACK, SECRET_BYTES, Address
from mpi_ata.clusters.mpi.library import MPI, all_ranks_needed, end_all_ranks, world
from mpi_ata.clusters.mpi.links import Links
from mpi_ata.clusters.mpi.liveness import Doorbell
from mpi_ata.errors import RunError, UsageError, describe_error, in_users_code
from mpi_ata.launch import host_name
from mpi_ata.layout import MANAGER, worker_of
from mpi_ata.problems import AnyProblem, ProblemAbilities

RANK = Struct(f"<64s32s{HARDWARE_BYTES}s")  # the fields of Rank
DOORS = Struct(f"<64s64s64sqqq{SECRET_BYTES}s")  # and of Doors
TEXT_BYTES = 4000  # that a rank can say to all others at once
SHORTEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1e-3, 0.05  # between two looks at whether all are there
ENCODING_ERRORS = "backslashreplace"  # texts of users may contain anything


class Rank(NamedTuple):
    """What one rank says about itself."""

    host: str
    digest: bytes
    hardware: str


class Doors(NamedTuple):
    """Where one rank can be reached."""

    address: str  # of the interface on which it listens; empty: all
    bell: str  # name of its doorbell
    memory: str  # the manager's: the name with which those of files in shared memory begin
    bell_port: int  # where its doorbell listens on the network
    lifelines: int  # port for lifelines; 0 but for the manager
    links: int  # port for connections of an exchange; 0: none
    secret: bytes  # the manager's, by which ranks recognise each other

    def at(self, host: str, port: int) -> Address:
        """Return the address of a port of this rank, which is on this host."""
        return Address(self.address or (LOOPBACK if host == host_name() else host), port)

    def bell_address(self, host: str) -> Address | None:
        """Return the address of the doorbell of this rank, which is on this host; None if it is this one."""
        return None if host == host_name() else self.at(host, self.bell_port)


def exchange_ranks(comm: MPI.Comm, digest: bytes) -> list[Rank]:
    """Exchange what the ranks say about themselves and return it, by rank."""
    own = RANK.pack(_encoded(host_name()), digest, hardware().encode())
    return [Rank(_text(host), found, _text(has)) for host, found, has in _allgather(comm, RANK, own)]


def exchange_doors(
    comm: MPI.Comm,
    bell: Doorbell,
    links: Links | None,
    lifelines: int = 0,
    memory: str = "",
    secret: bytes = b"",
) -> list[Doors]:
    """Exchange where the ranks can be reached and return it, by rank."""
    names, port = map(_encoded, (bell.address, bell.name, memory)), 0 if links is None else links.port
    own = DOORS.pack(*names, bell.port, lifelines, port, secret)
    rows = _allgather(comm, DOORS, own)
    return [Doors._make([*map(_text, row[:3]), *row[3:]]) for row in rows]


def link_addresses(hosts: list[str], doors: list[Doors]) -> list[Address]:
    """Return where each rank accepts connections of an exchange."""
    return [own.at(host, own.links) for host, own in zip(hosts, doors, strict=True)]


def _allgather(comm: MPI.Comm, form: Struct, own: bytes) -> list[tuple[Any, ...]]:
    everyone = np.empty((comm.Get_size(), form.size), np.uint8)
    with all_ranks_needed():
        comm.Allgather(np.frombuffer(own, np.uint8), everyone)
    return [form.unpack(row.tobytes()) for row in everyone]


def _encoded(text: str) -> bytes:
    return text.encode(errors=ENCODING_ERRORS)[:64]


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode(errors="replace")


def allgather_text(comm: MPI.Comm, text: str) -> list[str]:
    """Return the texts of all ranks, each cut to a length that fits; a rank that waits for others sleeps."""
    own = np.frombuffer(text.encode(errors=ENCODING_ERRORS)[:TEXT_BYTES].ljust(TEXT_BYTES, b"\n"), np.uint8)
    rows = _allgather_bytes(comm, own)
    return [row.tobytes().decode(errors="replace").rstrip("\n") for row in rows]


def _allgather_bytes(
    comm: MPI.Comm, own: npt.NDArray[np.uint8], meanwhile: Callable[[float], None] = time.sleep
) -> npt.NDArray[np.uint8]:
    """Return what all ranks say; until all have, call `meanwhile` with the seconds that it may take."""
    everyone = np.empty((comm.Get_size(), len(own)), np.uint8)
    with all_ranks_needed():
        _wait(comm.Iallgather(own, everyone), meanwhile)
    return everyone


def _wait(request: MPI.Request, meanwhile: Callable[[float], None] = time.sleep) -> None:
    pause = SHORTEST_PAUSE_SECONDS
    while not request.Test():
        meanwhile(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


@contextmanager
def collective_check(
    kind: type[UsageError] | type[RunError] = UsageError,
    comm: MPI.Comm | None = None,
    meanwhile: Callable[[float], None] = time.sleep,
) -> Iterator[None]:
    """Let all ranks do something that may fail; if one fails, the manager raises `kind`, and all ranks leave.

    `meanwhile` is called with some seconds while the others are not done.
    """
    failure, comm = "", world() if comm is None else comm
    try:
        yield
    except (UsageError, RunError) as error:
        failure = str(error)
    except Exception as error:  # in a user's code, say: the other ranks wait for this one all the same
        failure = str(in_users_code("the job cannot be started", error))
    except BaseException:  # the other ranks would wait for this one forever
        atexit.register(end_all_ranks, comm)
        raise
    if not _allgather_bytes(comm, np.array([bool(failure)], np.uint8), meanwhile).any():
        return
    failures = allgather_text(comm, failure)
    if comm.Get_rank() != MANAGER:
        sys.exit(2)
    rank = next(rank for rank, text in enumerate(failures) if text)
    raise kind(said_by(rank, failures[rank]))


@contextmanager
def meeting(comm: MPI.Comm) -> Iterator[None]:
    """Let ranks meet: if one fails where the others cannot know, it ends all of them."""
    try:
        with all_ranks_needed():
            yield
    except (RunError, SystemExit):  # of which all ranks know
        raise
    except BaseException as error:
        atexit.register(end_all_ranks, comm)
        if isinstance(error, Exception):
            raise _cannot_open(error) from None
        raise


def let_workers_begin(comm: MPI.Comm) -> None:
    """Let workers set up, now that all have met: one that dies then must not break what others wait for."""
    for rank in range(comm.Get_size()):
        if rank != MANAGER:
            comm.Send(EMPTY, rank, BEGIN)


def wait_to_begin(comm: MPI.Comm) -> None:
    """Wait, asleep, for the manager to know that all have met."""
    _wait(comm.Irecv(EMPTY, MANAGER, BEGIN))


@contextmanager
def opening(comm: MPI.Comm, meanwhile: Callable[[float], None] = time.sleep) -> Iterator[None]:
    """Let all ranks open what they need; if one cannot, the manager raises RunError, and all ranks leave."""
    with collective_check(RunError, comm, meanwhile):
        try:
            yield
        except RunError:
            raise
        except Exception as error:
            raise _cannot_open(error) from None


def _cannot_open(error: Exception) -> RunError:
    """Return the error for a rank that cannot open what the others connect to."""
    full = isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)
    way_out = "; raise the limit on open files, as with ulimit -n 4096" if full else ""
    return RunError(f"connections cannot be opened on {host_name()}: {describe_error(error)}{way_out}")


def share_arrays(comm: MPI.Comm, problem: AnyProblem) -> None:
    """Let all ranks have the manager's values of what the problem has beside x, such as frozen weights."""
    shared_arrays = ProblemAbilities.of(problem).shared_arrays
    if shared_arrays is not None:
        with collective_check(comm=comm):
            arrays = iter(shared_arrays())
            while (array := _next_of_all(comm, arrays)) is not None:
                comm.Bcast(array, MANAGER)


def _next_of_all(comm: MPI.Comm, arrays: Iterator[npt.NDArray[Any]]) -> npt.NDArray[Any] | None:
    """Return the next array; None where there is none, or where another rank has failed to have the same."""
    array, failure = None, None
    try:
        array = next(arrays, None)
    except Exception as error:  # the other ranks wait for this one all the same
        failure = error
    own, sizes = -1 if array is None else array.nbytes, np.empty(comm.Get_size(), np.int64)
    comm.Allgather(np.array([own]), sizes)
    if failure is not None:
        raise failure
    if own != sizes[MANAGER]:
        raise UsageError(
            f"frozen weights, or other arrays beside x, are not those of rank {MANAGER}: the next one has "
            f"{max(own, 0):,} bytes here and {max(sizes[MANAGER], 0):,} there; build the same on all ranks"
        )
    return array if (sizes == own).all() else None


def pack_arrays(problem: AnyProblem) -> Payload:
    """Return the manager's values of what the problem has beside x, to be sent with the job."""
    shared_arrays = ProblemAbilities.of(problem).shared_arrays
    if shared_arrays is None:
        return EMPTY
    parts = [np.ascontiguousarray(array).reshape(-1).view(np.uint8).copy() for array in shared_arrays()]
    return np.concatenate(parts) if parts else EMPTY


def unpack_arrays(problem: AnyProblem, data: Payload) -> None:
    """Let the problem have values that the manager has packed."""
    shared_arrays, begin = ProblemAbilities.of(problem).shared_arrays, 0
    for array in () if shared_arrays is None else shared_arrays():
        own, begin = data[begin : begin + array.nbytes], begin + array.nbytes
        if len(own) == array.nbytes:
            array.reshape(-1).view(np.uint8)[:] = own
    if begin != len(data):
        raise RunError(
            f"frozen weights, or other arrays beside x, are not those of rank {MANAGER}: they have {begin:,} "
            f"bytes here and {len(data):,} there; build the same on all ranks"
        )


def said_by(rank: int, text: str) -> str:
    """Return what a rank says, with its number if it is not the manager."""
    return text if rank == MANAGER else f"rank {rank}: {text}"


def check_same(ranks: list[Rank]) -> None:
    """Raise RunError where a rank has another package, job or problem than the manager."""
    for number, rank in enumerate(ranks):
        if rank.digest != ranks[MANAGER].digest:
            raise RunError(
                f"rank {number} on {rank.host} has a different version of mpi_ata, the job or its files "
                f"from rank {MANAGER} on {ranks[MANAGER].host}; use the same on all nodes"
            )


def identities(ranks: list[Rank], times: str = "") -> tuple[WorkerIdentity, ...]:
    """Return who the workers are, by their ranks or, where times are drawn, by their indices."""
    before, found = Counter[str](), []
    on_host = Counter(rank.host for rank in ranks)
    for number, (host, _, own_hardware) in enumerate(ranks):
        if times:
            found.append(drawn_identity(host, worker_of(number), times, on_host[host]))
        else:
            found.append(WorkerIdentity(host, before[host], own_hardware, on_host[host]))
        before[host] += 1
    del found[MANAGER]
    return tuple(found)
