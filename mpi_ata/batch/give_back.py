"""Nodes given back to the scheduler while a run lasts: which ones it can do without, and when that pays."""

from pathlib import Path

import numpy as np

from mpi_ata.allocators.round_plan import plan_exactly
from mpi_ata.allocators.task_model import SpeedEstimates
from mpi_ata.driver.forecast import known_job, known_nodes
from mpi_ata.errors import UsageError
from mpi_ata.job.component import METHODS
from mpi_ata.layout import ranks_for
from mpi_ata.runfile.schema import Record

PRICE = 1.0  # how many per cent of billed one per cent of time is worth
SURE = 2.0  # standard errors by which a node may be faster than it seems, so that bad luck releases none
FIRST_SECONDS, LONGEST_SECONDS = 10.0, 600.0  # until the first look, and between later ones


def spare_hosts(record: Record, manager: str, path: Path) -> list[str]:
    """Return the hosts that cost more than the time they save is worth, in what is left of a run.

    Never the manager's; none where workers have data of their own, or how much is left is not known.
    """
    tables, done = record.job.tables, int(record.method["k"])
    method = METHODS.get(tables.get("method", {}).get("name", ""))
    left = tables.get("stop", {}).get("rounds", 0) - done
    who, nodes = known_nodes([record.source])
    if left <= 0 or method is None or getattr(method, "owns_data", False):
        return []
    try:
        job = known_job(record, [record.source], who, path)
    except UsageError:
        return []
    tried = {each for each, tasks in zip(record.identities, record.workers["tasks"], strict=True) if tasks}
    if any(not tried.intersection(who[row] for row in node.rows.tolist()) for node in nodes):
        return []
    mu, sd, un = job.speeds
    speeds = SpeedEstimates(np.maximum(mu - SURE * un, mu / SURE**2), sd, np.zeros_like(mu))
    others = [node for node in nodes if node.host != manager]
    others.sort(key=lambda node: float((1.0 / speeds.mu[node.rows]).sum()))
    ranks = ranks_for(len(who))

    def worth(count: int) -> tuple[float, float, int]:
        """Return the cost of a round without the slowest nodes, its seconds, and how many ranks are gone."""
        # The manager's rank is the first of its node.
        gone = {node.host for node in others[:count]}
        own = [node.rows[int(node.host == manager) :] for node in nodes if node.host not in gone]
        plan, _ = plan_exactly(speeds.of(np.concatenate(own)), job.budget)
        seconds = plan.length + job.latency + job.gap
        released = sum(len(node.rows) for node in others[:count])
        return (1.0 + PRICE) * float(np.log(seconds)) + float(np.log(ranks - released)), seconds, released

    at_most = len(others) - (len(others) == len(nodes))  # a worker stays
    options = [worth(count) for count in range(at_most + 1)]
    best = min(range(len(options)), key=lambda count: options[count][0])
    _, seconds, released = options[best]
    pays = left * seconds * released > job.setup * ranks
    return [node.host for node in others[:best]] if pays else []
