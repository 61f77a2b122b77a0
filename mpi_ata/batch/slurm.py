"""Slurm: its options and commands, what they print, and the launcher for its jobs."""

import argparse
import math
import os
import re
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from mpi_ata import launch
from mpi_ata.batch.interface import (
    Allocation,
    Phase,
    Placement,
    QueuedJob,
    Requeued,
    Resources,
    Script,
    answer,
    check_ranks,
    check_text,
    error_line,
    own_launcher,
    run_tool,
    split_options,
    submitted_id,
)
from mpi_ata.errors import RunError, UsageError
from mpi_ata.launch import CommandResult, run_command
from mpi_ata.launch.environment import expand_counts, slurm_job_start, slurm_values
from mpi_ata.launch.mpirun import fault_tolerance, loaded_library
from mpi_ata.layout import ranks_for

NAME = "Slurm"
ARRAY_INDEX = "SLURM_ARRAY_TASK_ID"

RESERVED = {  # options of sbatch that the script sets itself, and what to use instead
    "--array": "--array of mpi-ata submit",
    "--chdir": "another working directory when submitting",
    "--export-file": "--source",
    "--no-requeue": "--chain",
    "--open-mode": "nothing: output is always appended",
    "--output": "--out of mpi-ata submit: the log is next to the run file",
    "--requeue": "nothing: unfinished runs are requeued",
    "--signal": "--signal and --lead of mpi-ata submit",
    "--test-only": "--dry-run",
    "--wait": "mpi-ata status",
    "--wrap": "a job file",
}
SHORT_OPTIONS = {"-a": "--array", "-D": "--chdir", "-o": "--output", "-W": "--wait"}


def check_resources(resources: Resources) -> None:
    """Reject options that Slurm cannot read, that the script sets itself, or that give too few ranks."""
    if resources.time is not None and parse_duration(resources.time) is None:
        raise UsageError(f"--time {resources.time} is not a Slurm time, such as 02:00:00 or 1-12")
    check_ranks(resources)
    for argument in [*extra_args(resources), *split_options(resources.components)]:
        option = SHORT_OPTIONS.get(argument[:2], argument.split("=")[0])
        if option in RESERVED:
            raise UsageError(f"--sbatch {argument!r} conflicts with the batch script; use {RESERVED[option]}")


def extra_args(resources: Resources) -> list[str]:
    """Return the further options of sbatch, split into arguments."""
    return split_options(resources.more)


def is_sized(resources: Resources) -> bool:
    """Return whether any option says how many ranks or nodes to use."""
    sizes = (resources.nodes, resources.ntasks, resources.ntasks_per_node)
    pattern = r"-[nN]|--nt|--nodes\b"
    return sizes != (None, None, None) or any(re.match(pattern, arg) for arg in extra_args(resources))


