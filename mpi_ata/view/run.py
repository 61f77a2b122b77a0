"""A run as text: the table printed at its end, and the contents of its run file."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpi_ata.arrays import State
from mpi_ata.launch.signals import signal_word
from mpi_ata.runfile.describe import SLURM_ENERGY
from mpi_ata.runfile.hosts import HostReport
from mpi_ata.runfile.prior import counted
from mpi_ata.view.hosts import flagged_text, hosts_text
from mpi_ata.view.text import aligned, duration, elapsed_shares, share, significant, table, when

if TYPE_CHECKING:
    from mpi_ata.driver.execute import Outcome

MAX_WORKERS, MAX_KINDS = 100, 10  # rows of the tables of workers and of their hardware
WORKER_HEADER = ["worker", "host", "slot", "tasks", "mean [s]", "spread [s]", "overhead [s]", "share of time"]


def closing_table(outcome: "Outcome") -> str:
    """Return the table printed at the end of a run."""
    ended = f"at {outcome.reason}" if outcome.reason else f"early, by {signal_word(outcome.signal)}"
    stale = "" if outcome.trace.is_evaluated() else ", before the last rounds"
    return summary_table(ended, outcome.summary(), _hint(outcome), outcome.flagged_hosts, stale)


def _hint(outcome: "Outcome") -> str:
    """Return how far a run that ended early was saved, if not to its end, and how to resume it."""
    if outcome.reason:
        return ""
    far = f", up to round {outcome.saved:,}" if outcome.saved != outcome.trace.round else ""
    return far + ("; resume it with --resume" if outcome.resumable else "")


def summary_table(
    ended: str,
    summary: dict[str, Any],
    hint: str = "",
    flagged_hosts: Sequence[HostReport] = (),
    stale: str = "",
) -> str:
    """Return how a run ended, its summary, its bad hosts, and where it was saved, followed by a hint.

    `stale` says so if the loss is not that of the last round.
    """
    hosts = [("hosts", flagged_text(flagged_hosts))] if flagged_hosts else []
    saved = [("saved", f"{summary['out']}{hint}")] if summary["out"] else []
    return aligned([("ended", ended), *summary_rows(summary, stale), *hosts, *saved])


def summary_rows(summary: dict[str, Any], stale: str = "") -> list[tuple[str, str]]:
    """Return the summary of a run as names and texts."""
    return [
        ("rounds", f"{summary['rounds']:,}"),
        ("clock", f"{significant(summary['clock'], 6)} s"),
        *_worker_rows(summary),
        ("loss", "not known" if summary["loss"] is None else f"{summary['loss']:.8g}{stale}"),
        ("gap", "not known" if summary["gap"] is None else f"{summary['gap']:.3g}"),
        *((name, _evaluation(value)) for name, value in summary["evaluation"].items()),
        ("elapsed", duration(summary["elapsed"]) + _shares(summary)),
        *_billed_row(summary),
    ]


def _worker_rows(summary: dict[str, Any]) -> list[tuple[str, str]]:
    waste, worker_time = summary["waste"], summary["worker_time"]
    tasks = {name: f"{summary[f'tasks_{name}']:,}" for name in ("started", "used", "wasted", "lost")}
    return [
        ("worker time", f"{significant(worker_time, 6)} s on {counted(summary['workers'], 'worker')}"),
        ("waste", f"{significant(waste, 6)} s, {share(waste, worker_time)} of worker time"),
        ("tasks started", "{started} = {used} used + {wasted} wasted + {lost} lost".format(**tasks)),
        *_delay_row(summary),
    ]


def _delay_row(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the delay of gradients if updates are asynchronous."""
    if summary["mean_delay"] is None:
        return []
    mean, largest = summary["mean_delay"], summary["largest_delay"]
    return [("delay", f"{mean:.3g} updates on average, at most {largest:,}")]


