"""Logs a run for TensorBoard."""

from pathlib import Path

from mpi_ata.driver.loggers.logger import Entry, Logger, known, library


class TensorBoardLogger(Logger):
    """Writes event files to the folder RUN.tensorboard, by tensorboardX."""

    def open(self, file: Path, run: str, latest: int) -> None:
        """Begin an event file; TensorBoard drops what earlier ones hold after the round `latest`."""
        folder, begin = str(file.with_suffix(".tensorboard")), latest + 1
        writer = library("tensorboardX", "tensorboard").SummaryWriter
        # Without a suffix, files that are begun within the same second would have the same name.
        self._writer = writer(folder, purge_step=begin, filename_suffix=f".{begin}")

    def write(self, entry: Entry) -> None:
        """Write one scalar for each value."""
        for name, value in known(entry).items():
            self._writer.add_scalar(name, value, int(entry["round"]))

    def close(self, finished: bool) -> None:
        """Close the event file."""
        self._writer.close()
