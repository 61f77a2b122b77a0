"""Edits of a user's file between two parts of a run."""

import pytest

from mpi_ata.job.tables import difference, same_code

CODE = "class A:\n    def f(self, x):\n        return x + 1\n"


SAME = [CODE + "\n\n# a\n", CODE.replace("x + 1", "(x  +  1)  # b"), CODE.replace("\n    def", "\n\n    def")]
OTHERS = [CODE.replace("1", "2"), CODE + "b = 1\n", CODE + "b = (\n", "sha256 ab"]


@pytest.mark.parametrize("other", [*SAME, *OTHERS])
def test_comments_blank_lines_and_formatting_are_no_change_but_all_else_is(other: str) -> None:
    assert same_code(CODE, other) == (other in SAME)


def test_a_difference_shows_the_lines_that_differ() -> None:
    text = "@@ -2,2 +2,2 @@\n     def f(self, x):\n-        return x + 1\n+        return x + 2"
    assert difference(CODE, CODE.replace("1", "2")) == text


def test_a_long_difference_is_cut_and_says_how_much_is_left() -> None:
    before, after = ("\n".join(f"{word} = {j}" for j in range(1000)) for word in ("a", "b"))
    text = difference(before, after)
    assert len(text) <= 1000
    assert text.endswith(f"... and {2001 - 40:,} more lines")
