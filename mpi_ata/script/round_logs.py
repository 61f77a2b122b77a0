"""What the tasks of a round have logged, where the point that has it is on workers."""

from collections.abc import Callable, Iterator, Mapping

from mpi_ata.errors import UsageError


class RoundLogs(Mapping[str, float]):
    """The logs of a round by name, asked for when somebody looks at them: most loops log now and then."""

    def __init__(self, round: int, latest: Callable[[], int], ask: Callable[[], dict[str, float]]) -> None:
        self._round, self._latest, self._ask = round, latest, ask
        self._found: dict[str, float] | None = None

    def _values(self) -> dict[str, float]:
        if self._found is None:
            if (latest := self._latest()) != self._round:
                raise UsageError(
                    f"the logs of round {self._round} are gone after round {latest}: with replicated=True "
                    "workers have them; read round.logs in the body of the loop"
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
