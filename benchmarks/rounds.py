"""Rounds per second with a null task, compared with a bare mpi4py loop and other libraries; idle cost.

python -m benchmarks.rounds [--quick] [--growth] [--json] [--document]

The floor is a bare mpi4py loop: the exchange by non-blocking messages and the sum, without decisions, updates
or accounting. Everything runs on one node. Rates are those of the best of many short windows, with the median
window in brackets. --growth measures only what rank 0 spends on up to 256 workers whose tasks sleep.
"""

import argparse
import importlib.util
import json
import math
import os
import platform
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from mpi_ata.launch import find_mpirun, set_mpi_defaults
from mpi_ata.layout import ranks_for
from mpi_ata.view.text import ratio, table

ROOT = Path(__file__).resolve().parent.parent
CHILDREN = "benchmarks.rounds_children"
CONTENDERS = ("mpi_ata", "floor", "futures", "libensemble")
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


class Bench:
    """Runs the contenders, one after another."""

    def __init__(self) -> None:
        self._mpirun = find_mpirun()
        self._environment = dict(os.environ)
        set_mpi_defaults(self._environment)
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._environment["PYTHONPATH"] = os.pathsep.join(paths)

    def measure(
        self, role: str, workers: int, active: int = 1, size: int = 1, seconds: float = 2.0
    ) -> Measurements:
        """Return what a contender measured; nothing if it failed or timed out."""
        what = f"{role}, {active} of {workers} workers, {bytes_text(8 * size)}"
        _progress(what)
        module = ["-m", "mpi4py.futures", "-m", CHILDREN] if role == "futures" else ["-m", CHILDREN]
        ranks = ["-n", str(ranks_for(workers)), sys.executable, *module, role]
        timeout = TIMEOUT + PER_RANK * workers
        numbers = {"size": size, "active": active, "seconds": seconds, "alarm": timeout + 10}
        arguments = [f"--{name}={number}" for name, number in numbers.items()]
        with tempfile.TemporaryDirectory(prefix="mpi_ata-rounds-") as folder:
            code = self._run([self._mpirun, *ranks, *arguments], Path(folder), timeout)
            measured = _last_line(Path(folder) / "out")
            if not measured:
                print(f"{what}: {code}\n{_tail(Path(folder) / 'err')}", file=sys.stderr)
            return measured

    def rates(self, role: str, workers: int, active: int, size: int, seconds: float) -> Measurements:
        """Return rounds per second of a contender, in the best and the median window; None if it failed."""
        found = self.measure(role, workers, active, size, seconds)
        return {role: found.get("rate"), f"{role} median": found.get("median")}

    def _run(self, command: list[str], folder: Path, timeout: int) -> str:
        """Run a command in its own session and in a temporary folder, and return how it ended."""
        with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
            try:
                return f"exit code {process.wait(timeout)}"
            except subprocess.TimeoutExpired:
                return f"timed out after {timeout} s"
            finally:
                if process.poll() is None:
                    _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Let mpirun end its ranks, then kill it; ranks outside its process group end by their own alarm."""
    for number, timeout in ((signal.SIGTERM, 5), (signal.SIGKILL, 5)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout)


def _last_line(path: Path) -> Measurements:
    """Return the JSON object on the last line of a file; nothing if there is none."""
    lines = path.read_text(errors="replace").strip().splitlines() or [""]
    try:
        measured = json.loads(lines[-1])
    except ValueError:
        return {}
    return measured if isinstance(measured, dict) else {}


def _tail(path: Path, lines: int = 8) -> str:
    return "\n".join(path.read_text(errors="replace").strip().splitlines()[-lines:])


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{text:<60}", end="\r", file=sys.stderr, flush=True)


def bytes_text(count: float) -> str:
    """Return a number of bytes in B, KB or MB."""
    if count < 1_000:
        return f"{count:g} B"
    return f"{count / 1e3:g} KB" if count < 500_000 else f"{count / 1e6:g} MB"


def compare_contenders(bench: Bench, plan: Plan) -> list[Measurements]:
    """Return rounds per second of all contenders, those of one row measured right after each other."""
    rows = []
    for workers, active in plan.workers:
        for size in plan.sizes:
            row: Measurements = {"workers": workers, "active": active, "bytes": 8 * size}
            for role in CONTENDERS:
                if role != "libensemble" or (_has_libensemble() and size < HUGE):
                    row |= bench.rates(role, workers, active, size, plan.seconds)
            rows.append(row)
    return rows


def _has_libensemble() -> bool:
    return importlib.util.find_spec("libensemble") is not None


def contenders_table(rows: list[Measurements]) -> str:
    """Return rounds per second, and the ratios of mpi_ata to the others."""
    header = ["active", "each way", *(f"{role} [1/s]" for role in CONTENDERS)]
    header += [f"/ {role}" for role in CONTENDERS[1:]]
    body = [
        [
            f"{row['active']} of {row['workers']}",
            bytes_text(row["bytes"]),
            *(_rates(row, role) for role in CONTENDERS),
            *(_ratio(row.get("mpi_ata"), row.get(role)) for role in CONTENDERS[1:]),
        ]
        for row in rows
    ]
    return table(body, header)


def measure_idle(bench: Bench, plan: Plan) -> list[Measurements]:
    """Return what workers without orders cost."""
    return [{"workers": n, **bench.measure("idle", n, seconds=plan.idle_seconds)} for n in plan.idle]


def idle_table(rows: list[Measurements]) -> str:
    """Return the idle CPU of a worker, its wake-up time, and the overhead of an order."""
    columns = {
        "idle CPU [%]": ("cpu", 1.0),
        "worst [%]": ("cpu_worst", 1.0),
        "wake-up [ms]": ("wake_up", 1e3),
        "longest [ms]": ("wake_up_worst", 1e3),
        "overhead, idle [ms]": ("overhead", 1e3),
        "overhead, busy [ms]": ("overhead_busy", 1e3),
    }
    body = [
        [
            f"{row['workers']}",
            *(f"{scale * row[key]:.3f}" if key in row else "-" for key, scale in columns.values()),
        ]
        for row in rows
    ]
    return table(body, ["workers", *columns])


def measure_growth(bench: Bench, plan: Plan) -> list[Measurements]:
    """Return rounds per second of four workers as x grows."""
    rows = []
    for size in plan.growth:
        row: Measurements = {"workers": 4, "bytes": 8 * size}
        for role in ("mpi_ata", "floor"):
            row |= bench.rates(role, 4, 4, size, plan.growth_seconds)
        rows.append(row)
    return rows


def growth_table(rows: list[Measurements]) -> str:
    """Return rounds per second, and the traffic through rank 0 in both directions."""
    roles = ("mpi_ata", "floor")
    header = ["each way", *(f"{role} [1/s]" for role in roles), "/ floor"]
    header += [f"{role} [MB/s]" for role in roles]
    body = [
        [
            bytes_text(row["bytes"]),
            *(_rates(row, role) for role in roles),
            _ratio(row["mpi_ata"], row["floor"]),
            *(_rate(row[role] and 2e-6 * row["workers"] * row["bytes"] * row[role]) for role in roles),
        ]
        for row in rows
    ]
    return table(body, header)


def measure_crowd(bench: Bench, plan: Plan) -> list[Measurements]:
    """Return rounds per second as the number of workers grows, for a small x."""
    rows = []
    for workers in plan.crowds:
        row: Measurements = {"workers": workers}
        for role in ("mpi_ata", "floor"):
            row |= bench.rates(role, workers, workers, 1, plan.growth_seconds)
        rows.append(row)
    return rows


def crowd_table(rows: list[Measurements]) -> str:
    """Return rounds and orders per second."""
    body = [
        [
            f"{row['workers']}",
            _rates(row, "mpi_ata"),
            _rates(row, "floor"),
            _ratio(row["mpi_ata"], row["floor"]),
            _rate(row["mpi_ata"] and row["workers"] * row["mpi_ata"]),
        ]
        for row in rows
    ]
    return table(body, ["workers", "mpi_ata [1/s]", "floor [1/s]", "/ floor", "orders [1/s]"])


def measure_costs(bench: Bench, plan: Plan) -> list[Measurements]:
    """Return what rank 0 spends as the number of workers grows, with null tasks and with sleeping ones."""
    return [
        {"workers": n, "tasks": tasks, **bench.measure(tasks, n, n, seconds=plan.seconds)}
        for tasks, most in (("busy", MOST_BUSY), ("sleeping", max(plan.sleepers)))
        for n in plan.sleepers
        if n <= most
    ]


def costs_table(rows: list[Measurements]) -> str:
    """Return rounds per second, and the CPU time of rank 0: of a decision, and of an order beyond it."""
    columns = {"decision [us]": "decision", "per order [us]": "cpu", "without waiting [us]": "work"}
    body = [
        [
            {"busy": "null", "sleeping": "20 ms asleep"}[row["tasks"]],
            f"{row['workers']}",
            _rates({"mpi_ata": row.get("rate"), "mpi_ata median": row.get("median")}, "mpi_ata"),
            *(f"{1e6 * row[key]:.1f}" if key in row else "-" for key in columns.values()),
        ]
        for row in rows
    ]
    return table(body, ["tasks", "workers", "rounds [1/s]", *columns])


def bottleneck(rows: list[Measurements]) -> str:
    """Return from which size rank 0 is the bottleneck: rounds take twice as long as for the smallest."""
    known = [(row["bytes"], row["mpi_ata"]) for row in rows if row["mpi_ata"]]
    for (smaller, faster), (larger, slower) in pairwise(known):
        if slower < (half := known[0][1] / 2) <= faster:
            share = math.log(faster / half) / math.log(faster / slower)
            size = smaller * (larger / smaller) ** share
            return (
                f"From about {bytes_text(float(f'{size:.1g}'))} each way, transferring and adding arrays at "
                f"rank 0 takes longer than the rest of a round with {rows[0]['workers']} workers."
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
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for row in found["rounds"]:
        cells = [f"{row['active']} of {row['workers']}", bytes_text(row["bytes"])]
        cells += [_rate(row.get(role)) for role in CONTENDERS]
        cells += [_ratio(row.get("mpi_ata"), row.get(role)) for role in CONTENDERS[1:]]
        lines.append("| " + " | ".join(cells) + " |")
    idle = [row for row in found["idle"] if "cpu" in row]
    sentences = [f"Rounds per second with a null task ({machine()}).", bottleneck(found["growth"])]
    sentences += [
        f"With {row['workers']} workers, an idle one uses {row['cpu']:.2g} % of a core, and starts "
        f"{1e3 * row['wake_up']:.2g} ms after its order was sent."
        for row in idle
    ]
    block = "\n".join([*lines, "", *sentences])
    return f"{before}{BEGIN}\n{block}\n{END}{after}"


def _rate(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _rates(row: Measurements, role: str) -> str:
    """Return the rate of the best window, and of the median one in brackets."""
    median = row.get(f"{role} median")
    return _rate(row.get(role)) + (f" ({_rate(median)})" if median else "")


def _ratio(a: float | None, b: float | None) -> str:
    return "-" if a is None or b is None else ratio(a, b)


def main() -> None:
    """Measure, then print tables or a JSON object, or update the table in docs/performance.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="about a minute, 4 workers only")
    parser.add_argument("--json", action="store_true", help="one object instead of tables")
    parser.add_argument("--document", action="store_true", help="update the table in docs/performance.md")
    parser.add_argument("--growth", action="store_true", help="only what rank 0 spends, up to 256 workers")
    options = parser.parse_args()
    bench, plan = Bench(), QUICK if options.quick else Plan()
    if options.growth:
        rows = measure_costs(bench, plan._replace(sleepers=MANY))
        print(json.dumps({"costs": rows}) if options.json else costs_table(rows))
        return
    if not _has_libensemble():
        print("libEnsemble is not installed; add it with pip install libensemble", file=sys.stderr)
    found = {
        "rounds": compare_contenders(bench, plan),
        "idle": measure_idle(bench, plan),
        "growth": measure_growth(bench, plan),
        "crowd": measure_crowd(bench, plan),
        "costs": measure_costs(bench, plan),
    }
    _progress("")
    if options.document:
        page = ROOT / "docs" / "performance.md"
        page.write_text(update_page(page.read_text(), found))
    if options.json:
        print(json.dumps(found))
        return
    print(f"Rounds per second, null task\n\n{contenders_table(found['rounds'])}\n")
    print(f"Workers without orders, and single orders\n\n{idle_table(found['idle'])}\n")
    print(f"Growth with the size of x, 4 workers\n\n{growth_table(found['growth'])}\n")
    print(bottleneck(found["growth"]))
    print(f"\nCPU time of rank 0\n\n{costs_table(found['costs'])}")
    if found["crowd"]:
        print(f"\nGrowth with the number of workers, 8 B each way\n\n{crowd_table(found['crowd'])}")


if __name__ == "__main__":
    main()
