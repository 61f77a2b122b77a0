"""The commands of docs/pytorch/trainer.md work as printed, on real ranks."""

from pathlib import Path

import pytest

from tests.pages import DOCS, agrees, run_here, walk

pytest.importorskip("torch", reason="PyTorch is not installed: `make torch`")


def test_the_page_works_as_printed(tmp_path: Path) -> None:
    for block, printed in walk(DOCS / "pytorch" / "trainer.md", tmp_path, run_here):
        assert agrees(block, printed), f"{block.commands}: {printed}"
