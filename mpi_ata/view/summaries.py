"""A run as text: the table printed at its end, and the contents of its run file."""

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from mpi_ata.arrays import State
from mpi_ata.errors import command_line
from mpi_ata.launch.signals import signal_word
from mpi_ata.layout import ranks_for
from mpi_ata.runfile.hosts import LOST, HostReport
from mpi_ata.runfile.load import SLURM_ENERGY
from mpi_ata.runfile.priors import counted
from mpi_ata.runfile.progress import run_state
from mpi_ata.runfile.schema import Record
from mpi_ata.view.text import aligned, duration, elapsed_shares, rate, ratio, share, significant, table, when

if TYPE_CHECKING:
    from mpi_ata.driver.drive import Outcome

HOST_HEADER = ["host", "verdict", "workers", "tasks", "mean / median host", "median / median host"]
SHOWN = 3  # hosts in one line
Rows = list[tuple[str, str]]


def hosts_text(hosts: Sequence[dict[str, Any]]) -> str:
    """Return the table of flagged hosts and why they are flagged; nothing if no hosts were compared."""
    bad = [host for host in hosts if host["verdict"]]
    compared = sum(host["mean_ratio"] is not None for host in hosts)
    if not bad:
        return f"no slow or flaky hosts among {compared:,}" if compared else ""
    others = len(hosts) - len(bad)
    reasons, rows = [f"{host['host']}: {host['reason']}" for host in bad], []
    for host in bad:
        ratios = [ratio(host[name], 1.0) for name in ("mean_ratio", "median_ratio")]
        rows.append([host["host"], host["verdict"], host["workers"], f"{host['tasks']:,}", *ratios])
    rest = [f"{counted(others, 'other host')} not flagged"] if others else []
    return "\n".join([table(rows, HOST_HEADER), "", *reasons, *rest])


def flagged_text(hosts: Sequence[HostReport], path: object) -> str:
    """Return the flagged hosts of the run in a file in one line."""
    named = [
        f"{row.reason.partition(';')[0]} on {row.host}"
        if row.verdict == LOST
        else f"{row.host} {row.verdict}"
        for row in hosts[:SHOWN]  # other workers of a host where one was lost may go on
    ]
    more = [f"{len(hosts) - SHOWN:,} more"] if len(hosts) > SHOWN else []
    return f"{', '.join([*named, *more])}; see {command_line('mpi-ata', 'show', path)}"


JOBS_HEADER = ["job", "state", "rounds", "clock [s]", "worker time [s]", "loss", "saved"]


