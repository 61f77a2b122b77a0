"""A Slurm job as scontrol describes it."""

import re
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

WAITING = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD")
ACTIVE = ("RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STAGE_OUT", "SIGNALING", "RESIZING")
OVER = (
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "REVOKED",
    "TIMEOUT",
)


@dataclass(frozen=True)
class SlurmJob:
    """A Slurm job, or one member of an array."""

    id: str  # 12, or 12_3 for a member of an array
    state: str = "UNKNOWN"
    reason: str = ""
    restarts: int = 0
    run_time: float = 0.0
    time_limit: float | None = None  # None: no limit
    start_time: float | None = None  # seconds since 1970
    end_time: float | None = None
    preempted: bool = False  # about to be, by a job of higher priority
    cores: int = 0
    nodes: str = ""
    partition: str = ""
    node_count: int = 1  # that it needs at least
    excluded: str = ""  # nodes that it must not use, as Slurm lists them: n[1-3,5]
    command: Path = Path()

    @property
    def time_left(self) -> float | None:
        """Return the seconds until Slurm ends it; a preempted job has less than its time limit."""
        if self.end_time is not None:
            return self.end_time - time.time()
        return None if self.time_limit is None else self.time_limit - self.run_time

    @property
    def timed_out(self) -> bool:
        """Return whether Slurm is ending it because of its time limit."""
        over = self.time_limit is not None and self.run_time >= self.time_limit
        return self.state in ("COMPLETING", "TIMEOUT") and (self.reason == "TimeLimit" or over)


def parse_job(line: str) -> SlurmJob:
    """Parse one line of `scontrol --oneliner show job`."""
    fields = dict(re.findall(r"(\w[\w/:]*)=(\S*)", line))
    command = re.search(r"\bCommand=(.*?) WorkDir=", line)
    id = fields["JobId"]
    if "ArrayTaskId" in fields:
        id = f"{fields['ArrayJobId']}_{fields['ArrayTaskId']}"
    return SlurmJob(
        id=id,
        state=fields["JobState"],
        reason=fields.get("Reason", ""),
        restarts=int(fields.get("Restarts", 0)),
        run_time=parse_duration(fields.get("RunTime", "0")) or 0.0,
        time_limit=parse_duration(fields.get("TimeLimit", "")),
        start_time=parse_timestamp(fields.get("StartTime", "")),
        end_time=parse_timestamp(fields.get("EndTime", "")),
        preempted=parse_timestamp(fields.get("PreemptTime", "")) is not None,
        cores=leading_number(fields.get("NumCPUs", "")),
        nodes=fields.get("NodeList", "").replace("(null)", ""),
        partition=fields.get("Partition", "").replace("(null)", ""),
        node_count=leading_number(fields.get("NumNodes", "")) or 1,
        excluded=fields.get("ExcNodeList", "").replace("(null)", ""),
        command=Path(command[1]) if command else Path(),
    )


def leading_number(text: str) -> int:
    """Return the number that a text such as 4 or 4-8 begins with; 0 if there is none."""
    found = re.match(r"\d+", text)
    return int(found[0]) if found else 0


def parse_duration(text: str) -> float | None:
    """Return the seconds of a Slurm time (minutes, m:s, h:m:s, d-h, d-h:m, d-h:m:s); None if unlimited."""
    hit = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if hit is None:
        return None
    days, *rest = hit.groups()
    numbers = [int(part) for part in rest if part is not None]
    units = [3600, 60, 1] if days is not None or len(numbers) == 3 else [60, 1]
    total = 86400 * int(days or 0) + sum(a * b for a, b in zip(numbers, units, strict=False))
    return float(total)


def parse_timestamp(text: str) -> float | None:
    """Return a Slurm timestamp in seconds since 1970; None if it is unknown."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def array_members(id: str) -> list[int]:
    """Return the members of an array that an id such as 12_3 or 12_[4-7%2] covers."""
    found: list[int] = []
    for part in id.partition("_")[2].partition("%")[0].strip("[]").split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            found += range(int(first), int(last or first) + 1)
    return found
