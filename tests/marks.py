"""Marks that tests of several packages share."""

from collections.abc import Iterator
from typing import Any

import pytest


def slow(*values: Any) -> Iterator[Any]:
    """Return the values of a parameter, or tuples of those of several, that only `make slow` runs."""
    rows = (value if isinstance(value, tuple) else (value,) for value in values)
    return (pytest.param(*row, marks=pytest.mark.slow) for row in rows)
