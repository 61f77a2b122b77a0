"""How much memory a run needs at least, estimated from what it will allocate."""

from mpi_ata.arrays import Array
from mpi_ata.limits import check_memory
from mpi_ata.methods import Method

WORKER_BYTES = 160  # the law and the accounts of one worker, as measured in a simulation
NUMBER_BYTES = 200  # the array and the entry that hold all workers' times of one task number
TIME_BYTES = 8  # of one worker's in it
TASK_BYTES = 200  # one simulated task of an order: its object, its seconds and where they are summed up
COPIES = 4  # of a point at the least: x0, x, a gradient, the sum of gradients


def check_workers(n: int) -> None:
    """Reject more workers than this machine can keep accounts of."""
    check_memory(f"[run] workers={n}", n * WORKER_BYTES)


def check_point(x0: Array) -> None:
    """Reject a point of which this machine cannot hold the few copies that every run makes."""
    check_memory(f"[problem] a point of {x0.size:,} numbers", COPIES * x0.nbytes)


def check_simulation(method: Method, n: int) -> None:
    """Reject rounds whose tasks, or whose points under way, this machine cannot hold in one process."""
    tasks = tasks_per_round(method)
    needed = tasks / n * (NUMBER_BYTES + n * TIME_BYTES + TASK_BYTES)
    check_memory(f"a simulated round of {tasks:,.0f} tasks", needed)
    if getattr(method, "point_per_worker", False):
        points, size = min(n, tasks) + COPIES, method.x.size
        check_memory(f"a point of {size:,} numbers for each of {n:,} workers", points * method.x.nbytes)


def tasks_per_round(method: Method) -> float:
    """Return how many tasks a round needs at least, as far as the method says."""
    budget = getattr(getattr(method, "allocator", None), "budget", None)
    named = [budget, getattr(method, "B", None), getattr(method, "S", None)]
    return next((count for count in named if isinstance(count, int | float)), 0)
