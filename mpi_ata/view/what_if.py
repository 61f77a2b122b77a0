"""What a run would have taken under other allocators, budgets or workers: its recorded times, replayed."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator

from mpi_ata.arrays import Array, IntArray, State, total
from mpi_ata.clusters import VirtualCluster
from mpi_ata.clusters.virtual import SimulatedOrder
from mpi_ata.driver.restore import allocator_of
from mpi_ata.errors import UsageError
from mpi_ata.job import Job, build_parts
from mpi_ata.job.component import METHODS, Component
from mpi_ata.job.schema import RunDescription, job_from, recorded_samples
from mpi_ata.job.tables import Table, Tables
from mpi_ata.methods import Method
from mpi_ata.problems.no_work import NoWork
from mpi_ata.randomness import Purpose, Streams
from mpi_ata.runfile.priors import Prior, counted, match_prior
from mpi_ata.runfile.schema import Record
from mpi_ata.times import DrawnTimes, Recorded
from mpi_ata.times.replayed import RecordedRounds, ReplayedTimes, recorded_rounds
from mpi_ata.view.learned import allocator_name, named_tables
from mpi_ata.view.text import ratio, table

RARE = 0.02  # stopped tasks per finished one, up to which rounds are replayed as they were recorded
FEWEST = 50  # recorded rounds that stand for all of a longer run
Correction = Callable[[int, Array], Array]  # of a worker's times


@dataclass(frozen=True)
class Recording:
    """What is known of the workers that are replayed."""

    path: Path
    tables: Tables  # the job
    workers: IntArray  # their numbers in the run
    samples: list[Array]  # task times of each, whose mean is that of all its tasks
    tasks: IntArray  # that each has finished
    overhead: Array  # seconds that an order of each spends on the way, on average
    rounds: int  # of the run
    prior: Prior | None  # with which it started
    log: RecordedRounds | None = None  # what rounds on ranks took, one by one
    untried: int = 0  # workers left out, since nothing is known of them
    stoppable: bool = True  # whether a task ends as soon as it is stopped

    @property
    def means(self) -> Array:
        """The mean task time of each worker."""
        return np.array([sample.mean() for sample in self.samples])

    def only(self, rows: IntArray) -> "Recording":
        """Return the same for fewer workers."""
        return replace(
            self,
            workers=self.workers[rows],
            samples=[self.samples[row] for row in rows.tolist()],
            tasks=self.tasks[rows],
            overhead=self.overhead[rows],
            prior=self.prior
            and self.prior._replace(columns={key: all[rows] for key, all in self.prior.columns.items()}),
            log=self.log and self.log.only(rows),
        )

    def times(self, seed: int) -> DrawnTimes:
        """Return the task times of a replay: those of recorded rounds, or else draws from the samples."""
        law = Recorded(len(self.workers), self.samples)
        if self.log is None:
            return DrawnTimes(law, seed, stoppable=self.stoppable)
        return ReplayedTimes(law, seed, self.log, self.stoppable)

    def overhead_of(
        self, order: SimulatedOrder, workers: IntArray, counts: IntArray, seconds: Array
    ) -> Array:
        """Return the seconds that orders of these workers spend on the way, in a round of a replay."""
        if self.log is None:
            return self.overhead[workers]
        return self.log.overhead.at(self.log.row(order.round), otherwise=self.overhead)[workers]

    def gap(self, round: int) -> float:
        """Return the seconds of a round of a replay that are the manager's."""
        return 0.0 if self.log is None else self.log.gap(round)

    def resampled(self, rng: Generator) -> "Recording":
        """Return what might as well have been recorded: a bootstrap of each worker's times."""
        pairs = zip(self.samples, self.tasks.tolist(), strict=True)
        samples = [_resampled(sample, tasks, rng) for sample, tasks in pairs]
        return replace(self, samples=samples, log=self.log and self.log.resampled(rng))