def _billed_row(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what a cluster charges, and the energy, if the run used real ranks."""
    if summary["billed"] is None:
        return []
    return [
        ("billed", f"{duration(summary['billed'])}: cores x elapsed, idle ones included"),
        ("energy", _energy(summary)),
    ]


def _shares(summary: dict[str, Any]) -> str:
    """Return where the wall time went, if the run used real ranks."""
    parts = elapsed_shares(summary)
    return f": {', '.join(f'{what} {part}' for what, part in parts)}" if parts else ""


def _energy(summary: dict[str, Any]) -> str:
    joules, of_jobs = summary["energy"], summary.get(SLURM_ENERGY)
    if joules is None and of_jobs is not None:
        jobs = ", ".join(summary["slurm_jobs"])
        return f"{significant(of_jobs, 4)} J: of Slurm job {jobs}, with all that ran in it"
    if joules is None:
        return "not known: not every node has a counter that can be read"
    return f"{significant(joules, 4)} J: all nodes of the run, with all that runs on them"


def _evaluation(value: float | None) -> str:
    return "not known" if value is None else f"{value:.6g}"


def format_run(run: dict[str, Any], path: Path, method: State) -> str:
    """Return the contents of a run file as text."""
    hosts = hosts_text(run["hosts"])
    parts = [
        aligned([("run", run["run"]), ("state", _state(run)), *summary_rows(run)]),
        f"Result\n\n{aligned(_result_rows(path, method))}",
        f"Events\n\n{aligned([_event_row(event) for event in run['events']])}",
        f"Workers\n\n{workers_table(run['workers_table'])}",
        *([f"Hosts\n\n{hosts}"] if hosts else []),
        f"Job\n\n{run['job'].strip()}",
    ]
    if run["settings"]:
        parts.append("\n".join(f"--set {setting}" for setting in run["settings"]))
    return "\n\n".join(parts)


def _result_rows(path: Path, method: State) -> list[tuple[str, str]]:
    """Return where the point is, and how to read it; with `map` it may be more than one array."""
    x = method.get("x") if "x.form" not in method else None
    what = "several values" if x is None else f"{' x '.join(f'{size:,}' for size in x.shape)} of {x.dtype}"
    part = "['method']" if x is None else "['method/x'][()]"
    return [
        ("the point x", f"{what}, in {path}"),
        ("in Python", f"mpi_ata.load({str(path)!r}).x"),
        ("with h5py", f"h5py.File({str(path)!r}, locking=False){part}"),
    ]


def _state(run: dict[str, Any]) -> str:
    if run["failure"]:
        return f"failed: {run['failure']}"
    return f"finished at {run['reason']}" if run["finished"] else "not finished: resume it with --resume"


def _event_row(event: dict[str, Any]) -> tuple[str, str]:
    text = event["text"].replace("\n", "\n    ")  # a difference of several lines
    who = "" if event["worker"] < 0 or text.startswith("worker ") else f"worker {event['worker']} "
    return when(event["time"]), f"{who}{event['kind']}: {text}"


def workers_table(workers: Sequence[dict[str, Any]]) -> str:
    """Return the tasks and times of each worker, and below them the hardware."""
    rows = [_worker_cells(number, worker) for number, worker in enumerate(workers[:MAX_WORKERS])]
    lines = [table(rows, WORKER_HEADER)]
    if len(workers) > len(rows):
        lines.append(f"... and {len(workers) - len(rows):,} more")
    kinds = Counter(worker["hardware"] for worker in workers).most_common(MAX_KINDS)
    return "\n".join([*lines, "", *(f"{count:,} x {kind}" for kind, count in kinds)])


def _worker_cells(number: int, worker: dict[str, Any]) -> list[Any]:
    times = [_seconds(worker[name]) for name in ("mean", "spread", "overhead")]
    part = "-" if worker["share"] is None else share(worker["share"], 1.0)
    return [number, worker["host"], worker["slot"], f"{worker['tasks']:,}", *times, part]


def _seconds(value: float | None) -> str:
    return "-" if value is None else significant(value, 3)
