"""Which rank is which worker: this file alone knows.

Rank 0 is the manager; worker i is rank i + 1.  A worker that is a group of ranks would be
named after its first rank.
"""

MANAGER = 0


def worker_of(rank: int) -> int:
    """Return the worker that runs on a rank."""
    return rank - 1


def rank_of(worker: int) -> int:
    """Return the rank to send a worker's orders to."""
    return worker + 1


def ranks_for(workers: int) -> int:
    """Return how many ranks a job with this many workers needs, the manager included."""
    return workers + 1


def workers_in(ranks: int) -> int:
    """Return how many workers a world of this many ranks has."""
    return ranks - 1
