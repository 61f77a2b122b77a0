"""The hosts of a run: slow, flaky and lost ones are named, and no others."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import mpi_ata
from mpi_ata.arrays import State
from mpi_ata.clusters.accounts import TaskTimeStats
from mpi_ata.clusters.identity import WorkerIdentity, drawn_identity
from mpi_ata.job import RunDescription
from mpi_ata.runfile.hosts import HostReport, ended_by_loss, flagged, hosts_at_fault, report_hosts
from mpi_ata.runfile.schema import Event, Record
from mpi_ata.view.summaries import flagged_text, hosts_text

XEON, EPYC = "Xeon, 8 of 8 cores, 1 threads", "EPYC, 8 of 8 cores, 1 threads"
SPEEDS = Path(mpi_ata.__file__).parent / "times" / "machines"
TABLES = ["longhorn-resnet", "longhorn-sgemm", "frontera-resnet", "lonestar6-resnet"]


def on_hosts(count: int, ranks: int = 1, hardware: str = XEON, prefix: str = "n") -> list[WorkerIdentity]:
    return [
        WorkerIdentity(f"{prefix}{host}", index, hardware, ranks)
        for host in range(count)
        for index in range(ranks)
    ]


def measured(
    means: Sequence[float], tasks: Sequence[int] | int = 50, cv: Sequence[float] | float = 0.05, seed: int = 1
) -> State:
    """Return the columns of workers whose task times are lognormal with these means and variations."""
    rng, n = np.random.default_rng(seed), len(means)
    stats = TaskTimeStats(n)
    counts, spreads = np.broadcast_to(tasks, n).tolist(), np.broadcast_to(cv, n).tolist()
    for worker, (mean, count, spread) in enumerate(zip(means, counts, spreads, strict=True)):
        sigma = np.sqrt(np.log1p(spread**2))
        stats.add(worker, (mean * rng.lognormal(-(sigma**2) / 2, sigma, count)).tolist())
    return stats.state()


def reported(
    identities: Sequence[WorkerIdentity], workers: State, *events: tuple[str, str]
) -> list[HostReport]:
    """Return the rows of hosts; each event is a kind and the host."""
    run = Record("run", RunDescription(""), tuple(identities), workers, events=happened(*events))
    return report_hosts(run)


def happened(*events: tuple[str, str]) -> list[Event]:
    return [Event(float(number), 0, kind, "", host) for number, (kind, host) in enumerate(events)]


def verdicts(rows: Sequence[HostReport]) -> dict[str, str]:
    return {row.host: row.verdict for row in flagged(rows)}


def table(name: str) -> tuple[list[float], list[float]]:
    """Return relative times and coefficients of variation of GPUs."""
    with (SPEEDS / f"{name}.csv").open() as file:
        rows = list(csv.DictReader(file))
    return [float(row["relative"]) for row in rows], [float(row["cv"] or 0) for row in rows]


def test_a_host_that_is_2_2_times_slower_is_flagged_with_the_reason() -> None:
    rows = reported(on_hosts(5), measured([1, 1, 1, 2.2, 1], cv=0.01))
    first = rows[0]
    assert (first.host, first.verdict) == ("n3", "slow (2.2 x)")
    assert first.reason == "2.2 times slower than the median of 5 hosts"
    # Five standard errors at 50 tasks, on both sides.
    assert (first.mean_ratio, first.median_ratio) == pytest.approx((2.2, 2.2), rel=0.01)
    assert (first.workers, first.tasks) == (1, 50)
    assert verdicts(rows[1:]) == {}


def test_few_tasks_are_enough_where_times_hardly_vary_but_not_where_they_do() -> None:
    few = [50, 50, 50, 6, 50]  # an allocator that learns soon leaves a slow worker idle
    means, slow = [1, 1, 1, 2.2, 1], {"n3": "slow (2.2 x)"}
    assert verdicts(reported(on_hosts(5), measured(means, few, cv=0.01))) == slow
    assert verdicts(reported(on_hosts(5), measured(means, few, cv=0.8))) == {}
    assert verdicts(reported(on_hosts(5), measured(means, [50, 50, 50, 4, 50]))) == {}


@pytest.mark.parametrize("gpus", [1, 4])
@pytest.mark.parametrize("name", TABLES)
def test_the_spread_of_real_machines_is_not_flagged_but_their_broken_gpus_are(name: str, gpus: int) -> None:
    """Twenty runs of 20 tasks each; broken are the six A100 of Lonestar6 at 2.14 x or more."""
    means, cv = table(name)
    for seed in range(20):
        order = np.random.default_rng(seed).permutation(len(means))[: len(means) // gpus * gpus]
        identities = on_hosts(len(order) // gpus, gpus)
        workers = measured([means[gpu] for gpu in order], 20, [cv[gpu] for gpu in order], seed)
        broken = np.reshape([means[gpu] > 2 for gpu in order], (-1, gpus))
        bad = set(verdicts(reported(identities, workers)))
        assert {f"n{host}" for host in np.flatnonzero(broken.all(axis=1))} <= bad
        assert bad <= {f"n{host}" for host in np.flatnonzero(broken.sum(axis=1) > gpus / 4)}


def test_equal_hosts_with_very_noisy_tasks_are_not_flagged() -> None:
    """In 20 runs of 1,000 hosts, tasks vary by 50 % as in the paper: chance alone gives 0.6 flags at 4 sigma.

    The size of 1.5 must be reached as well, which is 4.5 sigma at 20 tasks, so none is expected.
    """
    for seed, tasks in enumerate([5, 10, 20, 40] * 5):
        assert verdicts(reported(on_hosts(1000), measured([1.0] * 1000, tasks, 0.5, seed))) == {}


def test_very_long_tasks_now_and_then_do_not_make_a_host_slow() -> None:
    workers = measured([1.0] * 5, 50, 0.01)
    stalled = TaskTimeStats(5)
    stalled.restore(workers)
    stalled.add(2, [10.0] * 20)  # of 70: far beyond the standard error of the mean
    rows = {row.host: row for row in reported(on_hosts(5), stalled.state())}
    assert (rows["n2"].mean_ratio or 0) > 3
    assert rows["n2"].verdict == ""


def test_only_hosts_with_the_same_hardware_are_compared() -> None:
    identities = [*on_hosts(4), *on_hosts(3, hardware=EPYC, prefix="old")]
    rows = reported(identities, measured([1, 1, 1, 1, 3, 3, 3]))
    assert verdicts(rows) == {}
    assert [row.mean_ratio for row in rows] == pytest.approx([1] * 7, rel=0.05)
    assert verdicts(reported(identities, measured([1, 1, 1, 1, 3, 3, 9]))) == {"old2": "slow (3.0 x)"}


def test_a_host_that_more_ranks_share_is_not_compared_with_emptier_ones() -> None:
    identities = [*on_hosts(3), *on_hosts(1, ranks=8, prefix="crowded")]
    rows = reported(identities, measured([1.0] * 3 + [2.2] * 8))
    assert verdicts(rows) == {}
    assert rows[-1].mean_ratio is None


@pytest.mark.parametrize("hosts", [1, 2])
def test_one_or_two_hosts_are_not_compared(hosts: int) -> None:
    rows = reported(on_hosts(hosts), measured([1.0, 5.0][:hosts]))
    assert [(row.mean_ratio, row.verdict) for row in rows] == [(None, "")] * hosts
    assert hosts_text([row._asdict() for row in rows]) == ""


def test_idle_workers_and_hosts_do_not_count() -> None:
    rows = reported(on_hosts(6), measured([1, 1, 1, 2.2, 1, 1], [50, 50, 50, 50, 50, 0]))
    assert rows[0].reason == "2.2 times slower than the median of 5 hosts"
    assert rows[-1] == HostReport("n5", 1, 0, None, None, "", "")


def test_drawn_times_say_nothing_about_a_host_and_simulated_workers_have_none() -> None:
    emulated = [drawn_identity(f"n{worker}", worker, "Sqrt") for worker in range(5)]
    rows = reported(emulated, measured([1, 2, 3, 4, 50]), ("lost", "n2"))
    assert verdicts(rows) == {"n2": "lost"}
    simulated = [drawn_identity("virtual", worker, "Sqrt") for worker in range(5)]
    assert reported(simulated, measured([1, 2, 3, 4, 50]), ("lost", "virtual")) == []


def test_lost_and_flaky_hosts_are_flagged_by_what_happened_on_them() -> None:
    events = [
        ("lost", "n1"),
        *[("overdue", "n2"), ("back", "n2")],  # a single incident
        *[("failed", "n3"), ("failed", "n3"), ("excluded", "n3")],
        *[("overdue", "n4"), ("bad-result", "n4"), ("lost", "n4")],
        ("lost", "gone"),  # before the run was resumed on other hosts
    ]
    rows = reported(on_hosts(5), measured([1.0] * 4 + [3.0]), *events)
    assert verdicts(rows) == {"n1": "lost", "n3": "flaky", "n4": "lost", "gone": "lost"}
    assert flagged_text(flagged(rows), "run.h5").startswith(
        "1 worker died on n1, n3 flaky, 1 worker died on n4, "
    )
    reasons = {row.host: row.reason for row in flagged(rows)}
    assert reasons["n3"] == "2 x failed, 1 x excluded"
    slow = "3.0 times slower than the median of 5 hosts"
    assert reasons["n4"] == f"1 worker died; 1 x overdue, 1 x bad-result; {slow}"


def test_a_host_is_at_fault_if_it_lost_two_workers_or_the_one_that_ended_the_run() -> None:
    assert hosts_at_fault([]) == []
    once = happened(("started", ""), ("lost", "n1"), ("ended", ""))
    assert (hosts_at_fault(once), ended_by_loss(once)) == ([], False)
    assert [ended_by_loss(once[:2], since) for since in (0.0, 1.0, 1.5)] == [True, True, False]
    assert hosts_at_fault(happened(("lost", "n1"), ("lost", "n2"), ("resumed", ""), ("lost", "n2"))) == ["n2"]
    assert hosts_at_fault(happened(("lost", "n1"), ("lost", "n2"))) == ["n2"]
    assert hosts_at_fault(happened(("lost", "virtual"), ("lost", "virtual"))) == []


def test_the_text_has_a_table_of_flagged_hosts_only() -> None:
    rows = reported(on_hosts(5), measured([1, 1, 1, 2.2, 1], 50, 0.0))
    text = hosts_text([row._asdict() for row in rows]).splitlines()
    assert text[2].split() == ["n3", "slow", "(2.2", "x)", "1", "50", "2.20", "2.20"]
    assert text[3:] == ["", "n3: 2.2 times slower than the median of 5 hosts", "4 other hosts not flagged"]
    assert hosts_text([rows[0]._asdict()]).splitlines()[-1] == text[4]
    assert flagged_text(flagged(rows), "a b.h5") == "n3 slow (2.2 x); see mpi-ata show 'a b.h5'"
    healthy = reported(on_hosts(5), measured([1.0] * 5))
    assert hosts_text([row._asdict() for row in healthy]) == "no slow or flaky hosts among 5"
