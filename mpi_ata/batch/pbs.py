"""PBS: OpenPBS and PBS Professional, from version 19 on.

It has no signal before the time limit: `mpi-ata batch` compares the time left with what a save needs.
"""

import getpass
import json
import os
import re
import time
from collections import Counter
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from mpi_ata import launch
from mpi_ata.batch import interface
from mpi_ata.batch.interface import Allocation, Phase, QueuedJob, Requeued, Resources, Scheduler, Script
from mpi_ata.errors import RunError, UsageError
from mpi_ata.launch import CommandResult
from mpi_ata.launch.mpirun import fault_tolerance, loaded_library
from mpi_ata.layout import ranks_for

ID = r"\d+(?:\[\d*\])?"
RESERVED = ("-N", "-o", "-e", "-j", "-r", "-J", "-V", "-I", "-W")  # set by the script, or of no use in it
PHASES: dict[str, Phase] = {
    **dict.fromkeys("QWHTM", "waiting"),
    "R": "running",
    **dict.fromkeys("SU", "suspended"),
    "E": "held",
    **dict.fromkeys("FX", "over"),
}


def run_pbs(*command: str) -> CommandResult:
    """Run a command of PBS."""
    return interface.run_tool("PBS", *command)


class PBS(Scheduler):
    """The commands of PBS, and what they print."""

    NAME = "PBS"
    ARRAY_INDEX = "PBS_ARRAY_INDEX"

    def check_resources(self, resources: Resources) -> None:
        """Reject options that PBS cannot read, that the script sets itself, or that give too few ranks."""
        if resources.time is not None and self.parse_duration(resources.time) is None:
            raise UsageError(f"--time {resources.time} is not a PBS time, such as 02:00:00 or 120 (minutes)")
        interface.check_ranks(resources, self.NAME)
        for argument in interface.split_options(resources.more):
            if argument[:2] in RESERVED:
                raise UsageError(f"--sbatch {argument!r} conflicts with the batch script; leave it out")

    def parse_duration(self, text: str) -> float | None:
        """Return the seconds of minutes or [hours:]minutes:seconds; None if it is no time."""
        if re.fullmatch(r"(\d+:){0,2}\d+", text) is None:
            return None
        return float(sum(int(part) * 60**j for j, part in enumerate(reversed(walltime(text).split(":")))))

    def directives(self, script: Script) -> list[str]:
        """Return the lines that qsub reads, and those that set folder and log, which it cannot name by id."""
        asked = script.resources
        options = [f"-N {script.name}", "-V", "-j oe", "-o /dev/null", f"-r {'y' if script.requeue else 'n'}"]
        options.append(f"-l select={select(asked)}")
        options += [f"-l walltime={walltime(asked.time)}"] if asked.time else []
        options += [f"-q {asked.partition}"] if asked.partition else []
        options += [f"-A {asked.account}"] if asked.account else []
        if script.members:
            if len(script.members) == 1:
                raise UsageError("an array of PBS needs two runs or more: leave out --array")
            limit = f"%{script.at_once}" if script.at_once else ""
            options.append(f"-J 0-{len(script.members) - 1}{limit}")
        options += asked.more
        return [
            *(f"#PBS {interface.check_text(option)}" for option in options),
            *interface.log_lines(script, "${PBS_JOBID%%.*}"),
        ]

    def submit_command(self, script: Path, after: str = "") -> list[str]:
        """Return the command that submits a batch script, to start once another job is over."""
        return ["qsub", *(["-W", f"depend=afterany:{after}"] if after else []), str(script)]

    def submit(self, script: Path, after: str = "") -> str:
        """Submit a batch script and return the id of the job, without the name of the server."""
        return interface.submitted_id(self.NAME, f"^({ID})", run_pbs(*self.submit_command(script, after)))

    def jobs(self, id: str) -> list[QueuedJob]:
        """Return a job, or each member of an array; nothing once PBS has forgotten it."""
        result = run_pbs("qstat", "-x", "-f", "-t", "-F", "json", id)
        if result.code != 0 and "Unknown Job" in result.err:
            return []
        found = json.loads(interface.answer(self.NAME, result), strict=False).get("Jobs", {})
        return [parse_job(name, fields) for name, fields in found.items() if "[]" not in name]

    def queued_ids(self) -> list[str]:
        """Return the ids of this user's queued and running jobs; one per array."""
        listed = interface.answer(self.NAME, run_pbs("qselect", "-u", getpass.getuser()))
        return [found[0] for line in listed.split() if (found := re.match(ID, line))]

    def signal(self, id: str, name: str) -> None:
        """Send a signal to a running job."""
        if error := interface.error_line(run_pbs("qsig", "-s", f"SIG{name}", id)):
            raise RunError(f"PBS job {id} could not be asked to stop: {error}")

    def requeue(self, id: str, script: Path) -> Requeued:
        """Requeue a job; where only operators may do that, submit its script again, to start after it."""
        error = interface.error_line(run_pbs("qrerun", id))
        if not error or "[" in id:  # a member of an array cannot be submitted alone
            return Requeued(id, error)
        try:
            return Requeued(self.submit(script, after=id))
        except UsageError as rejected:
            return Requeued(error=str(rejected))

    def cancel(self, *ids: str) -> None:
        """Delete pending jobs."""
        if ids:
            run_pbs("qdel", *ids)

    def is_id(self, text: str) -> bool:
        """Return whether this is the id of a job, or of a member of an array."""
        return re.fullmatch(ID, text) is not None

    def array_id(self, id: str) -> str:
        """Return the id of the whole array that a member belongs to."""
        return re.sub(r"\[\d+\]", "[]", id)

    def member_id(self, id: str, member: int) -> str:
        """Return what PBS calls a member of an array."""
        return f"{id.partition('[')[0]}[{member}]"

    def members(self, id: str) -> list[int]:
        """Return the member of an array that an id such as 12[3] names."""
        return [int(number) for number in re.findall(r"\[(\d+)\]", id)]

    def inside(self) -> Allocation:
        """Return the job that this process belongs to; its node file has a line for each rank."""
        lines: list[str] = []
        with suppress(OSError):
            lines = Path(os.environ.get("PBS_NODEFILE", "")).read_text().split()
        id, hosts = re.match(ID, os.environ.get("PBS_JOBID", "")), Counter(lines)
        each = int(os.environ.get("NCPUS", 1)) // max(hosts.values(), default=1)
        cores = len(lines) * max(each, 1)
        return Allocation(id[0] if id else None, 0, ",".join(hosts), cores, max(len(lines), 1))

    def launcher(self, workers: int | None = None) -> list[str]:
        """Return the command that starts the ranks of this job, on the hosts of its node file."""
        ranks = self.inside().tasks if workers is None else ranks_for(workers)
        if own := interface.own_launcher(ranks):
            return own
        library, mpirun = loaded_library().version, launch.find_mpirun()
        hosts = ["--hostfile" if "Open MPI" in library else "-f", os.environ.get("PBS_NODEFILE", "")]
        hosts = [] if "CRAY" in library.upper() else hosts  # its mpiexec asks PBS itself
        return [mpirun, *fault_tolerance(mpirun), *hosts, "-n", str(ranks)]


