"""The command that writes a job to start from."""

from importlib.resources import files
from pathlib import Path

import click

from mpi_ata.cli.options import show
from mpi_ata.errors import UsageError, command_line
from mpi_ata.view.text import aligned

TEMPLATES = {".toml": "job.toml", ".py": "problem.txt"}  # by the ending of the file that is written


@click.command(name="new")
@click.argument("name", type=click.Path(path_type=Path))
def new_command(name: Path) -> None:
    """Write a commented job and problem file to start from.

    Writes NAME.toml and NAME.py, a problem that really computes. Existing files are never overwritten.

    \b
    Examples:
      mpi-ata new my_job
      mpi-ata run my_job.toml
    """
    job, problem = write_job(name.with_suffix("") if name.suffix in TEMPLATES else name)
    rows = [
        ("wrote", f"{job} and {problem}"),
        ("run it", command_line("mpi-ata", "run", job)),
        ("then", f"replace x0, gradient(x, task) and loss(x) in {problem} with your own"),
        ("compare", command_line("mpi-ata", "compare", job)),
        ("all keys", "docs/job-file.md"),
    ]
    show(aligned(rows))


def check_name(name: Path) -> None:
    """Reject a name that is none of a file, or that the files cannot have in their texts."""
    if name.name in ("", ".."):
        raise UsageError(
            f"{str(name)!r} is a folder; add the name of the job, as in {str(name / 'my_job')!r}"
        )
    if not name.name.isprintable() or set(name.name) & set('"\\'):
        rule = "must not contain double quotes, backslashes or control characters"
        raise UsageError(f"the name {name.name!r} {rule}; choose another name")


def write_job(name: Path) -> list[Path]:
    """Write the job file and the problem file, and return their paths."""
    check_name(name)
    paths = [name.with_name(f"{name.name}{suffix}") for suffix in TEMPLATES]
    for path in paths:
        if path.exists():
            raise UsageError(f"{path}: exists, and is not overwritten; choose another name")
    try:
        name.parent.mkdir(parents=True, exist_ok=True)
        for path, template in zip(paths, TEMPLATES.values(), strict=True):
            text = (files("mpi_ata.cli") / "templates" / template).read_text()
            with path.open("x") as file:
                file.write(text.replace("NAME", name.name))
    except OSError as error:
        raise UsageError(
            f"{error.filename}: cannot be written: {error.strerror}; choose another name"
        ) from None
    return paths
