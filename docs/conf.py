"""The documentation site: README.md is its home page, the pages of docs/ are the rest.

`make docs` builds it. The pages are plain Markdown without any directive, so that they can also be read where
the repository is hosted; the order of the pages is in CHAPTERS.
"""

import re
import shutil
from pathlib import Path

from sphinx.application import Sphinx

project = "mpi_ata"
extensions = ["myst_parser", "sphinx_copybutton"]
root_doc = "README"
include_patterns = ["*.md", "docs/**.md", "packaging/README.md"]
exclude_patterns = [".*", "build", "dist", "mpi_ata", "tests"]
html_theme = "furo"
html_title = "mpi_ata"
html_static_path = ["style"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
highlight_language = "none"
smartquotes = False
myst_enable_extensions = ["dollarmath", "html_image"]
myst_heading_anchors = 4  # with the names that hosting sites give to headings
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True
copybutton_exclude = ".linenos, .gp, .go, .c1"

FOLDER = Path(__file__).parent
CHAPTERS = {
    "Begin": "start is-it-for-me",
    "How to": "own-problem running methods farm sharing slurm results faults times",
    "PyTorch": "pytorch/trainer pytorch/ddp",
    "Look up": "cheat-sheet job-file api run-file troubleshooting",
    "Background": "background paper allocators theory performance architecture",
}
PROJECT = "CONTRIBUTING CHANGELOG packaging/README SECURITY"


def chapters() -> dict[str, list[str]]:
    """Return the pages of each chapter; those that none names are how-to pages."""
    named = {title: names.split() for title, names in CHAPTERS.items()}
    known = {name for names in named.values() for name in names}
    named["How to"] += sorted({page.stem for page in FOLDER.glob("*.md")} - known)
    return named


def add_contents(_app: Sphinx, docname: str, source: list[str]) -> None:
    """Give the home page the contents of the site, which the sidebar shows."""
    if docname == root_doc:
        for title, names in chapters().items():
            source[0] += contents(title, [f"/docs/{name}" for name in names])
        source[0] += contents("Project", [f"/{name}" for name in PROJECT.split()])


def contents(title: str, pages: list[str]) -> str:
    """Return a list of pages as Sphinx reads it."""
    return "\n".join(["", "```{toctree}", ":hidden:", f":caption: {title}", "", *pages, "```", ""])


def name_pages(_app: Sphinx, _docname: str, source: list[str]) -> None:
    """Let links that show the name of a file show the title of the page."""
    source[0] = re.sub(r"\[[\w-]+\.md\]\(", "[](", source[0])


def copy_home(app: Sphinx, error: Exception | None) -> None:
    """Let the site begin where browsers look first."""
    if error is None:
        shutil.copyfile(Path(app.outdir) / f"{root_doc}.html", Path(app.outdir) / "index.html")


def setup(app: Sphinx) -> None:
    """Register what happens while the site is built."""
    app.connect("source-read", add_contents)
    app.connect("source-read", name_pages)
    app.connect("build-finished", copy_home)
