"""Keep docs/job-file.md true: keys, types and defaults come from the code, meanings are written in the page.

`python -m tests.job_file` rewrites the tables; the tests check that they are up to date and complete.
"""

import inspect
import json
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, NamedTuple

from mpi_ata.clusters import FaultPolicy
from mpi_ata.clusters.network import Network
from mpi_ata.job.component import ALLOCATORS, LAWS, METHODS, PROBLEMS, UPDATES, type_in_words
from mpi_ata.job.schema import RunTable, Stop, TimesTable
from mpi_ata.times.drawn import Change

PAGE = Path(__file__).parent.parent / "docs" / "job-file.md"
BLOCK = re.compile(r"(<!-- keys: (\S+) -->\n)((?:\|.*\n)*)(<!-- end -->)")
GIVEN = {"x0", "n", "seed", "allocator", "update", "means", "combine"}  # parameters that are no keys
INTERNAL = {"law", "changes", "content", "owned"}  # fields that are no keys, or are listed below


class Key(NamedTuple):
    """A key of a job file, for those names of its table that have it with this default."""

    name: str
    used_with: str
    type: str
    default: str


# Keys that choose a class, or stand for other tables: no constructor has a parameter for them.  The page says
# once what `file` and `class` mean in every table.
BY_NAME = [Key("name", "", "a string", "required, or `file` and `class`")]
CHOSEN: Mapping[str, list[Key]] = {
    "problem": BY_NAME,
    "method": [
        *BY_NAME,
        Key("update", "", "a string", '`"plain"`'),
    ],
    "allocator": BY_NAME,
    "times": [
        Key("law", "", "a string", "required, or `file` and `class`"),
        Key("run", "`recorded`", "a string", "this or `file` is required"),
        Key("file", "`recorded`", "a string", "this or `run` is required"),
        Key("changes", "", "tables", "none"),
    ],
}
NAMES = {
    "problem": {"": PROBLEMS},
    "method": {"": METHODS, "every update": UPDATES},
    "allocator": {"every name": ALLOCATORS},
    "times": {"": LAWS},
}
PLAIN = {
    "times": TimesTable,
    "times.changes": Change,
    "stop": Stop,
    "run": RunTable,
    "faults": FaultPolicy,
    "network": Network,
}


def keys_of(table: str) -> list[Key]:
    """Return all keys of a table, as the code has them."""
    found = [*CHOSEN.get(table, ())]
    if table in PLAIN:
        found += plain_keys(PLAIN[table])
    for everyone, names in NAMES.get(table, {}).items():
        found += named_keys(names, everyone)
    return found


def plain_keys(cls: type[Any]) -> Iterator[Key]:
    """Yield the keys of a table that is a dataclass."""
    hints = typing.get_type_hints(cls)
    for field in fields(cls):
        if field.name not in INTERNAL:
            yield Key(field.name, "", typed(hints[field.name]), default_text(field.default, MISSING))


def named_keys(names: Mapping[str, Callable[..., Any]], everyone: str) -> Iterator[Key]:
    """Yield the keys of the classes that a table can name, with the names that share each."""
    users: dict[tuple[str, str, str], list[str]] = {}
    for name, cls in names.items():
        for key, parameter in inspect.signature(cls, eval_str=True).parameters.items():
            if key not in GIVEN:
                default = default_text(parameter.default, parameter.empty)
                users.setdefault((key, typed(parameter.annotation), default), []).append(f"`{name}`")
    for (key, kind, default), shared in users.items():
        yield Key(key, everyone if len(shared) == len(names) else ", ".join(shared), kind, default)


def typed(annotation: Any) -> str:
    """Return a type as error messages name it."""
    return type_in_words(annotation)


def default_text(value: Any, missing: Any) -> str:
    """Return a default as a job file writes it."""
    if value is missing:
        return "required"
    return "none" if value is None else f"`{json.dumps(value)}`"


def rewritten(block: re.Match[str]) -> str:
    """Return the table of a block with the keys of the code and the meanings that the page has for them."""
    keys, meanings = keys_of(block[2]), meanings_in(block[3])
    several = any(key.used_with for key in keys)
    header = ["key", *(["with"] if several else []), "default, or type", "meaning"]
    lines = [header]
    for key in keys:
        users, meaning = [key.used_with] if several else [], meanings.get((key.name, key.used_with), "")
        lines.append([f"`{key.name}`", *users, default_or_type(key), meaning])
    rows = [f"| {' | '.join(line)} |\n" for line in lines]
    return block[1] + "".join([rows[0], "|---" * len(header) + "|\n", *rows[1:]]) + block[4]


def default_or_type(key: Key) -> str:
    """Return the default, which shows the type too, or else the type and whether the key is required."""
    if key.default.startswith("`"):
        return key.default
    return key.type if key.default == "none" else f"{key.type}, {key.default}"


def meanings_in(table: str) -> dict[tuple[str, str], str]:
    """Return the meanings in a table of the page, by key and what it is used with."""
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[2:]]
    return {(row[0].strip("` "), row[1] if len(row) == 4 else ""): row[-1] for row in rows}


if __name__ == "__main__":
    PAGE.write_text(BLOCK.sub(rewritten, PAGE.read_text()))
