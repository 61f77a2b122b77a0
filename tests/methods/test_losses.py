"""Workers that vanish during a round."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpi_ata import methods
from mpi_ata.allocators import GTA, UTA, ATAAuto, ATAEmpirical, MSync
from mpi_ata.arrays import Array, BoolArray, IntArray
from mpi_ata.clusters import Fault, FaultPolicy, VirtualCluster
from mpi_ata.errors import RunError
from mpi_ata.job.component import LAWS
from mpi_ata.methods import ASGD, SGD, HeterogeneousDataSGD, Malenia, Method, MindFlayer, Ringmaster, Round
from mpi_ata.methods.collector import Sum, soonest
from mpi_ata.problems import Quadratic
from mpi_ata.times import DrawnTimes, Exponential
from mpi_ata.updates import Plain
from tests.marks import slow
from tests.methods.scene import Fixed, Ramp, Recording, cluster_of, counts, tasks_of

N, B = 5, 7


class Spare(UTA):
    """Two tasks more than the budget: some are stopped, and a loss may leave too few."""

    def allocate(self, available: BoolArray) -> IntArray:
        quota = super().allocate(available)
        quota[np.flatnonzero(available)[0]] += 2
        return quota


METHODS: dict[str, Callable[[Array], Method]] = {
    "sgd, ata": lambda x0: SGD(x0, ATAEmpirical(N, B), Plain(0.1)),
    "sgd, ata-auto": lambda x0: SGD(x0, ATAAuto(N, B, spares="auto"), Plain(0.1)),
    "sgd, gta": lambda x0: SGD(x0, GTA(N, B), Plain(0.1)),
    "sgd, spare": lambda x0: SGD(x0, Spare(N, B), Plain(0.1)),
    "asgd": lambda x0: ASGD(x0, ATAEmpirical(N, B), Plain(0.02)),
    "sgd, m-sync": lambda x0: SGD(x0, MSync(N, B), Plain(0.1)),
    "mindflayer, ata": lambda x0: MindFlayer(x0, N, ATAEmpirical(N, B), Plain(0.1), limit=1.5),
    "mindflayer, gta": lambda x0: MindFlayer(x0, N, GTA(N, B), Plain(0.1), limit=1.5),
    "ringmaster": lambda x0: Ringmaster(x0, N, Plain(0.02), delay=6, budget=B),
    "rennala-mvr, ata": lambda x0: methods.RennalaMVR(x0, ATAEmpirical(N, B), Plain(0.1), a=0.3),
}


# These differ from others only in how they choose quotas.
SLOW = ("sgd, m-sync", "mindflayer, gta")
NAMES = [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in METHODS]


def run(
    name: str, deaths: dict[int, float], seed: int, rounds: int
) -> tuple[list[Round], Method, VirtualCluster]:
    problem = Quadratic(4, noise=0.5)
    method = METHODS[name](problem.x0)
    # Exponential times may be next to 0, so with a single one known another worker may seem to hang.
    policy = FaultPolicy(deadline=0)
    given = tasks_of(method, problem), DrawnTimes(Exponential(N, 2.0), seed), seed, deaths
    cluster = VirtualCluster(*given, policy=policy)
    return [method.step(cluster) for _ in range(rounds)], method, cluster


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30)
@given(
    deaths=st.dictionaries(st.integers(0, N - 1), st.floats(0.0, 40.0), max_size=N - 1),
    seed=st.integers(0, 1000),
    rounds=st.integers(1, 5),
)
def test_whoever_dies_tasks_are_accounted_for_and_a_resumed_run_is_the_same_bit_for_bit(
    name: str, deaths: dict[int, float], seed: int, rounds: int
) -> None:
    done, whole, at_the_end = run(name, deaths, seed, 6)
    assert all(round.used.sum() == B for round in done)
    check_accounts(at_the_end, done)
    losses = [loss for round in done for loss in round.losses]
    assert sorted(loss.worker for loss in losses) == np.flatnonzero(~at_the_end.available).tolist()
    lost = np.bincount([loss.worker for loss in losses], [loss.tasks for loss in losses], N)
    assert lost.tolist() == at_the_end.ledger.lost.tolist()
    _, first, cluster = run(name, deaths, seed, rounds)
    _, second, resumed = run(name, deaths, seed, 0)
    second.restore(first.state())
    resumed.restore(cluster.state())
    if first.allocator is not None and second.allocator is not None:
        second.allocator.restore(first.allocator.state())
    resumed.ledger.stats.restore(cluster.ledger.stats.state())
    assert resumed.available.tolist() == cluster.available.tolist()
    for _ in range(6 - rounds):
        second.step(resumed)
    assert second.x.tobytes() == whole.x.tobytes()


OWNERS: dict[str, Callable[[Array], Method]] = {
    "malenia": lambda x0: Malenia(x0, Plain(0.1), S=8),
    "heterogeneous-data-sgd": lambda x0: HeterogeneousDataSGD(x0, ATAEmpirical(N, B), Plain(0.1)),
    "heterogeneous-data-asgd": lambda x0: methods.HeterogeneousDataASGD(x0, ATAEmpirical(N, B), Plain(0.01)),
    "ringleader": lambda x0: methods.Ringleader(x0, N, Plain(0.01)),
    "rescaled-asgd": lambda x0: methods.RescaledASGD(x0, N, Plain(0.01), budget=5 * B),
}


def random_script(rng: np.random.Generator, kinds: Sequence[str], until: float) -> list[Fault]:
    """Return up to a dozen faults at random times; worker 0 neither dies nor hangs forever.

    Where nobody may die, nobody hangs forever either: an owner of data is waited for.
    """
    faults = []
    for _ in range(rng.integers(1, 13)):
        kind, worker = str(rng.choice(kinds)), int(rng.integers(N))
        duration = float(rng.exponential(until / 4))
        if "die" in kinds and kind == "hang" and worker and rng.random() < 0.2:
            duration = np.inf
        if kind != "die" or worker:
            what = str(rng.choice(["nan", "inf", "shape", "seconds"]))
            factor = float(rng.choice([3.0, 30.0, 300.0]))
            faults.append(Fault(float(rng.uniform(0, until)), worker, kind, duration, factor, what))
    return faults


def check_accounts(cluster: VirtualCluster, rounds: list[Round]) -> None:
    """Every task of every worker was used, wasted or lost, and the rounds say the same as the ledger."""
    ledger = cluster.ledger
    used, wasted, lost = (np.sum([getattr(r, n) for r in rounds], axis=0) for n in ("used", "wasted", "lost"))
    assert ledger.stats.state()["tasks"].tolist() == used.tolist()
    assert ledger.stopped.tolist() == wasted.tolist()
    assert ledger.lost.tolist() == lost.tolist()
    assert ledger.stopped_time.sum() == pytest.approx(sum(round.waste for round in rounds))
    for round in rounds:
        assert round.started.tolist() == (round.used + round.wasted + round.lost).tolist()
        assert min(round.used.min(), round.wasted.min(), round.lost.min()) >= 0


def mishaps(name: str, seed: int) -> tuple[list[Round], VirtualCluster, Method, str]:
    """Run a method through a random script of faults; return its rounds, and the error that ended it."""
    rng = np.random.default_rng(seed)
    owned = name in OWNERS
    kinds = ["hang", "slow"] if owned else ["die", "hang", "slow", "raise", "garbage"]
    script = random_script(rng, kinds, until=600.0)
    print(f"{seed=}", *script, sep="\n")
    reissue = "stop" if owned else "reissue"
    policy = FaultPolicy(on_task_error=reissue, on_bad_result=reissue, max_failures=2, owned=owned)
    problem = Quadratic(4, noise=0.5)
    method = {**METHODS, **OWNERS}[name](problem.x0)
    times = DrawnTimes(LAWS["sqrt"](N, 2.0), seed)
    tasks, rounds = tasks_of(method, problem), list[Round]()
    cluster = VirtualCluster(tasks, times, seed, faults=script, policy=policy)
    try:
        for _ in range(60):
            rounds.append(method.step(cluster))
    except RunError as error:
        return rounds, cluster, method, str(error)
    return rounds, cluster, method, ""


@pytest.mark.parametrize("seed", [*range(10), *slow(*range(10, 30))])
@pytest.mark.parametrize("name", NAMES)
def test_whatever_happens_each_round_uses_b_tasks_and_every_task_is_accounted_for(
    name: str, seed: int
) -> None:
    rounds, cluster, method, error = mishaps(name, seed)
    if error.startswith("a task of worker"):
        assert np.count_nonzero(cluster.available) == 1, "only the last worker's error ends the run"
    else:
        assert error == "" or error.startswith(("worker 0", "none of the workers", "all 5 workers")), error
    assert all(round.used.sum() == B for round in rounds)
    assert np.isfinite(method.x).all()
    if not error:
        check_accounts(cluster, rounds)
    again = mishaps(name, seed)
    assert again[2].x.tobytes() == method.x.tobytes()
    assert again[3] == error


@pytest.mark.parametrize("seed", [*range(10), *slow(*range(10, 30))])
@pytest.mark.parametrize("name", OWNERS)
def test_owners_are_waited_for_and_every_task_is_accounted_for(name: str, seed: int) -> None:
    rounds, cluster, _, error = mishaps(name, seed)
    assert error == ""
    assert not any(round.losses for round in rounds)
    assert name == "rescaled-asgd" or all(round.used.all() for round in rounds), "it goes on meanwhile"
    check_accounts(cluster, rounds)


def test_a_lost_workers_tasks_go_to_the_one_that_finishes_them_first() -> None:
    problem, allocator = Ramp(), Fixed([1, 2, 1])
    cluster = cluster_of(problem, [1.0, 3.0, 3.5], deaths={1: 4.0})
    method = SGD(problem.x0, allocator, Plain(0.5))
    round = method.step(cluster)
    # At 4 worker 1 is in its second task, and neither was delivered.  Worker 0 is idle and needs 1 second per
    # task, so that it does both, until 6.
    assert counts(round) == ([3, 2, 1], [3, 0, 1], [0, 0, 0], [0, 2, 0])
    assert [(loss.worker, loss.tasks) for loss in round.losses] == [(1, 2)]
    assert round.duration == 6.0
    assert method.x.tolist() == [4.0, -0.5 * (3 * 1 + 3) / 4]


def test_a_busy_worker_gets_its_extra_order_when_its_own_is_done() -> None:
    problem = Recording()
    cluster = cluster_of(problem, [1.0, 30.0], deaths={1: 1.5})
    round = SGD(problem.x0, Fixed([3, 1]), Plain(0.5)).step(cluster)
    assert round.duration == 4.0
    assert problem.tasks == [(1, 0, 0), (1, 0, 1), (1, 0, 2), (1, 0, 3)]


def test_asgd_starts_an_idle_worker_for_a_lost_one_at_the_newest_x() -> None:
    problem = Ramp()
    cluster = cluster_of(problem, [1.0, 5.0], deaths={1: 2.0})
    method = ASGD(problem.x0, Fixed([1, 1]), Plain(0.5))
    round = method.step(cluster)
    # At 1 worker 0 gives (8, 1): x = (4, -0.5).  At 2 it starts again there, and gives (4, 1) at 3.
    assert method.x.tolist() == [2.0, -1.0]
    assert (round.duration, round.delays.tolist()) == (3.0, [0, 0])
    assert counts(round) == ([2, 1], [2, 0], [0, 0], [0, 1])


def test_ringmaster_continues_without_a_lost_worker() -> None:
    problem = Ramp()
    cluster = cluster_of(problem, [1.0, 5.0], deaths={1: 2.5})
    method = Ringmaster(problem.x0, 2, Plain(0.01), delay=3, budget=4)
    rounds = [method.step(cluster) for _ in range(3)]
    assert [round.lost.tolist() for round in rounds] == [[0, 1], [0, 0], [0, 0]]
    assert [round.used.tolist() for round in rounds] == [[4, 0]] * 3


@pytest.mark.parametrize("name", OWNERS)
def test_where_workers_own_their_data_a_loss_ends_the_run(name: str) -> None:
    problem = Ramp()
    cluster = cluster_of(problem, [1.0, 2.0, 3.0, 4.0, 5.0], deaths={1: 0.5})
    for _ in range(2):
        with pytest.raises(
            RunError, match=r"worker 1 \(host .*\) is lost.*; resume the run on the same work"
        ):
            OWNERS[name](problem.x0).step(cluster)
        cluster.stop(np.arange(N))


@pytest.mark.parametrize("name", NAMES)
def test_without_any_worker_left_the_run_ends_with_the_way_out(name: str) -> None:
    with pytest.raises(RunError, match="all 5 workers are lost or suspended; resume the run"):
        run(name, {worker: 0.5 + worker for worker in range(N)}, 1, 100)


def test_an_allocator_that_gives_tasks_to_a_lost_worker_is_rejected() -> None:
    problem = Ramp()
    cluster = cluster_of(problem, [1.0, 2.0], deaths={1: 0.5})
    method = SGD(problem.x0, Fixed([1, 1]), Plain(0.5))
    method.step(cluster)
    with pytest.raises(RunError, match=r"must give 0 to workers \[1\]"):
        method.step(cluster)


def test_tasks_are_divided_so_that_they_are_done_soonest() -> None:
    cluster = cluster_of(Ramp(), [1.0, 1.0, 1.0, 1.0], deaths={3: 0.0})
    cluster.ledger.deliver(0, [1.0], 1.0)
    cluster.ledger.deliver(1, [2.0, 2.0], 4.0)
    cluster.available[3] = False
    # Means are 1, 2 and, for lack of any, 5/3; worker 0 is busy for 3 seconds.
    left = np.array([3, 0, 0, 0])
    assert soonest(cluster, left, 1).tolist() == [0, 0, 1, 0]
    assert soonest(cluster, left, 5).tolist() == [1, 2, 2, 0]
    assert soonest(cluster, left, 0).tolist() == [0, 0, 0, 0]


def test_reissued_results_are_added_after_the_others_in_order_of_arrival() -> None:
    values = np.random.default_rng(1).standard_normal((5, 3))
    g = Sum(np.array([0, 1, 2, 3]))
    for worker, row in ((2, 2), (0, 0), (1, None), (2, 4), (0, 1), (3, 3), (0, None)):
        if row is None:
            g.skip(worker)
        else:
            g.add(worker, values[row].copy())
    expected = ((((values[0] + values[2]) + values[3]) + values[4]) + values[1]) / 7
    assert g.mean(7).tobytes() == expected.tobytes()


def test_where_everyone_ordered_is_lost_the_sum_is_that_of_the_others() -> None:
    g = Sum(np.array([0]))
    g.skip(0)
    g.add(1, np.array([3.0]))
    g.add(2, np.array([5.0]))
    assert g.mean(2).tolist() == [4.0]