def node_options(resources: Resources) -> argparse.Namespace:
    """Return those of the further options of sbatch that say which nodes to use, empty if not given."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for short, name in (("-N", "--nodes"), ("-p", "--partition"), ("-x", "--exclude")):
        parser.add_argument(short, name, nargs="?", default="", const="")
    return parser.parse_known_args(extra_args(resources))[0]


def placement(resources: Resources) -> Placement:
    """Return which nodes a submission may use, as far as its options say."""
    given, per_node = node_options(resources), resources.ntasks_per_node
    spread = -(-resources.ntasks // per_node) if resources.ntasks and per_node else 0
    nodes = resources.nodes or spread or leading_number(given.nodes) or 1
    if "/" in given.exclude:
        raise UsageError(
            f"--sbatch --exclude={given.exclude} is a file, but --exclude-slow needs the node names"
        )
    return Placement(nodes, tuple((resources.partition or given.partition).split(",")), given.exclude)


def sbatch_args(resources: Resources) -> list[str]:
    """Return what was asked for as arguments of sbatch."""
    names = ("nodes", "ntasks", "ntasks_per_node", "cpus_per_task", "time", "partition", "account")
    values = {name: vars(resources)[name] for name in (*names, "gpus_per_task")}
    asked = [f"--{name.replace('_', '-')}={value}" for name, value in values.items() if value is not None]
    if not resources.exclude:
        return [*asked, *extra_args(resources)]
    own = placement(resources).excluded
    excluded = f"--exclude={','.join(filter(None, [own, *resources.exclude]))}"
    return [*asked, *extra_args(resources), excluded]  # sbatch reads only the last --exclude


def directives(script: Script) -> list[str]:
    """Return the lines of a batch script that sbatch reads."""
    options = [
        f"--job-name={script.name}",
        f"--chdir={script.workdir}",
        f"--output={str(script.log).replace('%', '%%')}-{'%A_%a' if script.members else '%j'}.out",
        "--open-mode=append",
        "--requeue" if script.requeue else "--no-requeue",
        f"--signal=B:{script.signal}@{script.lead}",
    ]
    if script.members:
        limit = f"%{script.at_once}" if script.at_once else ""
        options.append(f"--array=0-{len(script.members) - 1}{limit}")
    if script.members and script.resources.components:
        raise UsageError("--array and --and cannot be combined: Slurm has no arrays of heterogeneous jobs")
    lines = [f"#SBATCH {quote_directive(option)}" for option in [*options, *sbatch_args(script.resources)]]
    for component in component_args(script.resources):
        lines += ["#SBATCH hetjob", *(f"#SBATCH {quote_directive(option)}" for option in component)]
    return lines


SIZES: dict[str, Any] = dict.fromkeys(
    ("nodes", "ntasks", "ntasks_per_node", "cpus_per_task", "gpus_per_task")
)


def component_args(resources: Resources) -> Iterator[list[str]]:
    """Yield the arguments of sbatch for each further component; time, account, partition as in the first."""
    for text in resources.components:
        yield sbatch_args(replace(resources, **SIZES, more=(text,), components=()))


def quote_directive(option: str) -> str:
    """Return an option for an #SBATCH line, which may be quoted but cannot contain quotes."""
    if '"' in check_text(option) or "\\" in option:
        raise UsageError(f"{option!r} has a quote or backslash, which sbatch does not read; leave it out")
    return option if re.fullmatch(r"[\w@%+=:,./*\[\]-]+", option, re.ASCII) else f'"{option}"'


PHASES: dict[str, Phase] = {
    **dict.fromkeys(("PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"), "waiting"),
    "RUNNING": "running",
    "SUSPENDED": "suspended",
    **dict.fromkeys(("COMPLETING", "CONFIGURING", "STAGE_OUT", "SIGNALING", "RESIZING"), "held"),
    **dict.fromkeys(("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"), "over"),
    **dict.fromkeys(("OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"), "over"),
}


