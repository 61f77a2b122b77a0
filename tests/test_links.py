"""Links lead somewhere, where the repository is hosted as on the site that `make docs` builds."""

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.pages import DOCS, PAGES, README, ROOT

FENCE = re.compile(r"(?ms)^ *```.*?^ *```")
LINK = re.compile(r"\]\((?!https?:)([^)\s#]*)(?:#([^)\s]+))?\)")


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors that hosting sites give to the headings of a page."""
    titles = re.findall(r"(?m)^#+ (.+)$", FENCE.sub("", page.read_text()))
    plain = [re.sub(r"\[(.*?)\]\(.*?\)", r"\1", title).replace("`", "").lower() for title in titles]
    names = [re.sub(r"[^\w\- ]", "", title).strip().replace(" ", "-") for title in plain]
    return {name for name, count in Counter(names).items() if count == 1}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_has_a_target(page: Path) -> None:
    for file, anchor in LINK.findall(FENCE.sub("", page.read_text())):
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"there is no {file}"
        assert not anchor or anchor in anchors(target), f"{file or page.name} has no heading {anchor}"


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, new = set[Path](), {README}
    while new:
        reached |= new
        links = {(page.parent / file).resolve() for page in new for file, _ in LINK.findall(page.read_text())}
        new = {link for link in links if link.suffix == ".md" and link.is_file()} - reached
    assert set(DOCS.rglob("*.md")) <= reached


def test_every_picture_is_shown() -> None:
    text = "".join(page.read_text() for page in PAGES)
    shown = set(re.findall(r"pictures/([\w-]+\.png)", text))
    assert {each.name for each in (DOCS / "pictures").iterdir()} == shown


def test_the_page_on_architecture_names_a_few_files_that_exist() -> None:
    named = set(re.findall(r"`([a-z_/0-9]+\.py)`", (DOCS / "architecture.md").read_text()))
    assert [file for file in named if not (ROOT / "mpi_ata" / file).is_file()] == []
    assert len(named) <= 40
