"""The progress of a run: drawn in place by rich on a terminal, and as a line now and then elsewhere."""

import io
import math
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from mpi_ata.arrays import Array, BoolArray, IntArray, State
from mpi_ata.clusters import Back, Cluster, Lost, WorkerIdentity
from mpi_ata.clusters.interface import named
from mpi_ata.driver.observers import Observer
from mpi_ata.driver.trace import Trace
from mpi_ata.errors import UsageError, printable
from mpi_ata.job.schema import RunDescription, Stop
from mpi_ata.launch.environment import TERMINAL
from mpi_ata.methods import Method, Round
from mpi_ata.runfile.load import load_named
from mpi_ata.runfile.lock import RunLock
from mpi_ata.runfile.priors import counted
from mpi_ata.runfile.progress import FAILED, FINISHED, RUNNING, job_title, run_state
from mpi_ata.runfile.schema import Record
from mpi_ata.runfile.store import RunFile
from mpi_ata.view.learned import available_workers, measured
from mpi_ata.view.text import aligned, duration, rate, share, significant, table, when

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

    from mpi_ata.driver.jobs import JobRun

REDRAW_SECONDS = 0.25  # between updates on a terminal: more often would flicker
DRAWING_SHARE = 0.01  # of the processor time of a run, at most
FIRST_SECONDS, LAST_SECONDS, GROWTH = 10.0, 60.0, 1.5  # between lines elsewhere: from, to, by this factor
FORWARDED_SECONDS = 0.02  # in which a launcher forwards what is erased, before it does so with other streams
PRINTED_SECONDS = 1.0  # from what a script prints to the next drawing, which it would remove again
MIN_COLUMNS, MIN_LINES = 60, 20  # a smaller terminal shows one line


