"""Real ranks for a notebook: a job that is written from the arguments of minimize(), and run by mpi-ata."""

import tempfile
from pathlib import Path
from typing import Any

from mpi_ata import launch
from mpi_ata.errors import CONTINUE, RunError, UsageError
from mpi_ata.job.names import UPDATES
from mpi_ata.job.tables import Table, Tables
from mpi_ata.script.allocator import DEFAULT
from mpi_ata.script.description import described
from mpi_ata.script.place import NO_SCRIPT
from mpi_ata.script.request import Prepared, Request
from mpi_ata.script.result import Result, saved_result
from mpi_ata.script.toml import to_toml

LONGEST = 20 * 24 * 3600.0  # seconds that a run may take


def run_generated_job(request: Request) -> Result:
    """Run what was asked for in a process of its own, which decides what to resume, and return its result."""
    text = to_toml(job_tables(request, request.prepare(planned=False)))
    with tempfile.TemporaryDirectory(prefix="mpi_ata-") as folder:
        job, file = Path(folder) / "notebook.toml", Path(folder) / "run.h5"
        job.write_text(text)
        out = file if request.out is None else Path(request.out)
        words = ["run", str(job), "--out", str(out), *_options(request), "--json"]
        done = launch.run_command(launch.rank_command(words), timeout=LONGEST)
        if done.code not in (0, CONTINUE):
            raise RunError(done.gist().removeprefix("Error: "))
        return saved_result(out, recorded=request.out is not None)


def job_tables(request: Request, prepared: Prepared) -> Tables:
    """Return the tables of the job; reject what a job file cannot say."""
    allocator = DEFAULT if request.allocator is None else request.allocator
    if not isinstance(request.problem, str):
        raise UsageError(NO_SCRIPT.format(request.workers))
    if not isinstance(allocator, str) or request.times is not None or request.faults is not None:
        raise UsageError(
            "in a notebook, minimize() on ranks takes an allocator by name, and neither times nor faults; "
            "save this as SCRIPT.py and use python SCRIPT.py"
        )
    user, tables = request.problem_class(), prepared.tables
    return {
        "problem": {"file": str(user.path.resolve()), "class": user.name},
        "method": {"name": "sgd"} | _update(request.update),
        "allocator": {"name": allocator, "budget": request.budget},
        "stop": tables["stop"],
        "run": tables["run"],
    }


def _update(update: Any) -> Table:
    """Return the keys of an update of this package."""
    names = {cls: name for name, cls in UPDATES.items()}
    if type(update) not in names:
        raise UsageError(
            f"in a notebook, update on ranks is one of {', '.join(cls.__name__ for cls in names)}, not "
            f"{type(update).__name__}; save this as SCRIPT.py and use python SCRIPT.py"
        )
    keys = {key: value for key, value in described(update).items() if key != "class"}
    return {"update": names[type(update)]} | keys


def _options(request: Request) -> list[str]:
    earlier = request.warm_start
    paths = [earlier] if isinstance(earlier, str | Path) else earlier
    return [
        *(["--resume"] if request.resume else []),
        *(word for path in paths for word in ("--warm-start", str(path))),
        *(["--prior-weight", str(request.prior_weight)] if request.prior_weight != 1 else []),
        *(["--any-problem"] if request.any_problem else []),
        *(["--accept-changes"] if request.accept_changes else []),
    ]
