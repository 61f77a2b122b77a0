"""Notes are printed as long as somebody reads them."""

import logging
import os

import click
import pytest

from mpi_ata.cli.runs import printed_notes
from mpi_ata.view.live import Display


def test_a_note_that_nobody_can_read_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    # As on a manager whose mpirun has died.
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", buffering=1) as broken, click.Context(click.Command("run")):
        monkeypatch.setattr("sys.stderr", broken)
        with printed_notes(Display(broken)):
            logging.getLogger("mpi_ata").warning("worker 1 is lost")
        monkeypatch.undo()
        os.dup2(os.open(os.devnull, os.O_WRONLY), writer)  # so that it can be closed
