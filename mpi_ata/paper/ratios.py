"""Ratios to greedy allocation, beside those that the paper prints."""

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from mpi_ata.paper.experiments import GREEDY, printed
from mpi_ata.paper.runs import Result

Record = dict[str, Any]
HEADER = [
    "allocator",
    "n",
    "rounds",
    "worker time, gta / x",
    "paper",
    "off by",
    "runtime, x / gta",
    "paper",
    "off by",
]


def ratios(results: Sequence[Result], budget: int) -> list[Record]:
    """One record for each number of workers and allocator: means and deviations over the seeds."""
    runs = {(r.plan.law, r.plan.n, r.plan.allocator, r.plan.seed): r.figures for r in results}
    seeds = sorted({seed for *_, seed in runs})
    kinds = sorted(dict.fromkeys(key[:3] for key in runs), key=lambda kind: kind[1])
    return [
        _record(
            law, n, name, [(runs[law, n, name, seed], runs[law, n, GREEDY, seed]) for seed in seeds], budget
        )
        for law, n, name in kinds
    ]


def _record(law: str, n: int, name: str, pairs: Sequence[tuple[Record, Record]], budget: int) -> Record:
    """What one allocator comes to, from its figures and those of greedy allocation, seed by seed."""
    worker_time = [greedy["worker_time"] / own["worker_time"] for own, greedy in pairs]
    runtime = [own["clock"] / greedy["clock"] for own, greedy in pairs]
    paper = printed(law, n, name, budget)
    return {
        "law": law,
        "n": n,
        "allocator": name,
        "rounds": round(statistics.fmean(own["rounds"] for own, _ in pairs)),
        "worker_time_ratio": statistics.fmean(worker_time),
        "runtime_ratio": statistics.fmean(runtime),
        "paper_worker_time_ratio": paper[0],
        "paper_runtime_ratio": paper[1],
        "worker_time_ratio_deviation": deviation(worker_time),
        "runtime_ratio_deviation": deviation(runtime),
        "seeds": len(pairs),
        "gap": max(own["gap"] for own, _ in pairs),
    }


def deviation(values: Sequence[float]) -> float | None:
    """The sample standard deviation; not known of a single value."""
    return statistics.stdev(values) if len(values) > 1 else None


def ratio_lines(records: Sequence[Record]) -> list[list[str]]:
    """The lines of a table with HEADER."""
    return [
        [
            r["allocator"],
            str(r["n"]),
            f"{r['rounds']:,}",
            *_cells(r, "worker_time_ratio"),
            *_cells(r, "runtime_ratio"),
        ]
        for r in records
    ]


def _cells(record: Record, key: str) -> Iterator[str]:
    """Our figure, the paper's, and how far they are apart."""
    paper = record[f"paper_{key}"]
    yield spread(record[key], record[f"{key}_deviation"])
    yield "-" if paper is None else f"{paper:g}"
    yield "-" if paper is None else f"{100 * (record[key] / paper - 1):+.1f} %"


def spread(mean: float, deviation: float | None, form: str = ".2f") -> str:
    """A mean with its deviation, where it has one."""
    return f"{mean:{form}}" + ("" if deviation is None else f" ± {deviation:{form}}")