def jobs_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return how each of several jobs ended, those with the smallest loss first, and what all took."""
    ordered = sorted(rows, key=lambda row: (row["loss"] is None, row["loss"] or 0.0))
    cells = [
        [
            row["name"],
            row["state"],
            f"{row['rounds']:,}",
            significant(row["clock"], 4),
            significant(row["worker_time"], 4),
            "" if row["loss"] is None else f"{row['loss']:.6g}",
            row["out"] or "",
        ]
        for row in ordered
    ]
    order = ", smallest loss first" if any(row["loss"] is not None for row in rows) else ""
    took = {name: [row[name] for row in rows if row.get(name)] for name in ("worker_time", "billed")}
    total = f"{sum(row['rounds'] for row in rows):,} rounds, worker time {duration(sum(took['worker_time']))}"
    total += f", billed {duration(sum(took['billed']))}" if took["billed"] else ""
    return f"{table(cells, JOBS_HEADER)}\n\n{counted(len(rows), 'job')}{order}; in all {total}"


MAX_WORKERS, MAX_KINDS = 100, 10  # rows of the tables of workers and of their hardware
WORKER_HEADER = ["worker", "host", "slot", "tasks", "mean [s]", "spread [s]", "overhead [s]", "share of time"]


def closing_table(outcome: "Outcome") -> str:
    """Return the table printed at the end of a run."""
    stale = "" if outcome.trace.is_evaluated() else ", before the last rounds"
    ended, hint = f"at {outcome.reason}", ""
    if not outcome.reason:
        ended = f"early, by {signal_word(outcome.signal)}"
        hint = f", up to round {outcome.saved:,}" if outcome.saved != outcome.trace.round else ""
        hint += "; resume it with --resume" if outcome.resumable else ""
    return summary_table(ended, outcome.summary(), hint, outcome.flagged_hosts, stale)


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
    rows = [("ended", ended), *summary_rows(summary, stale)]
    if flagged_hosts:
        rows.append(("hosts", flagged_text(flagged_hosts, summary["out"])))
    if summary["out"]:
        rows.append(("saved", f"{summary['out']}{hint}"))
    return aligned(rows)


def summary_rows(summary: dict[str, Any], stale: str = "") -> Rows:
    """Return what is known of a run as names and texts."""
    waste, worker_time = summary["waste"], summary["worker_time"]
    fates = " + ".join(f"{summary[f'tasks_{fate}']:,} {fate}" for fate in ("used", "wasted", "lost"))
    rows = [
        ("rounds", f"{summary['rounds']:,}"),
        ("clock", f"{significant(summary['clock'], 6)} s"),
        ("worker time", f"{significant(worker_time, 6)} s on {counted(summary['workers'], 'worker')}"),
        ("waste", f"{significant(waste, 6)} s, {share(waste, worker_time)} of worker time"),
        ("tasks started", f"{summary['tasks_started']:,} = {fates}"),
    ]
    if (mean := summary["mean_delay"]) is not None:  # updates are asynchronous
        rows.append(("delay", f"{mean:.3g} updates on average, at most {summary['largest_delay']:,}"))
    return [*rows, *_evaluated_rows(summary, stale), *_elapsed_rows(summary)]


def _evaluated_rows(summary: dict[str, Any], stale: str) -> Rows:
    """Return loss, gap and what else was evaluated."""
    loss, gap = (summary[name] for name in ("loss", "gap"))
    rows = [] if loss is None else [("loss", f"{loss:.8g}{stale}")]
    rows += [] if gap is None else [("gap", f"{gap:.3g}")]
    others = summary["evaluation"].items()
    return rows + [(name, "not known" if value is None else f"{value:.6g}") for name, value in others]


def _elapsed_rows(summary: dict[str, Any]) -> Rows:
    """Return the wall time; for real ranks where it went, what it costs, and the energy if Slurm knows it."""
    parts = filter(None, [duration(summary["elapsed"]), elapsed_shares(summary)])
    rows = [("elapsed", ": ".join(parts))]
    if summary["billed"] is not None:
        rows.append(("billed", f"{duration(summary['billed'])}: time of all cores, idle ones included"))
        if (joules := summary.get(SLURM_ENERGY)) is not None:
            jobs = f"of Slurm job {', '.join(summary['slurm_jobs'])}, with all that ran in it"
            rows.append(("energy", f"{significant(joules, 4)} J: {jobs}"))
    return rows


def format_run(run: dict[str, Any], path: Path, record: Record, running: bool) -> str:
    """Return the contents of a run file as text; a farm has neither rounds nor a point x."""
    hosts, farm, state = hosts_text(run["hosts"]), record.job.is_farm, run_state(record, running)
    parts = [
        aligned([("run", run["run"]), ("state", state), *summary_rows(run)[1 if farm else 0 :]]),
        f"Result\n\n{aligned(_result_rows(path, record.method)[2 if farm else 0 :])}",
        f"Events\n\n{aligned([*map(_event_row, main_events(run['events']))])}",
        f"Workers\n\n{workers_table(run['workers_table'])}",
        f"Hosts\n\n{hosts}" if hosts else "",
        f"Job\n\n{run['job'].strip()}",
        "\n".join(f"--set {setting}" for setting in run["settings"]),
    ]
    return "\n\n".join(filter(None, parts))


def _result_rows(path: Path, method: State) -> Rows:
    """Return where the point is, and how to read it; with `map` it may be more than one array."""
    x = method.get("x") if "x.form" not in method else None
    what = "several values" if x is None else f"{' x '.join(f'{size:,}' for size in x.shape)} of {x.dtype}"
    part = "['method']" if x is None else "['method/x'][()]"
    return [
        ("the point x", f"{what}, in {path}"),
        ("in Python", f"mpi_ata.load({str(path)!r}).x"),
        ("with h5py", f"h5py.File({str(path)!r}, locking=False){part}"),
    ]


def main_events(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what happened; of changes of speed, which may be many, only the last and their number."""
    changes = [event for event in events if event["kind"] == "changed-speed"]
    if len(changes) < 2:
        return [*events]
    more = f"; {counted(len(changes) - 1, 'earlier change')} of speed in the file"
    last = changes[-1] | {"text": changes[-1]["text"] + more}
    return [last if event is changes[-1] else event for event in events if event not in changes[:-1]]


def _event_row(event: dict[str, Any]) -> tuple[str, str]:
    text = event["text"].replace("\n", "\n    ")  # a difference of several lines
    who = "" if event["worker"] < 0 or text.startswith("worker ") else f"worker {event['worker']} "
    return when(event["time"]), f"{who}{event['kind']}: {text}"


def workers_table(workers: Sequence[dict[str, Any]]) -> str:
    """Return the tasks and times of each worker, and below them the hardware."""
    rows = []
    for number, worker in enumerate(workers[:MAX_WORKERS]):
        cells = [significant(worker[name], 3) for name in ("tasks", "mean", "spread", "overhead")]
        rows.append([number, worker["host"], worker["slot"], *cells, share(worker["share"])])
    lines = [table(rows, WORKER_HEADER)]
    if len(workers) > len(rows):
        lines.append(f"... and {len(workers) - len(rows):,} more")
    kinds = Counter(worker["hardware"] for worker in workers).most_common(MAX_KINDS)
    named = [f"{count:,} x {kind}".replace(", 1 threads", ", 1 thread") for kind, count in kinds]
    return "\n".join([*lines, "", *named])  # run files have the plural, by which workers are recognized


