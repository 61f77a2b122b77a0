"""What the ranks exchange about themselves before the clock starts."""

from collections import Counter
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mpi_ata.clusters.identity import HARDWARE_BYTES, WorkerIdentity, drawn_identity, hardware
from mpi_ata.clusters.mpi.links import Address, Links
from mpi_ata.clusters.mpi.liveness import Doorbell
from mpi_ata.errors import RunError
from mpi_ata.launch import host_name
from mpi_ata.layout import MANAGER, worker_of

if TYPE_CHECKING:
    from mpi4py import MPI


RECORD = Struct(f"<64s64sqqq32s32s{HARDWARE_BYTES}s")  # the fields of Rank


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
    comm: "MPI.Comm",
    bell: Doorbell,
    digest: bytes,
    links: Links | None = None,
    lifelines: int = 0,
    token: str = "",
) -> list[Rank]:
    """Exchange what the ranks say about themselves and return it, by rank."""
    size, rank = comm.Get_size(), comm.Get_rank()
    if rank == MANAGER:
        bell.share_flags(bell.name, size)
    host = host_name().encode()[:64]
    words = (token.encode(), digest, hardware().encode())
    port = 0 if links is None else links.port
    record = RECORD.pack(host, bell.name.encode(), bell.port, lifelines, port, *words)
    own = np.frombuffer(record, np.uint8)
    everyone = np.empty((size, RECORD.size), np.uint8)
    comm.Allgather(own, everyone)
    ranks = [_rank(RECORD.unpack(row.tobytes())) for row in everyone]
    bell.expect(rank, [rank.host for rank in ranks])
    if links is not None:
        links.meet(rank, [Address(other.host, other.links) for other in ranks], ranks[MANAGER].token)
    if rank != MANAGER and ranks[rank].host == ranks[MANAGER].host:
        bell.share_flags(ranks[MANAGER].bell, size)
    return ranks


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
