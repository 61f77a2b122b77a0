"""A job file as plain tables: its TOML text, and what --set changes in it."""

import ast
import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from difflib import unified_diff
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from mpi_ata.errors import UsageError, command_line, one_line
from mpi_ata.job.user_code import imported_texts

Table = dict[str, Any]
Tables = dict[str, Table]

HDF5 = b"\x89HDF\r\n"  # how such files begin, those of runs after some lines of text
_FILE_KEYS = ("file", "update_file")
_REPLACES = {
    "name": ("file", "class"),
    "file": ("name",),
    "update": ("update_file", "update_class"),
    "update_file": ("update",),
}
_REPLACES_IN_TIMES = {
    "law": ("file", "class", "run"),
    "class": ("law", "run"),
    "file": ("run",),
    "run": ("file", "class"),
}


class Setting(NamedTuple):
    """One --set of the command line."""

    table: str
    key: str
    value: Any
    text: str  # as it was given

    @property
    def name(self) -> str:
        """Return the key as table.key."""
        return f"{self.table}.{self.key}"


def parse_setting(text: str, option: str = "--set") -> Setting:
    """Split table.key=value; the value is read as in a job file, a bare word as a string."""
    name, equals, right = text.partition("=")
    table, dot, key = (part.strip() for part in name.partition("."))
    if not (equals and dot and table and key):
        raise UsageError(f"{option} {text!r} is not table.key=value, as in {option} allocator.budget=23")
    try:
        values = tomllib.loads(f"value = {right}")
    except (ValueError, RecursionError):
        values = {}
    return Setting(table, key, values["value"] if list(values) == ["value"] else right, text)


def read_text(path: Path) -> str:
    """Return the text of a job file."""
    try:
        content = path.read_bytes()
        return content.decode("utf-8-sig")  # some editors begin a file with a mark
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        if HDF5 in content[:1024]:
            show = command_line("mpi-ata", "show", path)
            raise UsageError(f"{path}: is an HDF5 file; name a job file, or use {show}") from None
        raise UsageError(f"{path}: is not valid TOML: it is not text in UTF-8; save it as such") from None


def parse_tables(text: str) -> Tables:
    """Return the tables of a job file."""
    try:
        tables = tomllib.loads(text)
    except RecursionError:
        raise UsageError("is not valid TOML: its values are nested too deeply") from None
    except ValueError as error:  # also one of Python's own, where a number has thousands of digits
        quotes = "; texts need quotes" if "Invalid value" in str(error) else ""
        raise UsageError(f"is not valid TOML: {one_line(error)}{quotes}") from None
    for name, table in tables.items():
        if isinstance(table, list) and all(isinstance(each, dict) for each in table):
            raise UsageError(f"[[{name}]] is a list of tables; write [{name}]")
        if not isinstance(table, dict):
            raise UsageError(f"{name!r} is outside of any table; put it under [run] or another table")
    return tables


def group(settings: Iterable[Setting]) -> Tables:
    """Return settings as the tables of a job; the last one for a key counts."""
    tables = Tables()
    for setting in settings:
        tables.setdefault(setting.table, {})[setting.key] = setting.value
    return tables


def override(tables: Tables, changes: Tables) -> Tables:
    """Return tables with the values that --set gives."""
    tables = dict(tables)
    for name, keys in changes.items():
        replaced = replaced_keys(name, keys)
        kept = {key: value for key, value in tables.get(name, {}).items() if key not in replaced}
        tables[name] = kept | keys
    return tables


def replaced_keys(table: str, keys: Mapping[str, Any]) -> set[str]:
    """Return the other keys of a table that choose the same thing: `name`, or `file` and `class`."""
    replaces = _REPLACES_IN_TIMES if table == "times" else _REPLACES
    return {other for key in keys for other in replaces.get(key, ()) if other not in keys}


def differing_keys(tables: Tables, others: Tables) -> list[str]:
    """Return the keys in which two jobs differ, as table.key."""
    names = {f"{table}.{key}": None for both in (tables, others) for table in both for key in both[table]}
    return [name for name in names if value_of(tables, name) != value_of(others, name)]


def value_of(tables: Tables, name: str) -> Any:
    """Return the value of table.key."""
    table, _, key = name.partition(".")
    return tables.get(table, {}).get(key, "not given")


def user_files(tables: Tables) -> dict[str, str]:
    """Return the users' files that a job names, as it writes them, by table.key."""
    keys = [(name, key) for name in tables for key in _FILE_KEYS if key in tables[name]]
    keys += [("times", "run")] if "run" in tables.get("times", {}) else []
    return {f"{name}.{key}": tables[name][key] for name, key in keys}


def read_user_files(folder: Path, tables: Tables) -> dict[str, str]:
    """Return the text of the users' files that a job names, or the checksum of data, by table.key.

    The files that these import from beside them follow, as table.key/path.
    """
    named = user_files(tables)
    texts = {name: _read_user_file(name, folder, file) for name, file in named.items()}
    imported = [imported_texts(name, folder / file) for name, file in named.items()]
    return texts | {name: text for found in imported for name, text in found.items()}


def _read_user_file(name: str, folder: Path, file: Any) -> str:
    table, _, key = name.partition(".")
    path = folder / str(file)
    if not os.path.isfile(path):  # which takes a name that is too long for one that is not there
        raise UsageError(f"[{table}] {key} = {str(path)!r} is not a file; paths are relative to the job file")
    try:
        code = path.suffix == ".py"  # other files are data, which may be large
        return path.read_text() if code else f"sha256 {sha256(path.read_bytes()).hexdigest()}"
    except (OSError, ValueError) as error:
        raise UsageError(f"[{table}] {path} cannot be read: {error}") from None


def to_toml(tables: Tables) -> str:
    """Return tables of numbers, strings, lists and tables as TOML."""
    lines = [
        [f"[{name}]", *(f"{_key(key)} = {_value(value)}" for key, value in table.items())]
        for name, table in tables.items()
    ]
    return "\n\n".join("\n".join(table) for table in lines) + "\n"


def _key(name: str) -> str:
    """Return a key, in quotes unless TOML takes it without."""
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else _value(name)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_key(key)} = {_value(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # as strict as JSON otherwise


MAX_LINES, MAX_CHARACTERS = 40, 900  # of a difference: an event of a run file is not much longer


def same_code(before: str, after: str) -> bool:
    """Return whether two texts differ at most in comments, blank lines and formatting."""
    if before == after:
        return True
    try:
        return ast.dump(ast.parse(before)) == ast.dump(ast.parse(after))
    except (SyntaxError, ValueError, RecursionError):  # data, or not Python at all
        return False


def difference(before: str, after: str) -> str:
    """Return the lines that differ, as a unified diff without its header, cut to a readable size."""
    lines = list(unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=1))[2:]
    lengths = accumulate(len(line) + 1 for line in lines[:MAX_LINES])
    kept = sum(length <= MAX_CHARACTERS for length in lengths)
    left = [f"... and {len(lines) - kept:,} more lines"] if kept < len(lines) else []
    return "\n".join([*lines[:kept], *left])


def split_values(text: str) -> list[str]:
    """Split at commas, but not inside brackets or quotes."""
    values = re.findall(r"""(?:\[[^\]]*\]|"[^"]*"|'[^']*'|[^,\["'])+""", text)
    values = [value.strip() for value in values]
    if not values or not all(values):
        raise UsageError(f"--array has no values in {text!r}; write --array allocator.budget=8,16,32")
    return values
