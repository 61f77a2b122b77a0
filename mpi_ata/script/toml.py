"""Tables as the text of a job file."""

import json
import re
from collections.abc import Iterator
from typing import Any

from mpi_ata.job.tables import Table, Tables


def to_toml(tables: Tables) -> str:
    """Return tables of numbers, strings and lists as TOML."""
    return "\n\n".join("\n".join(_lines(name, table)) for name, table in tables.items()) + "\n"


def _lines(name: str, table: Table) -> Iterator[str]:
    yield f"[{name}]"
    yield from (f"{_key(key)} = {_value(value)}" for key, value in table.items())


def _key(name: str) -> str:
    """Return a key, in quotes unless TOML takes it without."""
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else _value(name)


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # as strict as JSON otherwise
