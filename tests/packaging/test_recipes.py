"""What the repository tells other programs is valid, and names the version and needs of the project."""

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mpi_ata.version import __version__
from tests.packaging.bounds import ROOT, python_bound, requirements, setup_cfg

CONDA = ROOT / "packaging" / "conda" / "recipe.yaml"
SPACK = ROOT / "packaging" / "spack" / "package.py"
APPTAINER = ROOT / "packaging" / "apptainer" / "mpi-ata.def"
# A file, and its schema among those that come with check-jsonschema.
SCHEMAS = {
    "CITATION.cff": "citation-file-format",
    ".github/workflows/ci.yml": "github-workflows",
    ".github/ISSUE_TEMPLATE/bug.yml": "github-issue-forms",
    ".github/ISSUE_TEMPLATE/idea.yml": "github-issue-forms",
    ".github/ISSUE_TEMPLATE/config.yml": "github-issue-config",
}


def read(path: Path) -> Any:
    """Return what is in a YAML file."""
    return pytest.importorskip("yaml").safe_load(path.read_text())


def directives(name: str) -> list[ast.Call]:
    """Return the calls of a Spack directive in the package's class."""
    calls = [node for node in ast.walk(ast.parse(SPACK.read_text())) if isinstance(node, ast.Call)]
    return [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == name]


def spack_bounds(when: str = "") -> dict[str, str]:
    """Return the dependencies of the Spack package under a condition, by the names of the package index."""
    found = {}
    for call in directives("depends_on"):
        options = {option.arg: ast.literal_eval(option.value) for option in call.keywords}
        if options.get("when", "") == when and "run" in options["type"]:
            name, bound = ast.literal_eval(call.args[0]).removesuffix(":").split("@")
            found[name.removeprefix("py-")] = bound
    return found


def test_conda_names_the_version_and_dependencies_of_the_project() -> None:
    found = read(CONDA)
    assert found["context"] == {"version": __version__, "python_min": python_bound()}
    python, *others = found["requirements"]["run"]
    assert python == "python >=${{ python_min }}"
    assert dict(line.split(" >=") for line in others) == requirements()
    assert build_bound() in [line.replace(" ", "") for line in found["requirements"]["host"]]
    assert found["about"]["summary"] == setup_cfg()["metadata"]["description"]
    scripts = setup_cfg()["options.entry_points"]["console_scripts"].split("\n")
    assert found["build"]["python"]["entry_points"] == [line for line in scripts if line]


def test_rattler_build_renders_the_recipe() -> None:
    library = pytest.importorskip("rattler_build", reason="needs the extra 'release'; see `make dist`")
    rendered = library.Stage0Recipe.from_yaml(CONDA.read_text()).render(library.VariantConfig())
    (found,) = [variant.recipe.to_dict() for variant in rendered]
    assert found["package"] == {"name": "mpi-ata", "version": __version__}
    assert f"python {python_bound()}.*" in found["requirements"]["host"]


def build_bound() -> str:
    """Return what pyproject.toml needs for a build."""
    (found,) = re.findall(r'(?m)^requires = \["(.*)"\]$', (ROOT / "pyproject.toml").read_text())
    return str(found)


def test_spack_names_the_version_and_dependencies_of_the_project() -> None:
    assert [ast.literal_eval(call.args[0]) for call in directives("version")] == [__version__]
    assert spack_bounds() == {"python": python_bound(), **requirements()}
    setuptools = f"py-{build_bound().replace('>=', '@')}:"
    assert setuptools in [ast.literal_eval(call.args[0]) for call in directives("depends_on")]


def test_each_variant_of_spack_is_an_extra_of_the_project() -> None:
    variants = [ast.literal_eval(call.args[0]) for call in directives("variant")]
    assert variants
    for variant in variants:
        assert spack_bounds(f"+{variant}") == requirements(variant)


def test_spack_finds_the_class_by_the_name_of_the_package() -> None:
    (package,) = [node for node in ast.parse(SPACK.read_text()).body if isinstance(node, ast.ClassDef)]
    assert package.name == "PyMpiAta"  # of py-mpi-ata
    assert ast.get_docstring(package) == setup_cfg()["metadata"]["description"] + "."


@pytest.mark.parametrize("path", [APPTAINER, SPACK], ids=lambda path: path.name)
def test_files_of_the_distribution_have_its_version(path: Path) -> None:
    assert set(re.findall(r"mpi_ata-([0-9.]+[0-9])", path.read_text())) == {__version__}


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_file_for_other_programs_is_valid(name: str) -> None:
    pytest.importorskip("check_jsonschema", reason="needs the extra 'release'; see `make dist`")
    options = ["--builtin-schema", f"vendor.{SCHEMAS[name]}", str(ROOT / name)]
    command = Path(sys.executable).with_name("check-jsonschema")
    done = subprocess.run([command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_citation_names_this_version_and_license() -> None:
    found = read(ROOT / "CITATION.cff")
    assert (str(found["version"]), found["license"]) == (__version__, setup_cfg()["metadata"]["license"])


def test_the_changelog_has_a_section_for_this_version() -> None:
    assert re.search(rf"(?m)^## {re.escape(__version__)}\b", (ROOT / "CHANGELOG.md").read_text())


def test_a_commit_is_checked_by_the_commands_of_make_check() -> None:
    recipe = (ROOT / "Makefile").read_text().split("\ncheck: ")[1].split("\n\n")[0]
    expected = [line.strip().replace("$(BIN)", ".venv/bin") for line in recipe.splitlines()[1:]]
    (local,) = read(ROOT / ".pre-commit-config.yaml")["repos"]
    assert [hook["entry"] for hook in local["hooks"]] == expected


def test_ci_runs_on_each_python_that_is_claimed() -> None:
    claimed = re.findall(r"Python :: (3\.\d+)", setup_cfg()["metadata"]["classifiers"])
    assert (
        read(ROOT / ".github/workflows/ci.yml")["jobs"]["pythons"]["strategy"]["matrix"]["python"] == claimed
    )
    assert claimed[0] == python_bound()