def parse_job(line: str) -> QueuedJob:
    """Parse one line of `scontrol --oneliner show job`."""
    fields = defaultdict(str, re.findall(r"(\w[\w/:]*)=(\S*)", line.replace("(null)", "")))
    id, state, reason = fields["JobId"], fields["JobState"], fields["Reason"]
    if fields["ArrayTaskId"]:
        id = f"{fields['ArrayJobId']}_{fields['ArrayTaskId']}"
    run_time, limit = parse_duration(fields["RunTime"]) or 0.0, parse_duration(fields["TimeLimit"])
    over_time = reason == "TimeLimit" or (limit is not None and run_time >= limit)
    end = parse_timestamp(fields["EndTime"])  # of a preempted job earlier than its time limit
    timed_out = state in ("COMPLETING", "TIMEOUT") and over_time
    command = re.search(r"\bCommand=(.*?) WorkDir=", line)
    needed = leading_number(fields["NumNodes"]) or 1
    return QueuedJob(
        id=id,
        state=state,
        phase=PHASES.get(state, "unknown"),
        reason=reason,
        restarts=leading_number(fields["Restarts"]),
        time_limit=limit,
        end_time=time.time() + limit - run_time if end is None and limit is not None else end,
        timed_out=timed_out,
        cancelled=state in ("COMPLETING", "CANCELLED") and not timed_out,
        preempted=parse_timestamp(fields["PreemptTime"]) is not None,
        nodes=fields["NodeList"],
        placement=Placement(needed, tuple(fields["Partition"].split(",")), fields["ExcNodeList"]),
        script=Path(command[1]) if command else Path(),
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
    return float(86400 * int(days or 0) + sum(a * b for a, b in zip(numbers, units, strict=False)))


def parse_timestamp(text: str) -> float | None:
    """Return a Slurm timestamp in seconds since 1970; None if it is unknown."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def is_id(text: str) -> bool:
    """Return whether this is the id of a Slurm job, or of a member of an array."""
    return re.fullmatch(r"\d+(_\d+)?", text) is not None


def array_id(id: str) -> str:
    """Return the id of the whole array that a member belongs to."""
    return id.partition("_")[0]


def member_id(id: str, member: int) -> str:
    """Return what Slurm calls a member of an array."""
    return f"{array_id(id)}_{member}"


def members(id: str) -> list[int]:
    """Return the members of an array that an id such as 12_3 or 12_[4-7%2] covers."""
    found: list[int] = []
    for part in id.partition("_")[2].partition("%")[0].strip("[]").split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            found += range(int(first), int(last or first) + 1)
    return found


SHORT_SECONDS = 10.0  # for a command whose answer is not needed
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


def run_slurm(*command: str) -> CommandResult:
    """Run one of Slurm's commands, and retry it if the controller does not answer."""
    for number in range(TRIES):
        result = run_tool(NAME, *command)
        if result.code is not None and "Unable to contact slurm controller" not in result.err:
            break
        time.sleep(2.0**number)
    return result


def is_unreachable(result: CommandResult) -> bool:
    """Return whether a command could not reach the controller at all."""
    return result.code != 0 and (result.code is None or any(text in result.err for text in UNREACHABLE))


def submit_command(script: Path, after: str = "") -> list[str]:
    """Return the command that submits a batch script, to start once another Slurm job is over."""
    return ["sbatch", "--parsable", *([f"--dependency=afterany:{after}"] if after else []), str(script)]


def submit(script: Path, after: str = "") -> str:
    """Submit a batch script and return the id of the Slurm job."""
    result = run_slurm(*submit_command(script, after))
    if is_unreachable(result):
        raise RunError(f"sbatch cannot reach Slurm: {error_line(result)}; see mpi-ata doctor")
    return submitted_id(NAME, r"^(\d+)(;.*)?$", result)


def find_obstacle(resources: Resources) -> str:
    """Return why Slurm could start such a job on no nodes as they are now; empty if it could, or is away."""
    test = ["sbatch", "--test-only", "--wrap=true", *sbatch_args(resources)]
    return run_command(test, SHORT_SECONDS).err.partition("allocation failure: ")[2].strip()


def jobs(id: str) -> list[QueuedJob]:
    """Return a Slurm job, or each member of an array; nothing once Slurm has forgotten it."""
    result = run_slurm("scontrol", "--oneliner", "show", "job", id)
    unknown = any(text in result.out + result.err for text in UNKNOWN_JOB)
    if result.code != 0 and unknown and not is_unreachable(result):
        return []
    lines = [line for line in answer(NAME, result).splitlines() if line.startswith("JobId=")]
    return [parse_job(line) for line in lines if not re.search(r"HetJobOffset=[1-9]", line)]


def queued_ids() -> list[str]:
    """Return the ids of this user's queued and running Slurm jobs; one per array."""
    return list(dict.fromkeys(answer(NAME, run_slurm("squeue", "--me", "--noheader", "--format=%F")).split()))


def requeue(id: str, script: Path) -> Requeued:
    """Requeue a Slurm job, which keeps its id."""
    return Requeued(id, error_line(run_slurm("scontrol", "requeue", id)))


def exclude_nodes(id: str, nodes: Sequence[str]) -> str:
    """Set the nodes that a requeued Slurm job must not use, and return the error if Slurm rejects that."""
    return error_line(run_slurm("scontrol", "update", f"JobId={id}", f"ExcNodeList={','.join(nodes)}"))


PER_NODE = ("SLURM_JOB_CPUS_PER_NODE", "SLURM_TASKS_PER_NODE")  # lists with a number for each node


def can_shrink() -> bool:
    """Return whether the site lets running Slurm jobs give nodes back."""
    return "disable_job_shrink" not in run_slurm("scontrol", "show", "config").out


def per_node(keep: Sequence[str]) -> list[list[int]]:
    """Return the cores and the tasks of some nodes of the Slurm job of this process."""
    nodes = expand_nodes(os.environ["SLURM_JOB_NODELIST"])
    counts = [expand_counts(os.environ.get(name, "")) for name in PER_NODE]
    return [[each[nodes.index(node)] for node in keep] for each in counts]


def shrink(id: str, keep: Sequence[str]) -> str:
    """Give back all but these nodes of the Slurm job of this process, and return the error if that fails."""
    cores, tasks = per_node(keep)
    error = error_line(run_slurm("scontrol", "update", f"JobId={id}", f"NodeList={','.join(keep)}"))
    for file in Path().glob(f"slurm_job_{id}_resize.*"):  # for shells
        file.unlink(missing_ok=True)
    if not error:
        values = [",".join(map(str, each)) for each in (cores, tasks)]
        names = dict.fromkeys(("SLURM_JOB_NODELIST", "SLURM_NODELIST"), ",".join(keep))
        names |= dict.fromkeys(("SLURM_JOB_NUM_NODES", "SLURM_NNODES"), str(len(keep)))
        names |= dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), str(sum(tasks)))
        os.environ |= names | dict(zip(PER_NODE, values, strict=True))
    return error