def recording(record: Record, path: Path) -> Recording:
    """Return what a run has recorded of its workers' task times, without those that never finished a task."""
    samples = recorded_samples(record.workers.get("times"), path)
    workers, rounds = record.workers, int(record.method["k"])
    orders = np.clip(np.minimum(workers["arrivals"], rounds), 1, None)  # single arrivals share an order
    prior = match_prior(record.prior, record.identities) if record.prior else None
    known = np.flatnonzero(workers["tasks"] > 0)
    if not len(known) or not rounds:
        raise UsageError(f"{path}: there is no finished task to replay yet; wait for some rounds")
    stopped = record.cluster.get("undelivered", np.zeros(len(samples)))
    tables = named_tables(record)
    drawn = tables.get("times", {})  # other tasks are taken to run to their end, as most code does
    stoppable = bool(drawn) and bool(drawn.get("stoppable", True))
    correct = _correction(workers, stopped, stoppable)
    everyone = Recording(
        path,
        tables,
        np.arange(len(samples)),
        [correct(worker, sample) if len(sample) else sample for worker, sample in enumerate(samples)],
        workers["tasks"],
        workers["overhead"] / orders,
        rounds,
        prior,
        _log(record, rounds, correct) if stopped.sum() <= RARE * workers["tasks"].sum() else None,
        untried=len(samples) - len(known),
        stoppable=stoppable,
    )
    return everyone.only(known)


def _log(record: Record, rounds: int, correct: Correction) -> RecordedRounds | None:
    """Return the recorded rounds; None in a simulation, and where there are too few to stand for all."""
    columns = record.rounds
    if not columns or len(columns["round"]) < min(rounds, FEWEST):
        return None
    found = recorded_rounds(columns, len(record.identities))
    return replace(found, seconds=found.seconds.changed(correct))


def _correction(workers: State, stopped: Array | IntArray, stoppable: bool) -> Correction:
    """Return what gives a worker's sample the mean of all tasks that it is part of, stopped ones included.

    Finished tasks are the shorter ones where others were stopped.  What a task takes beyond the least time s
    is taken to be exponential: then its mean is the time that all tasks spent beyond s, over the number of
    those that finished.  A task is stopped at a random moment, so its time is uniform up to twice the mean;
    the whole of it is known where it ran to its end.
    """
    tasks = np.maximum(workers["tasks"], 1)
    least = np.where(workers["tasks"] > 0, workers["least"], 0.0)
    mean_stopped = workers["unfinished"] / np.maximum(stopped, 1)
    beyond = np.square(np.maximum(2 * mean_stopped - least, 0.0)) / np.maximum(4 * mean_stopped, 1e-300)
    excess = workers["seconds"] / tasks - least + stopped * beyond / tasks
    if not stoppable:
        excess = (workers["seconds"] + workers["unfinished"]) / np.maximum(tasks + stopped, 1) - least
    return lambda worker, sample: _stretched(sample, least.item(worker), excess.item(worker))


def _stretched(sample: Array, least: float, excess: float) -> Array:
    """Return a sample whose times exceed the least one by `excess` on average."""
    beyond = np.maximum(sample - least, 0.0)
    return np.asarray(
        least + beyond * (excess / beyond.mean()) if beyond.any() else np.full_like(sample, least + excess)
    )


def _resampled(sample: Array, tasks: int, rng: Generator) -> Array:
    """Return a resampled sample; its mean varies as the mean of `tasks` times does, of which it is a part."""
    drawn = rng.choice(sample, len(sample))
    mean = sample.mean()
    varied = mean + (drawn.mean() - mean) * np.sqrt(len(sample) / max(tasks, len(sample)))
    return np.asarray(drawn * (varied / drawn.mean()))


