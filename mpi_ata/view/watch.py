"""Watching a run by its file, from another terminal than its own."""

import time
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from mpi_ata.runfile.load import load_named
from mpi_ata.runfile.store import RunFile
from mpi_ata.view.progress import Line, progress_text
from mpi_ata.view.screen import Screen, has_room
from mpi_ata.view.snapshot import Snapshot, snapshot_of_record
from mpi_ata.view.snapshot_text import snapshot_text

LOOK = 1.0  # seconds between looks at the file


def watch(path: Path, stream: TextIO, follow: bool = False, look: float = LOOK) -> None:
    """Show a run whenever it is saved, until it has ended; with `follow`, until nobody would resume it."""
    screen = Screen(stream) if has_room(stream) else Line(stream)
    small = stream.isatty() and not has_room(stream)
    saved, run = saved_at(path), seen(path)
    fresh = first = True
    while not (run.over if follow else run.at_rest):
        if fresh and (screen.due() or first):
            screen.show(progress_text(run, run.stop) if small else snapshot_text(run))
            fresh = first = False
        time.sleep(look)
        if saved_at(path) != saved or run.quiet_at < time.time():
            saved, run, fresh = saved_at(path), seen(path), True
    screen.clear()
    stream.write(f"{snapshot_text(run)}\n")


def seen(path: Path) -> Snapshot:
    """Return the run in a file as it is shown."""
    saved = saved_at(path)
    return snapshot_of_record(load_named(RunFile(path))[0], saved)


def saved_at(path: Path) -> float:
    """Return when a run file was saved; 0 at the moment at which it is replaced."""
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0
