"""The hosts of a run: how fast they were compared with their peers, and what went wrong on them."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from mpi_ata.arrays import State
from mpi_ata.clusters import WorkerIdentity
from mpi_ata.clusters.identity import VIRTUAL
from mpi_ata.runfile.peers import Comparison, compare_hosts
from mpi_ata.runfile.prior import counted
from mpi_ata.runfile.record import Event, Record

# Hosts with the same GPUs differ by up to 1.2 x (Longhorn, Frontera); broken ones begin at 2 x (Lonestar6).
SLOW = 1.5
SIGNIFICANCE = 4.0  # standard errors above the median host: by chance once in 30,000 hosts
LOST = "lost"
TROUBLE = ("overdue", "failed", "bad-result", "excluded")  # kinds of events that make a host flaky
FLAKY = 2  # events of these kinds


class HostReport(NamedTuple):
    """One host of a run; ratios are task times relative to the median host with the same hardware."""

    host: str
    workers: int
    tasks: int
    mean_ratio: float | None  # None: there is nothing to compare it with
    median_ratio: float | None
    verdict: str  # lost, flaky, slow (2.2 x), or empty
    reason: str


def report_hosts(record: Record) -> list[HostReport]:
    """Return one row per host of a run, flagged ones first; none where workers are simulated."""
    return host_reports(record.identities, record.workers, record.events)


def host_reports(
    identities: Sequence[WorkerIdentity], workers: State, events: Sequence[Event]
) -> list[HostReport]:
    """Return one row per host that these workers run on, or ran on when something happened to them."""
    compared = compare_hosts(identities, workers)
    counts: Counter[str] = Counter(identity.host for identity in identities)
    tasks: Counter[str] = Counter()
    for identity, number in zip(identities, workers["tasks"].tolist(), strict=True):
        tasks[identity.host] += number
    troubles = _troubles(events)
    rows = [
        _row(host, counts[host], tasks[host], compared.get(host), troubles.get(host, Counter()))
        for host in dict.fromkeys([*counts, *troubles])
        if host != VIRTUAL
    ]
    return sorted(rows, key=lambda row: not row.verdict)


def flagged(rows: Sequence[HostReport]) -> list[HostReport]:
    """Return the hosts that are slow, flaky or lost."""
    return [row for row in rows if row.verdict]


def hosts_at_fault(events: Sequence[Event]) -> list[str]:
    """Return the hosts to avoid when a run that broke off starts again.

    One loss may be an accident; two on the same host, or one that ended the run, are not.
    """
    losses = Counter(event.host for event in events if event.kind == LOST and event.host not in ("", VIRTUAL))
    last = events[-1].host if ended_by_loss(events) else ""
    return [host for host, count in losses.items() if count > 1 or host == last]


def ended_by_loss(events: Sequence[Event], since: float = 0.0) -> bool:
    """Return whether the loss of a worker is the last thing that was recorded of a run, since some time."""
    return bool(events) and events[-1].kind == LOST and events[-1].time >= since


def _troubles(events: Sequence[Event]) -> dict[str, Counter[str]]:
    """Return how often workers of each host were lost, overdue and so on."""
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for event in events:
        if event.host and event.kind in (LOST, *TROUBLE):
            found[event.host][event.kind] += 1
    return found


def _row(
    host: str, workers: int, tasks: int, compared: Comparison | None, troubles: Counter[str]
) -> HostReport:
    found = _findings(compared, troubles)
    return HostReport(
        host,
        workers,
        tasks,
        mean_ratio=compared.mean if compared else None,
        median_ratio=compared.median if compared else None,
        verdict=next(iter(found), ""),
        reason="; ".join(found.values()),
    )


def _findings(compared: Comparison | None, troubles: Counter[str]) -> dict[str, str]:
    """Return what is wrong with a host, the worst first, and the reason for each."""
    found = {}
    if troubles[LOST]:
        found["lost"] = f"{counted(troubles[LOST], 'worker')} died"
    others = {kind: troubles[kind] for kind in TROUBLE if troubles[kind]}
    if sum(others.values()) >= FLAKY:
        found["flaky"] = ", ".join(f"{count:,} x {kind}" for kind, count in others.items())
    if compared is not None and _is_slow(compared):
        ratio = f"{compared.least:.1f}"
        found[f"slow ({ratio} x)"] = f"{ratio} times slower than the median of {compared.hosts:,} hosts"
    return found


def _is_slow(compared: Comparison) -> bool:
    return compared.least >= SLOW and compared.mean - 1 >= SIGNIFICANCE * compared.error
