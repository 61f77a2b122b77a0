"""Marks that tests of several packages share."""

from collections.abc import Iterator
from typing import Any

import pytest


def slow(*values: Any) -> Iterator[Any]:
    """Return the values of a parameter that only `make slow` runs."""
    return (pytest.param(value, marks=pytest.mark.slow) for value in values)
