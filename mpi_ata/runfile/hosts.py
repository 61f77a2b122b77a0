"""The hosts of a run: how fast they were compared with their peers, and what went wrong on them."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from mpi_ata.arrays import State
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


class _WorkerTimes:
    """Mean, median and coefficient of variation of each worker's task times."""

    def __init__(self, workers: State) -> None:
        self.tasks = workers["tasks"]
        n = np.maximum(self.tasks, 1)
        self.mean = workers["seconds"] / n
        variance = np.maximum(workers["squares"] / n - self.mean**2, 0) * n / np.maximum(n - 1, 1)
        self._median = self.mean.copy()
        if (times := workers.get("times")) is not None:
            rows = np.flatnonzero((self.tasks > 0) & np.isfinite(times).any(axis=1))
            self._median[rows] = np.nanmedian(times[rows], axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            self._cv = np.where(self.tasks > 1, np.sqrt(variance) / self.mean, np.nan)

    def of_hosts(self, hosts: Mapping[str, list[int]]) -> dict[str, list[float]]:
        """Return mean, median and standard error of the mean of hosts with enough tasks, by their workers."""
        cvs = self._cv[[row for rows in hosts.values() for row in rows]]
        usual_cv = np.nanmedian(cvs) if np.isfinite(cvs).any() else 0.0
        enough = {host: rows for host, rows in hosts.items() if self.tasks[rows].sum() >= MIN_TASKS}
        return {host: self._of_host(rows, float(usual_cv)) for host, rows in enough.items()}

    def _of_host(self, rows: list[int], usual_cv: float) -> list[float]:
        """Return the times of a host; `usual_cv` bounds the spread that a few tasks may hide."""
        errors = np.fmax(self._cv[rows], usual_cv) * self.mean[rows] / np.sqrt(self.tasks[rows])
        mean, median = self.mean[rows].mean(), np.median(self._median[rows])
        return [float(mean), float(median), float(np.sqrt((errors**2).sum()) / len(rows))]


def compare_hosts(identities: Sequence[WorkerIdentity], workers: State) -> dict[str, Comparison]:
    """Return how each host compares with its peers; without those that have too few of them, or tasks.

    Only hosts with the same hardware are compared.  A host with several kinds is judged by its slowest.
    """
    found: dict[str, Comparison] = {}
    if all(identity.hardware.startswith(DRAWN) for identity in identities):
        return found  # drawn times say nothing about a host
    times = _WorkerTimes(workers)
    kinds: defaultdict[str, defaultdict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for worker in np.flatnonzero(times.mean > 0).tolist():
        kinds[identities[worker].hardware][identities[worker].host].append(worker)
    for hosts in kinds.values():
        ranks = {host: identities[rows[0]].ranks_on_host for host, rows in hosts.items()}
        for host, comparison in _compare(times.of_hosts(hosts), ranks).items():
            if host not in found or comparison.least > found[host].least:
                found[host] = comparison
    return found


def _compare(hosts: dict[str, list[float]], ranks: dict[str, int]) -> dict[str, Comparison]:
    """Compare hosts with those that have at least as many ranks: a crowded host may be slower."""
    found: dict[str, Comparison] = {}
    for count in {ranks[host] for host in hosts}:
        peers = [times for host, times in hosts.items() if ranks[host] >= count]
        if len(peers) >= MIN_HOSTS:
            usual = np.median(peers, axis=0).tolist()
            own = {host: times for host, times in hosts.items() if ranks[host] == count}
            found |= {host: _against(times, usual, len(peers)) for host, times in own.items()}
    return found


def _against(times: list[float], usual: list[float], hosts: int) -> Comparison:
    mean, median, error = usual
    ratio = times[0] / mean
    usual_error = MEDIAN_ERROR * error / np.sqrt(hosts)
    return Comparison(ratio, times[1] / median, float(np.hypot(times[2], ratio * usual_error)) / mean, hosts)


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
    """Return one row per host of a run, or on which something happened to it, flagged ones first.

    None where workers are simulated.
    """
    compared = compare_hosts(record.identities, record.workers)
    workers, tasks = Counter[str](), Counter[str]()
    for identity, number in zip(record.identities, record.workers["tasks"].tolist(), strict=True):
        workers[identity.host] += 1
        tasks[identity.host] += number
    troubles: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for event in record.events:
        if event.host and event.kind in (LOST, *TROUBLE):
            troubles[event.host][event.kind] += 1
    rows = [
        _row(host, workers[host], tasks[host], compared.get(host), troubles[host])
        for host in dict.fromkeys([*workers, *troubles])
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


def _row(
    host: str, workers: int, tasks: int, compared: Comparison | None, troubles: Counter[str]
) -> HostReport:
    found = _findings(compared, troubles)
    mean, median = (None, None) if compared is None else (compared.mean, compared.median)
    return HostReport(host, workers, tasks, mean, median, next(iter(found), ""), "; ".join(found.values()))


def _findings(compared: Comparison | None, troubles: Counter[str]) -> dict[str, str]:
    """Return what is wrong with a host, the worst first, and the reason for each."""
    found = {}
    if troubles[LOST]:
        found["lost"] = f"{counted(troubles[LOST], 'worker')} died"
    others = {kind: troubles[kind] for kind in TROUBLE if troubles[kind]}
    if sum(others.values()) >= FLAKY:
        found["flaky"] = ", ".join(f"{count:,} x {kind}" for kind, count in others.items())
    if compared and compared.least >= SLOW and compared.mean - 1 >= SIGNIFICANCE * compared.error:
        ratio = f"{compared.least:.1f}"
        found[f"slow ({ratio} x)"] = f"{ratio} times slower than the median of {compared.hosts:,} hosts"
    return found
