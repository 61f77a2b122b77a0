"""The report of runs: one HTML page that needs no network and no other file."""

import json
import math
from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from itertools import islice, pairwise
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from mpi_ata.arrays import Array, BoolArray, IntArray, State
from mpi_ata.errors import UsageError, command_line
from mpi_ata.layout import ranks_for
from mpi_ata.runfile.hosts import flagged, report_hosts
from mpi_ata.runfile.load import SLURM_ENERGY, describe, latest_metrics
from mpi_ata.runfile.priors import counted, match_prior
from mpi_ata.runfile.schema import Record
from mpi_ata.view import plots
from mpi_ata.view.explain import depends_on_means, planned
from mpi_ata.view.learned import learned
from mpi_ata.view.summaries import main_events
from mpi_ata.view.text import duration, elapsed_shares, share, significant, when

MOST_POINTS = 512  # of a curve
MOST_ROWS = 1000  # of the table of workers
MOST_COLUMNS = 60  # of the map of jobs
DIGITS = 5
WORKER_HEADER = [
    *("worker", "host", "slot", "tasks", "mean [s]", "spread [s]", "overhead [s]"),
    *("share of worker time [%]", "next quota"),
]
EVENT_HEADER = ["time", "worker", "kind", "text"]
NO_PICTURE: dict[str, Any] = {"edges": [], "values": []}


def report_data(records: Sequence[Record], names: Sequence[str]) -> dict[str, Any]:
    """Return what the page draws."""
    runs = [plots.plotted(record, name) for record, name in zip(records, names, strict=True)]
    return {
        "panels": [_panel(panel, runs) for panel in plots.curve_panels(runs).values()],
        "served": served_jobs(records),
        "runs": [_run(number, *pair) for number, pair in enumerate(zip(records, runs, strict=True))],
    }


