"""run() and cluster(): a loop of one's own, recorded as a job is."""

import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import mpi_ata
from mpi_ata import (
    SGD,
    UTA,
    Array,
    ATAEmpirical,
    Cluster,
    DrawnTimes,
    Map,
    Plain,
    Quadratic,
    RunError,
    Sqrt,
    Stop,
    Task,
    UsageError,
    VirtualCluster,
    load,
)
from tests.faults.scene import record_of

TIMES = Sqrt(4, scale=1e-3)
OUT, LIMIT = Path("runs/loop.h5"), Stop(rounds=30)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with mpi_ata.cluster(Quadratic(20), TIMES) as found:
        yield found


def method_on(cluster: Cluster) -> SGD:
    return SGD(Quadratic(20).x0, UTA(cluster.n, 8), Plain(0.4))


def test_a_loop_that_is_left_is_saved_and_can_be_resumed(cluster: Cluster) -> None:
    problem = Quadratic(20)
    first, second, whole = method_on(cluster), method_on(cluster), method_on(cluster)
    for round in mpi_ata.run(first, cluster, problem, LIMIT, out=OUT):
        if round.number == 12:
            break
    saved = load(OUT)
    assert (saved.summary["rounds"], saved.summary["finished"]) == (12, False)
    assert saved.events[-1]["text"] == "early, by leaving the loop"
    with mpi_ata.cluster(Quadratic(20), TIMES) as other:
        numbers = [r.number for r in mpi_ata.run(second, other, problem, LIMIT, out=OUT, resume=True)]
    assert numbers == list(range(13, 31))
    with mpi_ata.cluster(Quadratic(20), TIMES) as other:
        assert len(list(mpi_ata.run(whole, other, stop=LIMIT))) == 30
    assert np.array_equal(second.x, whole.x)


def test_an_allocator_that_the_body_of_the_loop_exchanges_is_the_one_that_is_saved(cluster: Cluster) -> None:
    method, other = method_on(cluster), ATAEmpirical(cluster.n, 8)
    for round in mpi_ata.run(method, cluster, Quadratic(20), LIMIT, out=OUT):
        if round.number == 20:
            method.allocator = other
    saved = record_of(OUT).allocator
    assert (set(saved), int(saved["k"])) == ({"k", "K", "T"}, 10)


def test_an_error_in_the_body_of_the_loop_leaves_the_rounds_before_it_saved(cluster: Cluster) -> None:
    def loop() -> None:
        for round in mpi_ata.run(method_on(cluster), cluster, out=OUT):
            if round.number == 5:
                raise KeyError("mine")

    with pytest.raises(KeyError):
        loop()
    assert load(OUT).summary["rounds"] == 5


@pytest.mark.usefixtures("in_script")
def test_a_signal_ends_the_loop_and_then_the_script_at_the_end_of_the_block() -> None:
    numbers, after = list[int](), list[str]()

    def script() -> None:
        with mpi_ata.cluster(Quadratic(20), TIMES) as cluster:
            for round in mpi_ata.run(method_on(cluster), cluster, out=OUT):
                numbers.append(round.number)
                if round.number == 6:
                    signal.raise_signal(signal.SIGUSR1)
            after.append("the loop")

    with pytest.raises(SystemExit) as end:
        script()
    assert end.value.code == 85
    assert numbers == [1, 2, 3, 4, 5, 6]
    assert after == ["the loop"]
    assert load(OUT).events[-1]["text"] == "early, by SIGUSR1"


class SlowlyEvaluated(Quadratic):
    """Takes longer to evaluate than anybody waits."""

    def loss(self, x: Array) -> float:
        if x.any():
            time.sleep(60)
        return super().loss(x)


