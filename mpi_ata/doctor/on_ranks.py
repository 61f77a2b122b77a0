"""All checks, the last of which is whether ranks can exchange messages."""

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from mpi_ata import launch
from mpi_ata.doctor import checks
from mpi_ata.doctor.checks import Finding, compatible, threads_per_rank
from mpi_ata.errors import RunError, command_line
from mpi_ata.launch import host_name
from mpi_ata.launch.mpirun import Library, loaded_library
from mpi_ata.layout import workers_in

FIX_MPI_FIRST = "fix the MPI problems above, then run mpi-ata doctor again"
LAUNCHER_MISMATCH = (
    "launcher and MPI library do not work together: leave out mpirun, use the one named above, "
    "or srun --mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH)"
)

JOB = """
problem = {name = "quadratic", dimension = 1000}
method = {name = "sgd", step_size = 0.4}
allocator = {name = "uta", budget = 2}
times = {law = "sqrt", scale = 0.001}
stop = {rounds = 3}
run = {workers = 1, seed = 5}
"""
COMPARED = ("rounds", "tasks_started", "tasks_used", "loss", "gap", "workers", "finished")


def examine() -> Iterator[Finding]:
    """Yield all findings, the slow one last; under a launcher all ranks must take part in that one."""
    loaded = loaded_library()
    library, mpirun = checks.library_finding(loaded), checks.launcher(loaded)
    yield from (checks.python(), checks.package(), library, checks.wheels(), mpirun, checks.dead_workers())
    yield from (world(), checks.cores(), checks.threads(), checks.doorbell())
    yield from (checks.shared_memory(), checks.output_folder(), checks.slurm())
    yield checks.heterogeneous_jobs(loaded)
    if launch.under_launcher():
        yield exchange_on_ranks(loaded)
    elif library.ok and mpirun.ok:
        yield tiny_job()
    else:
        yield Finding("exchange", "not tried", False, FIX_MPI_FIRST)


def world() -> Finding:
    """Check whether a launcher started this process as a rank."""
    found = "not under a launcher; mpi-ata run starts the ranks itself"
    if launch.under_launcher():
        found = f"rank {launch.rank()} of {launch.world_size()}, according to the launcher"
    return Finding("world", found)


def exchange_on_ranks(library: Library) -> Finding:
    """Check that the ranks of this MPI world reach each other; all of them must call this."""
    ranks, starter = launch.world_size(), ""
    if "OMPI_COMM_WORLD_SIZE" in os.environ:
        starter = "Open MPI's mpirun"
    elif "PMI_SIZE" in os.environ:
        starter = "a launcher for MPICH"
    if not compatible(starter, library.version):  # MPICH would end everything in MPI_Init
        return Finding("exchange", f"not tried: {starter} started this rank", False, LAUNCHER_MISMATCH)
    try:
        from mpi_ata.clusters.mpi.world import hosts_in_world

        return _exchange_finding(ranks, hosts_in_world())
    except RunError as error:
        return Finding("exchange", str(error), False, "install the same version on all nodes")
    except (ImportError, RuntimeError):
        return Finding("exchange", "not tried", False, FIX_MPI_FIRST)


def _exchange_finding(ranks: int, hosts: list[str]) -> Finding:
    if len(hosts) != ranks:
        found = f"{ranks} ranks were started, but MPI sees {len(hosts)}"
        return Finding("exchange", found, False, LAUNCHER_MISMATCH)
    if ranks == 1:
        remedy = "a job needs a manager and a worker: use mpirun -n 2 or more"
        return Finding("exchange", "1 rank", False, remedy)
    here = hosts.count(host_name())  # the manager among them: only its finding is printed
    found = f"{ranks} ranks reached each other, {here} of them on {host_name()}"
    return Finding("exchange", found, True, oversubscription(workers_in(here) * threads_per_rank()))


def oversubscription(threads: int) -> str | None:
    """Return a warning if this node would run more threads than it has cores."""
    cores = os.cpu_count() or 1
    if threads <= cores:
        return None
    return f"{threads} worker threads share {cores} cores of {host_name()}: use fewer, unless tasks sleep"


def tiny_job() -> Finding:
    """Run a tiny job on two real ranks, and compare its result with that of a simulation."""
    shared = os.getcwd() if "SLURM_JOB_ID" in os.environ else None  # each node has a /tmp of its own
    with tempfile.TemporaryDirectory(prefix="mpi_ata-", dir=shared) as folder:
        job = Path(folder, "doctor.toml")
        job.write_text(JOB)
        simulated, _ = run_job(job, "--virtual")
        began = time.perf_counter()
        real, error = run_job(job)
        seconds = time.perf_counter() - began
    if real is not None:
        return compare(real, simulated or {}, seconds)
    command = command_line(launch.find_mpirun(), "-n", 2, sys.executable, "-m", "mpi4py.bench", "helloworld")
    return Finding("exchange", f"two ranks failed: {error}", False, f"see what MPI itself says: {command}")


def compare(real: dict[str, Any], simulated: dict[str, Any], seconds: float) -> Finding:
    """Compare the summary of a run on two ranks with that of its simulation."""
    differing = [key for key in COMPARED if real[key] != simulated.get(key)]
    if wrong := [f"{key} {real[key]} instead of {simulated.get(key)}" for key in differing]:
        remedy = "numbers were lost or changed in transit: please report this, with the lines above"
        return Finding("exchange", f"two ranks computed {', '.join(wrong)}", False, remedy)
    found = f"two ranks, {real['rounds']} rounds, correct results, {seconds:.1f} s from start to end"
    return Finding("exchange", found)


def run_job(job: Path, *options: str) -> tuple[dict[str, Any] | None, str]:
    """Run a job with one worker, and return its summary, or None and why it failed."""
    out = job.with_suffix(".virtual.h5" if options else ".h5")
    command = [sys.executable, "-m", "mpi_ata", "run", str(job), "--out", str(out), "--workers", "1"]
    result = launch.run_command([*command, "--json", *options])
    with suppress(IndexError, ValueError):
        summary = json.loads(result.out.splitlines()[-1])
        if result.code == 0 and isinstance(summary, dict):
            return summary, ""
    return None, result.gist()