class Below:
    """A stream to which a script prints: what is drawn is removed first, and drawn again below the text."""

    def __init__(self, stream: TextIO, make_room: Callable[[], None]) -> None:
        self.stream, self._make_room = stream, make_room

    def write(self, text: str) -> int:
        """Write a text where the drawing was."""
        with suppress(RuntimeError):  # in a signal handler, in the middle of drawing
            self._make_room()
        return self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class Display:
    """The latest of several texts: in place where rich can draw, otherwise as lines at growing intervals."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream or io.StringIO()  # a closed stderr is None
        self._console = console_on(self._stream)
        self._live: Live | None = None
        self._lock = RLock()  # a script may print in a thread, or in a signal handler
        self._below: dict[int, Below] = {}  # by stream; kept, since print() holds no reference to sys.stdout
        self._interval = FIRST_SECONDS if self._console is None else REDRAW_SECONDS
        self._next, self._began = time.monotonic() + self._interval, 0.0  # of processor time, when last due

    @property
    def has_room(self) -> bool:
        """Return whether more than one line can be shown."""
        console = self._console
        return console is not None and console.width >= MIN_COLUMNS and console.height >= MIN_LINES

    def due(self) -> bool:
        """Return whether it is time for an update, which the caller then shows."""
        now = time.monotonic()
        if now < self._next:
            return False
        if self._console is None:
            self._interval = min(GROWTH * self._interval, LAST_SECONDS)
        self._next, self._began = now + self._interval, time.thread_time()
        return True

    def show(self, text: "RenderableType") -> None:
        """Replace what is shown by this text, or write it as a line of its own."""
        if self._console is None:
            self._stream.write(f"{printable(str(text))}\n")
            self._stream.flush()
            return
        from rich.console import Group
        from rich.live import Live
        from rich.text import Text

        shown = Text(text, no_wrap=True, overflow="ellipsis") if isinstance(text, str) else text
        with self._lock:
            if (live := self._live) is None:
                options = {"transient": True, "redirect_stdout": False, "redirect_stderr": False}
                self._live = live = Live(console=self._console, auto_refresh=False, **options)
                live.start()
                self._put_below()
                self._began = time.thread_time()  # that rich is imported does not count
            live.update(Group(shown, ""), refresh=True)  # some launchers forward whole lines only
        spent = time.thread_time() - self._began
        self._next = max(self._next, time.monotonic() + spent / DRAWING_SHARE)

    def _put_below(self) -> None:
        """Let what others write to the terminal make room for itself."""
        for name in filter(reaches_terminal, ("stdout", "stderr")):
            stream = getattr(sys, name)
            while isinstance(stream, Below):  # left by code that redirects the stream for a while
                stream = stream.stream
            setattr(sys, name, self._below.setdefault(id(stream), Below(stream, self.make_room)))

    def clear(self) -> None:
        """Remove what is shown."""
        with self._lock:
            live, self._live = self._live, None
            if live is None:
                return
            for name in ("stdout", "stderr"):
                if isinstance(below := getattr(sys, name), Below):
                    setattr(sys, name, below.stream)
            live.update("")  # nothing to be left in the history of a terminal that is too small
            live.stop()
            if os.environ.get(TERMINAL):  # the launcher would forward what is not a whole line in the end
                self._stream.write("\x1b[1A\n")  # up, and down again
                self._stream.flush()
                time.sleep(FORWARDED_SECONDS)

    close = clear

    def make_room(self) -> None:
        """Remove what is shown for a moment, since something else is about to be written."""
        later = FORWARDED_SECONDS if self._live is None else PRINTED_SECONDS
        self.clear()
        self._next = max(self._next, time.monotonic() + later)


def reaches_terminal(name: str) -> bool:
    """Return whether a standard stream does; some launchers give it a terminal whatever they do with it."""
    stream = getattr(sys, name)
    return stream is not None and (
        name in os.environ[TERMINAL] if TERMINAL in os.environ else stream.isatty()
    )


def console_on(stream: TextIO) -> "Console | None":
    """Return where rich can draw; None without rich, and where a stream does not reach a terminal."""
    if not (os.environ.get(TERMINAL) or stream.isatty()) or find_spec("rich") is None:
        return None
    from rich.console import Console

    console = Console(file=stream, force_terminal=True, highlight=False)
    return console if console.encoding.startswith("utf") and not console.is_dumb_terminal else None


class JobsProgress(Observer):
    """One line for several jobs that share workers: how many are done, and how busy the workers are."""

    def __init__(self, line: Display, runs: "Sequence[JobRun]") -> None:
        self._line, self._runs, self._began = line, runs, time.monotonic()

    def on_round(self, round: Round, trace: Trace) -> None:
        """Draw the line, if it is time."""
        if self._line.due():
            states = Counter(run.state for run in self._runs)
            rounds, elapsed = sum(run.trace.round for run in self._runs), time.monotonic() - self._began
            counts = ", ".join(f"{states[name]} {name}" for name in JOB_STATES if states[name])
            self._line.show(f"{counts} of {len(self._runs)} jobs; {rounds:,} rounds, {rate(rounds, elapsed)}")


JOB_STATES = ("finished", "failed", "stopped", "running", "waiting")
EVENTS = 3  # that are shown, the latest
IDLE_SECONDS = 10.0  # without a finished task, at least, after which a worker counts as idle


@dataclass(frozen=True)
class Workers:
    """What the workers of a run did so far, one entry for each."""

    identities: Sequence[WorkerIdentity]
    available: BoolArray  # who can be given tasks
    seconds: Array  # spent on tasks, stopped ones included
    stats: State  # as TaskTimeStats has them
    before: IntArray | None  # tasks finished by round `since`; None: not known
    since: int = 0


@dataclass(frozen=True)
class Snapshot:
    """A run as it is shown: its summary, its curve, its workers and the latest events."""

    job: RunDescription
    summary: Mapping[str, Any]  # as Trace.summary() has it
    losses: Sequence[float]  # one for each evaluation; gaps where the minimum is known
    workers: Workers
    events: Sequence[str]
    state: str = RUNNING
    saved: float | None = None  # when, if it is read from its file, in seconds since 1970
    asked: int = 0  # items of a farm, if that is known

    def at_rest(self, for_good: bool = False) -> bool:
        """Return whether a run does not change any more; one that was stopped may be resumed."""
        return self.state.startswith((FINISHED, FAILED)) if for_good else self.state != RUNNING


class RunView(Display, Observer):
    """Shows a run in progress; `label` marks one of several runs, which are shown in one line each."""

    def __init__(self, run: RunDescription, stream: TextIO | None, label: str = "") -> None:
        super().__init__(stream)
        self._run, self._label = run, label
        self._events: deque[str] = deque(maxlen=EVENTS)
        self._tasks: deque[tuple[float, int, IntArray]] = deque(maxlen=2)  # when, and by which round
        self._cluster: Cluster | None = None
        self._identities: tuple[WorkerIdentity, ...] = ()

    def on_start(self, method: Method, cluster: Cluster, trace: Trace) -> None:
        """Take note of the workers."""
        self._method = method
        self._cluster, self._identities = cluster, cluster.identities  # a large simulation rebuilds them

    def on_round(self, round: Round, trace: Trace) -> None:
        """Show the run as it is now, if that is due."""
        changes: list[Lost | Back] = [*round.losses, *round.returns]
        for change in changes:
            who = named(change.worker, self._identities[change.worker])
            self._events.append(f"round {round.number:,}: {who}: {change.why}")
        if self._live is not None and self._run.stop.reached(trace):
            self.clear()  # workers of a script print, too, once they are let go
        elif not self.due():
            pass
        elif self._label or not self.has_room:
            self.show(self._label + progress_text(trace.summary(), self._run, self._asked))
        else:
            self.show(run_panel(self.snapshot(trace)))

    def snapshot(self, trace: Trace) -> Snapshot:
        """Return the run as it is now."""
        assert self._cluster is not None
        ledger, now = self._cluster.ledger, time.monotonic()
        stats = ledger.stats.state()
        if not self._tasks or now - self._tasks[-1][0] > IDLE_SECONDS:
            self._tasks.append((now, trace.round, stats["tasks"].copy()))
        began, since, tasks = self._tasks[0]
        before = tasks if now - began > IDLE_SECONDS else None
        spent, available = ledger.worker_time, self._cluster.available
        workers = Workers(self._identities, available, spent, stats, before, since)
        losses = [row.loss if math.isnan(trace.gap) else row.gap for row in trace.rows]
        return Snapshot(self._run, trace.summary(), losses, workers, self._events, asked=self._asked)

    @property
    def _asked(self) -> int:
        return getattr(self._method, "asked", 0)  # of a farm


LOOK_SECONDS = 1.0  # between looks at a run file


def watch(path: Path, stream: TextIO, follow: bool = False, look: float = LOOK_SECONDS) -> str:
    """Show a run whenever it is saved, until it has ended, and return how; `follow` awaits who resumes it."""
    with closing(Display(stream)) as display:
        while not (run := saved_run(path)).at_rest(for_good=follow):
            display.show(run_panel(run) if display.has_room else progress_text(run.summary, run.job))
            while _saved_at(path) == run.saved and RunLock(path).is_held() != run.at_rest():
                time.sleep(look)
    return snapshot_text(run)


FOLDER_HEADER = ["job", "state", "round", "clock [s]", "loss or gap", "to go"]


def watch_folder(folder: Path, stream: TextIO, follow: bool = False, look: float = LOOK_SECONDS) -> str:
    """Show all runs in a folder, until all have ended; return the text to be left."""
    runs = saved_runs(folder)
    with closing(Display(stream)) as display:
        while not all(run.at_rest(for_good=follow) for run in runs.values()):
            if display.due():
                display.show(folder_text(runs))
            time.sleep(look)
            runs = saved_runs(folder)
    return folder_text(runs)


def saved_runs(folder: Path) -> dict[str, Snapshot]:
    """Return the runs in a folder by name; UsageError if there are none."""
    found = {path.stem: saved_run(path) for path in sorted(folder.glob("*.h5"))}
    if not found:
        raise UsageError(f"{folder}: there are no run files in this folder")
    return found


def folder_text(runs: Mapping[str, Snapshot]) -> str:
    """Return a table of runs."""
    rows = []
    for name, run in runs.items():
        stop = run.job.stop
        left = math.inf if run.at_rest() else time_left(run.summary, stop)
        loss = [value for _, value in _loss(run.summary)]
        rows.append(
            [
                name,
                run.state.split()[0].rstrip(":"),
                _rounds(run.summary, stop),
                significant(run.summary["clock"], 4),
                *(loss[:1] or [""]),
                "" if left == math.inf else duration(left),
            ]
        )
    return table(rows, FOLDER_HEADER)


def saved_run(path: Path) -> Snapshot:
    """Return the run in a file as it was saved."""
    saved, running = _saved_at(path), RunLock(path).is_held()  # before it is read: a later save is noticed
    return snapshot_of_record(load_named(RunFile(path))[0], running, saved)


def _saved_at(path: Path) -> float:
    """Return when a run file was saved; 0 at the moment at which it is replaced."""
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def snapshot_of_record(record: Record, running: bool, saved: float) -> Snapshot:
    """Return a run as it was when its file was saved, at this Unix time."""
    gaps, columns = record.trace["gap"], record.workers
    curve = gaps if len(gaps) and not math.isnan(gaps[-1]) else record.trace["loss"]
    spent = columns["seconds"] + columns["unfinished"]
    workers = Workers(record.identities, available_workers(record), spent, columns, *_earlier_tasks(record))
    latest = [f"{when(e.time)} {e.kind}: {''.join(e.text.splitlines()[:1])}" for e in record.events[-EVENTS:]]
    state = run_state(record, running)
    return Snapshot(record.job, record.summary, curve.tolist(), workers, latest, state, saved)


def _earlier_tasks(record: Record) -> tuple[IntArray | None, int]:
    """Return the tasks by the last tenth of a run, and the round; None where workers were put into groups."""
    tasks, rounds = record.task_map.get("tasks"), record.task_map.get("round")
    if tasks is None or rounds is None or tasks.shape[1] != len(record.identities):
        return None, 0
    rows = np.flatnonzero(rounds <= 0.9 * int(record.method["k"]))
    return (tasks[rows[-1]], int(rounds[rows[-1]])) if len(rows) else (None, 0)


def _state(run: Snapshot) -> str:
    """Return the state of a run that is read from its file."""
    if run.at_rest() or run.saved is None:
        return run.state
    text = f"{RUNNING}, as saved at {when(run.saved)}"
    return text if run.summary["rounds"] else f"{text}, before the first round"


def progress_text(summary: Mapping[str, Any], run: RunDescription, asked: int = 0) -> str:
    """Return the progress of a run in one line."""
    clock = f"clock {significant(summary['clock'], 4)} s"
    if run.is_farm:
        return f"{_items(summary, asked, ' items')}, {clock}"
    parts = [f"round {_rounds(summary, run.stop)}"]
    if (left := time_left(summary, run.stop)) < math.inf:
        parts.append(f"at most {duration(left)} to go")
    parts += [f"{name} {value}" for name, value in _loss(summary)]
    return ", ".join([*parts, rate(summary["rounds"], _after_setup(summary)), clock])


ENOUGH_ITEMS = 20  # that are done, to say how long others take


def _items(summary: Mapping[str, Any], asked: int, noun: str = "") -> str:
    """Return how many items of a farm are done, of how many that were asked for."""
    done: int = summary["tasks_used"]
    if asked <= done or done < ENOUGH_ITEMS:
        return f"{done:,}{noun} done"
    left = _after_setup(summary) * (asked / done - 1)
    return f"{done:,} of {asked:,}{noun} done, about {duration(left)} to go"


def _rounds(summary: Mapping[str, Any], stop: Stop) -> str:
    return f"{summary['rounds']:,}" + (f" of {stop.rounds:,}" if stop.rounds else "")


def time_left(summary: Mapping[str, Any], stop: Stop) -> float:
    """Return the seconds until the first limit that a run reaches for sure; infinity if there is none."""
    growing = [(summary["rounds"], stop.rounds), (summary["clock"], stop.clock)]
    left = [_after_setup(summary) * (limit / so_far - 1) for so_far, limit in growing if limit and so_far]
    left += [stop.elapsed - summary["elapsed"]] if stop.elapsed else []
    return max(min(left, default=math.inf), 0.0)


def _after_setup(summary: Mapping[str, Any]) -> float:
    """Return the wall time since the first round began."""
    seconds: float = summary["elapsed"] - (summary.get("setup_time") or 0.0)
    return max(seconds, 0.0)


def part_done(summary: Mapping[str, Any], stop: Stop) -> float:
    """Return how much of a run is done, by the limit that is closest: 0 to 1, 0 where there is none."""
    limits = {"rounds": stop.rounds, "clock": stop.clock, "elapsed": stop.elapsed}
    return max((min(summary[name] / limit, 1.0) for name, limit in limits.items() if limit), default=0.0)


def _loss(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the gap, or else the loss, with its name; nothing where neither is known."""
    if summary.get("gap") is not None:
        return [("gap", f"{summary['gap']:.2e}")]
    return [] if summary.get("loss") is None else [("loss", f"{summary['loss']:.5g}")]


