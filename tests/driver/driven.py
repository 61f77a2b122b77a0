"""Jobs driven on the virtual clock, with a function that looks on, and what is logged meanwhile."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mpi_ata import Observer, Round, Trace
from mpi_ata.driver.drive import Outcome
from mpi_ata.driver.execute import execute
from mpi_ata.driver.plan import OutputOptions, resolve

Look = Callable[[Trace], None]


class Watching(Observer):
    """Calls a function after each round."""

    def __init__(self, look: Look) -> None:
        self._look = look

    def on_round(self, round: Round, trace: Trace) -> None:
        self._look(trace)


def driven(
    job: Path,
    settings: Sequence[str] = (),
    look: Look | None = None,
    output: OutputOptions | None = None,
) -> Outcome:
    """Run a job on the virtual clock, or resume it."""
    return execute(resolve(job, settings, output), [Watching(look)] if look else [])


class _Texts(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@contextmanager
def logged() -> Iterator[list[str]]:
    """Collect what the package logs."""
    log, handler = logging.getLogger("mpi_ata"), _Texts()
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield handler.texts
    finally:
        log.removeHandler(handler)
        log.setLevel(logging.NOTSET)
