"""Slurm's commands: the only file that runs them."""

import math
import re
import shutil
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from mpi_ata.errors import RunError, UsageError
from mpi_ata.launch import CommandResult, run_command
from mpi_ata.slurm.slurm_job import SlurmJob, parse_job

TIMEOUT = 60.0  # seconds for one command
SHORT_TIMEOUT = 10.0  # for one whose answer is not needed
TRIES = 3  # a controller that is being restarted answers a little later
UNKNOWN_JOB = ("Invalid job id", "not found")  # the latter for pending members of an array
UNREACHABLE = (  # what Slurm's commands print if they cannot reach the controller
    "Communication connection failure",
    "Could not establish a configuration source",
    "Protocol authentication error",
    "Socket timed out",
    "Unable to contact slurm controller",
    "Unable to process configuration file",
    "Zero Bytes were transmitted or received",
    "standby mode",
)


class SlurmUnreachableError(RunError):
    """Slurm does not answer, so the state of the queue is unknown."""


def slurm(*command: str) -> CommandResult:
    """Run one of Slurm's commands, and retry it if the controller does not answer."""
    if shutil.which(command[0]) is None:
        raise UsageError(f"there is no {command[0]} here: run this where Slurm is, or use mpi-ata run")
    for number in range(TRIES):
        result = run_command(command, TIMEOUT)
        if result.code is not None and "Unable to contact slurm controller" not in result.err:
            break
        time.sleep(2.0**number)
    return result


def error_line(result: CommandResult) -> str:
    """Return the last line that a failed command printed, without its name in front."""
    lines = [line for line in (result.err or result.out).splitlines() if line.strip()]
    return re.sub(r"^\w+: ((error|fatal): )?", "", lines[-1]) if lines else "no answer came"


def is_unreachable(result: CommandResult) -> bool:
    """Return whether a command could not reach the controller at all."""
    return result.code != 0 and (result.code is None or any(text in result.err for text in UNREACHABLE))


def no_answer(result: CommandResult) -> SlurmUnreachableError:
    """Return the error of a query that Slurm did not answer."""
    return SlurmUnreachableError(f"Slurm does not answer: {error_line(result)}; see mpi-ata doctor")


def sbatch(script: Path, *options: str) -> int:
    """Submit a batch script and return the id of the Slurm job."""
    result = slurm("sbatch", "--parsable", *options, str(script))
    id = re.search(r"^(\d+)(;.*)?$", result.out, re.MULTILINE)
    if is_unreachable(result):
        raise RunError(f"sbatch cannot reach Slurm: {error_line(result)}; see mpi-ata doctor")
    if result.code != 0 or id is None:
        raise UsageError(f"Slurm rejected the job: {error_line(result)}")
    return int(id[1])


def jobs(id: str) -> list[SlurmJob]:
    """Return a Slurm job, or each member of an array; nothing once Slurm has forgotten it."""
    result = slurm("scontrol", "--oneliner", "show", "job", id)
    if result.code != 0:
        if any(text in result.out + result.err for text in UNKNOWN_JOB) and not is_unreachable(result):
            return []
        raise no_answer(result)
    return [parse_job(line) for line in result.out.splitlines() if line.startswith("JobId=")]


def queued_ids() -> list[str]:
    """Return the ids of this user's queued and running Slurm jobs; one per array."""
    result = slurm("squeue", "--me", "--noheader", "--format=%F")
    if result.code != 0:
        raise no_answer(result)
    return list(dict.fromkeys(result.out.split()))


def requeue(id: str) -> str:
    """Requeue a Slurm job, and return the error message if Slurm rejects that."""
    result = slurm("scontrol", "requeue", id)
    return "" if result.code == 0 else error_line(result)


def exclude_nodes(id: str, nodes: Sequence[str]) -> str:
    """Set the nodes that a requeued Slurm job must not use, and return the error if Slurm rejects that."""
    result = slurm("scontrol", "update", f"JobId={id}", f"ExcNodeList={','.join(nodes)}")
    return "" if result.code == 0 else error_line(result)


def nodes_by_partition() -> dict[str, list[str]]:
    """Return the nodes of each partition; those of the default partition also under an empty name."""
    result = slurm("sinfo", "--Node", "--noheader", "--format=%N %P")
    if result.code != 0:
        raise no_answer(result)
    found: defaultdict[str, list[str]] = defaultdict(list)
    for node, partition in (line.split() for line in result.out.splitlines() if line.strip()):
        for name in {partition.rstrip("*"), ""} if partition.endswith("*") else {partition}:
            found[name].append(node)
    return found


def expand_nodes(nodes: str) -> list[str]:
    """Return the names in a list such as n[1-3,5]."""
    result = slurm("scontrol", "show", "hostnames", nodes) if nodes else CommandResult(0, "", "")
    if result.code != 0:
        raise UsageError(f"{nodes!r} is not a list of nodes: {error_line(result)}")
    return result.out.split()


def cancel(*ids: str) -> None:
    """Cancel pending Slurm jobs."""
    if ids:
        slurm("scancel", *ids)


def signal_batch(id: str, name: str) -> None:
    """Send a signal to the batch script of a running Slurm job, and to nothing else."""
    result = slurm("scancel", "--batch", f"--signal={name}", id)
    if result.code != 0:
        raise RunError(f"Slurm job {id} could not be asked to stop: {error_line(result)}")


def mpi_types() -> list[str]:
    """Return the MPI types that srun supports here."""
    result = slurm("srun", "--mpi=list")
    return re.findall(r"^\s+(?:srun: )?(\w+)\s*$", result.out + result.err, re.MULTILINE)


def consumed_energy(ids: Sequence[str]) -> float | None:
    """Return the joules that Slurm's accounting knows of Slurm jobs, restarts included; None if it does not.

    The first line of a job is about all of its steps, which overlap; some versions leave it empty there.
    """
    if not ids or shutil.which("sacct") is None:
        return None
    options = ["--noheader", "--parsable2", "--duplicates", "--format=JobID,ConsumedEnergyRaw"]
    result = run_command(["sacct", *options, f"--jobs={','.join(ids)}"], SHORT_TIMEOUT)
    if result.code != 0:
        return None
    whole: list[float] = []  # of each job, or of its largest step
    for id, _, joules in (line.partition("|") for line in result.out.splitlines()):
        if "." not in id:
            whole.append(0.0)
        if whole and joules.strip().isdecimal():
            whole[-1] = max(whole[-1], float(joules))
    return math.fsum(whole) if whole and all(whole) else None