def replayed_jobs(recorded: Recording, allocators: Sequence[str], budget: int | None) -> list[Job]:
    """Return the job of the run under each allocator, without its problem and its times."""
    tables = recorded.tables
    replayed: Tables = {
        "problem": {"name": "quadratic", "dimension": 1},
        "method": _method(tables.get("method", {})),
        "allocator": _allocator(recorded, allocators) | ({} if budget is None else {"budget": budget}),
        "times": {"law": "constant", "scale": recorded.means.tolist()},
        "stop": {"rounds": recorded.rounds},
        "run": {"workers": len(recorded.workers), "seed": tables.get("run", {}).get("seed", 0)},
    }
    return job_from(recorded.path, RunDescription.of_tables(replayed, {})).with_allocators(list(allocators))


def _method(keys: Table) -> Table:
    """Return a method whose rounds last as long as those of the run, whatever it does with results."""
    name = keys.get("name", "sgd")
    if name not in METHODS or name == "map":
        return {"name": "sgd", "step_size": 1.0}
    method = Component("method", METHODS[name], {})
    return {"name": name, "step_size": 1.0} | {key: keys[key] for key in keys if method.accepts(key)}


def _allocator(recorded: Recording, allocators: Sequence[str]) -> Table:
    """Return the allocator of the run, if it can be replayed or others are asked for."""
    keys = recorded.tables.get("allocator", {})
    if not keys:
        rule = "its method has no allocator to exchange; what-if is for methods that have one, such as sgd"
        raise UsageError(f"{recorded.path}: {rule}")
    if "name" in keys:
        return keys
    if "own" in allocators:
        rule = "its allocator is code of your own, which is not executed here"
        raise UsageError(f"{recorded.path}: {rule}; name others with --allocators")
    return {"name": "uta", "budget": keys.get("budget", 1)}


def chosen_workers(recorded: Recording, text: str | None) -> IntArray:
    """Return the rows of the workers in a list such as 0-7,12; a number means that many, the fastest."""
    most = len(recorded.workers)
    if text is None:
        return np.arange(most)
    if text.strip().isdecimal():
        if not 1 <= int(text) <= most:
            raise UsageError(f"--workers {text} must be from 1 to {most}, the workers with recorded times")
        return np.sort(np.argsort(recorded.means, kind="stable")[: int(text)])
    try:
        ends = [part.partition("-") for part in text.split(",")]
        found = {worker for a, dash, b in ends for worker in range(int(a), int(b if dash else a) + 1)}
    except ValueError:
        rule = "is neither a number of workers nor a list of them such as 0-7,12"
        raise UsageError(f"--workers {text} {rule}") from None
    if unknown := found.difference(recorded.workers.tolist()):
        raise UsageError(f"--workers {text}: worker {min(unknown)} has no recorded times; leave it out")
    return np.flatnonzero(np.isin(recorded.workers, list(found)))


LONGEST = 10_000  # rounds that are replayed; later ones are taken to last as long as the last half of these
SHORT = 300  # rounds of a replay that only shows how much the results vary
RESAMPLES = 20  # of those
REPEATS, ENOUGH = 20, 3000  # replays of a short run, and rounds in all of them together


def what_if(
    record: Record,
    path: Path,
    allocators: Sequence[str],
    budget: int | None = None,
    workers: str | None = None,
    begins: Callable[[str], object] = id,
) -> dict[str, Any]:
    """Return what the run took, and what it is predicted to take under each allocator; times in seconds.

    Without a budget or workers, these are those of the run, and `own` is its allocator.  `begins` is called
    with the name of each.  Each error is one standard deviation over replays of resampled times.
    """
    recorded = recording(record, path)
    chosen, own = recorded.only(chosen_workers(recorded, workers)), allocator_name(recorded.tables)
    names = list(dict.fromkeys("own" if name == own else name for name in allocators))
    rows = []
    for name, job in zip(names, replayed_jobs(chosen, names, budget), strict=True):
        begins(name)
        rows.append({"allocator": own if name == "own" else name} | prediction(job, chosen))
    if "name" not in recorded.tables["allocator"]:  # the user's own code, which is not executed here
        itself = None
    elif names[0] == "own" and budget is None and workers is None:
        itself = rows[0]["clock"]
    else:
        begins("own")
        itself = mean_replay(replayed_jobs(recorded, ["own"], None)[0], recorded)[0]
    taken = ("rounds", "clock", "worker_time", "workers", "tasks_used", "tasks_wasted")
    answer: dict[str, Any] = {
        "run": str(path),
        "allocator": own,
        "budget": recorded.tables.get("allocator", {}).get("budget"),
        "recorded": {name: record.summary[name] for name in taken},
        "least_tasks": int(chosen.tasks.min()),
        "untried": recorded.untried,
        "clock_of_itself": itself,
        "stoppable": recorded.stoppable,
        "overhead_ratio": overhead_ratio(record),
        "predicted": rows,
    }
    return answer | {"reliable": _reliable(answer)}


