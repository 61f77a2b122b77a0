"""Rounds per second with a null task, compared with a bare mpi4py loop and other libraries; idle cost.

python -m benchmarks.rounds [--quick] [--growth] [--json] [--document]

The floor is a bare mpi4py loop: the exchange by non-blocking messages and the sum, without decisions, updates
or accounting. Everything runs on one node. Rates are those of the best of many short windows, with the median
window in brackets. --quick takes about a minute; --growth measures only what rank 0 spends on up to 256
workers whose tasks sleep; --document rewrites the table in docs/performance.md.
"""

import importlib.util
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import chdir
from itertools import pairwise
from typing import Any, NamedTuple

from benchmarks.measuring import ROOT, measured, options
from mpi_ata.launch import find_mpirun
from mpi_ata.layout import ranks_for
from mpi_ata.view.text import file_size, ratio, table

CHILDREN = "benchmarks.rounds_children"
CONTENDERS = ("mpi_ata", "floor", "futures", "libensemble")
OURS = CONTENDERS[:2]
TIMEOUT = 60  # seconds for one contender, including the start of its ranks
PER_RANK = 2  # more seconds for each rank
MANY = (1, 4, 16, 64, 256)  # workers of --growth: their start alone takes minutes on few cores
MOST_BUSY = 16  # workers whose tasks do not sleep, on one node
HUGE = 1_000_000  # numbers; too many for libEnsemble
BEGIN, END = "<!-- benchmarks.rounds -->", "<!-- end of benchmarks.rounds -->"  # of the block in the page

Measurements = dict[str, Any]


class Plan(NamedTuple):
    """What is measured, and for how long."""

    workers: tuple[tuple[int, int], ...] = ((4, 4), (16, 16), (16, 3))  # in total, active
    sizes: tuple[int, ...] = (1, 80_000, 1_000_000)  # float64 numbers each way
    idle: tuple[int, ...] = (4, 16)
    growth: tuple[int, ...] = (1, 1_000, 10_000, 100_000, 1_000_000, 12_500_000)
    crowds: tuple[int, ...] = (1, 2, 4, 8, 16)  # workers, all active
    seconds: float = 1.0
    idle_seconds: float = 3.0
    growth_seconds: float = 0.6
    sleepers: tuple[int, ...] = (4, 16)  # workers, all active, whose tasks sleep


QUICK = Plan(((4, 4),), (1, 80_000, 1_000_000), (4,), (1, 1_000, 10_000, 100_000), (), 0.5, 1.0, 0.3, (4,))


def measure(role: str, workers: int, active: int = 1, size: int = 1, seconds: float = 2.0) -> Measurements:
    """Return what a contender measured; nothing if it failed or timed out."""
    if sys.stderr.isatty():
        print(
            f"\r{role}, {active} of {workers} workers, {file_size(8 * size):<20}", end="\r", file=sys.stderr
        )
    timeout = TIMEOUT + PER_RANK * workers
    numbers = {"size": size, "active": active, "seconds": seconds, "alarm": timeout + 10}
    with tempfile.TemporaryDirectory(prefix="mpi_ata-rounds-") as folder, chdir(folder):
        found: Measurements = measured(ranks_for(workers), CHILDREN, role, timeout=timeout, **numbers)
    return found


def rates(
    cases: Iterable[tuple[int, int, int]], seconds: float, roles: Sequence[str] = OURS
) -> list[Measurements]:
    """Return rounds per second for workers, active ones and sizes; a row is measured in one go."""
    rows = []
    for workers, active, size in cases:
        row: Measurements = {"workers": workers, "active": active, "bytes": 8 * size}
        for role in roles:
            if role != "libensemble" or (_has_libensemble() and size < HUGE):
                found = measure(role, workers, active, size, seconds)
                row |= {role: found.get("rate"), f"{role} median": found.get("median")}
        rows.append(row)
    return rows


def _has_libensemble() -> bool:
    return importlib.util.find_spec("libensemble") is not None


def rates_table(rows: list[Measurements], roles: Sequence[str] = OURS) -> str:
    """Return rounds per second, and the ratios of mpi_ata to the others."""
    header = [
        "active",
        "each way",
        *(f"{role} [1/s]" for role in roles),
        *(f"/ {role}" for role in roles[1:]),
    ]
    body = [[*_case(row), *(_rates(row, role) for role in roles), *_ratios(row, roles)] for row in rows]
    return table(body, header)


def _case(row: Measurements) -> list[str]:
    return [f"{row['active']} of {row['workers']}", file_size(row["bytes"])]


def _ratios(row: Measurements, roles: Sequence[str]) -> list[str]:
    return [
        ratio(row["mpi_ata"], row[role]) if row.get(role) and row["mpi_ata"] else "-" for role in roles[1:]
    ]


