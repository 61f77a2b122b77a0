"""Where a run of a script is recorded, and what it starts from."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from mpi_ata.driver.output import OutputOptions
from mpi_ata.driver.plan import Start, read_prior, resume_notes
from mpi_ata.errors import UsageError
from mpi_ata.job.edits import difference, same_code
from mpi_ata.job.schema import tables_of
from mpi_ata.job.source import JobText
from mpi_ata.job.tables import Tables, differing_keys, value_of
from mpi_ata.runfile.load import load_named
from mpi_ata.runfile.store import RunFile
from mpi_ata.script.description import ScriptRun
from mpi_ata.script.words import python_words

Paths = str | Path | Sequence[str | Path]

# Keys that may not differ when a run is resumed.
FIXED = ("problem.", "training.model", "training.loss", "method.class", "run.seed")
IGNORED = ("script.", "run.exchange", "run.replicated")  # keys that say nothing of the run itself


def output_options(
    out: str | Path | None, resume: bool, warm_start: Paths, prior_weight: float, *accepted: bool
) -> OutputOptions | None:
    """Return where the run is recorded, checked; `accepted` are runs of any problem, and changes."""
    named = [warm_start] if isinstance(warm_start, str | Path) else warm_start
    earlier = tuple(Path(path) for path in named)
    if out is None and not resume and not earlier:
        return None
    path = None if out is None else Path(out)
    if path is not None:
        make_folder(path.parent)
    output = OutputOptions(path, resume, earlier, prior_weight, *accepted)
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
    ignored = IGNORED if "training" in then else (*IGNORED, "training.")  # older files have no such table
    names = [name for name in differing_keys(described.tables, then) if not name.startswith(ignored)]
    code = _edited_code(described, record.job)
    if not output.accept_changes:
        _check_same(file.path, described.tables, then, names, code)
    changes = [f"{what}:\n{text}" for what, text in code.items()]
    notes = resume_notes(output, complaint)
    texts = [f"{name}: {value_of(then, name)} -> {value_of(described.tables, name)}" for name in names]
    return Start(described, file, record, bool(complaint), (*texts, *changes), notes=_in_python(notes))


def _edited_code(described: ScriptRun, then: JobText) -> dict[str, str]:
    """Return how the class of the problem, and what the script imports, differ from before, and in what.

    Comments and formatting are no difference.
    """
    before, after = (files.get("problem.file", "") for files in (then.files, described.files))
    own = {} if same_code(before, after) else {"the code of the problem's class": difference(before, after)}
    imported = {
        f"the file {name.partition('/')[2]}": difference(text, described.files[name])
        for name, text in then.files.items()
        if "/" in name and not same_code(text, described.files.get(name, text))
    }
    return own | imported


def _check_same(path: Path, now: Tables, then: Tables, names: Sequence[str], edited: Iterable[str]) -> None:
    """Reject another problem, method or seed than that of the run to resume."""
    differing = [
        f"{name} ({value_of(then, name)}, now {value_of(now, name)})"
        for name in names
        if name.startswith(FIXED)
    ] + [*edited]
    if differing:
        raise UsageError(
            f"{path}: differs from that run in {', '.join(differing)}; resume with these changes by "
            "--accept-changes, or start a new run with another --out"
        )


def _in_python(notes: Sequence[str]) -> tuple[str, ...]:
    return tuple(python_words(note) for note in notes)
