"""Ratios to greedy allocation, beside those that the paper prints."""

from collections.abc import Iterator, Sequence
from statistics import fmean, stdev
from typing import Any

from mpi_ata.paper.experiments import GREEDY, Plan, printed
from mpi_ata.paper.runs import Result
from mpi_ata.view.text import duration

Record = dict[str, Any]
RATIOS = ("worker_time_ratio", "runtime_ratio")
NAMES = ("worker time, gta / x", "runtime, x / gta")  # of them, in a table


def ratios(results: Sequence[Result], budget: int) -> list[Record]:
    """One record for each prior, number of workers and allocator: means and deviations over the seeds."""
    runs = {(r.plan.prior, r.plan.n, r.plan.allocator, r.plan.seed): r for r in results}
    kinds = sorted(dict.fromkeys(key[:3] for key in runs), key=lambda kind: kind[:2])
    seeds = sorted({seed for *_, seed in runs})
    return [
        _record(
            runs[prior, n, name, seeds[0]].plan,
            [(runs[prior, n, name, seed].figures, runs[0, n, GREEDY, seed].figures) for seed in seeds],
            budget,
        )
        for prior, n, name in kinds
    ]


def _record(plan: Plan, pairs: Sequence[tuple[Record, Record]], budget: int) -> Record:
    """What one allocator comes to, from its figures and those of greedy allocation, seed by seed."""
    worker_time = [greedy["worker_time"] / own["worker_time"] for own, greedy in pairs]
    runtime = [own["clock"] / greedy["clock"] for own, greedy in pairs]
    paper = printed(plan, budget)
    gaps = [own["gap"] for own, _ in pairs]
    known = {"loss": _mean([own["loss"] for own, _ in pairs]), "gap": None if None in gaps else max(gaps)}
    known |= {
        name: _mean([own["evaluation"][name] for own, _ in pairs]) for name in pairs[0][0]["evaluation"]
    }
    return {
        "law": plan.law,
        "n": plan.n,
        "allocator": plan.allocator,
        "rounds": round(fmean(own["rounds"] for own, _ in pairs)),
        "worker_time_ratio": fmean(worker_time),
        "runtime_ratio": fmean(runtime),
        "paper_worker_time_ratio": paper[0],
        "paper_runtime_ratio": paper[1],
        "worker_time_ratio_deviation": deviation(worker_time),
        "runtime_ratio_deviation": deviation(runtime),
        "seeds": len(pairs),
        "prior": plan.prior,
        **known,
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


def deviation(values: Sequence[float]) -> float | None:
    """The sample standard deviation; not known of a single value."""
    return stdev(values) if len(values) > 1 else None


def effort(results: Sequence[Result]) -> str:
    """How long the runs took, by the clock on the wall."""
    return effort_text([result.figures["elapsed"] for result in results])


def effort_text(seconds: Sequence[float]) -> str:
    """The same of the seconds of each run."""
    return f"Added up, the {len(seconds)} runs took {duration(sum(seconds))}."


def ratio_header(other: str) -> list[str]:
    """What stands above ratio_lines()."""
    return ["allocator", "n", "rounds", *(cell for name in NAMES for cell in (name, other, "off by"))]


def ratio_lines(records: Sequence[Record], other: str, form: str = "g") -> list[list[str]]:
    """Our ratios, others whose names in the records begin with `other`, and how far they are apart."""
    return [
        [
            r["allocator"],
            str(r["n"]),
            f"{r['rounds']:,}",
            *(cell for key in RATIOS for cell in _beside(r, key, r[f"{other}_{key}"], form)),
        ]
        for r in records
    ]


def _beside(record: Record, key: str, other: float | None, form: str) -> Iterator[str]:
    yield spread(record[key], record[f"{key}_deviation"])
    yield "-" if other is None else f"{other:{form}}"
    yield "-" if other is None else f"{100 * (record[key] / other - 1):+.1f} %"


def ratio_cells(record: Record) -> Iterator[str]:
    """Both figures by themselves."""
    return (spread(record[key], record[f"{key}_deviation"]) for key in RATIOS)


def spread(mean: float, deviation: float | None, form: str = ".2f") -> str:
    """A mean with its deviation, where it has one."""
    return f"{mean:{form}}" + ("" if deviation is None else f" ± {deviation:{form}}")
