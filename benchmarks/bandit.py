"""Rounds per second of the bandit alone, compiled and by the allocator classes: 51 workers, 23 tasks.

python -m benchmarks.bandit

Rates are per second of CPU time, so that other load on the machine matters little.
"""

import time

from benchmarks.measuring import options
from mpi_ata.paper import bandit
from mpi_ata.paper.experiments import PRIOR, PaperRequest, Trial
from mpi_ata.view.text import table

GOAL = 200_000


def rate(trial: Trial, rounds: int) -> float:
    """Return rounds per second, after a warm-up in which everything is compiled."""
    warm, whole = rounds // 10, rounds + rounds // 10
    moments = [time.process_time() for _ in bandit.play_bandit(trial.job(), [warm, whole])]
    return rounds / (moments[1] - moments[0])


def measure(trial: Trial) -> list[str]:
    """Return a row with the rates of compiled rounds and of the classes."""
    compiled = bandit.compiled_play
    fast = rate(trial, 1_000_000)
    bandit.compiled_play = lambda *_: None
    try:
        slow = rate(trial, 5_000)
    finally:
        bandit.compiled_play = compiled
    return [trial.allocator, trial.law, f"{fast:,.0f}", f"{GOAL:,}", f"{slow:,.0f}", f"{fast / slow:,.0f}"]


def main() -> None:
    """Print the table."""
    options(__doc__)
    names = ("ata", "ata-half", "ata-empirical")
    requests = [PaperRequest(law=law, allocators=names) for law in ("linear", "sqrt")]
    trials = [
        trial
        for request in requests
        for trial in PRIOR.with_request(request).trials()
        if trial.allocator in names
    ]
    header = ["allocator", "law", "compiled", "goal", "classes", "ratio"]
    print(table([measure(trial) for trial in trials], header))


if __name__ == "__main__":
    main()
