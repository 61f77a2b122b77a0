"""What the pages print works as printed, on a fresh clone."""

from pathlib import Path

import pytest

from tests.pages import DOCS, README, ROOT, agrees, run_here, walk

WALKED = [
    README,
    DOCS / "start.md",
    DOCS / "running.md",
    DOCS / "own-problem.md",
    DOCS / "farm.md",
]


@pytest.mark.slow
@pytest.mark.parametrize("page", WALKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_works_as_printed(page: Path, tmp_path: Path) -> None:
    for block, printed in walk(page, tmp_path, run_here):
        assert agrees(block, printed), f"{block.commands}: {printed}"
