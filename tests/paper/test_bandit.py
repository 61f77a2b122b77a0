"""The bandit alone decides and learns as runs do, compiled or not."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpi_ata import ATA, ATAEmpirical, DrawnTimes, Exponential, Linear, Mix, Sqrt
from mpi_ata.allocators.ata import LowerBoundAllocator
from mpi_ata.allocators.recursive import recursive_allocation
from mpi_ata.clusters.accounts import TaskTimeStats
from mpi_ata.driver.execute import execute
from mpi_ata.driver.plan import Plan
from mpi_ata.paper.bandit import BanditState, compiled_play, has_numba, play_bandit, python_play
from mpi_ata.paper.experiments import REGRET, TABLE1, PaperRequest
from mpi_ata.times import Law

SEED = 5
LAWS: dict[str, Callable[[int], Law]] = {"sqrt": Sqrt, "linear": Linear, "exponential": Exponential}
with_numba = pytest.mark.skipif(not has_numba(), reason="numba is not installed")


def allocator(name: str, law: Law, budget: int, width: float = 1.0) -> LowerBoundAllocator:
    """Return an allocator whose zero-score phase lasts the longer the larger its width is."""
    if name == "ata":
        return ATA(law.n, budget, alpha=width * float(law.means.mean()), seed=SEED)
    return ATAEmpirical(law.n, budget, eta=width, seed=SEED)


@with_numba
@pytest.mark.parametrize("name", ["ata", "ata-empirical"])
@pytest.mark.parametrize("kind", LAWS)
@pytest.mark.parametrize(("n", "budget"), [(51, 23), (5, 23), (17, 4), (1, 3), (20, 1)])
def test_compiled_rounds_decide_and_learn_bit_for_bit_as_the_classes_do(
    name: str, kind: str, n: int, budget: int
) -> None:
    law = LAWS[kind](n)
    for width in (0.05, 1.0):  # the first ends the zero-score phase at once, the second late
        slow, fast = allocator(name, law, budget, width), allocator(name, law, budget, width)
        stats = TaskTimeStats(n)
        learned = BanditState(fast, TaskTimeStats(n).state())
        play = compiled_play(learned, law, SEED)
        assert play is not None
        halves = np.add(play(120), play(180))
        assert halves == pytest.approx(python_play(slow, DrawnTimes(law, SEED), stats)(300), rel=1e-12)
        assert fast.k == slow.k == 300
        everyone = np.ones(n, np.bool_)
        assert fast.K.tolist() == slow.K.tolist()
        assert fast.T.tolist() == slow.T.tolist()
        assert fast.allocate(everyone).tolist() == slow.allocate(everyone).tolist()
        for column in ("tasks", "seconds", "squares", "least", "arrivals"):
            assert learned.stats[column] == pytest.approx(stats.state()[column], rel=1e-12)


@with_numba
@settings(deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=9), st.integers(1, 30))
def test_compiled_allocation_breaks_ties_as_the_class_does(scores: list[int], budget: int) -> None:
    from mpi_ata.paper import kernel

    s, a = np.array(scores, float), np.zeros(len(scores), np.int64)
    kernel.fill(s, budget, a)
    assert a.tolist() == recursive_allocation(s, budget).tolist()


def test_other_rules_and_laws_are_not_compiled() -> None:
    class Bolder(ATAEmpirical):
        """A rule that is not the paper's."""

    stats = TaskTimeStats(3).state()
    assert compiled_play(BanditState(Bolder(3, 4, seed=SEED), stats), Sqrt(3), SEED) is None
    assert compiled_play(BanditState(ATAEmpirical(3, 4, seed=SEED), stats), Mix(3), SEED) is None


@pytest.mark.parametrize("name", ["ata-half", "ata-empirical"])
@pytest.mark.parametrize("law", ["sqrt", "mix"])
def test_the_bandit_alone_learns_what_a_run_with_gradients_learns(name: str, law: str) -> None:
    request = PaperRequest(workers=(9,), law=law, allocators=(name,), rounds=50)
    trial = TABLE1.with_request(request).trials()[-1]
    assert trial.allocator == name
    rows = {row.round: row._asdict() for row in execute(Plan(trial.job())).trace.rows}
    marks = [20, 50]
    for mark, learned in zip(marks, play_bandit(trial.job(), marks), strict=True):
        assert learned.allocator.k == mark
        for name in ("round", "clock", "worker_time", "regret"):
            assert learned.trace.history()[name][-1] == pytest.approx(rows[mark][name])
        assert learned.stats["tasks"].sum() == learned.trace.used == rows[mark]["used"]


def test_progress_is_reported() -> None:
    reported: list[int] = []
    trial = REGRET.with_request(PaperRequest(law="mix")).trials()[0]
    regrets = [learned.trace.regret for learned in play_bandit(trial.job(), [1, 10, 450], reported.append)]
    assert regrets == sorted(regrets)
    assert (len(regrets), reported[-1], len(reported) > 3) == (3, 450, True)
