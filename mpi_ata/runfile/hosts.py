"""The hosts of a run: how fast they were compared with their peers, and what went wrong on them."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mpi_ata.arrays import Array, State
from mpi_ata.clusters import WorkerIdentity
from mpi_ata.clusters.identity import DRAWN, VIRTUAL
from mpi_ata.runfile.priors import counted
from mpi_ata.runfile.schema import Event, Record

MIN_TASKS = 5  # of a host that is compared
MIN_HOSTS = 3  # with two, it is not known which one is unusual
MEDIAN_ERROR = 1.25  # standard error of a median, relative to that of a mean (normal distribution)


class Comparison(NamedTuple):
    """Task times of a host relative to those of the median host."""

    mean: float
    median: float
    error: float  # standard error of `mean`
    hosts: int  # that it was compared with, itself included

    @property
    def least(self) -> float:
        """Return the smaller ratio: very long tasks now and then do not make a host slow."""
        return min(self.mean, self.median)


class _HostTimes(NamedTuple):
    """The seconds of tasks on one host, each worker with the same weight."""

    host: str
    ranks: int
    mean: float
    median: float
    error: float  # standard error of `mean`


class _WorkerTimes:
    """Mean, median and standard error of each worker's task times."""

    def __init__(self, workers: State) -> None:
        self.tasks = workers["tasks"]
        n = np.maximum(self.tasks, 1)
        self.mean = workers["seconds"] / n
        variance = np.maximum(workers["squares"] / n - self.mean**2, 0) * n / np.maximum(n - 1, 1)
        self.median = self._medians(workers.get("times"))
        with np.errstate(invalid="ignore", divide="ignore"):
            self.cv = np.where(self.tasks > 1, np.sqrt(variance) / self.mean, np.nan)

    def _medians(self, times: Array | None) -> Array:
        medians = self.mean.copy()
        if times is not None:
            rows = np.flatnonzero((self.tasks > 0) & np.isfinite(times).any(axis=1))
            medians[rows] = np.nanmedian(times[rows], axis=1)
        return medians

    def of_host(self, host: str, ranks: int, rows: list[int], usual_cv: float) -> _HostTimes:
        """Return the times of a host; `usual_cv` bounds the spread that a few tasks may hide."""
        errors = np.fmax(self.cv[rows], usual_cv) * self.mean[rows] / np.sqrt(self.tasks[rows])
        return _HostTimes(
            host,
            ranks,
            float(self.mean[rows].mean()),
            float(np.median(self.median[rows])),
            float(np.sqrt((errors**2).sum()) / len(rows)),
        )

    def usual_cv(self, rows: list[int]) -> float:
        """Return the median coefficient of variation of workers."""
        known = self.cv[rows][np.isfinite(self.cv[rows])]
        return float(np.median(known)) if len(known) else 0.0


def compare_hosts(identities: Sequence[WorkerIdentity], workers: State) -> dict[str, Comparison]:
    """Return how each host compares with its peers; without those that have too few of them, or tasks.

    Only hosts with the same hardware are compared.  A host with several kinds is judged by its slowest.
    """
    found: dict[str, Comparison] = {}
    if all(identity.hardware.startswith(DRAWN) for identity in identities):
        return found  # drawn times say nothing about a host
    for kind in _by_hardware(identities, _WorkerTimes(workers)).values():
        for host, comparison in _compare(kind).items():
            if host not in found or comparison.least > found[host].least:
                found[host] = comparison
    return found


def _by_hardware(identities: Sequence[WorkerIdentity], times: _WorkerTimes) -> dict[str, list[_HostTimes]]:
    """Return the times of the hosts with each kind of hardware."""
    kinds: defaultdict[str, defaultdict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for worker in np.flatnonzero(times.mean > 0).tolist():
        host, _, hardware, _ = identities[worker]
        kinds[hardware][host].append(worker)
    return {kind: _host_times(identities, times, hosts) for kind, hosts in kinds.items()}


def _host_times(
    identities: Sequence[WorkerIdentity], times: _WorkerTimes, hosts: dict[str, list[int]]
) -> list[_HostTimes]:
    usual_cv = times.usual_cv([row for rows in hosts.values() for row in rows])
    return [
        times.of_host(host, identities[rows[0]].ranks_on_host, rows, usual_cv)
        for host, rows in hosts.items()
        if times.tasks[rows].sum() >= MIN_TASKS
    ]


def _compare(hosts: list[_HostTimes]) -> dict[str, Comparison]:
    """Compare hosts with those that have at least as many ranks: a crowded host may be slower."""
    found: dict[str, Comparison] = {}
    for ranks in {host.ranks for host in hosts}:
        peers = np.array([host[2:] for host in hosts if host.ranks >= ranks])
        if len(peers) >= MIN_HOSTS:
            own = [host for host in hosts if host.ranks == ranks]
            found |= {host.host: _against(host, peers) for host in own}
    return found


def _against(host: _HostTimes, peers: Array) -> Comparison:
    mean, median, error = np.median(peers, axis=0).tolist()
    ratio = host.mean / mean
    usual_error = MEDIAN_ERROR * error / np.sqrt(len(peers))
    return Comparison(
        ratio, host.median / median, float(np.hypot(host.error, ratio * usual_error)) / mean, len(peers)
    )


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