def prediction(job: Job, recorded: Recording) -> dict[str, Any]:
    """Return what a job is predicted to take with recorded times, and how sure that is."""
    clock, worker_time, used, wasted = mean_replay(job, recorded)
    clock_error, worker_time_error = relative_errors(job, recorded)
    return {
        "budget": int(job.allocator.keys["budget"]) if job.allocator else None,
        "workers": len(recorded.workers),
        "rounds": recorded.rounds,
        "clock": clock,
        "clock_error": clock_error * clock,
        "worker_time": worker_time,
        "worker_time_error": worker_time_error * worker_time,
        "tasks_used": round(used),
        "tasks_wasted": round(wasted),
    }


def mean_replay(job: Job, recorded: Recording) -> list[float]:
    """Return clock, worker time, used and wasted tasks of a job with recorded times, on average."""
    count = max(1, min(REPEATS, ENOUGH // recorded.rounds))  # so that chance hardly matters
    seeds = range(job.run.seed, job.run.seed + count)
    found = [replay(job.with_seed(seed), recorded, recorded.rounds) for seed in seeds]
    return list(np.mean(found, axis=0).tolist())


def relative_errors(job: Job, recorded: Recording) -> list[float]:
    """Return the relative standard deviations of clock and worker time over replays of resampled times."""
    streams, rounds = Streams(job.run.seed, Purpose.TIMES), min(recorded.rounds, SHORT)
    replays = [
        replay(job.with_seed(number), recorded.resampled(streams.at(0, number=number)), rounds)
        for number in range(RESAMPLES)
    ]
    clock_and_worker_time = np.array(replays)[:, :2]
    return list(clock_and_worker_time.std(axis=0, ddof=1) / clock_and_worker_time.mean(axis=0))


def replay(job: Job, recorded: Recording, rounds: int) -> Array:
    """Run a job on the virtual clock, with recorded times; return clock, worker time, used, wasted tasks."""
    seed = job.run.seed
    problem, _, method = build_parts(job, len(recorded.workers), NoWork())
    cluster = VirtualCluster(problem, recorded.times(seed), seed, overhead=recorded.overhead_of)
    allocator = allocator_of(method)
    if recorded.prior is not None and allocator is not None:
        allocator.inherit(recorded.prior.rounds, recorded.prior.columns)
    length = min(rounds, LONGEST)
    with muted():
        half = _totals(method, cluster, recorded, length // 2)
        rest = _totals(method, cluster, recorded, length - length // 2)
    return half + (1.0 + (rounds - length) / (length - length // 2)) * rest


@contextmanager
def muted() -> Iterator[None]:
    """Drop what is logged meanwhile: notes of a replay are not about the run."""
    log = logging.getLogger("mpi_ata")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def _totals(method: Method, cluster: VirtualCluster, recorded: Recording, count: int) -> Array:
    """Return what the next rounds take."""
    totals = np.zeros(4)
    before = cluster.ledger.worker_time.sum()
    for _ in range(count):
        round = method.step(cluster)
        totals += (round.duration + recorded.gap(round.number), 0.0, total(round.used), total(round.wasted))
    totals[1] = cluster.ledger.worker_time.sum() - before
    return totals


HEADER = ["allocator", "budget", "workers", "clock [s]", "worker time [s]", "wasted tasks", "clock ratio"]
AGREES = 0.03  # relative difference of clocks that is not worth a remark
UNRELIABLE = 0.2  # relative difference of clocks above which predictions mislead
FEW = 30  # recorded times of a worker below which its mean is a guess
UNPREDICTABLE = "So nothing can be predicted from this run: mpi-ata compare runs the job."


def what_if_table(answer: dict[str, Any]) -> str:
    """Return what the run took and what is predicted, if that can be known, and how far to trust it."""
    recorded, predicted = answer["recorded"], answer["predicted"] if _reliable(answer) else []
    ran = recorded | {"allocator": f"{answer['allocator']}, recorded", "budget": answer["budget"] or "-"}
    rows = [_cells(row, recorded["clock"]) for row in (ran, *predicted)]
    return "\n".join([table(rows, HEADER), "", *_remarks(answer)])


def _cells(row: dict[str, Any], clock: float) -> list[Any]:
    errors = [f" ± {row[key]:,.2g}" if key in row else "" for key in ("clock_error", "worker_time_error")]
    times = [f"{row['clock']:,.4g}{errors[0]}", f"{row['worker_time']:,.4g}{errors[1]}"]
    names = [row[name] for name in ("allocator", "budget", "workers")]
    return [*names, *times, f"{row['tasks_wasted']:,}", ratio(row["clock"], clock)]


def _remarks(answer: dict[str, Any]) -> list[str]:
    """Return what limits the predictions, or why there are none."""
    if not _reliable(answer):
        return [*_doubts(answer), UNPREDICTABLE]
    rounds, least = counted(answer["recorded"]["rounds"], "round"), counted(answer["least_tasks"], "task")
    at_once = answer["stoppable"]
    lines = [
        f"Replays of {rounds} with the recorded task times; ± is one standard deviation over replays of",
        f"resampled times: chance, and the few times that are known of some workers (at least {least}).",
        *_doubts(answer),
    ]
    if _doubts(answer):
        lines.append("Compare predictions with each other.")
    if answer["least_tasks"] < FEW:
        lines.append(f"Workers with fewer than {FEW} tasks may be faster or slower than they seem.")
    if answer["untried"]:
        lines.append(f"Left out: {counted(answer['untried'], 'worker')} that never finished a task.")
    if any(row["tasks_wasted"] for row in answer["predicted"]):
        lines.append(f"A task that is stopped is taken to {'end at once' if at_once else 'run to its end'}.")
    if answer["recorded"]["tasks_wasted"] and at_once:
        lines.append("Tasks were stopped in this run: how long they would have taken is estimated.")
    return lines


def _doubts(answer: dict[str, Any]) -> list[str]:
    """Return a warning where the replay of what really ran does not take as long, or overhead dominates."""
    off, overhead = _difference(answer), answer["overhead_ratio"]
    lines = []
    if abs(off) >= AGREES:
        lines += [
            f"The clock of what really ran is predicted with an error of {100 * off:+.0f} %, as where",
            "overhead or speeds vary, or many tasks were stopped.",
        ]
    if overhead > 1:
        lines.append(overhead_text(overhead))
    return lines


def overhead_ratio(record: Record) -> float:
    """Return how long exchanging orders and results took, relative to the tasks themselves."""
    return float(record.workers["overhead"].sum() / record.workers["seconds"].sum())


def overhead_text(ratio: float) -> str:
    """Return the warning for a run in which overhead dominates."""
    return f"Overhead is {ratio:.2g} times as long as the tasks themselves."


def _reliable(answer: dict[str, Any]) -> bool:
    """Return whether replays say anything: tasks dominate, and what really ran takes as long in a replay."""
    return bool(answer["overhead_ratio"] <= 1 and abs(_difference(answer)) <= UNRELIABLE)


def _difference(answer: dict[str, Any]) -> float:
    """Return the relative error of the replayed clock of what really ran; 0 if that cannot be replayed."""
    clock, itself = answer["recorded"]["clock"], answer["clock_of_itself"]
    return float(itself / clock - 1) if clock and itself is not None else 0.0