@pytest.mark.usefixtures("in_script")
@pytest.mark.parametrize("problem", [Quadratic(20), SlowlyEvaluated(20)])
def test_a_signal_ends_a_script_that_leaves_its_loop_in_the_same_round(problem: Quadratic) -> None:
    cluster, before = VirtualCluster(problem, DrawnTimes(TIMES)), signal.getsignal(signal.SIGALRM)

    def script() -> None:
        for round in mpi_ata.run(method_on(cluster), cluster, problem, out=OUT, grace=0.2):
            if round.number == 6:
                signal.raise_signal(signal.SIGTERM)
                break
        time.sleep(60)

    signal.setitimer(signal.ITIMER_REAL, 1000, 500)  # the script's own
    try:
        with pytest.raises(SystemExit) as end:
            script()
    finally:
        left = signal.setitimer(signal.ITIMER_REAL, 0)
    assert end.value.code == 85
    assert (left[0] > 900, left[1]) == (True, 500)
    assert signal.getsignal(signal.SIGALRM) is before
    assert load(OUT).events[-1]["text"] == "early, by SIGTERM"


@pytest.fixture
def in_foreground() -> Iterator[None]:
    """Ctrl-C ends this process, as it does unless the tests run in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("in_foreground")
def test_without_a_file_and_a_block_ctrl_c_is_left_to_the_script() -> None:
    cluster = VirtualCluster(Quadratic(20), DrawnTimes(TIMES))

    def loop() -> None:
        for round in mpi_ata.run(method_on(cluster), cluster, stop=Stop(rounds=100)):
            if round.number == 3:
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        loop()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_several_loops_share_a_cluster_but_a_recorded_one_needs_its_own(cluster: Cluster) -> None:
    for _ in range(2):
        assert len(list(mpi_ata.run(method_on(cluster), cluster, stop=Stop(rounds=3)))) == 3
    with pytest.raises(UsageError, match=r"recorded in runs/loop.h5 needs a cluster of its own"):
        list(mpi_ata.run(method_on(cluster), cluster, stop=Stop(rounds=3), out=OUT))


def test_numpy_warns_in_the_body_of_the_loop_as_it_does_elsewhere(cluster: Cluster) -> None:
    settings = np.geterr()
    for _ in mpi_ata.run(method_on(cluster), cluster, stop=Stop(rounds=1)):
        assert np.geterr() == settings


def test_a_warm_start_needs_no_file(cluster: Cluster) -> None:
    list(mpi_ata.run(method_on(cluster), cluster, Quadratic(20), Stop(rounds=3), out=OUT))
    with mpi_ata.cluster(Quadratic(20), TIMES) as other:
        method = SGD(Quadratic(20).x0, mpi_ata.ATAEmpirical(other.n, 8), Plain(0.4))
        list(mpi_ata.run(method, other, Quadratic(20), Stop(rounds=1), warm_start=OUT))
    assert method.allocator.K.sum() == 3 * 8 + 8  # type: ignore[attr-defined]


class Counting:
    """Tasks that return 1, but for one round in which they fail on request."""

    x0 = 0.0

    def __init__(self, fails: int = 0) -> None:
        self.fails_in = fails

    def compute(self, x: float, task: Task) -> float:
        if task.round == self.fails_in:
            raise ValueError("on purpose")
        return 1.0


def added(out: Path, fails: int = 0, leaves: int = 0, copy: Path | None = None) -> float:
    """Add up results in the body of a loop of ten rounds with four tasks each, and return the sum."""
    problem = Counting(fails)
    with mpi_ata.cluster(problem, TIMES) as cluster:
        method = Map(problem.x0, UTA(cluster.n, 4))
        options = {"out": out, "resume": True, "accept_changes": True, "checkpoint_rounds": 1}
        for round in mpi_ata.run(method, cluster, problem, Stop(rounds=10), **options):  # type: ignore[arg-type]
            if copy and round.number == 5:
                shutil.copy(out, copy)  # what would be left if the process were killed here
            method.x += sum(result.value for result in method.results)
            if round.number == leaves:
                break
    return float(method.x)


def test_what_the_body_of_the_loop_did_is_part_of_the_saved_round() -> None:
    assert added(OUT, copy=Path("killed.h5")) == 40
    assert load("killed.h5").summary["rounds"] == 4
    assert added(Path("killed.h5")) == 40
    assert added(Path("left.h5"), leaves=5) == 20
    assert added(Path("left.h5")) == 40


def test_what_the_body_of_the_loop_did_is_saved_when_the_next_round_fails() -> None:
    with pytest.raises(RunError, match="holds the run up to round 5"):
        added(OUT, fails=6)
    assert added(OUT) == 40
