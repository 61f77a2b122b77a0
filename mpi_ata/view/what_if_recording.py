"""The task times that a run has recorded, as something that can be replayed and resampled."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.random import Generator

from mpi_ata.arrays import Array, IntArray, State
from mpi_ata.errors import UsageError
from mpi_ata.job.recorded_times import recorded_samples
from mpi_ata.job.tables import Tables
from mpi_ata.runfile.prior import Prior, match_prior
from mpi_ata.runfile.record import Record
from mpi_ata.times import DrawnTimes, Recorded
from mpi_ata.times.replayed import RecordedRounds, ReplayedTimes, recorded_rounds
from mpi_ata.view.learned import named_tables

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
            prior=self.prior and self.prior._replace(columns=_rows(self.prior.columns, rows)),
            log=self.log and self.log.only(rows),
        )

    def times(self, seed: int) -> DrawnTimes:
        """Return the task times of a replay: those of recorded rounds, or else draws from the samples."""
        law = Recorded(len(self.workers), self.samples)
        return DrawnTimes(law, seed) if self.log is None else ReplayedTimes(law, seed, self.log)

    def overhead_in(self, round: int) -> Array:
        """Return the seconds that an order of each worker spends on the way, in a round of a replay."""
        if self.log is None:
            return self.overhead
        return self.log.overhead.at(self.log.row(round), otherwise=self.overhead)

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
    correct = _correction(workers, stopped)
    everyone = Recording(
        path,
        named_tables(record),
        np.arange(len(samples)),
        [correct(worker, sample) if len(sample) else sample for worker, sample in enumerate(samples)],
        workers["tasks"],
        workers["overhead"] / orders,
        rounds,
        prior,
        _log(record, rounds, correct) if stopped.sum() <= RARE * workers["tasks"].sum() else None,
        untried=len(samples) - len(known),
    )
    return everyone.only(known)


def _log(record: Record, rounds: int, correct: Correction) -> RecordedRounds | None:
    """Return the recorded rounds; None in a simulation, and where there are too few to stand for all."""
    columns = record.rounds
    if not columns or len(columns["round"]) < min(rounds, FEWEST):
        return None
    found = recorded_rounds(columns, len(record.identities))
    return replace(found, seconds=found.seconds.changed(correct))


def _correction(workers: State, stopped: Array | IntArray) -> Correction:
    """Return what gives a worker's sample the mean of all tasks that it is part of, stopped ones included.

    Finished tasks are the shorter ones where others were stopped.  What a task takes beyond the least time s
    is taken to be exponential: then its mean is the time that all tasks spent beyond s, over the number of
    those that finished.  A task is stopped at a random moment, so its time is uniform up to twice the mean.
    """
    tasks = np.maximum(workers["tasks"], 1)
    least = np.where(workers["tasks"] > 0, workers["least"], 0.0)
    mean_stopped = workers["unfinished"] / np.maximum(stopped, 1)
    beyond = np.square(np.maximum(2 * mean_stopped - least, 0.0)) / np.maximum(4 * mean_stopped, 1e-300)
    excess = workers["seconds"] / tasks - least + stopped * beyond / tasks
    return lambda worker, sample: _stretched(sample, least.item(worker), excess.item(worker))


def _stretched(sample: Array, least: float, excess: float) -> Array:
    """Return a sample whose times exceed the least one by `excess` on average."""
    beyond = np.maximum(sample - least, 0.0)
    return np.asarray(
        least + beyond * (excess / beyond.mean()) if beyond.any() else np.full_like(sample, least + excess)
    )


def _rows(columns: State, rows: IntArray) -> State:
    return {name: column[rows] for name, column in columns.items()}


def _resampled(sample: Array, tasks: int, rng: Generator) -> Array:
    """Return a resampled sample; its mean varies as the mean of `tasks` times does, of which it is a part."""
    drawn = rng.choice(sample, len(sample))
    mean = sample.mean()
    varied = mean + (drawn.mean() - mean) * np.sqrt(len(sample) / max(tasks, len(sample)))
    return np.asarray(drawn * (varied / drawn.mean()))
