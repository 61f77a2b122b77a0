"""The command that watches a run from another terminal."""

import sys
from contextlib import suppress
from pathlib import Path

import click

from mpi_ata.cli.options import errors_in_one_sentence, show
from mpi_ata.view.snapshot_text import snapshot_text
from mpi_ata.view.watch import seen, watch


@click.command(name="watch")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--once", is_flag=True, help="Print it once, as it is now.")
@click.option("--follow", is_flag=True, help="Wait for a run that was stopped to be resumed.")
@errors_in_one_sentence
def watch_command(run: Path, once: bool, follow: bool) -> None:
    """Show a run while it runs elsewhere, until it ends.

    Reads the run file again each time that the run saves it; Ctrl-C ends watching, not the run.  A run that
    is not running is printed once.

    \b
    Examples:
      mpi-ata watch runs/mine.h5
      mpi-ata watch runs/mine.h5 --once
      mpi-ata watch runs/mine.h5 --follow
    """
    if once:
        show(snapshot_text(seen(run)))
        return
    with suppress(KeyboardInterrupt):
        watch(run, sys.stdout, follow)