def select(asked: Resources) -> str:
    """Return the chunks to ask for: a node each, or a rank each if the number of nodes is not given."""
    ranks = asked.ranks or 1
    count = asked.nodes or (-(-ranks // asked.ntasks_per_node) if asked.ntasks_per_node else ranks)
    fewest, more = divmod(ranks, count)
    sizes = Counter([fewest + 1] * more + [fewest] * (count - more))
    gpus = int(re.findall(r"\d+", f"0 {asked.gpus_per_task or ''}")[-1])
    return "+".join(
        f"{number}:ncpus={size * (asked.cpus_per_task or 1)}:mpiprocs={size}"
        + (f":ngpus={size * gpus}" if gpus else "")
        for size, number in sizes.items()
    )


def walltime(text: str) -> str:
    """Return a time as PBS reads it; a mere number is minutes, as for other schedulers, not seconds."""
    return text if ":" in text else f"{int(text) // 60:02}:{int(text) % 60:02}:00"


def parse_job(name: str, fields: dict[str, Any]) -> QueuedJob:
    """Return a job that `qstat -F json` has printed."""
    state, began = str(fields.get("job_state", "")), None
    seconds = PBS().parse_duration(str(fields.get("Resource_List", {}).get("walltime", "")))
    with suppress(ValueError):
        began = datetime.strptime(str(fields.get("stime", "")), "%a %b %d %H:%M:%S %Y").timestamp()
    end = began + seconds if began is not None and seconds is not None else None
    timed_out = state in ("E", "F") and end is not None and time.time() >= end
    hosts = dict.fromkeys(re.findall(r"(?:^|\+)([^/+]+)", str(fields.get("exec_host", ""))))
    return QueuedJob(
        id=name.partition(".")[0],
        state=state or "UNKNOWN",
        phase=PHASES.get(state, "unknown"),
        reason=str(fields.get("comment", "")),
        time_limit=seconds,
        end_time=end,
        timed_out=timed_out,
        cancelled=state in ("E", "F") and not timed_out,
        nodes=",".join(hosts),
        script=Path((str(fields.get("Submit_arguments", "")).split() or [""])[-1]),
    )