def _panel(panel: plots.CurvePanel, runs: Sequence[plots.PlottedRun]) -> dict[str, Any]:
    curves = list[dict[str, Any]]()
    for number, (x, y) in enumerate(map(panel.points, runs)):
        step = max(1, -(-len(x) // MOST_POINTS))
        curves.append({"run": number, "x": numbers(x[::step]), "y": numbers(y[::step])})
    positive = all(value > 0 for curve in curves for value in curve["y"])
    return {"x": panel.x, "y": panel.y, "log": positive and panel.y.startswith("gap"), "curves": curves}


def _run(number: int, record: Record, run: plots.PlottedRun) -> dict[str, Any]:
    assert run.workers is not None
    rows, known, described = plots.worker_rows(run), run.workers, describe(record)
    events = [
        [when(each["time"]), each["worker"] if each["worker"] >= 0 else None, each["kind"], each["text"]]
        for each in main_events(described["events"])
    ]
    return {
        "number": number,
        "name": run.name,
        "row_label": rows.label.replace("\n", " "),
        "row_names": row_names(rows),
        "means": numbers(rows.averaged(known.means)),
        "bounds": numbers(rows.averaged(known.bounds)),
        "quota": None if known.quota is None else numbers(rows.averaged(known.quota.astype(np.float64))),
        "times": _times(run, rows),
        "map": _map(run, rows),
        "table": _workers(described["workers_table"], known.quota),
        "events": {"header": EVENT_HEADER, "rows": events},
        "job": "\n".join([record.job.text.strip(), *(f"--set {each}" for each in record.job.settings)]),
    }


def _times(run: plots.PlottedRun, rows: plots.WorkerRows) -> dict[str, Any]:
    if not run.times.size:
        return NO_PICTURE
    edges, shares = plots.histograms(run.times, rows)
    log, caption = bool(edges[-1] > plots.WIDE_TIMES * edges[0]), "share of its tasks that took so long"
    return _heat(caption, "task time [s]", rows.label, row_names(rows), edges, shares, log)


def _map(run: plots.PlottedRun, rows: plots.WorkerRows) -> dict[str, Any]:
    if not len(run.task_map.get("round", ())):
        return NO_PICTURE
    clock, rates, label = plots.task_rates(run)
    names = row_names(rows) if len(rates) == len(rows.groups) else [f"row {row}" for row in range(len(rates))]
    return _heat("tasks per round over the run", "clock [s]", label, names, clock, rates)


def served_jobs(records: Sequence[Record]) -> dict[str, Any]:
    """Return a picture of whom each worker served when, of runs at the same time on the same workers."""
    done = [_tasks_over_time(record) for record in records]
    spans = sorted((times[0], times[-1]) for times, _ in done if len(times))
    overlap = any(later[0] < earlier[1] for earlier, later in pairwise(spans))
    if len({record.identities for record in records}) > 1 or len(spans) < len(done) or not overlap:
        return NO_PICTURE
    edges = np.linspace(spans[0][0], max(end for _, end in spans), MOST_COLUMNS + 1)
    counts = np.array([[np.diff(np.interp(edges, *pair)) for pair in _rows_over(*each)] for each in done])
    values = np.where(counts.sum(axis=0) > 0, counts.argmax(axis=0).astype(np.float64), np.nan)
    n, rows = len(records[0].identities), len(values)
    names = [f"worker {row}" if rows == n else f"about {n // rows} workers, row {row}" for row in range(rows)]
    texts = {"caption": "which run each worker served most", "x": "elapsed [s]"}
    cells = {"edges": numbers(edges - edges[0]), "values": [numbers(row) for row in values], "rows": names}
    return texts | cells | {"y": "worker" if rows == n else f"workers (groups of about {n // rows})"}


def _tasks_over_time(record: Record) -> tuple[Array, Array]:
    """Return times since 1970, and how many tasks each worker had done by then; nothing if not known."""
    began = [event.time for event in record.events if event.kind == "started"]
    if not began or not len(record.task_map.get("round", ())):
        return np.zeros(0), np.zeros((0, 0))
    rounds, elapsed = record.trace["round"], record.trace["elapsed"]
    passed = np.interp(record.task_map["round"], rounds, elapsed) - elapsed[0]
    tasks = np.pad(record.task_map["tasks"].astype(np.float64), ((1, 0), (0, 0)))
    return began[0] + np.concatenate([[0.0], passed]), tasks


def _rows_over(times: Array, tasks: Array) -> Iterator[tuple[Array, Array]]:
    """Yield times and tasks of each row of a picture: of a worker, or of neighbours where there are many."""
    for columns in np.array_split(tasks, min(plots.MOST, tasks.shape[1]), axis=1):
        yield times, columns.sum(axis=1)


def _heat(
    caption: str, x: str, y: str, rows: list[str], edges: Array, values: Array, log: bool = False
) -> dict[str, Any]:
    """Return a picture of coloured cells, given its caption and the names of its axes and rows."""
    texts = {"caption": f"{caption}: the brighter, the more", "x": x, "y": y.replace("\n", " ")}
    cells = {"edges": numbers(edges), "values": [numbers(row) for row in values]}
    return texts | {"log": log, "rows": rows} | cells


def row_names(rows: plots.WorkerRows) -> list[str]:
    """Return what each row of a picture shows."""
    return [
        f"worker {group[0]}" if len(group) == 1 else f"{len(group)} workers, such as {group[0]}"
        for group in rows.groups
    ]


def _workers(workers: Sequence[dict[str, Any]], quota: IntArray | None) -> dict[str, Any]:
    """Return the table of workers; of very many, those with the most tasks."""
    columns, rows = ("host", "slot", "tasks", "mean", "spread", "overhead"), []
    shown = sorted(range(len(workers)), key=lambda number: -workers[number]["tasks"])[:MOST_ROWS]
    for number in sorted(shown):
        worker = workers[number]
        part = None if worker["share"] is None else 100 * worker["share"]
        next_quota = None if quota is None else int(quota[number])
        rows.append([number, *(worker[name] for name in columns), part, next_quota])
    left = len(workers) - len(rows)
    note = f"{left:,} more workers, with fewer tasks, are not in the table." if left else ""
    return {"header": WORKER_HEADER, "rows": rows, "left_out": note}


def numbers(values: Array) -> list[float | None]:
    """Return numbers with few digits, None for those that are not known."""
    return [float(f"{value:.{DIGITS}g}") if np.isfinite(value) else None for value in values.tolist()]


RARELY = 0.1  # of an equal share of the tasks: a worker below this hardly did any
SELDOM = 0.5  # of one: who did more was of use, though it would get none now
SPARE_TIME = 1.5  # the time limit to request, over the expected elapsed time
SLOWER = 1.25  # than in earlier runs: worth a remark
ENOUGH = 30  # tasks, then and now, to compare
SHOWN = 8  # workers or hosts in a sentence


def run_summary(record: Record) -> Iterator[str]:
    """Yield the summary of a run in plain words."""
    summary = record.summary
    spent, waste, rounds = summary["worker_time"], summary["waste"], counted(summary["rounds"], "round")
    known = [f", {name} {summary[name]:.4g}" for name in ("gap", "loss") if summary.get(name) is not None]
    limit = "" if record.reason == rounds else f" at {record.reason}"
    failed = f"has failed ({record.failure})" if record.failure else "is not finished"
    state = f"is finished{limit}" if record.reason else failed
    yield f"The run {state}: {rounds} in {duration(summary['clock'])} on the clock{''.join(known[:1])}."
    latest = latest_metrics(record).items()
    if metrics := [f"{name} {value:.4g}" for name, value in latest if value is not None]:
        yield f"Evaluated last: {listed(metrics)}."
    if spent:
        used = (
            f"{share(spent - waste, spent)} went into finished tasks, {share(waste, spent)} into stopped ones"
        )
        who = "workers computed for it" if record.is_shared else "workers computed"
        busy = f"{who} during {share(spent, summary['workers'] * summary['clock'])} of the clock"
        yield f"Of {duration(spent)} of worker time, {used}; {busy}."
    if shares := elapsed_shares(summary):
        yield f"Of {duration(summary['elapsed'])} elapsed: {shares}."
    yield from (*_costs(record), *_idle(record))
    for host in flagged(report_hosts(record))[:SHOWN]:
        yield f"Host {host.host} was {host.verdict}: {host.reason}."
    if record.prior:
        yield from islice(_slower_hosts(record), SHOWN)


def _costs(record: Record) -> Iterator[str]:
    """Yield where billed time went, and the joules of the Slurm jobs, where these are known."""
    summary, billed, joules = record.summary, record.summary.get("billed"), record.summary.get(SLURM_ENERGY)
    if billed and record.is_shared:
        part = f"{share(summary['worker_time'], billed)} of that was spent on tasks"
        whole = "the core time that was billed to all jobs on these workers"
        yield f"Its part of {whole} is {duration(billed)}; {part}."
    elif billed:
        waiting = max(summary["workers"] * summary["clock"] - summary["worker_time"], 0.0)
        rest = max(billed - summary["worker_time"] - waiting, 0.0)
        yield (
            f"Of {duration(billed)} of billed core time, "
            f"{share(summary['worker_time'], billed)} was spent on tasks; "
            f"{share(waiting, billed)} by workers that waited or were idle during rounds; "
            f"{share(rest, billed)} by the manager, and by everyone during start, evaluations and saving."
        )
    elif record.is_simulated:
        yield "The workers were simulated, so no core time was billed."
    if joules is not None:
        who = f"Its Slurm jobs ({listed([*record.slurm_jobs])})"
        per_task = significant(joules / max(summary["tasks_used"], 1), 3)
        yield f"{who} used {significant(joules, 4)} J, {per_task} J per used task, idle cores included."


def not_worth_using(record: Record) -> IntArray:
    """Return the workers that a learning allocator leaves idle by now, or that hardly did any tasks.

    Nobody knows that of workers that serve other jobs too.
    """
    if record.is_shared:
        return np.zeros(0, np.int64)
    tasks, known = record.workers["tasks"], learned(record)
    equal_share = tasks.sum() / len(tasks)
    rarely = tasks < RARELY * equal_share
    if known.allocator is not None and depends_on_means(known.allocator) and known.available.any():
        rarely = (planned(known.allocator, known.available) == 0) & (tasks < SELDOM * equal_share)
    return np.flatnonzero(rarely & known.available)


def _idle(record: Record) -> Iterator[str]:
    workers, tasks = not_worth_using(record), record.workers["tasks"]
    if len(workers) and tasks.any():
        part, names = share(tasks[workers].sum(), tasks.sum()), listed([*map(str, workers.tolist())])
        who = f"Worker{'' if len(workers) == 1 else 's'} {names}"
        yield f"{who} did {part} of all tasks and would get none or few: not worth requesting again."


def _slower_hosts(record: Record) -> Iterator[str]:
    """Yield the hosts whose workers were slower than in the earlier runs that this one started from."""
    then = match_prior(record.prior, record.identities).columns
    hosts = np.array([identity.host for identity in record.identities])
    for host in dict.fromkeys(hosts.tolist()):
        ratio = _mean(record.workers, hosts == host) / _mean(then, hosts == host)
        if ratio >= SLOWER:
            yield f"Tasks on host {host} took {ratio:.1f} times as long as in earlier runs."


def _mean(columns: State, rows: BoolArray) -> float:
    """Return the mean task time of some workers; NaN for too few tasks."""
    tasks = int(columns["tasks"][rows].sum())
    return float(columns["seconds"][rows].sum()) / tasks if tasks >= ENOUGH else math.nan


def commands(record: Record, path: Path) -> list[tuple[str, str]]:
    """Return what to submit next time and what for, where the run was on real hosts."""
    if record.is_simulated:
        return []
    workers = len(record.identities) - len(not_worth_using(record))
    ranks, limit = ranks_for(max(workers, 1)), time_limit(record)
    is_job = {"name", "file"}.intersection(record.job.tables.get("method", {}))
    what = "JOB.toml" if is_job else "SCRIPT.py"
    submit = ["mpi-ata", "submit", what, "--ntasks", ranks, "--time", limit, "--warm-start", path]
    sbatch = ["sbatch", f"--ntasks={ranks}", f"--time={limit}"]
    bad = [host.host for host in flagged(report_hosts(record))]
    if bad and {identity.host for identity in record.identities}.difference(bad):  # others are left
        submit, sbatch = [*submit, "--exclude-slow", path], [*sbatch, f"--exclude={','.join(bad)}"]
    return [
        ("To run this job again on the workers that were worth it:", command_line(*submit)),
        ("Or with a batch script of your own:", command_line(*sbatch, "SCRIPT.sh")),
    ]


def time_limit(record: Record) -> str:
    """Return a Slurm time limit: the expected elapsed time with a margin, in whole minutes."""
    rounds, limit = record.summary["rounds"], record.job.tables.get("stop", {}).get("rounds")
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


def write_report(records: Sequence[Record], paths: Sequence[Path], output: Path) -> None:
    """Write a report of these runs."""
    names = plots.run_names(paths)
    data = json.dumps(report_data(records, names), allow_nan=False, separators=(",", ":"))
    page = Template(_part("html")).substitute(
        title=escape(f"mpi-ata report: {', '.join(names)}"),
        style=_part("css"),
        script=_part("js"),
        summary="\n".join(map(_section, names, records, paths)),
        data=data.replace("<", "\\u003c"),  # cannot end the element it stands in
    )
    try:
        output.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{output}: the report cannot be written: {error.strerror}") from None


def _part(suffix: str) -> str:
    return (files("mpi_ata.view") / "page" / f"report.{suffix}").read_text(encoding="utf-8")


def _section(name: str, record: Record, path: Path) -> str:
    """Return what is said about one run; whatever comes from files is escaped."""
    points = "\n".join(f"<li>{escape(sentence)}</li>" for sentence in run_summary(record))
    hints = [(escape(purpose), escape(command)) for purpose, command in commands(record, path)]
    shown = "\n".join(f"<p>{purpose}<br><code>{command}</code></p>" for purpose, command in hints)
    return f"<h3>{escape(name)}</h3>\n<ul>\n{points}\n</ul>\n{shown}"
