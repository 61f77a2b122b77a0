"""Watching a run by its file, from another terminal than its own."""

import time
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from mpi_ata.runfile.load import load_named
from mpi_ata.runfile.store import RunFile
from mpi_ata.view.progress import Line
from mpi_ata.view.screen import Screen, has_room
from mpi_ata.view.snapshot import Snapshot, snapshot_of_record
from mpi_ata.view.snapshot_text import snapshot_text

LOOK = 1.0  # seconds between looks at the file


def watch(path: Path, stream: TextIO, look: float = LOOK) -> None:
    """Show a run whenever it is saved, until it is finished or has failed."""
    screen = Screen(stream) if has_room(stream) else Line(stream)
    shown, latest = -1.0, seen(path)
    while not ended(latest):
        if (saved := saved_at(path)) != shown:
            latest = seen(path)
        if saved != shown and screen.due():
            screen.show(snapshot_text(latest))
            shown = saved
        time.sleep(0 if ended(latest) else look)
    screen.show(snapshot_text(latest))


def seen(path: Path) -> Snapshot:
    """Return the run in a file as it is shown."""
    saved = saved_at(path)
    return snapshot_of_record(load_named(RunFile(path))[0], saved)


def ended(run: Snapshot) -> bool:
    """Return whether a run will not change any more, unless it is resumed."""
    return run.state.startswith(("finished", "failed"))


def saved_at(path: Path) -> float:
    """Return when a run file was saved; 0 at the moment at which it is replaced."""
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0
