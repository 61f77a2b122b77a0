"""How many nodes to ask for: what a job, or several that share ranks, would take on 1, 2, 4, ... nodes.

Sizes are compared by their forecasts, for nodes drawn at random and for the fastest.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpi_ata.driver.forecast import KnownJob, Node, Prediction, known_job, known_nodes, predict
from mpi_ata.errors import UsageError, command_line
from mpi_ata.layout import ranks_for
from mpi_ata.randomness import Purpose, Streams
from mpi_ata.runfile.load import EarlierRuns
from mpi_ata.runfile.priors import counted, merge_runs
from mpi_ata.runfile.schema import Record
from mpi_ata.view import plots
from mpi_ata.view.text import duration, significant, table
from mpi_ata.view.what_if import UNPREDICTABLE, overhead_ratio, overhead_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DRAWS = 24  # choices of nodes, and of what their speeds may be, that are averaged
RANDOM, CHOSEN = "random", "chosen"  # nodes: any that are free; the fastest ones, by name
MARKS = ("fastest", "cheapest", "best")
SHOWN = 3  # runs that are named in a command


def recommend(
    paths: Sequence[Path],
    shared: bool = False,
    sizes: Sequence[int] = (),
    copies: int = 1,
    rounds: int | None = None,
    price: float = 1.0,
) -> dict[str, Any]:
    """Return what to expect of some numbers of nodes, and which of them are fastest, cheapest and best.

    If `shared`, each run is of a job that shares ranks with the others.  Otherwise all are of one problem,
    and `copies` jobs like the first share ranks.  1 % of time is worth `price` % of billed.  Seconds.
    """
    if not 0 <= price < np.inf:
        raise UsageError(f"--price {price} must be a number from 0 on; 0 means the cheapest")
    records, notes = read_records(paths, shared)
    if (overhead := max(overhead_ratio(record) for _, record in records)) > 1:
        raise UsageError(f"{overhead_text(overhead)} {UNPREDICTABLE}")
    sources = merge_runs(each for _, record in records for each in [*record.prior, record.source])
    who, nodes = known_nodes(sources)
    own = partial(known_job, who=who)
    named = records if shared else records[:1]
    jobs = [own(record, [record.source] if shared else sources, path=path) for path, record in named] * copies
    if rounds is not None:
        jobs = [replace(job, rounds=rounds) for job in jobs]
    per_node = Counter(len(node.rows) for node in nodes).most_common(1)[0][0]
    spare = int(per_node == 1)  # the manager's node, which has no worker
    most = len(nodes) + spare
    sizes = sizes or sorted({*(2**j for j in range(most.bit_length()) if 2**j <= most), most})
    notes += _doubts([record for _, record in named], max(sizes), most, shared, copies)
    groups = {RANDOM: nodes, CHOSEN: nodes}
    kinds = dict.fromkeys(node.hardware for node in nodes)
    if len(kinds) > 1:
        groups |= {kind: [node for node in nodes if node.hardware == kind] for kind in kinds}
    found = []
    for group, members in groups.items():
        counts = [k for k in sizes if k * per_node > 1 and (group == RANDOM or k - spare <= len(members))]
        rows = [size_row(jobs, members, k, spare, group) for k in counts]
        found += marked(rows, price)
    if not found:
        raise UsageError("no such number of nodes can hold a manager and a worker: ask for more with --nodes")
    return {
        "runs": [str(path) for path, _ in records],
        "jobs": len(jobs),
        "known_nodes": len(nodes),
        "ranks_per_node": per_node,
        "cores_per_rank": max(job.cores for job in jobs),
        "rounds": max(job.rounds for job in jobs),
        "price": price,
        "sizes": found,
        "notes": notes,
    }


def read_records(paths: Sequence[Path], shared: bool) -> tuple[list[tuple[Path, Record]], list[str]]:
    """Return the runs, which must be of one problem unless they are jobs that share ranks."""
    every = EarlierRuns(None)
    found = list(every.records(paths))
    if not found:
        raise UsageError(f"there are no run files in {', '.join(map(str, paths))}")
    if shared:
        return found, every.notes
    same = EarlierRuns(found[0][1].job, "--shared, as jobs that share ranks")
    return list(same.records(paths)), same.notes


def _doubts(records: Sequence[Record], largest: int, seen: int, shared: bool, copies: int) -> list[str]:
    """Return what limits the predictions, or was asked for in vain."""
    lines = []
    events = [event for record in records for event in record.events]  # jobs that share workers have the same
    if dead := len({(event.host, event.worker) for event in events if event.kind == "lost"}):
        lines.append(f"{counted(dead, 'worker')} died: here they are taken to work as before.")
    if any(record.is_simulated for record in records):
        lines.append("Simulated: this is about the law of the task times, not about your nodes.")
    if not shared and copies == 1 and any(record.is_shared for record in records):
        lines.append("The run shared its workers with other jobs; this is for it alone (or use --shared).")
    if largest > seen:
        others = "others are taken to be like these, and ± does not cover how they differ"
        lines.append(f"--nodes {largest:,} is more than the {counted(seen, 'node')} seen so far: {others}.")
    if shared and len(records) == 1:
        lines.append("--shared has no effect with one run: name one of each job, or use --jobs.")
    return lines


def size_row(
    jobs: Sequence[KnownJob], nodes: Sequence[Node], k: int, spare: int, group: str
) -> dict[str, Any]:
    """Return what to expect of k nodes: the mean over choices of them, and its standard deviation."""
    streams, count = Streams(k, Purpose.TIMES), k - spare
    draws, cores = [], max(job.cores for job in jobs)
    fastest = np.argsort([speed_of(jobs, node) for node in nodes])[::-1][:count]
    for number in range(DRAWS):
        rng = streams.at(0, number=number)
        chosen = fastest if group == CHOSEN else rng.choice(len(nodes), count, replace=count > len(nodes))
        members = [nodes[j] for j in sorted(chosen.tolist())]
        rows = np.concatenate([node.rows for node in members])[1 - spare :]
        draws.append((*predict([job.perturbed(rng) for job in jobs], rows, rng), len(rows)))
    table = np.array(draws)
    means, errors = table.mean(axis=0).tolist(), table.std(axis=0, ddof=1).tolist()
    workers = round(means.pop())
    billed = np.array([means[2], errors[2]]) * cores * ranks_for(workers)
    return {
        "nodes": k,
        "which": group,
        "workers": workers,
        **dict(zip(Prediction._fields, means, strict=True)),
        **{f"{name}_error": value for name, value in zip(Prediction._fields, errors[:3], strict=True)},
        "billed": float(billed[0]),
        "billed_error": float(billed[1]),
        "nodelist": sorted(nodes[j].host for j in fastest.tolist()) if group == CHOSEN else [],
    }


def speed_of(jobs: Sequence[KnownJob], node: Node) -> float:
    """Return how many tasks per second a node does, of an average job."""
    return sum(float((job.speeds.mu.mean() / job.speeds.mu[node.rows]).sum()) for job in jobs)


def marked(rows: list[dict[str, Any]], price: float) -> list[dict[str, Any]]:
    """Return the rows with marks: the soonest done, the least billed, and the best by the price."""
    scores = {
        "fastest": lambda row: row["elapsed"],
        "cheapest": lambda row: row["billed"],
        "best": lambda row: price * np.log(row["elapsed"]) + np.log(row["billed"]),
    }
    best = {mark: min(rows, key=score) for mark, score in scores.items()} if rows else {}
    return [row | {"marks": [mark for mark in MARKS if best[mark] is row]} for row in rows]


def recommended_size(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the best row for a scheduler that chooses the nodes."""
    row: dict[str, Any]
    (row,) = [row for row in answer["sizes"] if row["which"] == RANDOM and "best" in row["marks"]]
    return row


