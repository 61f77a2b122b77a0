"""The job of a run that is resumed: what may have changed in it, and what --set changed earlier."""

from collections.abc import Sequence
from pathlib import Path

from mpi_ata.errors import UsageError
from mpi_ata.job.schema import Job, RunDescription, exchanged, job_from, prefix_errors
from mpi_ata.job.tables import (
    Setting,
    Tables,
    difference,
    differing_keys,
    group,
    parse_setting,
    parse_tables,
    read_text,
    replaced_keys,
    same_code,
    value_of,
)

# Keys that may differ between a run and its resumption: they change nothing in what it computes.
SAVING = ("checkpoint_rounds", "checkpoint_seconds", "grace")
FREE = {f"run.{key}" for key in ("workers", "evaluate_every", *SAVING, "log", "exchange", "replicated")}

ByName = dict[str, Setting]


def resume_job(
    path: Path, stored: RunDescription, settings: Sequence[str], accept_changes: bool = False
) -> tuple[Job, list[str]]:
    """Return the job of a run to resume, with what --set changed then and changes now, and all changes."""
    now: ByName = {setting.name: setting for setting in map(parse_setting, settings)}
    earlier = [parse_setting(text) for text in stored.settings]
    text = read_text(path)
    with prefix_errors(path):
        latest = _still_valid(earlier, now) | now
        file_now, file_then = parse_tables(text), parse_tables(stored.text)
        job = job_from(path, RunDescription(text, tuple(setting.text for setting in latest.values())))
        before, after = stored.tables, job.tables
        edited = _edited_files(job, stored)
        if not accept_changes:
            other = now.keys() & differing_keys(after, before)  # --set names another file on purpose
            unnamed = [_file(after, name) for name in edited if name.partition("/")[0] not in other]
            _check_same([*_edited_keys(file_now, file_then, latest), *unnamed])
    keys = [
        f"{name}: {value_of(before, name)} -> {value_of(after, name)}"
        for name in differing_keys(after, before)
    ]
    files = [f"{_file(after, name)}:\n{text}" for name, text in edited.items()]
    return job, [*keys, *files]


def _edited_keys(now: Tables, then: Tables, latest: ByName) -> list[str]:
    """Return the keys that differ in the file itself, and may not."""
    return [
        name
        for name in differing_keys(now, then)
        if name not in FREE and name not in latest and not name.startswith(("stop.", "faults."))
    ]


def _edited_files(job: Job, stored: RunDescription) -> dict[str, str]:
    """Return the user's files that differ in more than comments and formatting, and how."""
    files = job.files
    return {
        name: difference(text, files[name])
        for name, text in stored.files.items()
        if name in files and not _same(name, text, files[name])
    }


def _file(tables: Tables, name: str) -> str:
    """Return a file of the user's in words: one that the job names, or one that this one imports."""
    key, _, imported = name.partition("/")
    named = Path(value_of(tables, key))
    return f"the file {named.parent / imported if imported else named}"


def _same(name: str, before: str, after: str) -> bool:
    """Return whether a user's file is the same; workers are known by the exact text of a law's."""
    return before == after if name.startswith("times.") else same_code(before, after)


def _check_same(differing: Sequence[str]) -> None:
    if differing:
        raise UsageError(
            f"differs from the job of that run in {', '.join(differing)}; resume with these changes by "
            "--accept-changes, or start a new run with another --out"
        )


def _still_valid(earlier: Sequence[Setting], now: ByName) -> ByName:
    """Return what --set gave before, but for what is replaced now or unknown to another allocator."""
    tables = group(now.values())
    replaced = {f"{table}.{key}" for table, keys in tables.items() for key in replaced_keys(table, keys)}
    valid = {setting.name: setting for setting in earlier if setting.name not in replaced}
    if "allocator.name" not in now:
        return valid
    other = exchanged(now["allocator.name"].value, {})
    return {
        name: setting
        for name, setting in valid.items()
        if setting.table != "allocator" or other.accepts(setting.key)
    }
