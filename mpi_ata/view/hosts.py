"""The hosts of a run as text."""

from collections.abc import Sequence
from typing import Any

from mpi_ata.runfile.hosts import HostReport
from mpi_ata.runfile.prior import counted
from mpi_ata.view.text import table

HEADER = ["host", "verdict", "workers", "tasks", "mean / median host", "median / median host"]
SHOWN = 3  # hosts in one line


def hosts_text(hosts: Sequence[dict[str, Any]]) -> str:
    """Return the table of flagged hosts and why they are flagged; nothing if no hosts were compared."""
    bad = [host for host in hosts if host["verdict"]]
    compared = sum(host["mean_ratio"] is not None for host in hosts)
    if not bad:
        return f"no slow or flaky hosts among {compared:,}" if compared else ""
    others = f"{counted(len(hosts) - len(bad), 'other host')} not flagged"
    reasons = [f"{host['host']}: {host['reason']}" for host in bad]
    return "\n".join([table([_cells(host) for host in bad], HEADER), "", *reasons, others])


def _cells(host: dict[str, Any]) -> list[Any]:
    ratios = [_ratio(host["mean_ratio"]), _ratio(host["median_ratio"])]
    return [host["host"], host["verdict"], host["workers"], f"{host['tasks']:,}", *ratios]


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def flagged_text(hosts: Sequence[HostReport]) -> str:
    """Return flagged hosts in one line."""
    named = [f"{row.host} {row.verdict}" for row in hosts[:SHOWN]]
    more = [f"{len(hosts) - SHOWN:,} more"] if len(hosts) > SHOWN else []
    return f"{', '.join([*named, *more])}; see mpi-ata show"
