"""What the method map needs of a problem."""

from mpi_ata.errors import BadResultError, UsageError
from mpi_ata.job.demand import COPIES
from mpi_ata.limits import check_memory
from mpi_ata.packing import pack
from mpi_ata.problems import AnyProblem


def check_computation(problem: AnyProblem) -> dict[str, str]:
    """Reject a problem with gradients or an x0 that cannot be sent, and return what it needs, by name."""
    name = type(problem).__name__
    if not hasattr(problem, "x0"):
        raise UsageError(f"[problem] {name} needs x0, which the tasks of the first round are given")
    if hasattr(problem, "gradient"):
        way_out = "remove it, or use another method"
        raise UsageError(f"[problem] {name} has gradient(), but the method map uses compute(); {way_out}")
    check_sendable(problem)
    return {"compute": "compute(x, task)", "combine": "combine(x, results), which returns the next x"}


def check_sendable(problem: AnyProblem) -> None:
    """Reject an x0 that cannot be sent to workers."""
    try:
        size = pack(problem.x0, "x0").nbytes
    except BadResultError as error:
        raise UsageError(f"[problem] {error}") from None
    check_memory(f"[problem] an x0 of {size:,} bytes", COPIES * size)
