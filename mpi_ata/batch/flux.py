"""Flux: its options and commands, and what they print.

It has no arrays and never requeues: a run that is not finished submits its script again.  A signal would
reach the broker of a batch job, not its script: `mpi-ata batch` watches the time left and the stop file.
"""

import os
import re
import shlex
from functools import cache
from pathlib import Path

from mpi_ata.batch import interface
from mpi_ata.batch.interface import Allocation, Phase, QueuedJob, Requeued, Resources, Scheduler, Script
from mpi_ata.errors import RunError, UsageError
from mpi_ata.launch import CommandResult
from mpi_ata.launch.mpirun import loaded_library
from mpi_ata.layout import ranks_for

UNITS = {"s": 1.0, "": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
TASKS = "MPI_ATA_TASKS"  # the ranks of a batch job, which Flux itself does not say
FORMAT = "{id.dec}|{state}|{result}|{expiration}|{duration}|{nodelist}"
PHASES: dict[str, Phase] = {
    **dict.fromkeys(("NEW", "DEPEND", "PRIORITY", "SCHED"), "waiting"),
    "RUN": "running",
    "CLEANUP": "held",
    "INACTIVE": "over",
}


@cache
def batch_id() -> str:
    """Return the id of the batch job that this process belongs to; empty outside."""
    if "FLUX_URI" not in os.environ:
        return ""
    id = interface.run_tool("Flux", "flux", "getattr", "jobid")
    return decimal(id.out) if id.code == 0 else ""


def decimal(id: str) -> str:
    """Return an id as a decimal number, which no locale changes."""
    return interface.answer(
        "Flux", interface.run_tool("Flux", "flux", "job", "id", "--to=dec", id.strip())
    ).strip()


def run_flux(*command: str) -> CommandResult:
    """Run a command of Flux; in a batch job, which has a Flux of its own, ask the one outside."""
    return interface.run_tool("Flux", "flux", *(["--parent"] if batch_id() else []), *command)


class Flux(Scheduler):
    """The commands of Flux."""

    NAME = "Flux"
    ARRAY_INDEX = "FLUX_JOB_CC"

    def check_resources(self, resources: Resources) -> None:
        """Reject a time that Flux cannot read, or too few ranks."""
        if resources.time is not None and self.parse_duration(resources.time) is None:
            raise UsageError(f"--time {resources.time} is not a Flux time, such as 30 (minutes), 90s or 2h")
        interface.check_ranks(resources, self.NAME)

    def parse_duration(self, text: str) -> float | None:
        """Return the seconds of a number with a unit, by default minutes; None if it is no time."""
        hit = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text)
        return float(hit[1]) * UNITS[hit[2]] if hit else None

    def directives(self, script: Script) -> list[str]:
        """Return the lines that flux batch reads, and those that set log and ranks."""
        if script.members:
            raise UsageError("Flux has no arrays: use --shared, or submit the runs one by one")
        asked = script.resources
        named: dict[str, object] = {
            "nodes": asked.nodes,
            "nslots": asked.ranks or 1,
            "cores-per-slot": asked.cpus_per_task,
        }
        named |= {"gpus-per-slot": asked.gpus_per_task, "time-limit": asked.time, "queue": asked.partition}
        named |= {"bank": asked.account, "job-name": script.name, "output": "none"}
        options = [f"--{name}={value}" for name, value in named.items() if value is not None]
        options += [f"--requires=-host:{','.join(asked.exclude)}"] if asked.exclude else []
        lines = [
            f"# flux: {shlex.quote(interface.check_text(each))}"
            for each in [*options, *interface.split_options(asked.more)]
        ]
        id = '$(flux job id --to=dec "$(flux getattr jobid)")'
        return [*lines, *interface.log_lines(script, id), f"export {TASKS}={asked.ranks or 1}"]

    def submit_command(self, script: Path, after: str = "") -> list[str]:
        """Return the command that submits a batch script, to start once another job is over."""
        return ["flux", "batch", *([f"--dependency=afterany:{after}"] if after else []), str(script)]

    def submit(self, script: Path, after: str = "") -> str:
        """Submit a batch script and return the id of the job."""
        return decimal(
            interface.submitted_id(self.NAME, r"^(\S+)", run_flux(*self.submit_command(script, after)[1:]))
        )

    def jobs(self, id: str) -> list[QueuedJob]:
        """Return a job; nothing once Flux has forgotten it."""
        result = run_flux("jobs", "--suppress-header", f"--format={FORMAT}", id)
        if "not found" in result.err:
            return []
        return [parse_job(line) for line in interface.answer(self.NAME, result).splitlines() if line.strip()]

    def queued_ids(self) -> list[str]:
        """Return the ids of this user's pending and running jobs."""
        return interface.answer(self.NAME, run_flux("jobs", "--suppress-header", "--format={id.dec}")).split()

    def signal(self, id: str, name: str) -> None:
        """Do nothing: the script finds the stop file within seconds."""

    def requeue(self, id: str, script: Path) -> Requeued:
        """Submit the script of a job again, to start after it."""
        try:
            return Requeued(self.submit(script, after=id))
        except (RunError, UsageError) as error:
            return Requeued(error=str(error))

    def cancel(self, *ids: str) -> None:
        """Cancel pending jobs."""
        if ids:
            run_flux("cancel", *ids)

    def is_id(self, text: str) -> bool:
        """Return whether this is the id of a job, in decimals."""
        return text.isdecimal()

    def inside(self) -> Allocation:
        """Return the batch job that this process belongs to."""
        if not (id := batch_id()):
            return Allocation()
        cores = interface.run_tool(
            self.NAME, "flux", "resource", "list", "--no-header", "--format={ncores}"
        ).out.split()
        nodes = interface.run_tool(self.NAME, "flux", "getattr", "hostlist").out.strip()
        return Allocation(id, 0, nodes, int(cores[0]) if cores else 0, int(os.environ.get(TASKS, 1)))

    def launcher(self, workers: int | None = None) -> list[str]:
        """Return the command that starts the ranks of this job; Open MPI needs Flux's plugin for PMIx."""
        inside = self.inside()
        ranks = inside.tasks if workers is None else ranks_for(workers)
        pmix = ["-o", "pmi=pmix"] if "Open MPI" in loaded_library().version else []
        each = f"--cores-per-task={max(inside.cores // max(inside.tasks, 1), 1)}"
        return interface.own_launcher(ranks) or ["flux", "run", *pmix, each, "-n", str(ranks)]


def parse_job(line: str) -> QueuedJob:
    """Return a job that `flux jobs` has printed."""
    id, state, result, expiration, limit, nodes = line.split("|")
    return QueuedJob(
        id=id,
        state=result or state,
        phase=PHASES.get(state, "unknown"),
        time_limit=number(limit),
        end_time=number(expiration),
        timed_out=result == "TIMEOUT",
        cancelled=result == "CANCELED" or state == "CLEANUP",
        nodes=nodes,
    )


def number(text: str) -> float | None:
    """Return a number; None where there is none, or 0, which means no limit."""
    return float(text) or None if re.fullmatch(r"\d+(\.\d*)?", text) else None
