"""Who is there: what the ranks tell each other before the clock starts."""

from collections import Counter
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mpi_ata.arrays import Array
from mpi_ata.clusters.buffers import SharedBufferPool
from mpi_ata.clusters.channel import INLINE
from mpi_ata.clusters.doorbell import Doorbell, host_name
from mpi_ata.clusters.identity import LONGEST, WorkerIdentity, drawn_identity, hardware
from mpi_ata.errors import RunError

if TYPE_CHECKING:
    from mpi4py import MPI

SMALL = INLINE  # bytes: up to there arrays go along with messages, and need not be shared
RECORD = Struct(f"<64s64sq32s{LONGEST}s")  # host, bell: name and port, digest of what it was given, hardware


class Rank(NamedTuple):
    """One rank, as it introduced itself."""

    host: str
    bell: str
    port: int
    digest: bytes
    hardware: str


def handshake(comm: "MPI.Comm", bell: Doorbell, digest: bytes) -> list[Rank]:
    """Let every rank know every other."""
    size, rank = comm.Get_size(), comm.Get_rank()
    if rank == 0:
        bell.share_flags(bell.name, size)
    host = host_name().encode()[:64]
    record = RECORD.pack(host, bell.name.encode(), bell.port, digest, hardware().encode())
    own = np.frombuffer(record, np.uint8)
    everyone = np.empty((size, RECORD.size), np.uint8)
    comm.Allgather(own, everyone)
    ranks = [_rank(RECORD.unpack(row.tobytes())) for row in everyone]
    bell.expect(rank, [rank.host for rank in ranks])
    if rank > 0 and ranks[rank].host == ranks[0].host:
        bell.share_flags(ranks[0].bell, size)
    return ranks


def shared_buffers(host: str, bell: str, template: Array, owner: bool = False) -> SharedBufferPool | None:
    """Memory shared with the manager there; None where it is on another node, or arrays are small."""
    if template.nbytes <= SMALL or host != host_name():
        return None
    try:
        return SharedBufferPool(template, f"{bell}-slots", owner)
    except OSError:
        return None


def check_same(ranks: list[Rank]) -> None:
    """Refuse ranks that were not given the same package, job and problem as the manager."""
    for number, rank in enumerate(ranks):
        if rank.digest != ranks[0].digest:
            raise RunError(
                f"rank {number} on {rank.host} has other versions of mpi_ata, of the job or of its files "
                f"than rank 0 on {ranks[0].host}; give all nodes the same"
            )


def places(ranks: list[Rank], times: str = "") -> tuple[WorkerIdentity, ...]:
    """Who the workers are, by their ranks or, where times are drawn, by their indices."""
    met, found = Counter[str](), []
    all_here = Counter(rank.host for rank in ranks)
    for number, (host, *_, own_hardware) in enumerate(ranks):
        found.append(
            drawn_identity(host, number - 1, times, all_here[host])
            if times
            else WorkerIdentity(host, met[host], own_hardware, all_here[host])
        )
        met[host] += 1
    return tuple(found[1:])


def _rank(fields: tuple[bytes, bytes, int, bytes, bytes]) -> Rank:
    host, bell, port, digest, own_hardware = fields
    names = [name.rstrip(b"\0").decode(errors="replace") for name in (host, bell, own_hardware)]
    return Rank(names[0], names[1], port, digest, names[2])
