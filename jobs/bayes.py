"""Approximate Bayesian computation: a posterior sample without a likelihood.

Used by jobs/bayes.toml.  A task draws rates from the prior, simulates with each what was observed, and
returns the rates that reproduce it: their number differs from task to task.  combine() collects them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpi_ata import Task, TaskResult

Sample = dict[str, Any]


class Calls:
    """The rate of calls per hour, known from the calls in some hours; x holds the accepted rates."""

    def __init__(self, calls: int = 42, hours: int = 10, draws: int = 5000) -> None:
        if not (0 <= calls <= 10_000 and 1 <= hours <= 100 and 1 <= draws <= 100_000):
            raise ValueError(f"{calls=}, {hours=} or {draws=} is out of range")
        self.calls, self.hours, self.draws = calls, hours, draws
        self.x0: Sample = {"rates": np.zeros(0), "tried": 0}

    def compute(self, x: Sample, task: Task) -> Sample:
        """One task: rates from the prior, an exponential law of mean 5, that explain the observation."""
        rates = task.rng.exponential(5.0, self.draws)
        simulated = task.rng.poisson(rates[:, None], (self.draws, self.hours)).sum(axis=1)
        return {"rates": rates[simulated == self.calls], "tried": self.draws}

    def combine(self, x: Sample, results: Sequence[TaskResult]) -> Sample:
        """Append the rates that a round's tasks accepted."""
        return {
            "rates": np.concatenate([x["rates"], *(result.value["rates"] for result in results)]),
            "tried": x["tried"] + sum(result.value["tried"] for result in results),
        }

    def evaluate(self, x: Sample) -> dict[str, float]:
        """What the sample says of the rate, and how many of the draws it keeps."""
        rates = x["rates"]
        if not len(rates):
            return {"accepted": 0.0}
        return {"mean": rates.mean(), "deviation": rates.std(), "accepted": len(rates) / x["tried"]}
