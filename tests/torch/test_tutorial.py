"""The tutorial docs/tutorials/pytorch.md works as printed, on real ranks."""

from pathlib import Path

import pytest

from tests.pages import DOCS, agrees, run_here, walk

pytest.importorskip("torch", reason="PyTorch is not installed: `make torch`")


def test_the_tutorial_works_as_printed(tmp_path: Path) -> None:
    for block, printed in walk(DOCS / "tutorials" / "pytorch.md", tmp_path, run_here):
        assert agrees(block, printed), f"{block.commands}: {printed}"
