"""Whether ranks can talk: those that a launcher has started, or two for a tiny job."""

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from mpi_ata import launch
from mpi_ata.clusters.doorbell import host_name
from mpi_ata.doctor.finding import Finding
from mpi_ata.doctor.library import fit
from mpi_ata.doctor.machine import threads_a_rank
from mpi_ata.errors import RunError
from mpi_ata.launch.library import Library

MEND_FIRST = "mend the MPI first, then ask again"
STARTED_WRONG = (
    "launcher and MPI library do not understand each other: leave out mpirun, use the one named above, "
    "or srun --mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH)"
)

JOB = """
[problem]
name = "quadratic"
dimension = 1000

[method]
name = "sgd"
step_size = 0.4

[allocator]
name = "uta"
budget = 2

[times]
law = "sqrt"
scale = 0.001

[stop]
rounds = 3

[run]
workers = 1
seed = 5
"""
SAME = ("rounds", "tasks_started", "tasks_used", "loss", "gap", "workers", "finished")  # real or simulated


def world() -> Finding:
    """Whether this process is a rank already."""
    if launch.under_launcher():
        return Finding("world", f"rank {launch.rank()} of {launch.world_size()}, as the launcher says")
    return Finding("world", "not under a launcher; mpi-ata run starts the ranks itself")


def meeting(library: Library) -> Finding:
    """The ranks of this MPI world in touch with each other; all of them must call this."""
    told = launch.world_size()
    if not fit(launcher_in_use(), library.version):  # MPICH would end everything in MPI_Init
        return Finding("exchange", f"not tried: {launcher_in_use()} started this rank", False, STARTED_WRONG)
    try:
        from mpi_ata.clusters.world import hosts_in_world

        hosts = hosts_in_world()
    except RunError as error:
        return Finding("exchange", str(error), False, "install the same version on all nodes")
    except (ImportError, RuntimeError):
        return Finding("exchange", "not tried", False, MEND_FIRST)
    if len(hosts) != told:
        found = f"{told} ranks were started, but MPI sees {len(hosts)}"
        return Finding("exchange", found, False, STARTED_WRONG)
    if told == 1:
        return Finding(
            "exchange", "1 rank", False, "a job needs a manager and a worker: use mpirun -n 2 or more"
        )
    found = f"{told} ranks met, {hosts.count(host_name())} of them on {host_name()}"
    return Finding("exchange", found, True, crowded((hosts.count(host_name()) - 1) * threads_a_rank()))


def launcher_in_use() -> str:
    """The kind of launcher that started this rank, as far as it shows."""
    if "OMPI_COMM_WORLD_SIZE" in os.environ:
        return "Open MPI's mpirun"
    return "a launcher for MPICH" if "PMI_SIZE" in os.environ else ""


def crowded(running: int) -> str | None:
    """What to know where more threads would run on this node than it has cores."""
    there = os.cpu_count() or 1
    if running <= there:
        return None
    return f"{running} threads of workers share {there} cores of {host_name()}: use fewer, unless tasks sleep"


def tiny_job() -> Finding:
    """A tiny job on two real ranks, held against the same job on a simulated one."""
    seen_by_all = os.getcwd() if "SLURM_JOB_ID" in os.environ else None  # /tmp is each node's own
    with tempfile.TemporaryDirectory(prefix="mpi_ata-", dir=seen_by_all) as folder:
        job = Path(folder, "doctor.toml")
        job.write_text(JOB)
        simulated, _ = figures(job, "--virtual")
        began = time.perf_counter()
        real, error = figures(job)
        seconds = time.perf_counter() - began
    if real is None:
        own = f"{launch.find_mpirun()} -n 2 {sys.executable} -m mpi4py.bench helloworld"
        return Finding("exchange", f"two ranks failed: {error}", False, f"see what MPI itself says: {own}")
    return compared(real, simulated or {}, seconds)


def compared(real: dict[str, Any], simulated: dict[str, Any], seconds: float) -> Finding:
    """What two ranks came to, held against what it should have been."""
    wrong = [
        f"{key} {real.get(key)} for {simulated.get(key)}" for key in SAME if real[key] != simulated.get(key)
    ]
    if wrong:
        remedy = "numbers were lost or changed on the way: please report this, with the lines above"
        return Finding("exchange", f"two ranks came to {', '.join(wrong)}", False, remedy)
    found = f"two ranks, {real['rounds']} rounds, the right figures, {seconds:.1f} s from start to end"
    return Finding("exchange", found)


def figures(job: Path, *options: str) -> tuple[dict[str, Any] | None, str]:
    """What a job of one worker comes to, or why it does not."""
    out = job.with_suffix(".virtual.h5" if options else ".h5")
    command = [sys.executable, "-m", "mpi_ata", "run", str(job), "--out", str(out), "--workers", "1"]
    command += ["--json", *options]
    answer = launch.run_command(command)
    try:
        found = json.loads(answer.out.splitlines()[-1]) if answer.code == 0 else None
    except (IndexError, ValueError):
        found = None
    return (found, "") if isinstance(found, dict) else (None, answer.gist())
