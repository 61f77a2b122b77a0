"""Opens this rank's end of an exchange before the clock starts."""

from collections.abc import Sequence

from mpi_ata.arrays import Array
from mpi_ata.clusters.channel import INLINE
from mpi_ata.clusters.exchange.choice import chain_possible
from mpi_ata.clusters.exchange.links import Address, Links
from mpi_ata.clusters.exchange.node_memory import NodeMemory
from mpi_ata.clusters.handshake import Rank
from mpi_ata.layout import MANAGER


def open_links(exchange: str, template: Array) -> Links | None:
    """Return what a chain needs, unless all goes by the star: small arrays are sent with the header."""
    return None if exchange == "star" or template.nbytes <= INLINE else Links()


def port_of(links: Links | None) -> int:
    """Return where this rank accepts connections; 0: nowhere."""
    return 0 if links is None else links.port


def introduce(links: Links | None, rank: int, ranks: Sequence[Rank]) -> None:
    """Let this rank know where the others accept connections."""
    if links is not None:
        addresses = [Address(other.host, other.links) for other in ranks]
        links.meet(rank, addresses, ranks[MANAGER].token)


def node_memory(
    links: Links | None, exchange: str, template: Array, rank: int, ranks: Sequence[Rank], replicated: bool
) -> NodeMemory | None:
    """Return memory that the workers of this rank's node share; None if they do not need any."""
    workers = range(MANAGER + 1, len(ranks))
    hosts = [ranks[worker].host for worker in workers]
    here = [worker for worker in workers if ranks[worker].host == ranks[rank].host]
    possible = replicated or chain_possible(exchange, template.nbytes, ranks[MANAGER].host, hosts)
    if links is None or len(here) < 2 or not possible:
        return None
    return NodeMemory(template, f"{ranks[here[0]].bell}-node", here, rank)
