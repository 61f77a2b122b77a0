"""A run in plain words: where its time went, who was not worth using, and what to request next time."""

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mpi_ata.arrays import BoolArray, IntArray, State
from mpi_ata.clusters.identity import VIRTUAL
from mpi_ata.job.schema import tables_of
from mpi_ata.layout import ranks_for
from mpi_ata.runfile.describe import SLURM_ENERGY, latest_metrics
from mpi_ata.runfile.hosts import flagged, report_hosts
from mpi_ata.runfile.prior import counted, match_prior
from mpi_ata.runfile.record import Record
from mpi_ata.view.explain_rules import depends_on_means, planned
from mpi_ata.view.learned import learned
from mpi_ata.view.text import duration, elapsed_shares, share, significant

RARELY = 0.1  # of an equal share of the tasks: a worker below this hardly did any
SPARE_TIME = 1.5  # the time limit to request, over the expected elapsed time
SLOWER = 1.25  # than in earlier runs: worth a remark
ENOUGH = 30  # tasks, then and now, to compare
SHOWN = 8  # workers or hosts in a sentence


class Section(NamedTuple):
    """What is said about one run."""

    sentences: list[str]
    commands: list[tuple[str, str]]  # what each is for, and the command


def run_summary(record: Record, path: Path) -> Section:
    """Return the summary of a run in plain words."""
    parts = (_metrics, _worker_time, _elapsed, _billed, _energy, _idle, _hosts, _history)
    found = [sentence for part in parts for sentence in part(record)]
    return Section([_state(record), *found], _request(record, path))


def _state(record: Record) -> str:
    summary = record.summary
    known = [name for name in ("gap", "loss") if summary.get(name) is not None]
    loss = f", {known[0]} {summary[known[0]]:.4g}" if known else ""
    rounds = counted(summary["rounds"], "round")
    limit = "" if record.reason == rounds else f" at {record.reason}"
    state = f"is finished{limit}" if record.reason else "is not finished"
    return f"The run {state}: {rounds} in {duration(summary['clock'])} on the clock{loss}."


def _metrics(record: Record) -> list[str]:
    """Return what evaluate() of the problem said last."""
    known = [f"{name} {value:.4g}" for name, value in latest_metrics(record).items() if value is not None]
    return [f"Evaluated last: {listed(known)}."] if known else []


def _worker_time(record: Record) -> list[str]:
    summary = record.summary
    spent, waste = summary["worker_time"], summary["waste"]
    if not spent:
        return []
    capacity = summary["workers"] * summary["clock"]
    used = f"{share(spent - waste, spent)} went into finished tasks, {share(waste, spent)} into stopped ones"
    busy = f"workers computed during {share(spent, capacity)} of the clock"
    return [f"Of {duration(spent)} of worker time, {used}; {busy}."]


def _elapsed(record: Record) -> list[str]:
    """Return where the wall time went, if the run used real ranks."""
    parts = elapsed_shares(record.summary)
    shares = ", ".join(f"{what} {part}" for what, part in parts)
    return [f"Of {duration(record.summary['elapsed'])} elapsed: {shares}."] if parts else []


def _billed(record: Record) -> list[str]:
    """Return where billed time went: into tasks, waiting, the manager, and everything outside of rounds."""
    summary, billed = record.summary, record.summary.get("billed")
    if not billed:
        return ["The workers were simulated, so no core time was billed."] if _simulated(record) else []
    waiting = max(summary["workers"] * summary["clock"] - summary["worker_time"], 0.0)
    rest = max(billed - summary["worker_time"] - waiting, 0.0)
    parts = [
        f"{share(summary['worker_time'], billed)} was spent on tasks",
        f"{share(waiting, billed)} by workers that waited or were idle during rounds",
        f"{share(rest, billed)} by the manager, and by everyone during start, evaluations and saving",
    ]
    return [f"Of {duration(billed)} of billed core time, {'; '.join(parts)}."]


