"""Logs a run to a CSV file."""

import csv
from pathlib import Path

from mpi_ata.driver.loggers.logger import COLUMNS, Entry, Logger


class CSVLogger(Logger):
    """Appends a row to RUN.log.csv for each evaluation; what is not known is empty."""

    def open(self, file: Path, run: str, latest: int) -> None:
        """Keep the rows up to the round `latest` of what is there."""
        self._path, self._columns = file.with_suffix(".log.csv"), list(COLUMNS)
        rows = self._rows() if latest >= 0 and self._path.exists() else []
        kept = [row for row in rows if int(row["round"]) <= latest]
        self._columns = list(rows[0]) if rows else self._columns
        self._rewrite(kept)

    def write(self, entry: Entry) -> None:
        """Append a row; where it has a new column, all rows get it."""
        if new := [name for name in entry if name not in self._columns]:
            rows = self._rows()
            self._columns += new
            self._rewrite(rows)
        with self._path.open("a", newline="") as target:
            cells = {name: "" if value != value else str(value) for name, value in entry.items()}
            self._writer(target).writerow(cells)

    def _rows(self) -> list[dict[str, str]]:
        with self._path.open(newline="") as source:
            return list(csv.DictReader(source))

    def _rewrite(self, rows: list[dict[str, str]]) -> None:
        with self._path.open("w", newline="") as target:
            writer = self._writer(target)
            writer.writeheader()
            writer.writerows(rows)

    def _writer(self, target: object) -> "csv.DictWriter[str]":
        return csv.DictWriter(target, self._columns, restval="", lineterminator="\n")  # type: ignore[arg-type]
