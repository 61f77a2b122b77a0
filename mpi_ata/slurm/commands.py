"""Slurm's commands: the only file that runs them."""

import os
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from mpi_ata.errors import RunError, UsageError
from mpi_ata.launch import CommandResult, run_command

PATIENCE = 60.0  # seconds for one answer
TRIES = 3  # a controller that is being restarted answers a little later
GONE = ("Invalid job id", "not found")  # the second of members of an array that wait
UNREACHED = (  # what Slurm's commands say where they cannot ask the controller
    "Communication connection failure",
    "Could not establish a configuration source",
    "Protocol authentication error",
    "Socket timed out",
    "Unable to contact slurm controller",
    "Unable to process configuration file",
    "Zero Bytes were transmitted or received",
    "standby mode",
)
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

NO_SLURM = "there is no {name} here: run this where Slurm is, or use mpi-ata run"


class SilentError(RunError):
    """Slurm does not tell what is queued, so nobody knows."""


@dataclass(frozen=True)
class SlurmJob:
    """A Slurm job as Slurm knows it."""

    id: str  # 12, or 12_3 for a member of an array
    state: str = "UNKNOWN"
    reason: str = ""
    restarts: int = 0
    run_time: float = 0.0
    time_limit: float | None = None  # None: no limit
    began: float | None = None  # seconds since 1970
    ends: float | None = None
    preempted: bool = False  # about to be, for a job of higher rank
    cores: int = 0
    nodes: str = ""
    command: Path = Path()

    @property
    def left(self) -> float | None:
        """The seconds until it is ended, as far as Slurm tells; a preempted job has less than its limit."""
        if self.ends is not None:
            return self.ends - time.time()
        return None if self.time_limit is None else self.time_limit - self.run_time

    @property
    def timed_out(self) -> bool:
        """Whether it is being ended since its time is up."""
        over = self.time_limit is not None and self.run_time >= self.time_limit
        return self.state in ("COMPLETING", "TIMEOUT") and (self.reason == "TimeLimit" or over)


def slurm(*command: str) -> CommandResult:
    """Ask Slurm something; once more where the controller does not answer."""
    if shutil.which(command[0]) is None:
        raise UsageError(NO_SLURM.format(name=command[0]))
    for number in range(TRIES):
        answer = run_command(command, PATIENCE)
        if answer.code is not None and "Unable to contact slurm controller" not in answer.err:
            break
        time.sleep(2.0**number)
    return answer


def said(answer: CommandResult) -> str:
    """What Slurm has to say against something, in one line."""
    lines = [line for line in (answer.err or answer.out).splitlines() if line.strip()]
    return re.sub(r"^\w+: ((error|fatal): )?", "", lines[-1]) if lines else "no answer came"


def unreached(answer: CommandResult) -> bool:
    """Whether a command could not ask the controller at all."""
    return answer.code != 0 and (answer.code is None or any(words in answer.err for words in UNREACHED))


def silence(answer: CommandResult) -> SilentError:
    """The error of a question that Slurm did not answer."""
    return SilentError(f"Slurm does not answer: {said(answer)}; see mpi-ata doctor")


def sbatch(script: Path, *options: str) -> int:
    """Give a batch script to Slurm; the id of the Slurm job."""
    answer = slurm("sbatch", "--parsable", *options, str(script))
    id = re.search(r"^(\d+)(;.*)?$", answer.out, re.MULTILINE)
    if unreached(answer):
        raise RunError(f"sbatch cannot reach Slurm: {said(answer)}; see mpi-ata doctor")
    if answer.code != 0 or id is None:
        raise UsageError(f"Slurm refused the job: {said(answer)}")
    return int(id[1])


def jobs(id: str) -> list[SlurmJob]:
    """What Slurm knows of a Slurm job, or of each member of an array; nothing once it has forgotten it."""
    answer = slurm("scontrol", "--oneliner", "show", "job", id)
    if answer.code != 0:
        if any(words in answer.out + answer.err for words in GONE) and not unreached(answer):
            return []
        raise silence(answer)
    return [parsed(line) for line in answer.out.splitlines() if line.startswith("JobId=")]


def own_jobs() -> list[str]:
    """The ids of all Slurm jobs of this user's that are queued or running; one for each array."""
    answer = slurm("squeue", "--me", "--noheader", "--format=%F")
    if answer.code != 0:
        raise silence(answer)
    return list(dict.fromkeys(answer.out.split()))


def requeue(id: str) -> str:
    """Let Slurm start a job again; its complaint, if it has one."""
    answer = slurm("scontrol", "requeue", id)
    return "" if answer.code == 0 else said(answer)


def cancel(*ids: str) -> None:
    """End Slurm jobs that wait."""
    if ids:
        slurm("scancel", *ids)


def signal_batch(id: str, name: str) -> None:
    """Send a signal to the batch script of a running job, and to nobody else."""
    answer = slurm("scancel", "--batch", f"--signal={name}", id)
    if answer.code != 0:
        raise RunError(f"Slurm job {id} could not be told to stop: {said(answer)}")


def mpi_types() -> list[str]:
    """The kinds of MPI that srun can start here."""
    answer = slurm("srun", "--mpi=list")
    return re.findall(r"^\s+(?:srun: )?(\w+)\s*$", answer.out + answer.err, re.MULTILINE)


def parsed(line: str) -> SlurmJob:
    """A line of scontrol's."""
    words = dict(re.findall(r"(\w[\w/:]*)=(\S*)", line))
    command = re.search(r"\bCommand=(.*?) WorkDir=", line)
    id = words["JobId"]
    if "ArrayTaskId" in words:
        id = f"{words['ArrayJobId']}_{words['ArrayTaskId']}"
    return SlurmJob(
        id=id,
        state=words["JobState"],
        reason=words.get("Reason", ""),
        restarts=int(words.get("Restarts", 0)),
        run_time=seconds(words.get("RunTime", "0")) or 0.0,
        time_limit=seconds(words.get("TimeLimit", "")),
        began=moment(words.get("StartTime", "")),
        ends=moment(words.get("EndTime", "")),
        preempted=moment(words.get("PreemptTime", "")) is not None,
        cores=int(re.match(r"\d*", words.get("NumCPUs", ""))[0] or 0),  # type: ignore[index]
        nodes=words.get("NodeList", "").replace("(null)", ""),
        command=Path(command[1]) if command else Path(),
    )


def seconds(text: str) -> float | None:
    """A time as Slurm writes it (minutes, m:s, h:m:s, d-h, d-h:m, d-h:m:s); None where it has no limit."""
    hit = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if hit is None:
        return None
    days, *rest = hit.groups()
    numbers = [int(part) for part in rest if part is not None]
    units = [3600, 60, 1] if days is not None or len(numbers) == 3 else [60, 1]
    total = 86400 * int(days or 0) + sum(a * b for a, b in zip(numbers, units, strict=False))
    return float(total)


def moment(text: str) -> float | None:
    """A point in time as Slurm writes it, in seconds since 1970; None where it is not known."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def own_id(environment: Mapping[str, str] = os.environ) -> str | None:
    """The id of the Slurm job that this process belongs to."""
    array, member = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{member}" if array and member else environment.get("SLURM_JOB_ID")
