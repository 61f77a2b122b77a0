"""Mutated job files, in simulation: each ends soon, without a traceback, with a result or one sentence."""

import json
import shutil
import signal
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import pytest
from click.testing import Result

from tests.cli.commands import call
from tests.marks import slow

JOBS = Path(__file__).parent.parent.parent / "jobs"
CASES = (15, *slow(40))  # per shipped job
LIMIT = 5.0  # seconds for a case; those that are valid stop after a fraction of one
SHORT = ["--set", "stop.elapsed=0.1"]

NUMBERS = [0, 1, 2, 3, 5, 7, -1, -(10**18), 10**12, 10**18, 2**63 - 1, 2**63, 2**64, 10**30, 10**5000]
INF = float("inf")
FLOATS = [0.0, -0.0, 0.5, 0.01, 1.0, 2.5, -1.5, 1e-320, 1e18, 1e300, INF, -INF, float("nan")]
TEXTS = ["", "x", "Ünï", "名前", "\0", "a\nb", "../..", "nan", "1", "quadratic", "sgd", "gta", "a" * 1000]
NESTED = [[], [1], [[]], [-1, 10**18], ["x"], [0.5, None], {}, {"a": 1}, {"": {"": []}}, True, False]
VALUES: list[Any] = [*NUMBERS, *FLOATS, *TEXTS, *NESTED]
KEYS = ["", "name", "file", "class", "budget", "changes", "S", "delay", "seed", "größe", "a.b", "__class__"]

Tables = dict[str, Any]


def toml(value: Any) -> str:
    """Return a value as TOML; None is a word that is not valid there."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml(key)} = {toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, str | bool | None):
        return json.dumps(value, ensure_ascii=False)
    return hex(value) if isinstance(value, int) and value > 2**64 else repr(value)


def written(tables: Tables) -> str:
    """Return tables as the text of a job file."""
    lines = []
    for name, table in tables.items():
        if isinstance(table, dict):
            lines += [f"[{toml(name)}]", *(f"{toml(key)} = {toml(value)}" for key, value in table.items())]
        else:
            lines.insert(0, f"{toml(name)} = {toml(table)}")
    return "\n".join(lines)


def any_table(rng: Random, tables: Tables) -> Tables:
    """Return one of the tables that a mutation may still change."""
    return rng.choice([table for table in tables.values() if isinstance(table, dict) and table] or [{"": 0}])


def change_value(rng: Random, table: Tables, tables: Tables) -> None:
    table[rng.choice(sorted(table))] = rng.choice(VALUES)


def change_magnitude(rng: Random, table: Tables, tables: Tables) -> None:
    """Put a number in the place of a number: what looks harmless."""
    numeric = [(t, key) for t in tables.values() for key in t if isinstance(t[key], int | float)]
    table, key = rng.choice(numeric)
    table[key] = rng.choice(NUMBERS if isinstance(table[key], int) else FLOATS)


def add_key(rng: Random, table: Tables, tables: Tables) -> None:
    table[rng.choice(KEYS)] = rng.choice(VALUES)


def drop_key(rng: Random, table: Tables, tables: Tables) -> None:
    del table[rng.choice(sorted(table))]


def empty_table(rng: Random, table: Tables, tables: Tables) -> None:
    table.clear()


def replace_table(rng: Random, table: Tables, tables: Tables) -> None:
    tables[rng.choice([*tables, "", "extra", "allocator"])] = rng.choice(VALUES)


def swap_tables(rng: Random, table: Tables, tables: Tables) -> None:
    one, other = rng.sample(sorted(tables), 2)
    tables[one], tables[other] = tables[other], tables[one]


ONCE = [drop_key, empty_table, replace_table, swap_tables]
MUTATIONS = [*[change_magnitude] * 8, *[change_value] * 3, *[add_key] * 2, *ONCE]


def garbled(rng: Random, text: str) -> str:
    """Return a text with a piece cut out, doubled, or overwritten with characters from anywhere."""
    begin = rng.randrange(len(text))
    end = begin + rng.randrange(1, 20)
    odd = "".join(chr(rng.choice([0, 34, 39, 61, 91, 93, 123, 233, 0x202E, 0x1F600])) for _ in range(4))
    return text[:begin] + rng.choice(["", text[begin:end] * 2, odd]) + text[end:]


def mutated(rng: Random, job: Path) -> str:
    """Return a job made small, with one to three mutations."""
    tables = tomllib.loads(job.read_text())
    tables["stop"]["rounds"], tables["run"]["workers"] = 3, 4
    if rng.random() < 0.1:
        return garbled(rng, written(tables))
    for mutation in rng.choices(MUTATIONS, k=rng.choice([1, 1, 1, 2, 3])):
        try:
            mutation(rng, any_table(rng, tables), tables)
        except (IndexError, KeyError, TypeError, ValueError, AttributeError):
            continue  # an earlier mutation left nothing for this one
    return written(tables)


@contextmanager
def time_limit(seconds: float, text: str) -> Iterator[None]:
    """Fail where a case hangs, wherever it does."""

    def expire(number: int, frame: FrameType | None) -> None:
        pytest.fail(f"still running after {seconds} s:\n{text}")  # not an Exception: nobody catches it

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def check(result: Result, text: str) -> None:
    """Let a case end with a result, or with one sentence and an exit code that says whose fault it is."""
    said = f"exit code {result.exit_code}\n{result.stderr}\n{text}"
    assert isinstance(result.exception, SystemExit | None), f"{result.exception!r}\n{said}"
    assert "Traceback" not in result.stderr, said
    errors = [line for line in result.stderr.splitlines() if not line.startswith("Note: ")]
    if result.exit_code == 0:
        assert not errors, said
        return
    assert result.exit_code in (1, 2), said
    assert errors[0].startswith("Error: "), said
    assert len(errors) <= 3 - result.exit_code, said  # a failed run says what is left of it in a second line


@pytest.mark.parametrize("cases", CASES)
@pytest.mark.parametrize("name", sorted(job.name for job in JOBS.glob("*.toml")))
def test_mutated_jobs_end_soon_with_a_result_or_one_sentence(name: str, cases: int, tmp_path: Path) -> None:
    for script in JOBS.glob("*.py"):
        shutil.copy(script, tmp_path)
    rng, job = Random(name), tmp_path / "job.toml"  # noqa: S311  (nothing here is secret)
    for _ in range(cases):
        text = mutated(rng, JOBS / name)
        job.write_text(text)
        with time_limit(LIMIT, text):
            result = call("run", str(job), "--virtual", *SHORT)
        check(result, text)
