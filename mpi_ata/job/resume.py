"""The job of a run that is resumed: what may have changed in it, and what --set changed earlier."""

from collections.abc import Sequence
from pathlib import Path

from mpi_ata.errors import UsageError, prefix_errors
from mpi_ata.job.schema import Job, RunDescription, allocator_keys, job_from
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
    path: Path,
    stored: RunDescription,
    settings: Sequence[str],
    accept_changes: bool = False,
    finished: bool = False,
) -> tuple[Job, list[str], list[str]]:
    """Return the job to resume, with what --set changed then and changes now, all changes, and notes on them.

    Of a finished run, the limits that --set gave are used up: those of the job file count again.
    """
    now: ByName = {setting.name: setting for setting in map(parse_setting, settings)}
    text = read_text(path)
    with prefix_errors(f"{path}: "):
        earlier = [parse_setting(setting) for setting in stored.settings]
        earlier = [setting for setting in earlier if not (finished and setting.table == "stop")]
        latest = _still_valid(earlier, now) | now
        job = job_from(path, RunDescription(text, tuple(setting.text for setting in latest.values())))
        before, after = stored.tables, job.tables
        keys, edited = differing_keys(after, before), _edited_files(job, stored)
        written = parse_tables(text)
        in_file = differing_keys(written, parse_tables(stored.text))
        if not accept_changes:
            other = now.keys() & keys  # --set names another file on purpose
            files = [_file(after, name) for name in edited if name.partition("/")[0] not in other]
            _check_same([name for name in in_file if name not in latest], files)
    values = [f"{name}: {value_of(before, name)} -> {value_of(after, name)}" for name in keys]
    changes = [*values, *(f"{_file(after, name)}:\n{lines}" for name, lines in edited.items())]
    kept = [name for name in in_file if name in latest and name not in now]
    return job, changes, _hidden(kept, written, after)


def _hidden(names: Sequence[str], written: Tables, used: Tables) -> list[str]:
    """Return which edits of the job file have no effect, since --set gave these keys earlier."""
    values = [(name, value_of(written, name), value_of(used, name)) for name in names]
    return [
        f"{name} is still {kept}, by an earlier --set (in the file: {edited}); --set {name}=... changes it"
        for name, edited, kept in values
        if edited != kept
    ]


def _check_same(keys: Sequence[str], files: Sequence[str]) -> None:
    """Reject keys that differ and may not, and files."""
    keys = [key for key in keys if key not in FREE and not key.startswith(("stop.", "faults."))]
    if differing := ", ".join([*keys, *files]):
        raise UsageError(
            f"differs from the job of that run in {differing}; resume with these changes by "
            "--accept-changes, or start a new run with another --out"
        )


def _edited_files(job: Job, stored: RunDescription) -> dict[str, str]:
    """Return the user's files that differ in more than comments and formatting, and how.

    Workers are known by the exact text of a law's.
    """
    pairs = {name: (text, job.files[name]) for name, text in stored.files.items() if name in job.files}
    return {
        name: difference(before, after)
        for name, (before, after) in pairs.items()
        if before != after and (name.startswith("times.") or not same_code(before, after))
    }


def _file(tables: Tables, name: str) -> str:
    """Return a file of the user's in words: one that the job names, or one that this one imports."""
    key, _, imported = name.partition("/")
    named = Path(value_of(tables, key))
    return f"the file {named.parent / imported if imported else named}"


def _still_valid(earlier: Sequence[Setting], now: ByName) -> ByName:
    """Return what --set gave before, but for what is replaced now or unknown to another allocator."""
    tables = group(now.values())
    replaced = {f"{table}.{key}" for table, keys in tables.items() for key in replaced_keys(table, keys)}
    valid = {setting.name: setting for setting in earlier if setting.name not in replaced}
    if "allocator.name" not in now:
        return valid
    keys = allocator_keys(now["allocator.name"].value)
    return {name: each for name, each in valid.items() if each.table != "allocator" or each.key in keys}
