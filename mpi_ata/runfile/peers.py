"""Task times of hosts, compared with those of other hosts that have the same hardware."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mpi_ata.arrays import Array, State
from mpi_ata.clusters import WorkerIdentity
from mpi_ata.clusters.identity import DRAWN

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
