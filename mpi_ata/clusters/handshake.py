"""What the ranks exchange about themselves before the clock starts."""

from collections import Counter
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mpi_ata.arrays import Array
from mpi_ata.clusters.buffers import SharedBufferPool
from mpi_ata.clusters.channel import INLINE
from mpi_ata.clusters.doorbell import Doorbell
from mpi_ata.clusters.identity import LONGEST, WorkerIdentity, drawn_identity, hardware
from mpi_ata.errors import RunError
from mpi_ata.launch import host_name
from mpi_ata.layout import MANAGER, worker_of

if TYPE_CHECKING:
    from mpi4py import MPI

SMALL = INLINE  # bytes: arrays up to this size are sent with the header and need not be shared
RECORD = Struct(f"<64s64sqqq32s32s{LONGEST}s")  # the fields of Rank


class Rank(NamedTuple):
    """What one rank says about itself."""

    host: str
    bell: str  # name of its doorbell
    port: int  # and where it listens on the network
    lifelines: int  # port for lifelines; 0 but for the manager
    links: int  # port for connections of an exchange; 0: none
    token: str  # a random word, by which ranks recognise each other
    digest: bytes
    hardware: str


def handshake(
    comm: "MPI.Comm", bell: Doorbell, digest: bytes, lifelines: int = 0, token: str = "", links: int = 0
) -> list[Rank]:
    """Exchange what the ranks say about themselves and return it, by rank."""
    size, rank = comm.Get_size(), comm.Get_rank()
    if rank == MANAGER:
        bell.share_flags(bell.name, size)
    host = host_name().encode()[:64]
    words = (token.encode(), digest, hardware().encode())
    record = RECORD.pack(host, bell.name.encode(), bell.port, lifelines, links, *words)
    own = np.frombuffer(record, np.uint8)
    everyone = np.empty((size, RECORD.size), np.uint8)
    comm.Allgather(own, everyone)
    ranks = [_rank(RECORD.unpack(row.tobytes())) for row in everyone]
    bell.expect(rank, [rank.host for rank in ranks])
    if rank != MANAGER and ranks[rank].host == ranks[MANAGER].host:
        bell.share_flags(ranks[MANAGER].bell, size)
    return ranks


def first_ranks(ranks: list[Rank]) -> list[int]:
    """Return the first rank of each node except for the manager's."""
    first: dict[str, int] = {}
    for number, rank in enumerate(ranks):
        first.setdefault(rank.host, number)
    return [number for number in first.values() if number != MANAGER]


def shared_buffers(host: str, bell: str, template: Array, owner: bool = False) -> SharedBufferPool | None:
    """Return memory shared with the manager; None where it is on another node, or arrays are small."""
    if template.nbytes <= SMALL or host != host_name():
        return None
    try:
        return SharedBufferPool(template, f"{bell}-slots", owner)
    except OSError:
        return None


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
    for number, (host, *_, own_hardware) in enumerate(ranks):
        if times:
            found.append(drawn_identity(host, worker_of(number), times, on_host[host]))
        else:
            found.append(WorkerIdentity(host, before[host], own_hardware, on_host[host]))
        before[host] += 1
    del found[MANAGER]
    return tuple(found)


def _rank(fields: tuple[bytes, bytes, int, int, int, bytes, bytes, bytes]) -> Rank:
    host, bell, port, lifelines, links, token, digest, own_hardware = fields
    names = [name.rstrip(b"\0").decode(errors="replace") for name in (host, bell, token, own_hardware)]
    return Rank(names[0], names[1], port, lifelines, links, names[2], digest, names[3])