def resize(id: str, keep: Sequence[str]) -> str:
    """Let a requeued Slurm job have as many nodes, tasks and cores as these nodes have now."""
    cores, tasks = per_node(keep)
    sizes = [f"NumNodes={len(keep)}", f"NumTasks={sum(tasks)}", f"NumCPUs={sum(cores)}"]
    return error_line(run_slurm("scontrol", "update", f"JobId={id}", *sizes))


def nodes_by_partition() -> dict[str, list[str]]:
    """Return the nodes of each partition; those of the default partition also under an empty name."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    lines = answer(NAME, run_slurm("sinfo", "--Node", "--noheader", "--format=%N %P")).splitlines()
    for node, partition in [line.split() for line in lines if line.strip()]:
        for name in {partition.rstrip("*"), ""} if partition.endswith("*") else {partition}:
            found[name].append(node)
    return found


def expand_nodes(nodes: str) -> list[str]:
    """Return the names in a list such as n[1-3,5]."""
    result = run_slurm("scontrol", "show", "hostnames", nodes) if nodes else CommandResult(0, "", "")
    if result.code != 0:
        raise UsageError(f"{nodes!r} is not a list of nodes: {error_line(result)}")
    return result.out.split()


def cancel(*ids: str) -> None:
    """Cancel pending Slurm jobs."""
    if ids:
        run_slurm("scancel", *ids)


def signal(id: str, name: str) -> None:
    """Send a signal to the batch script of a running Slurm job, and to nothing else."""
    if error := error_line(run_slurm("scancel", "--batch", f"--signal={name}", id)):
        raise RunError(f"Slurm job {id} could not be asked to stop: {error}")


def mpi_types() -> list[str]:
    """Return the MPI types that srun supports here."""
    result = run_slurm("srun", "--mpi=list")
    return re.findall(r"^\s+(?:srun: )?(\w+)\s*$", result.out + result.err, re.MULTILINE)


def consumed_energy(ids: Sequence[str]) -> float | None:
    """Return the joules that Slurm's accounting knows of Slurm jobs, restarts included; None if it does not.

    The first line of a job is about all of its steps, which overlap; some versions leave it empty there.
    """
    if not ids or shutil.which("sacct") is None:
        return None
    options = ["--noheader", "--parsable2", "--duplicates", "--format=JobID,ConsumedEnergyRaw"]
    result = run_command(["sacct", *options, f"--jobs={','.join(ids)}"], SHORT_SECONDS)
    if result.code != 0:
        return None
    whole: list[float] = []  # of each job, or of its largest step
    for id, _, joules in (line.partition("|") for line in result.out.splitlines()):
        if "." not in id:
            whole.append(0.0)
        if whole and joules.strip().isdecimal():
            whole[-1] = max(whole[-1], float(joules))
    return math.fsum(whole) if whole and all(whole) else None


def inside() -> Allocation:
    """Return the Slurm job that this process belongs to; SLURM_NTASKS stays too large if it was resized."""
    tasks, placed = launch.slurm_tasks() or 1, sum(expand_counts(",".join(slurm_values(PER_NODE[1]))))
    return Allocation(
        launch.slurm_job(),
        int(os.environ.get("SLURM_RESTART_COUNT", 0)),
        ",".join(slurm_values("SLURM_JOB_NODELIST")),
        launch.allocated_cores(),
        min(tasks, placed or tasks),
        slurm_job_start(),
    )


def launcher(workers: int | None = None) -> list[str]:
    """Return the command that starts the ranks of this Slurm job, for these workers or all its tasks."""
    ranks = inside().tasks if workers is None else ranks_for(workers)
    if own := own_launcher(ranks):
        return own
    offered, mpirun = mpi_types() if shutil.which("srun") else [], None
    with suppress(UsageError):
        mpirun = launch.find_mpirun()
    return choose_launcher(loaded_library().version, offered, mpirun, ranks)


def choose_launcher(library: str, offered: Sequence[str], mpirun: str | None, ranks: int) -> list[str]:
    """Return how to start ranks of an MPI library; a wrong launcher makes every rank a world of its own."""
    gpus_per_rank = "SLURM_GPUS_PER_TASK" in os.environ  # only srun binds GPUs to ranks
    if (size := int(os.environ.get("SLURM_HET_SIZE", 0))) > 1:
        mpirun = None  # it would use only the nodes of the first component
    if mpirun is not None and "Open MPI" in library and not (gpus_per_rank and "pmix" in offered):
        # It works with Slurm whichever PMIx either was built with.
        return [mpirun, *fault_tolerance(mpirun), "-n", str(ranks)]
    if types := [name for name in supported_mpi_types(library) if name in offered]:
        ways = ["--ntasks", str(ranks)] if size < 2 else [f"--het-group=0-{size - 1}"]
        return srun(types[0], ways)
    if mpirun is not None:
        return [mpirun, "-n", str(ranks)]
    if size > 1:
        needed = " or ".join(supported_mpi_types(library)) or "pmi2"
        why = f"needs srun --mpi={needed}, but srun offers {', '.join(offered) or 'nothing'}"
        raise UsageError(f"a heterogeneous Slurm job {why}: submit without --and, or use MPICH")
    raise UsageError(
        f"no launcher for {library or 'this MPI'} was found: there is no mpirun, and srun --mpi offers "
        f"{', '.join(offered) or 'nothing'}; load the module of your MPI, or set MPI_ATA_LAUNCHER, "
        "such as to srun --mpi=pmix"
    )


def supported_mpi_types(library: str) -> list[str]:
    """Return the types of `srun --mpi` that an MPI library works with, the best first."""
    if "Open MPI" in library:
        return ["pmix"]
    if "CRAY" in library.upper():
        return ["cray_shasta", "pmi2"]
    if "Intel" in library and "I_MPI_PMI_LIBRARY" not in os.environ:
        return []  # it finds Slurm's PMI only through that variable
    return ["pmi2"]


def srun(mpi: str, ways: Sequence[str]) -> list[str]:
    """Return the srun command; a rank that dies does not end the others, where the MPI allows that."""
    args = ["srun", f"--mpi={mpi}", "--kill-on-bad-exit=0", *ways]
    if cores := os.environ.get("SLURM_CPUS_PER_TASK"):
        args.append(f"--cpus-per-task={cores}")  # newer versions of srun do not inherit it from the job
    return args
