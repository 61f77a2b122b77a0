"""The logs of a round's tasks, where workers keep the point, which contains them."""

from collections.abc import Callable, Iterator, Mapping

from mpi_ata.errors import UsageError


class RoundLogs(Mapping[str, float]):
    """The logs of a round by name, fetched when they are first read: most loops read them rarely."""

    def __init__(self, round: int, latest: Callable[[], int], ask: Callable[[], dict[str, float]]) -> None:
        self._round, self._latest, self._ask = round, latest, ask
        self._found: dict[str, float] | None = None

    def _values(self) -> dict[str, float]:
        if self._found is None:
            if (latest := self._latest()) != self._round:
                raise UsageError(
                    f"the logs of round {self._round} are gone after round {latest}: with replicated=True, "
                    "workers keep only the latest ones; read round.logs in the body of the loop"
                )
            self._found = self._ask()
        return self._found

    def __getitem__(self, name: str) -> float:
        """Return one of them."""
        return self._values()[name]

    def __iter__(self) -> Iterator[str]:
        """Yield their names."""
        return iter(self._values())

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._values())

    def __repr__(self) -> str:
        """Return them as a dict shows them."""
        return repr(self._values())