def _rate(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _rates(row: Measurements, role: str) -> str:
    """Return the rate of the best window, and of the median one in brackets."""
    median = row.get(f"{role} median")
    return _rate(row.get(role)) + (f" ({_rate(median)})" if median else "")


def columns(rows: list[Measurements], names: Sequence[str], numbers: dict[str, tuple[str, float]]) -> str:
    """Return a table of what rows are about, and of numbers: a key and a scale for each."""
    body = [
        [
            *(str(row[name]) for name in names),
            *(f"{scale * row[key]:.3f}" if key in row else "-" for key, scale in numbers.values()),
        ]
        for row in rows
    ]
    return table(body, [*names, *numbers])


IDLE = {
    "idle CPU [%]": ("cpu", 1.0),
    "worst [%]": ("cpu_worst", 1.0),
    "wake-up [ms]": ("wake_up", 1e3),
    "longest [ms]": ("wake_up_worst", 1e3),
    "overhead, idle [ms]": ("overhead", 1e3),
    "overhead, busy [ms]": ("overhead_busy", 1e3),
}
COSTS = {
    "rounds [1/s]": ("median", 1.0),
    "decision [us]": ("decision", 1e6),
    "per order [us]": ("cpu", 1e6),
    "without waiting [us]": ("work", 1e6),
}


def measure_idle(plan: Plan) -> list[Measurements]:
    """Return what workers without orders cost."""
    return [{"workers": n, **measure("idle", n, seconds=plan.idle_seconds)} for n in plan.idle]


def measure_costs(plan: Plan) -> list[Measurements]:
    """Return what rank 0 spends as the number of workers grows, with null tasks and with sleeping ones."""
    return [
        {"workers": n, "tasks": tasks, **measure(tasks, n, n, seconds=plan.seconds)}
        for tasks, most in (("busy", MOST_BUSY), ("sleeping", max(plan.sleepers)))
        for n in plan.sleepers
        if n <= most
    ]


def bottleneck(rows: list[Measurements]) -> str:
    """Return from which size rank 0 is the bottleneck: rounds take twice as long as for the smallest."""
    known = [(row["bytes"], row["mpi_ata"]) for row in rows if row["mpi_ata"]]
    for (smaller, faster), (larger, slower) in pairwise(known):
        if slower < (half := known[0][1] / 2) <= faster:
            share = math.log(faster / half) / math.log(faster / slower)
            size = file_size(int(float(f"{smaller * (larger / smaller) ** share:.1g}")))
            return (
                f"From about {size} each way, transferring and adding arrays at rank 0 takes longer than the "
                f"rest of a round with {rows[0]['workers']} workers."
            )
    return "For none of these sizes did transferring arrays take longer than the rest of a round."


def machine() -> str:
    """Return the machine that this ran on."""
    version = subprocess.check_output([find_mpirun(), "--version"], text=True).strip().splitlines()[0]
    real_time = os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR)
    priority = ", at real-time priority next to other work" if real_time else ""
    return f"{os.cpu_count()} cores, Python {platform.python_version()}, {version.strip()}{priority}"


def update_page(text: str, found: dict[str, list[Measurements]]) -> str:
    """Return the page with these results in its block."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    header = ["active workers", "each way", *CONTENDERS, *(f"/ {role}" for role in CONTENDERS[1:])]
    rows = [
        [*_case(row), *(_rate(row.get(role)) for role in CONTENDERS), *_ratios(row, CONTENDERS)]
        for row in found["rounds"]
    ]
    lines = [f"| {' | '.join(cells)} |" for cells in (header, *rows)]
    lines.insert(1, "|" + "---|" * len(header))
    sentences = [f"Rounds per second with a null task ({machine()}).", bottleneck(found["growth"])]
    sentences += [
        f"With {row['workers']} workers, an idle one uses {row['cpu']:.2g} % of a core, and starts "
        f"{1e3 * row['wake_up']:.2g} ms after its order was sent."
        for row in found["idle"]
        if "cpu" in row
    ]
    block = "\n".join([*lines, "", *sentences])
    return f"{before}{BEGIN}\n{block}\n{END}{after}"


def main() -> None:
    """Measure, then print tables or a JSON object, or update the table in docs/performance.md."""
    asked = options(__doc__, quick=False, json=False, document=False, growth=False)
    plan = QUICK if asked.quick else Plan()
    if asked.growth:
        rows = measure_costs(plan._replace(sleepers=MANY))
        print(json.dumps({"costs": rows}) if asked.json else columns(rows, ["tasks", "workers"], COSTS))
        return
    if not _has_libensemble():
        print("libEnsemble is not installed; add it with pip install libensemble", file=sys.stderr)
    found = {
        "rounds": rates(((*n, size) for n in plan.workers for size in plan.sizes), plan.seconds, CONTENDERS),
        "idle": measure_idle(plan),
        "growth": rates(((4, 4, size) for size in plan.growth), plan.growth_seconds),
        "crowd": rates(((n, n, 1) for n in plan.crowds), plan.growth_seconds),
        "costs": measure_costs(plan),
    }
    if asked.document:
        page = ROOT / "docs" / "performance.md"
        page.write_text(update_page(page.read_text(), found))
    if asked.json:
        print(json.dumps(found))
        return
    print(f"Rounds per second, null task\n\n{rates_table(found['rounds'], CONTENDERS)}\n")
    print(f"Workers without orders, and single orders\n\n{columns(found['idle'], ['workers'], IDLE)}\n")
    print(f"Growth with the size of x, 4 workers\n\n{rates_table(found['growth'])}\n")
    print(bottleneck(found["growth"]))
    print(f"\nCPU time of rank 0\n\n{columns(found['costs'], ['tasks', 'workers'], COSTS)}")
    if found["crowd"]:
        print(f"\nGrowth with the number of workers, 8 B each way\n\n{rates_table(found['crowd'])}")


if __name__ == "__main__":
    main()