CURVE_COLUMNS = 40
BLOCKS = "▁▂▃▄▅▆▇█"
LISTED = 3  # workers of each kind
NUMBERED = 12  # idle workers, before the others are only counted
Rows = list[tuple[str, str]]


def run_panel(run: Snapshot) -> "RenderableType":
    """Return a run for rich: a progress bar, and the rows of the text below it."""
    from rich.panel import Panel
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True, min_width=len("worker time"))
    grid.add_column(no_wrap=True, overflow="ellipsis")
    if done := part_done(run.summary, run.job.stop):
        grid.add_row("", ProgressBar(1.0, done, width=CURVE_COLUMNS))
    for name, text in snapshot_rows(run):
        grid.add_row(name, Text(text))
    return Panel(grid, title=Text(_title(run)))


def snapshot_text(run: Snapshot) -> str:
    """Return the same as plain text."""
    return f"{_title(run)}\n{aligned(snapshot_rows(run))}"


def _title(run: Snapshot) -> str:
    return _line(f"{job_title(run.job.tables)} on {counted(len(run.workers.identities), 'worker')}")


def snapshot_rows(run: Snapshot) -> Rows:
    """Return names and texts: what is known about a run."""
    state = [("state", _state(run))] if run.saved is not None else []
    events = [("" if i else "events", text) for i, text in enumerate(run.events)]
    loss = [(name, f"{value}  {curve(run.losses, CURVE_COLUMNS)}") for name, value in _loss(run.summary)]
    rows = [*state, _how_far(run), *loss, *_times(run.summary), *_worker_rows(run.workers), *events]
    return [(name, _line(text)) for name, text in rows]


