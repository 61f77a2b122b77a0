"""Tables of a run as Python's own types, which pandas can take over."""

from typing import Any

from mpi_ata.arrays import Array
from mpi_ata.errors import UsageError


class Columns(dict[str, Array]):
    """One array per column, by name."""

    def to_pandas(self) -> Any:
        """Return the columns as a pandas.DataFrame."""
        return _frame(dict(self))


class Rows(list[dict[str, Any]]):
    """One dict per row."""

    def to_pandas(self) -> Any:
        """Return the rows as a pandas.DataFrame."""
        return _frame(list(self))


def _frame(table: object) -> Any:
    try:
        import pandas
    except ImportError:
        raise UsageError("to_pandas() needs pandas, which is not installed; use pip install pandas") from None
    return pandas.DataFrame(table)
