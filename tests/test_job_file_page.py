"""docs/job-file.md lists every key of a job file, with its type and default, and nothing else."""

import re

import pytest

from mpi_ata.job.schema import TABLES
from tests.job_file import BLOCK, NAMES, PAGE, meanings_in, rewritten

BLOCKS = list(BLOCK.finditer(PAGE.read_text()))


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block[2])
def test_a_table_has_the_keys_types_and_defaults_of_the_code(block: re.Match[str]) -> None:
    assert rewritten(block) == block[0], "python -m tests.job_file rewrites it"


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block[2])
def test_every_key_has_a_meaning(block: re.Match[str]) -> None:
    assert [key for key, meaning in meanings_in(block[3]).items() if not meaning] == []


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block[2])
def test_every_name_that_a_table_can_choose_is_listed(block: re.Match[str]) -> None:
    for names in NAMES.get(block[2], {}).values():
        assert [name for name in names if f"`{name}`" not in block[3]] == []


def test_every_table_of_a_job_has_a_section() -> None:
    assert [block[2] for block in BLOCKS if "." not in block[2]] == list(TABLES)