HEADER = ["nodes", "workers", "clock", "elapsed", "±", "worker time", "billed [core h]", ""]


def recommendation_text(answer: dict[str, Any]) -> str:
    """Return the sizes as tables, one for each way to choose nodes, and below them what they rest on."""
    titles = {RANDOM: "nodes that the scheduler chooses", CHOSEN: "the fastest nodes, by --nodelist"}
    lines = []
    for which in dict.fromkeys(row["which"] for row in answer["sizes"]):
        rows = [_cells(row) for row in answer["sizes"] if row["which"] == which]
        lines += [f"{titles.get(which, f'nodes with {which}')}:", table(rows, HEADER), ""]
    best = recommended_size(answer)
    jobs = "" if answer["jobs"] == 1 else f"{answer['jobs']} jobs that share ranks, "
    ranks, known = counted(answer["ranks_per_node"], "rank"), counted(answer["known_nodes"], "node")
    runs = [word for run in answer["runs"][:SHOWN] for word in ("--recommended", run)]
    more = " ..." if len(answer["runs"]) > SHOWN else ""
    lines += [
        f"{jobs}{answer['rounds']:,} rounds, {ranks} per node; the best quotas for the speeds of {known}.",
        "± is one standard deviation of elapsed: which nodes it may be, and how sure their speeds are.",
        f"best: 1 % of time is worth {answer['price']:g} % of billed (--price).",
        f"Ask for it with --nodes {best['nodes']} --ntasks-per-node {answer['ranks_per_node']}, or with "
        f"{command_line('mpi-ata', 'submit', 'JOB.toml', *runs)}{more}",
    ]
    return "\n".join(lines)


def _cells(row: dict[str, Any]) -> list[Any]:
    clock, elapsed, worked = (duration(row[name]) for name in ("clock", "elapsed", "worker_time"))
    error, hours = (
        f"{100 * row['elapsed_error'] / row['elapsed']:.0f} %",
        significant(row["billed"] / 3600, 3),
    )
    return [row["nodes"], row["workers"], clock, elapsed, error, worked, hours, ", ".join(row["marks"])]


def draw_recommendation(answer: dict[str, Any], path: Path) -> None:
    """Draw time against cost, a curve for each way to choose nodes, the best sizes circled."""
    from matplotlib import style

    with style.context(plots.STYLE, after_reset=True):
        figure: Figure = plots.new_figure(plots.WIDTH / 2, 1.4 * plots.HEIGHT)
        axes = figure.add_subplot()
        for number, which in enumerate(dict.fromkeys(row["which"] for row in answer["sizes"])):
            rows, look = [row for row in answer["sizes"] if row["which"] == which], plots.line_style(number)
            hours, error = ([row[name] / 3600 for row in rows] for name in ("billed", "billed_error"))
            seconds, spread = ([row[name] for row in rows] for name in ("elapsed", "elapsed_error"))
            name = f"{which} nodes"[:40]
            axes.errorbar(hours, seconds, spread, error, marker=".", label=name, elinewidth=0.7, **look)
            for row, at in zip(rows, zip(hours, seconds, strict=True), strict=True):
                axes.annotate(str(row["nodes"]), at, (4, 4), textcoords="offset points", fontsize=7)
                if "best" in row["marks"]:
                    axes.plot(*at, "o", markersize=10, fillstyle="none", color=look["color"])
        axes.set(xlabel="billed [core h]", ylabel="elapsed [s]", xscale="log", yscale="log")
        plots.plain_log_ticks(axes.xaxis)
        plots.plain_log_ticks(axes.yaxis)
        axes.legend(fontsize=7)
        plots.save_figure(figure, path, dpi=110)
