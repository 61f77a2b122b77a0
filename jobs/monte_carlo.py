"""Monte Carlo with an error bar: the price of an Asian call option, which has no formula.

Used by jobs/monte_carlo.toml.  A task simulates some paths of the stock and returns their number and the sums
of payoffs and of their squares; combine() adds them up.  The run stops when the error bar is short enough.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpi_ata import Task, TaskResult

Sums = dict[str, float]


class AsianCall:
    """The right to buy at `strike` what cost more on average; x holds the sums so far."""

    def __init__(self, strike: float = 100.0, volatility: float = 0.3, rate: float = 0.05, paths: int = 1000):
        if not (0 < strike < 1e6 and 0 < volatility <= 3 and 0 <= rate <= 1 and 1 <= paths <= 100_000):
            raise ValueError(f"{strike=}, {volatility=}, {rate=} or {paths=} is out of range")
        self.strike, self.volatility, self.rate, self.paths = strike, volatility, rate, paths
        self.x0: Sums = {"paths": 0, "sum": 0.0, "squares": 0.0}

    def compute(self, x: Sums, task: Task) -> Sums:
        """One task: the payoffs of some paths, drawn with the task's own random numbers."""
        weeks = np.arange(1, 53) / 52
        noise = task.rng.standard_normal((self.paths, 52)).cumsum(axis=1) / np.sqrt(52)
        price = 100 * np.exp((self.rate - self.volatility**2 / 2) * weeks + self.volatility * noise)
        payoff = np.exp(-self.rate) * np.maximum(price.mean(axis=1) - self.strike, 0)
        return {"paths": self.paths, "sum": float(payoff.sum()), "squares": float((payoff**2).sum())}

    def combine(self, x: Sums, results: Sequence[TaskResult]) -> Sums:
        """Add the sums of a round's tasks to those so far."""
        return {name: x[name] + sum(result.value[name] for result in results) for name in x}

    def evaluate(self, x: Sums) -> dict[str, Any]:
        """The price; its standard error is the loss, at which the run stops."""
        n = max(x["paths"], 1)
        price = x["sum"] / n
        variance = x["squares"] / n - price**2
        return {"price": price, "loss": np.sqrt(variance / n) if x["paths"] else np.inf}
