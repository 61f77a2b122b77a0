"""What the repository says about itself to other programs is valid, and true."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mpi_ata.version import __version__
from tests.packaging.bounds import ROOT, python_bound, setup_cfg

# A file, and its schema among those that come with check-jsonschema.
SCHEMAS = {
    "CITATION.cff": "citation-file-format",
    ".github/workflows/ci.yml": "github-workflows",
    ".github/ISSUE_TEMPLATE/bug.yml": "github-issue-forms",
    ".github/ISSUE_TEMPLATE/idea.yml": "github-issue-forms",
    ".github/ISSUE_TEMPLATE/config.yml": "github-issue-config",
}


def read(name: str) -> Any:
    """Return a YAML file of the repository."""
    return pytest.importorskip("yaml").safe_load((ROOT / name).read_text())


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_file_for_other_programs_is_valid(name: str) -> None:
    pytest.importorskip("check_jsonschema", reason="needs the extra 'release'; see `make dist`")
    options = ["--builtin-schema", f"vendor.{SCHEMAS[name]}", str(ROOT / name)]
    command = Path(sys.executable).with_name("check-jsonschema")
    done = subprocess.run([command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_citation_names_this_version_and_license() -> None:
    found = read("CITATION.cff")
    assert (str(found["version"]), found["license"]) == (__version__, setup_cfg()["metadata"]["license"])


def test_the_changelog_has_a_section_for_this_version() -> None:
    assert re.search(rf"(?m)^## {re.escape(__version__)}\b", (ROOT / "CHANGELOG.md").read_text())


def test_a_commit_is_checked_by_the_commands_of_make_check() -> None:
    recipe = (ROOT / "Makefile").read_text().split("\ncheck: ")[1].split("\n\n")[0]
    expected = [line.strip().replace("$(BIN)", ".venv/bin") for line in recipe.splitlines()[1:]]
    (local,) = read(".pre-commit-config.yaml")["repos"]
    assert [hook["entry"] for hook in local["hooks"]] == expected


def test_ci_runs_on_each_python_that_is_claimed() -> None:
    claimed = re.findall(r"Python :: (3\.\d+)", setup_cfg()["metadata"]["classifiers"])
    assert read(".github/workflows/ci.yml")["jobs"]["pythons"]["strategy"]["matrix"]["python"] == claimed
    assert claimed[0] == python_bound()
