"""The progress of a run of a script, shown as that of a job is."""

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mpi_ata.driver.observers import Observer
from mpi_ata.script.description import ScriptRun

log = logging.getLogger("mpi_ata")


@contextmanager
def shown_progress(run: ScriptRun, wanted: bool) -> Iterator[Sequence[Observer]]:
    """Yield what shows the progress of a run on stderr, if that is wanted; notes appear above it."""
    if not wanted:
        yield ()
        return
    from mpi_ata.view.live import view_of  # only the manager needs it

    line = view_of(run.tables, run.stop, sys.stderr)

    def make_room(record: logging.LogRecord) -> bool:
        line.clear()
        return True

    log.addFilter(make_room)
    try:
        yield [line]
    finally:
        log.removeFilter(make_room)
        line.clear()
