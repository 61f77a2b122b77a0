"""Rounds per second of the bandit alone, compiled and by the allocator classes: 51 workers, 23 tasks.

python -m benchmarks.bandit

Rates are per second of CPU time, so that other load on the machine matters little.
"""

import time

from mpi_ata.paper import bandit
from mpi_ata.paper.experiments import PRIOR, Plan, Request
from mpi_ata.view.text import table

GOAL = 200_000


def rate(plan: Plan, rounds: int) -> float:
    """Return rounds per second, after a warm-up in which everything is compiled."""
    warm, whole = rounds // 10, rounds + rounds // 10
    moments = [time.process_time() for _ in bandit.play_bandit(plan.job(), [warm, whole])]
    return rounds / (moments[1] - moments[0])


def measure(plan: Plan) -> list[str]:
    """Return a row with the rates of compiled rounds and of the classes."""
    compiled = bandit.compiled_play
    fast = rate(plan, 1_000_000)
    bandit.compiled_play = lambda *_: None
    try:
        slow = rate(plan, 5_000)
    finally:
        bandit.compiled_play = compiled
    return [plan.allocator, plan.law, f"{fast:,.0f}", f"{GOAL:,}", f"{slow:,.0f}", f"{fast / slow:,.0f}"]


def main() -> None:
    """Print the table."""
    names = ("ata", "ata-half", "ata-empirical")
    requests = [Request(law=law, allocators=names) for law in ("linear", "sqrt")]
    plans = [
        plan
        for request in requests
        for plan in PRIOR.with_request(request).plans()
        if plan.allocator in names
    ]
    header = ["allocator", "law", "compiled", "goal", "classes", "ratio"]
    print(table([measure(plan) for plan in plans], header))


if __name__ == "__main__":
    main()
