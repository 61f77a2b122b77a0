"""ATA and ATA-Empirical with `forget`: changes of speed are noticed soon, and nothing else is."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import numpy as np
import pytest

from mpi_ata import SGD, Plain, Quadratic, VirtualCluster, run
from mpi_ata.allocators import ATA, ATAEmpirical
from mpi_ata.allocators.ata import LowerBoundAllocator
from mpi_ata.allocators.change_detection import ENOUGH, ChangeDetector, SpeedChange
from mpi_ata.job.component import LAWS
from mpi_ata.methods import Round
from mpi_ata.times import Constant, DrawnTimes, Law, Mix, Sqrt
from mpi_ata.times.drawn import Change
from tests.allocators.scene import known_from, play_tasks
from tests.marks import slow

N, B, AT = 17, 23, 300  # workers, budget, and the round of the change

Make = Callable[[bool], LowerBoundAllocator]


def ata(forget: bool) -> LowerBoundAllocator:
    return ATA(N, B, 239.0, seed=4, forget=forget)  # alpha is the largest mean


def ata_empirical(forget: bool) -> LowerBoundAllocator:
    return ATAEmpirical(N, B, 0.1, seed=4, forget=forget)


both = pytest.mark.parametrize("make", [ata, ata_empirical])


def rounds_of(
    allocator: LowerBoundAllocator, law: Law, changes: Iterable[Change] = (), seed: int = 4
) -> Iterator[Round]:
    """Rounds on the virtual cluster."""
    problem = Quadratic(2)
    cluster = VirtualCluster(problem, DrawnTimes(law, seed, changes=tuple(changes)))
    yield from run(SGD(problem.x0, allocator, Plain(0.1)), cluster)


def rounds_until_noticed(make: Make, law: Law, worker: int, factor: float, most: int) -> SpeedChange | None:
    """Return the change that was noticed in the first `most` rounds with the worker after its change."""
    allocator, used = make(True), 0
    for round in islice(rounds_of(allocator, law, [Change(AT, [worker], factor)]), AT + 2 * most):
        assert allocator.speed_changes == [] or round.number >= AT, "a false alarm"
        used += round.number >= AT and round.quota[worker] > 0
        found = [change for change in allocator.speed_changes if change.worker == worker]
        if found or used == most:
            return found[0] if found else None
    return None


@both
@pytest.mark.parametrize("worker", [0, 4, 8])
@pytest.mark.parametrize("factor", [5.0, 0.2])
def test_a_worker_5_times_slower_or_faster_is_noticed_within_30_rounds(
    make: Make, worker: int, factor: float
) -> None:
    change = rounds_until_noticed(make, Sqrt(N), worker, factor, 30)
    assert change is not None
    # About 9 tasks, whose standard deviation is half of their mean, and some from before the change.
    assert 0.4 < change.factor / factor < 2.5


@pytest.mark.parametrize("worker", [4, *slow(0, 8)])
@pytest.mark.parametrize("law", [Sqrt(N), Constant(N, 3.0)])
def test_20_percent_less_speed_is_noticed_within_200_rounds_and_2_percent_never(
    law: Law, worker: int
) -> None:
    change = rounds_until_noticed(ata_empirical, law, worker, 1.25, 200)
    assert change is not None
    assert 1.05 < change.factor < 1.6
    for factor in (1.015, 0.985):  # not worth an alarm
        assert rounds_until_noticed(ata_empirical, Constant(N, 3.0), worker, factor, 500) is None


@both
def test_after_an_alarm_only_what_the_worker_did_since_the_change_counts(make: Make) -> None:
    allocator = make(True)
    rounds = islice(rounds_of(allocator, Sqrt(N), [Change(AT, [0], 5.0)]), AT + 30)
    assert any(allocator.speed_changes for _ in rounds)
    # About 9 tasks; more if the sum happened to be above 0 before the change.
    assert 4 <= allocator.K[0] <= 30
    # Five standard errors of the mean of that many tasks.
    assert allocator.T[0] / allocator.K[0] == pytest.approx(5 * 58, rel=2.5 / np.sqrt(allocator.K[0]))


HEAVY_TAILS = {"mix", "bytedance-se"}


@both
@pytest.mark.parametrize("name", ["sqrt", *slow(*sorted(set(LAWS) - HEAVY_TAILS - {"sqrt"}))])
def test_as_long_as_no_speed_changes_forgetting_changes_no_quota(make: Make, name: str) -> None:
    # A false alarm is expected in less than one of 200 workers under each of these laws.
    law, (off, on) = LAWS[name](N), (make(False), make(True))
    pairs = zip(rounds_of(off, law), rounds_of(on, law), strict=True)
    for plain, watched in islice(pairs, 300):
        assert plain.quota.tolist() == watched.quota.tolist()
        assert on.speed_changes == []
    assert off.K.tolist() == on.K.tolist()
    assert off.T.tobytes() == on.T.tobytes()


@pytest.mark.parametrize("name", sorted(HEAVY_TAILS))
def test_heavy_tails_lead_to_few_false_alarms(name: str) -> None:
    # One of 100 workers with the lognormal times of the mix has one, among its first hundreds of tasks.
    allocator = ata_empirical(True)
    rounds = islice(rounds_of(allocator, LAWS[name](N)), 700)
    alarms = [change for _ in rounds for change in allocator.speed_changes]
    assert len(alarms) <= 1


@both
def test_without_forget_nothing_is_watched_or_saved(make: Make) -> None:
    allocator = make(False)
    for _ in islice(rounds_of(allocator, Sqrt(N), [Change(20, [0], 50.0)]), 60):
        assert allocator.speed_changes == []
    assert sorted(allocator.state()) == ["K", "T", "k"]


@both
@pytest.mark.parametrize("half", [AT - 50, AT + 1, AT + 40])
def test_restored_before_in_and_after_an_alarm_it_decides_as_the_first_would_have(
    make: Make, half: int
) -> None:
    first, second, times = make(True), make(True), DrawnTimes(Sqrt(N), 4, changes=[Change(AT, [0], 5.0)])
    play_tasks(first, times, range(1, half))
    state = first.state()
    later = play_tasks(first, times, range(half, AT + 60))
    second.restore(state)
    assert play_tasks(second, times, range(half, AT + 60)) == later
    assert all(array.tobytes() == second.state()[name].tobytes() for name, array in first.state().items())


@both
def test_a_state_without_a_detector_can_be_resumed_with_one_and_the_other_way_round(make: Make) -> None:
    plain, watching = make(False), make(True)
    plain.observe(3, [1.0, 2.0])
    watching.restore(plain.state())
    assert watching.K[3] == 2
    for factor in (1.0, 10.0):
        watching.observe(3, [factor] * (ENOUGH + 5))
    assert [change.worker for change in watching.speed_changes] == [3]
    make(False).restore(watching.state())


def test_after_a_warm_start_a_worker_that_is_slower_than_in_earlier_runs_is_noticed() -> None:
    allocator = ata_empirical(True)
    allocator.inherit(1000, known_from(Sqrt(N), 2000))
    rounds = rounds_of(allocator, Sqrt(N), [Change(1, [0], 5.0)])
    seen = [change for _ in islice(rounds, 30) for change in allocator.speed_changes]
    assert [change.worker for change in seen] == [0]
    assert 2 < seen[0].factor < 12


@pytest.mark.parametrize("law", [Sqrt(N), Mix(N)])  # the mix has workers whose times are far from lognormal
def test_after_a_warm_start_from_the_same_speeds_nothing_is_forgotten(law: Law) -> None:
    allocator = ata_empirical(True)
    allocator.inherit(1000, known_from(law, 2000))
    assert not any(allocator.speed_changes for _ in islice(rounds_of(allocator, law), 700))


@pytest.mark.parametrize("counted", [False, True])
def test_a_slow_link_is_noticed_where_overhead_counts(counted: bool) -> None:
    allocator = ATAEmpirical(2, 3, overhead=counted, forget=True)
    for overhead in (0.1, 5.0):
        for _ in range(20):
            allocator.observe(1, [1.0, 1.0], overhead=overhead)
    assert bool(allocator.speed_changes) == counted


def test_stopped_tasks_are_not_judged() -> None:
    allocator = ATAEmpirical(2, 3, forget=True)
    allocator.observe(1, [1.0] * 20)
    before = {name: array for name, array in allocator.state().items() if name.startswith("change.")}
    for _ in range(50):
        allocator.observe(1, [], stopped=[0.001])
    after = allocator.state()
    assert all(array.tobytes() == after[name].tobytes() for name, array in before.items())
    assert allocator.speed_changes == []


@pytest.mark.parametrize("size", [1, 4, 50])
def test_single_tasks_that_take_very_long_and_times_of_0_are_no_change(size: int) -> None:
    detector, rng = ChangeDetector(2), np.random.default_rng(8)
    for _ in range(6000 // size):
        seconds = rng.normal(1.0, 0.03, size) * np.where(rng.random(size) < 0.02, 100.0, 1.0)
        assert detector.observe(0, seconds.tolist()) is None
        assert detector.observe(1, [0.0, 0.0]) is None


@pytest.mark.parametrize("size", [1, 4, 50])
def test_however_many_tasks_an_order_has_a_change_takes_about_as_many_to_be_noticed(size: int) -> None:
    detector, rng = ChangeDetector(1), np.random.default_rng(9)
    for _ in range(1000 // size):
        assert detector.observe(0, rng.gamma(4.0, 0.25, size).tolist()) is None
    # 2 ln(1000) / 2.5 = 6 tasks at 3 standard deviations each; by orders, at most one order more.
    orders = next(j for j in range(99) if detector.observe(0, rng.gamma(4.0, 1.25, size).tolist())) + 1
    assert 4 <= orders * size <= max(12, size)


@pytest.mark.parametrize(
    ("factor", "words", "notable"),
    [
        (5.12, "5.1 × slower", True),
        (0.2, "5.0 × faster", True),
        (1234, "1,234 × slower", True),
        (0.92, "1.1 × faster", False),
        (1.04, "1.0 × slower", False),
    ],
)
def test_a_change_is_described_and_notable_from_10_per_cent_on(
    factor: float, words: str, notable: bool
) -> None:
    assert str(SpeedChange(3, factor)) == f"worker 3 is now {words} than before"
    assert SpeedChange(3, factor).notable == notable
