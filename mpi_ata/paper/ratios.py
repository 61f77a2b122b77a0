"""Ratios to greedy allocation, next to those that the paper prints."""

from collections.abc import Iterator, Sequence
from statistics import fmean, stdev
from typing import Any

from mpi_ata.paper.experiments import GREEDY, Trial, paper_ratios
from mpi_ata.paper.runs import Result
from mpi_ata.view.text import duration

Record = dict[str, Any]
RATIOS = ("worker_time_ratio", "runtime_ratio")
RATIO_NAMES = ("worker time, gta / x", "runtime, x / gta")  # in tables


def ratios(results: Sequence[Result], budget: int) -> list[Record]:
    """Return one record per prior, number of workers and allocator: means and deviations over the seeds."""
    runs = {(r.trial.prior, r.trial.n, r.trial.allocator, r.trial.seed): r for r in results}
    kinds = sorted(dict.fromkeys(key[:3] for key in runs), key=lambda kind: kind[:2])
    seeds = sorted({seed for *_, seed in runs})
    return [
        _record(
            runs[prior, n, name, seeds[0]].trial,
            [(runs[prior, n, name, seed].summary, runs[0, n, GREEDY, seed].summary) for seed in seeds],
            budget,
        )
        for prior, n, name in kinds
    ]


def _record(trial: Trial, pairs: Sequence[tuple[Record, Record]], budget: int) -> Record:
    """Return the record of one allocator, given its summary and that of greedy allocation for each seed."""
    worker_time = [greedy["worker_time"] / own["worker_time"] for own, greedy in pairs]
    runtime = [own["clock"] / greedy["clock"] for own, greedy in pairs]
    paper = paper_ratios(trial, budget)
    gaps = [own["gap"] for own, _ in pairs]
    known = {"loss": _mean([own["loss"] for own, _ in pairs]), "gap": None if None in gaps else max(gaps)}
    known |= {
        name: _mean([own["evaluation"][name] for own, _ in pairs]) for name in pairs[0][0]["evaluation"]
    }
    return {
        "law": trial.law,
        "n": trial.n,
        "allocator": trial.allocator,
        "rounds": round(fmean(own["rounds"] for own, _ in pairs)),
        "worker_time_ratio": fmean(worker_time),
        "runtime_ratio": fmean(runtime),
        "paper_worker_time_ratio": paper[0],
        "paper_runtime_ratio": paper[1],
        "worker_time_ratio_deviation": deviation(worker_time),
        "runtime_ratio_deviation": deviation(runtime),
        "seeds": len(pairs),
        "prior": trial.prior,
        **known,
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


def deviation(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation; None for a single value."""
    return stdev(values) if len(values) > 1 else None


def total_time(results: Sequence[Result]) -> str:
    """Return a note on the total wall time of the runs."""
    return total_time_text([result.summary["elapsed"] for result in results])


def total_time_text(seconds: Sequence[float]) -> str:
    """Return a note on the total wall time, given the seconds of each run."""
    return f"The {len(seconds)} runs took {duration(sum(seconds))} in total."


def ratio_header(other: str) -> list[str]:
    """Return the header of ratio_lines()."""
    return ["allocator", "n", "rounds", *(cell for name in RATIO_NAMES for cell in (name, other, "off by"))]


def ratio_lines(records: Sequence[Record], other: str, form: str = "g") -> list[list[str]]:
    """Return rows of our ratios, those whose keys begin with `other`, and their differences."""
    return [
        [
            r["allocator"],
            str(r["n"]),
            f"{r['rounds']:,}",
            *(cell for key in RATIOS for cell in _compared_cells(r, key, r[f"{other}_{key}"], form)),
        ]
        for r in records
    ]


def _compared_cells(record: Record, key: str, other: float | None, form: str) -> Iterator[str]:
    yield with_deviation(record[key], record[f"{key}_deviation"])
    yield "-" if other is None else f"{other:{form}}"
    yield "-" if other is None else f"{100 * (record[key] / other - 1):+.1f} %"


def ratio_cells(record: Record) -> Iterator[str]:
    """Return both ratios without others to compare them with."""
    return (with_deviation(record[key], record[f"{key}_deviation"]) for key in RATIOS)


def with_deviation(mean: float, deviation: float | None, form: str = ".2f") -> str:
    """Return a mean with its deviation, if there is one."""
    return f"{mean:{form}}" + ("" if deviation is None else f" ± {deviation:{form}}")
