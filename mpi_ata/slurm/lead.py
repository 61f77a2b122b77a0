"""When, and by which signal, a run is asked to save before its Slurm job ends."""

import signal

from mpi_ata.errors import UsageError
from mpi_ata.runfile.progress import Progress
from mpi_ata.slurm.slurm_job import parse_duration

SIGNAL = "USR1"
LEAD = 60  # seconds before the end, until something has been measured
MARGIN = 10.0  # seconds to end all ranks and to requeue, on top of a round and a save


def check_signal(name: str) -> str:
    """Return the name of a signal; reject those that cannot ask a run to save."""
    if f"SIG{name}" not in signal.Signals.__members__ or name in ("KILL", "STOP", "TERM"):
        raise UsageError(f"--signal {name} cannot be used: name one such as USR1 or USR2")
    return name


def script_lead(time_limit: str | None, lead: int | None) -> int:
    """Return the lead to write into the script: as given, or a minute, but less in a short job."""
    if lead is not None:
        return lead
    limit = parse_duration(time_limit) if time_limit else None
    return LEAD if limit is None else max(1, min(LEAD, int(limit / 4)))


def measured_lead(progress: Progress, limit: float | None) -> float:
    """Return the seconds needed to finish a round, save and end, as measured so far."""
    limit = limit or 4.0 * LEAD
    if not progress.rate:
        return min(LEAD, limit / 4)
    return min(MARGIN + 3 * (1 / progress.rate + progress.saving), limit / 2)