STATUS_HEADER = [
    *("run", "Slurm job", "state", "rounds", "speed", "to go", "starts"),
    *("billed [core h]", "worked [h]"),
]


def submission_text(result: dict[str, Any]) -> str:
    """Return what was submitted and how to watch it, or what a dry run would submit."""
    if result["job"] is None:
        return "\n".join([result["script"], *(f"$ {command_line(*words)}" for words in result["commands"])])
    job, runs, following = result["job"], result["runs"], len(result["jobs"]) - 1
    rows = [
        ("submitted", f"Slurm job {job}" + (f" and {following} that continue it" if following > 0 else "")),
        ("run file", runs[0] if len(runs) == 1 else f"{len(runs)} from {runs[0]} on"),
        ("log", result["log"]),
        ("watch it", f"mpi-ata status {job}"),
        ("stop it", f"mpi-ata stop {job}"),
    ]
    return aligned(rows)


def status_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the progress of submitted runs, and below it why any of them waits or failed."""
    if not rows:
        return "nothing was submitted from here, and nothing is queued"
    reasons = [f"{Path(row['run']).stem}: {row['why']}" for row in rows if row["why"]]
    return "\n".join([table([_status_cells(row) for row in rows], STATUS_HEADER), *reasons])


def _status_cells(row: dict[str, Any]) -> list[Any]:
    of = f" of {row['of_rounds']:,}" if row["of_rounds"] else ""
    end = row["expected_end"]
    return [
        Path(row["run"]).stem,
        row["job"] or "-",
        row["state"],
        f"{row['rounds']:,}{of}",
        rate(row["rounds"], row["rounds"] / row["rate"]) if row["rate"] else "-",
        duration(max(0.0, end - time.time())) if end else "-",
        row["starts"],
        significant(row["billed_core_hours"], 4),
        significant(row["worker_hours"], 4),
    ]


COMPARED = {"clock": "clock [s]", "worker_time": "worker time [s]"}
COMPARED_ON_RANKS = COMPARED | {"billed": "billed [s]"}
RATIOS = {"clock": "clock / greedy", "worker_time": "worker time / greedy"}


def comparison_table(rows: Sequence[dict[str, Any]], billed: bool = False) -> str:
    """Return one row per allocator, with ratios to greedy allocation if that is among them; or per method.

    Several runs of one, with different seeds, are shown as mean ± standard deviation.
    """
    kind = "method" if "method" in rows[0] else "allocator"
    runs: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        runs.setdefault(row[kind], []).append(row)
    greedy, shown = runs.get("gta"), COMPARED_ON_RANKS if billed else COMPARED
    header = [kind, "rounds", *shown.values(), "wasted tasks"]
    digits = {"rounds": 0, **dict.fromkeys(shown, 4), "tasks_wasted": 0}
    body = []
    for name, each in runs.items():
        cells = [spread([row[column] for row in each], count) for column, count in digits.items()]
        body.append([name, *cells, *(_ratios(each, greedy) if greedy else [])])
    text = table(body, [*header, *RATIOS.values()] if greedy else header)
    return text + (_how_to_read(rows[0]["workers"], greedy is not None) if billed else "")


def _mean(rows: Sequence[dict[str, Any]], column: str) -> float:
    return fmean(row[column] for row in rows)


def spread(values: Sequence[float], digits: int) -> str:
    """Return the mean of some values, with their standard deviation if there are several."""
    mean = significant(fmean(values), digits)
    return f"{mean} ± {significant(stdev(values), 2)}" if len(values) > 1 else mean


def _ratios(rows: Sequence[dict[str, Any]], greedy: Sequence[dict[str, Any]]) -> list[str]:
    """Return clock and worker time against greedy allocation's, where the runs of both were finished."""
    if not all(row["finished"] for row in (*rows, *greedy)):
        return ["-" for _ in RATIOS]
    return [ratio(_mean(rows, name), _mean(greedy, name)) for name in RATIOS]


def _how_to_read(workers: int, greedy: bool) -> str:
    """Return what the columns mean for the reader, and when greedy allocation is the better choice."""
    lines = [
        "",
        "",
        "Clock: all rounds. Worker time: all tasks. "
        f"Billed: the cores of all {ranks_for(workers)} ranks, also while they are idle.",
        "Less worker time saves energy and leaves cores to others; it saves money if you release idle ranks.",
    ]
    if greedy:
        lines += [
            "Greedy (gta) is the better choice if idle nodes are free and its clock is shorter, as it may be "
            "where\ntasks can be stopped at once, or B is large compared with n."
        ]
    return "\n".join(lines)
