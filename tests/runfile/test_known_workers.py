"""What earlier runs know about workers: added up once, matched to the present ones, weighted."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpi_ata.arrays import State
from mpi_ata.clusters.identity import WorkerIdentity, drawn_identity
from mpi_ata.runfile import priors as prior
from mpi_ata.runfile.priors import COLUMNS, SUMS, RunStats, discount, kept_workers, match_prior, merge_runs

XEON, EPYC = "Xeon, 8 of 8 cores, 1 threads", "EPYC, 8 of 8 cores, 1 threads"
RANKS = 4


def node(host: str, indices: Sequence[int] = range(RANKS), hardware: str = XEON) -> list[WorkerIdentity]:
    return [WorkerIdentity(host, index, hardware, RANKS) for index in indices]


def law(n: int, label: str = "Linear", host: str = "virtual") -> list[WorkerIdentity]:
    return [drawn_identity(host, worker, label, n) for worker in range(n)]


def source(
    identities: Sequence[WorkerIdentity], run: str = "one", rounds: int = 100, tasks: object = 50
) -> RunStats:
    """Return a run in which worker i did this many tasks of i + 1 seconds each, plus or minus half."""
    counts = np.broadcast_to(np.asarray(tasks, np.int64), len(identities)).copy()
    means = np.arange(1.0, len(identities) + 1)
    columns: State = {
        "tasks": counts,
        "seconds": counts * means,
        "squares": counts * (means**2 + 0.25),
        "arrivals": counts // 5,
        "overhead": 0.01 * counts,
        "unfinished": 0.5 * counts,
        "least": np.where(counts > 0, means - 0.5, np.inf),
    }
    return RunStats(run, rounds, identities, columns)


def equal(one: State, other: State) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in COLUMNS)


def test_several_runs_add_up_and_the_least_time_is_the_least_of_all() -> None:
    identities = node("a")
    known = match_prior([source(identities, "one", 100, 10), source(identities, "two", 50, 30)], identities)
    assert known.rounds == 150
    assert known.columns["tasks"].tolist() == [40] * 4
    assert known.columns["seconds"].tolist() == [40, 80, 120, 160]
    assert known.columns["squares"].tolist() == [40 * (mean**2 + 0.25) for mean in (1, 2, 3, 4)]
    assert known.columns["arrivals"].tolist() == [8] * 4
    assert known.columns["unfinished"].tolist() == [20] * 4
    assert known.columns["least"].tolist() == [0.5, 1.5, 2.5, 3.5]
    assert known.columns["tasks"].dtype == known.columns["arrivals"].dtype == np.int64


@given(st.permutations(range(4)), st.lists(st.integers(0, 3), max_size=8))
def test_each_run_counts_once_in_its_longest_version_in_whatever_order_it_is_given(
    order: list[int], again: list[int]
) -> None:
    runs = [source(node("a"), str(number), 2**number, 2**number) for number in range(4)]
    shorter = [source(node("a"), str(number), 1, 1) for number in again]
    known = match_prior(merge_runs([*shorter, *(runs[number] for number in [*order, *again])]), node("a"))
    assert (known.runs, known.rounds) == (4, 15)
    assert known.columns["tasks"].tolist() == [15] * 4


def test_a_worker_is_recognised_by_host_local_index_and_hardware_anywhere_in_the_list() -> None:
    known = match_prior([source([*node("a"), *node("b")])], [*node("b"), *node("a")[::-1]])
    assert known.recognised == list(range(8))
    assert (known.columns["seconds"] / known.columns["tasks"]).tolist() == [5, 6, 7, 8, 4, 3, 2, 1]
    assert known.summary() == "from 100 rounds of 1 earlier run: 8 of 8 workers recognised"


@pytest.mark.parametrize(
    ("now", "then_and_now"),
    [
        (WorkerIdentity("a", 0, EPYC, RANKS), "Xeon then, EPYC now"),
        (WorkerIdentity("a", 0, "Xeon, 8 of 8 cores, 8 threads", RANKS), "1 threads then, 8 threads now"),
        (WorkerIdentity("a", 0, XEON + ", 1 of 4 A100", RANKS), "less then, 1 of 4 A100 now"),
        (WorkerIdentity("a", 0, XEON, 9), "4 ranks then, 9 ranks now"),
    ],
)
def test_a_worker_with_other_hardware_on_the_same_host_starts_cold_and_is_reported(
    now: WorkerIdentity, then_and_now: str
) -> None:
    known = match_prior([source(node("a"))], [now, *node("a")[1:]])
    assert known.recognised == [1, 2, 3]
    assert known.columns["tasks"].tolist() == [0, 50, 50, 50]
    assert known.columns["seconds"][0] == known.columns["unfinished"][0] == 0
    assert known.columns["least"][0] == np.inf
    start = "from 100 rounds of 1 earlier run: 3 of 4 workers recognised, 1 starts cold"
    assert known.summary() == f"{start}; 1 worker changed: {then_and_now}"


def test_many_workers_that_changed_alike_are_reported_together() -> None:
    then = [identity for host in "abcdef" for identity in node(host)]
    known = match_prior([source(then)], [identity._replace(hardware=EPYC) for identity in then])
    assert known.summary().endswith("24 start cold; 24 workers changed: Xeon then, EPYC now")
    other = [identity._replace(hardware=f"{number}") for number, identity in enumerate(then)]
    assert match_prior([source(then)], other).summary().endswith("; ...")
    assert match_prior([source(then)], other).summary().count("changed") == prior.SHOWN


def test_a_new_host_starts_from_others_with_its_hardware_at_less_weight() -> None:
    known = match_prior([source(node("a"), tasks=100)], [*node("a"), *node("b", [0, 1])])
    assert (known.recognised, known.by_class, known.cold) == ([0, 1, 2, 3], [4, 5], 0)
    assert known.columns["tasks"].tolist() == [100] * 4 + [10] * 2
    means = known.columns["seconds"] / known.columns["tasks"]
    assert means.tolist() == pytest.approx([1, 2, 3, 4, 2.5, 2.5])
    assert known.columns["least"].tolist() == [0.5, 1.5, 2.5, 3.5, 0.5, 0.5]
    assert "4 of 6 workers recognised, 2 start from others with the same hardware" in known.summary()


@pytest.mark.parametrize("now", [WorkerIdentity("b", 0, EPYC, RANKS), WorkerIdentity("b", 0, XEON, 9)])
def test_a_new_host_whose_hardware_or_number_of_ranks_is_new_too_starts_cold(now: WorkerIdentity) -> None:
    known = match_prior([source(node("a"))], [now])
    assert (known.recognised, known.by_class, known.cold, known.rounds) == ([], [], 1, 0)
    assert known.summary() == "with nothing known: 0 of 1 worker recognised, 1 starts cold"


def test_workers_that_were_never_tried_start_as_new_ones_do() -> None:
    known = match_prior([source(node("a"), tasks=[5, 0, 5, 0])], node("a"))
    assert (known.recognised, known.by_class) == ([0, 2], [1, 3])
    assert known.columns["tasks"].tolist() == [5, 1, 5, 1], "however little is known about their class"
    assert match_prior([source(node("a"), tasks=0)], node("a")).cold == 4
    assert match_prior([source(law(2), tasks=[5, 0])], law(2)).cold == 1


def test_time_on_stopped_tasks_is_known_even_for_a_worker_that_finished_none() -> None:
    then = source(node("a", [0]), tasks=0)
    then.columns["unfinished"][:] = 80.0
    known = match_prior([discount(then, 0.5)], node("a", [0]))
    assert known.recognised == [0]
    assert (known.columns["tasks"][0], known.columns["unfinished"][0]) == (0, 40.0)


def test_only_rounds_of_runs_that_know_a_worker_count() -> None:
    here, elsewhere = source(node("a"), "one", 100), source(node("z", hardware=EPYC), "two", 9999)
    known = match_prior([here, elsewhere], node("a"))
    assert (known.runs, known.rounds) == (1, 100)
    assert (match_prior([elsewhere], node("a")).rounds, match_prior([], node("a")).rounds) == (0, 0)


@pytest.mark.parametrize("n", [3, 8])
def test_where_times_are_drawn_only_law_and_index_count(n: int) -> None:
    known = match_prior([source(law(5))], law(n, host="node7"))
    assert (known.recognised, known.by_class) == (list(range(min(n, 5))), [])
    other = match_prior([source(law(5))], law(n, "Sqrt"))
    assert (known.cold, other.cold) == (max(0, n - 5), n)
    assert f"{min(n, 5)} workers changed: drawn: Linear, 5 ranks then, drawn: Sqrt, {n}" in other.summary()


def test_a_resumed_run_recognises_workers_although_others_left_or_joined() -> None:
    fewer = [each._replace(ranks_on_host=3) for each in node("a", [1, 2])]
    assert match_prior([source(node("a"))], fewer).recognised == []
    assert match_prior([source(node("a"))], fewer, same_run=True).recognised == [0, 1]
    assert kept_workers(node("a"), fewer) == [(0, 1), (1, 2)]
    assert kept_workers(node("a"), [identity._replace(hardware=EPYC) for identity in fewer]) == []
    assert kept_workers(law(3), law(5, host="elsewhere")) == [(0, 0), (1, 1), (2, 2)]


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=8), st.floats(1e-6, 1.0))
def test_a_discount_keeps_means_and_spreads_and_counts_in_whole_tasks(
    tasks: list[int], weight: float
) -> None:
    whole = source(node("a", range(len(tasks))), rounds=1000, tasks=tasks)
    part = discount(whole, weight)
    assert part.rounds == round(1000 * weight)
    done = whole.columns["tasks"] > 0
    expected = np.maximum(1, weight * whole.columns["tasks"][done])
    assert np.all(np.abs(part.columns["tasks"][done] - expected) <= 0.5)
    assert not part.columns["tasks"][~done].any()
    assert part.columns["tasks"].dtype == np.int64
    for name in ("seconds", "squares", "unfinished", "overhead"):
        before, after = (run.columns[name][done] / run.columns["tasks"][done] for run in (whole, part))
        assert np.allclose(after, before, rtol=1e-12)
    assert np.array_equal(part.columns["least"], whole.columns["least"])


def test_untried_workers_and_the_oldest_of_too_many_runs_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = [source(node("a"), str(number), tasks=[1, 0, 1, 0]) for number in range(5)]
    assert [len(run.identities) for run in merge_runs(runs)] == [2] * 5
    monkeypatch.setattr(prior, "MOST_ROWS", 7)
    assert [run.run for run in merge_runs(runs)] == ["2", "3", "4"]
    monkeypatch.setattr(prior, "MOST_ROWS", 1)
    assert [run.run for run in merge_runs(runs)] == ["4"]
    assert merge_runs([source(node("a"), tasks=0)]) == []


def test_arguments_are_not_written_into() -> None:
    then = source([*node("a"), *node("b")])
    before = {name: column.copy() for name, column in then.columns.items()}
    known = match_prior(merge_runs([then, discount(then, 0.3)]), [*node("a"), *node("c")])
    for column in known.columns.values():
        column[:] = 7
    assert equal(then.columns, before)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_what_is_known_about_recognised_workers_is_a_plain_sum(data: st.DataObject) -> None:
    """Compare with adding up row by row, in a dict."""
    hosts = st.sampled_from("abc")
    hardware = st.sampled_from([XEON, EPYC])
    identity = st.builds(WorkerIdentity, hosts, st.integers(0, 3), hardware, st.just(RANKS))
    several = st.lists(identity, max_size=8, unique_by=lambda identity: identity[:2])
    tasks = st.integers(0, 9)
    runs = [source(data.draw(several), str(number), tasks=data.draw(tasks)) for number in range(3)]
    identities = data.draw(several)
    sums: dict[WorkerIdentity, float] = {}
    for run in runs:
        for row, identity_then in enumerate(run.identities):
            sums[identity_then] = sums.get(identity_then, 0.0) + run.columns["seconds"][row]
    known = match_prior(runs, identities)
    for worker, identity_now in enumerate(identities):
        expected = sums.get(identity_now, 0.0)
        assert (worker in known.recognised) == (expected > 0)
        if worker in known.recognised or worker not in known.by_class:
            assert known.columns["seconds"][worker] == pytest.approx(expected)
    assert all(np.isfinite(known.columns[name]).all() for name in SUMS)


def test_a_hundred_thousand_workers_are_matched_at_once() -> None:
    """In half a second; with a loop over pairs of workers this test would not end."""
    n = 100_000
    identities = [WorkerIdentity(f"node{worker // 64}", worker % 64, XEON, 64) for worker in range(n)]
    elsewhere = [identity._replace(host=f"another-{identity.host}") for identity in identities]
    runs = [source(identities, str(number)) for number in range(3)]
    assert len(match_prior([discount(run, 0.5) for run in merge_runs(runs)], identities).recognised) == n
    assert len(match_prior(runs, elsewhere).by_class) == n
