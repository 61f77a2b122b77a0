"""Where a run of a script is recorded, and what it starts from."""

from collections.abc import Sequence
from pathlib import Path

from mpi_ata.driver.output import OutputOptions
from mpi_ata.driver.plan import Start, read_prior, resume_notes
from mpi_ata.errors import UsageError
from mpi_ata.job.schema import tables_of
from mpi_ata.job.source import JobText
from mpi_ata.job.tables import Tables, differing_keys, value_of
from mpi_ata.runfile.load import load_named
from mpi_ata.runfile.store import RunFile
from mpi_ata.script.description import ScriptRun
from mpi_ata.script.words import python_words

Paths = str | Path | Sequence[str | Path]

FIXED = ("problem.", "method.class", "run.seed")  # keys that may not differ when a run is resumed
IGNORED = ("script.",)  # keys that say nothing of the run itself


def output_options(
    out: str | Path | None, resume: bool, warm_start: Paths, prior_weight: float, any_problem: bool
) -> OutputOptions | None:
    """Return where the run is recorded, checked; None: nowhere."""
    named = [warm_start] if isinstance(warm_start, str | Path) else warm_start
    earlier = tuple(Path(path) for path in named)
    if out is None and not resume and not earlier:
        return None
    path = None if out is None else Path(out)
    if path is not None:
        make_folder(path.parent)
    output = OutputOptions(path, resume, earlier, prior_weight, any_problem)
    output.check()
    return output


def make_folder(folder: Path) -> None:
    """Create the folder of a run file."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"the folder {folder} cannot be created: {error.strerror}; choose another out"
        ) from None


def plan_script(described: ScriptRun, output: OutputOptions | None) -> Start:
    """Decide what a run starts from; options and path were checked before."""
    if output is None:
        return Start(described)
    if output.resumes():
        return _resume(described, output)
    prior, notes = read_prior(described, output)
    file = None if output.out is None else RunFile(output.out)
    return Start(described, file, prior=prior, notes=_in_python(notes))


def _resume(described: ScriptRun, output: OutputOptions) -> Start:
    assert output.out is not None
    file = RunFile(output.out)
    record, complaint = load_named(file)
    then = tables_of(record.job)
    if "name" in then.get("method", {}) or "file" in then.get("method", {}):
        raise UsageError(
            f"{file.path}: is the run of a job file; resume it with mpi-ata run, or choose another out"
        )
    changes = differing_keys(described.tables, then)
    changes = [name for name in changes if not name.startswith(IGNORED)]
    _check_same(file.path, described, record.job, changes, then)
    notes = resume_notes(output, complaint)
    texts = [f"{name}: {value_of(then, name)} -> {value_of(described.tables, name)}" for name in changes]
    return Start(described, file, record, bool(complaint), tuple(texts), notes=_in_python(notes))


def _check_same(
    path: Path, described: ScriptRun, then: JobText, changes: Sequence[str], tables: Tables
) -> None:
    """Reject another problem, method or seed than that of the run to resume."""
    differing = [
        f"{name} ({value_of(tables, name)}, now {value_of(described.tables, name)})"
        for name in changes
        if name.startswith(FIXED)
    ]
    if then.files.get("problem.file", "") != described.source.files.get("problem.file", ""):
        differing.append("the code of the problem's class")
    if differing:
        raise UsageError(
            f"{path}: cannot be resumed, since the run differs in {', '.join(differing)}; change it back, or "
            "start a new run with another out"
        )


def _in_python(notes: Sequence[str]) -> tuple[str, ...]:
    return tuple(python_words(note) for note in notes)
