"""Edits of a user's file between two parts of a run."""

import pytest

from mpi_ata.job.tables import difference, same_code

CODE = "class A:\n    def f(self, x):\n        return x + 1\n"


@pytest.mark.parametrize(
    "other",
    [
        CODE + "\n\n# an afterthought\n",
        CODE.replace("x + 1", "(x  +  1)  # one more"),
        CODE.replace("\n    def", "\n\n    def"),
    ],
)
def test_comments_blank_lines_and_formatting_are_no_change(other: str) -> None:
    assert same_code(CODE, other)


@pytest.mark.parametrize("other", [CODE.replace("1", "2"), CODE + "b = 1\n", CODE + "b = (\n", "sha256 ab"])
def test_another_number_statement_or_mistake_is_a_change(other: str) -> None:
    assert not same_code(CODE, other)


def test_a_difference_shows_the_lines_that_differ() -> None:
    text = "@@ -2,2 +2,2 @@\n     def f(self, x):\n-        return x + 1\n+        return x + 2"
    assert difference(CODE, CODE.replace("1", "2")) == text


def test_a_long_difference_is_cut_and_says_how_much_is_left() -> None:
    before, after = ("\n".join(f"{word} = {j}" for j in range(1000)) for word in ("a", "b"))
    text = difference(before, after)
    assert len(text) <= 1000
    assert text.endswith(f"... and {2001 - 40:,} more lines")
