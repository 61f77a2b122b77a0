"""Who is there: what the ranks tell each other before the clock starts."""

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mpi_ata.cluster.bell import Bell, host_name
from mpi_ata.errors import RunError

if TYPE_CHECKING:
    from mpi4py import MPI

RECORD = Struct("<64s64sq32s")  # host, name and port of the bell, digest of what the rank was given


class Rank(NamedTuple):
    """One rank, as it introduced itself."""

    host: str
    bell: str
    port: int
    digest: bytes


def introduce(comm: "MPI.Comm", bell: Bell, digest: bytes) -> list[Rank]:
    """Let every rank know every other."""
    size, rank = comm.Get_size(), comm.Get_rank()
    if rank == 0:
        bell.share_flags(bell.name, size, rank)
    record = RECORD.pack(host_name().encode()[:64], bell.name.encode(), bell.port, digest)
    own = np.frombuffer(record, np.uint8)
    everyone = np.empty((size, RECORD.size), np.uint8)
    comm.Allgather(own, everyone)
    ranks = [_rank(RECORD.unpack(row.tobytes())) for row in everyone]
    if rank > 0 and ranks[rank].host == ranks[0].host:
        bell.share_flags(ranks[0].bell, size, rank)
    return ranks


def check_same(ranks: list[Rank]) -> None:
    """Refuse ranks that were not given the same package, job and problem as the manager."""
    for number, rank in enumerate(ranks):
        if rank.digest != ranks[0].digest:
            raise RunError(
                f"rank {number} on {rank.host} has other versions of mpi_ata, of the job or of its files "
                f"than rank 0 on {ranks[0].host}; give all nodes the same"
            )


def _rank(fields: tuple[bytes, bytes, int, bytes]) -> Rank:
    host, bell, port, digest = fields
    return Rank(host.rstrip(b"\0").decode(), bell.rstrip(b"\0").decode(), port, digest)