def _energy(record: Record) -> list[str]:
    """Return the joules of the run, where its counters or Slurm know them."""
    own, of_jobs = record.summary.get("energy"), record.summary.get(SLURM_ENERGY)
    joules = of_jobs if own is None else own
    if joules is None:
        return []
    who = "The nodes of the run" if own is not None else f"Its Slurm jobs ({listed([*record.slurm_jobs])})"
    per_task = significant(joules / max(record.summary["tasks_used"], 1), 3)
    return [f"{who} used {significant(joules, 4)} J, {per_task} J per used task, idle cores included."]


def _simulated(record: Record) -> bool:
    return all(identity.host == VIRTUAL for identity in record.identities)


def not_worth_using(record: Record) -> IntArray:
    """Return the workers that a learning allocator leaves idle by now, or that hardly did any tasks."""
    tasks, known = record.workers["tasks"], learned(record)
    rarely = tasks < RARELY * tasks.sum() / len(tasks)
    if known.allocator is not None and depends_on_means(known.allocator) and known.available.any():
        rarely = planned(known.allocator, known.available) == 0
    return np.flatnonzero(rarely & known.available)


def _idle(record: Record) -> list[str]:
    workers = not_worth_using(record)
    if not len(workers) or not record.workers["tasks"].any():
        return []
    part = share(record.workers["tasks"][workers].sum(), record.workers["tasks"].sum())
    names = listed([f"{worker}" for worker in workers.tolist()])
    noun = "Worker" if len(workers) == 1 else "Workers"
    return [f"{noun} {names} did {part} of all tasks and would get none or few: not worth requesting again."]


def _hosts(record: Record) -> list[str]:
    bad = flagged(report_hosts(record))
    return [f"Host {host.host} was {host.verdict}: {host.reason}." for host in bad[:SHOWN]]


def _history(record: Record) -> list[str]:
    """Return the hosts whose workers were slower than in the earlier runs that this one started from."""
    if not record.prior:
        return []
    then = match_prior(record.prior, record.identities).columns
    hosts = np.array([identity.host for identity in record.identities])
    ratios = {
        host: _mean(record.workers, hosts == host) / _mean(then, hosts == host)
        for host in dict.fromkeys(hosts.tolist())
    }
    return [
        f"Tasks on host {host} took {ratio:.1f} times as long as in earlier runs."
        for host, ratio in ratios.items()
        if ratio >= SLOWER
    ][:SHOWN]


def _mean(columns: State, rows: BoolArray) -> float:
    """Return the mean task time of some workers; NaN for too few tasks."""
    tasks = int(columns["tasks"][rows].sum())
    return float(columns["seconds"][rows].sum()) / tasks if tasks >= ENOUGH else math.nan


def _request(record: Record, path: Path) -> list[tuple[str, str]]:
    """Return what to submit next time, where the run was on real hosts."""
    if _simulated(record):
        return []
    workers = len(record.identities) - len(not_worth_using(record))
    ranks, limit = ranks_for(max(workers, 1)), time_limit(record)
    bad = [host.host for host in flagged(report_hosts(record))]
    exclude = f" --exclude-slow {path}" if bad else ""
    submit = f"mpi-ata submit JOB.toml --ntasks {ranks} --time {limit} --warm-start {path}{exclude}"
    options = [f"--ntasks={ranks}", f"--time={limit}", *([f"--exclude={','.join(bad)}"] if bad else [])]
    return [
        ("To run this job again on the workers that were worth it:", submit),
        ("Or with a batch script of your own:", f"sbatch {' '.join(options)} SCRIPT.sh"),
    ]


def time_limit(record: Record) -> str:
    """Return a Slurm time limit: the expected elapsed time with a margin, in whole minutes."""
    rounds, limit = record.summary["rounds"], tables_of(record.job).get("stop", {}).get("rounds")
    expected = record.summary["elapsed"]
    if not record.reason and limit and rounds:
        expected *= max(limit / rounds, 1.0)
    hours, minutes = divmod(max(math.ceil(SPARE_TIME * expected / 60), 2), 60)
    return f"{hours:02}:{minutes:02}:00"


def listed(names: list[str]) -> str:
    """Return names in a sentence, with the number of those that are left out."""
    more = [f"{len(names) - SHOWN:,} more"] if len(names) > SHOWN else []
    parts = [*names[:SHOWN], *more]
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
