"""A method of one's own keeps its own accounts: what it reports is counted once."""

from pathlib import Path

import pytest

from tests.driver.driven import driven

METHOD = """
import numpy as np
from mpi_ata import Round


class Greedy:
    def __init__(self, x0, n):
        self.x, self.k, self.n = x0.copy(), 0, n

    def step(self, cluster):
        everyone, used = np.arange(self.n), np.zeros(self.n, np.int64)
        began = cluster.now()
        cluster.start(everyone, self.x, self.k + 1)
        for _ in range(2):
            used[cluster.wait().worker] += 1
        duration, spent = cluster.now() - began, cluster.stop(everyone)
        self.k += 1
        return Round(self.k, used, used, 1 - used, np.zeros_like(used), float(spent.sum()), duration)
"""
JOB = """
[problem]
name = "quadratic"
dimension = 3

[method]
file = "greedy.py"
class = "Greedy"

[times]
law = "sqrt"

[stop]
rounds = 20

[run]
workers = 5
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "greedy.py").write_text(METHOD)
    (tmp_path / "job.toml").write_text(JOB)
    return tmp_path / "job.toml"


def test_tasks_that_a_method_of_ones_own_stops_are_counted_once(job: Path) -> None:
    summary = driven(job).summary()
    counts = [summary[f"tasks_{name}"] for name in ("started", "used", "wasted", "lost")]
    assert counts == [20 * 5, 20 * 2, 20 * 3, 0]
    assert 0 < summary["waste"] < summary["worker_time"]