def _line(text: str) -> str:
    """Return a text as one line that rich can draw."""
    return " ".join(printable(text).split("\n"))


def _how_far(run: Snapshot) -> tuple[str, str]:
    summary, stop = run.summary, run.job.stop
    if run.job.is_farm:
        return "items", _items(summary, run.asked)
    parts = [_rounds(summary, stop)]
    if done := part_done(summary, stop):
        parts.append(f"{100 * done:.1f} %")
    parts.append(rate(summary["rounds"], _after_setup(summary)))
    if not run.at_rest() and (left := time_left(summary, stop)) < math.inf:
        parts.append(f"at most {duration(left)} to go, until {when(time.time() + left, short=True)}")
    return "round", ", ".join(parts)


def curve(values: Sequence[float], width: int) -> str:
    """Return values as a row of blocks, the latest to the right; positive ones by their logarithm."""
    finite = np.array([value for value in values if math.isfinite(value)])
    if len(finite) < 2:
        return ""
    count = min(width, len(finite))
    chosen = finite[(len(finite) - 1) * np.arange(count) // (count - 1)]
    scaled = np.log(chosen) if finite.min() > 0 else chosen
    step = np.ptp(scaled) / (len(BLOCKS) - 1) or 1.0
    return "".join(BLOCKS[round((value - scaled.min()) / step)] for value in scaled)


def _times(summary: Mapping[str, Any]) -> Rows:
    waste, worker_time = summary["waste"], summary["worker_time"]
    wasted = f"{significant(waste, 4)} s of it wasted, {share(waste, worker_time)}"
    rows = [
        ("clock", f"{significant(summary['clock'], 4)} s, {duration(summary['elapsed'])} elapsed"),
        ("worker time", f"{significant(worker_time, 4)} s, {wasted}"),
    ]
    billed = summary.get("billed")
    return [*rows, ("billed", f"{duration(billed)}: time of all cores")] if billed else rows


def _worker_rows(workers: Workers) -> Rows:
    """Return the busiest, the slowest, the idle and the missing workers."""
    tasks, (means, _) = workers.stats["tasks"], measured(workers.stats)
    known = np.flatnonzero(tasks)
    idle = workers.available & (False if workers.before is None else tasks == workers.before)

    def text(worker: int) -> str:
        part = share(workers.seconds.item(worker), workers.seconds.sum())
        who = f"worker {worker} ({workers.identities[worker].host})"
        return f"{who}: {duration(means[worker])} per task, {part} of worker time"

    rows, orders = [], [("busiest", workers.seconds), ("slowest", means)]
    few = len(known) <= 2 * LISTED  # the same workers twice
    for name, values in orders[:1] if few else orders:
        largest = known[np.argsort(-values[known], kind="stable")[: 2 * LISTED if few else LISTED]].tolist()
        rows += [("" if i else name, text(worker)) for i, worker in enumerate(largest)]
    since = f", no task after round {workers.since:,}"
    return [*rows, *_numbers("idle", idle, since), *_numbers("missing", ~workers.available)]


def _numbers(name: str, which: BoolArray, since: str = "") -> Rows:
    chosen = np.flatnonzero(which).tolist()
    if not chosen:
        return []
    more = f" and {len(chosen) - NUMBERED:,} more" if len(chosen) > NUMBERED else ""
    numbers = f"{', '.join(map(str, chosen[:NUMBERED]))}{more}{since}"
    return [(name, f"{len(chosen):,} of {len(which):,}: {numbers}")]
