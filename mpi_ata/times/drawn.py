"""The task times of one run, drawn from a law."""

from mpi_ata.arrays import Array
from mpi_ata.randomness import Purpose, Streams
from mpi_ata.times.laws import Law


class DrawnTimes:
    """The task times of one run: a law, a seed, and how many seconds one unit of the law lasts.

    They are keyed by round and task number for all workers at once, worker i taking entry i, so that any
    process can compute any of them, in any order.
    """

    def __init__(self, law: Law, seed: int = 0, unit: float = 1.0, label: str = "") -> None:
        if not unit > 0:
            raise ValueError(f"{unit=} must be above 0 seconds")
        self.n = law.n
        self.label = label or type(law).__name__  # identifies the law in run files
        self.means = law.means * unit
        self._law, self._unit = law, unit
        self._streams = Streams(seed, Purpose.TIMES)
        self._round = 0
        self._drawn: dict[int, Array] = {}  # of that round only

    def __call__(self, round: int, number: int) -> Array:
        """Return the seconds that each worker takes for its task of this number in this round."""
        if round != self._round:
            self._round, self._drawn = round, {}
        if number not in self._drawn:
            self._drawn[number] = self._law.draw(self._streams.at(round, number=number)) * self._unit
        return self._drawn[number]

    def of(self, worker: int, round: int, first: int, count: int) -> list[float]:
        """Return the seconds that one worker takes for `count` tasks, from number `first` on."""
        return [self(round, number).item(worker) for number in range(first, first + count)]
