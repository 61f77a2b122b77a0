"""Where the wall time of a run on real ranks goes, beside its rounds."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import numpy as np

from mpi_ata.arrays import State, entry


@dataclass
class Shares:
    """Seconds of wall time by what they went into; what the user's own loop does is in none of them."""

    setup_time: float = 0.0  # from the start of the job to the first round: imports, ranks, data
    decision_time: float = 0.0  # quotas
    update_time: float = 0.0  # between the last needed arrival and the end of a round
    evaluation_time: float = 0.0
    saving_time: float = 0.0

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the time that something takes."""
        began = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, name, getattr(self, name) + time.perf_counter() - began)

    def add_round(self, seconds: float, duration: float, decision: float) -> None:
        """Take in a round that took so long in all, on the clock, and in deciding on quotas."""
        self.decision_time += decision
        self.update_time += max(seconds - duration - decision, 0.0)

    def summary(self, known: bool) -> dict[str, float | None]:
        """Return the shares by name; None where workers are simulated, whose time is not that of a wall."""
        return {name: value if known else None for name, value in asdict(self).items()}

    def state(self) -> State:
        """Return the shares so far."""
        return {name: np.array(value) for name, value in asdict(self).items()}

    def restore(self, state: State) -> None:
        """Continue from an earlier part of the run; older files have no shares."""
        for name, value in asdict(self).items():
            if name in state:
                setattr(self, name, value + float(entry(state, name, np.array(value))))
