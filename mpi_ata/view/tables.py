"""What a person sees: the progress line and the tables."""

import io
import math
import shlex
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from mpi_ata.driver.trace import Trace
from mpi_ata.job.stop import Stop
from mpi_ata.runfile.prior import counted

if TYPE_CHECKING:
    from mpi_ata.driver.loop import Outcome

MOST_WORKERS, MOST_KINDS = 100, 10  # rows of a table for a person


UP, ERASE = "\x1b[1A", "\r\x1b[K"  # what terminals understand: to the line above; nothing on this line


class Line:
    """One line on a terminal that is written anew again and again; silent where there is no terminal.

    With `terminal` what is written gets to one through a launcher, which may pass on whole lines only.
    """

    def __init__(self, stream: TextIO | None, terminal: bool = False) -> None:
        self._stream = stream or io.StringIO()  # a closed stderr is None
        self._whole = terminal and not self._stream.isatty()
        self._next = time.monotonic() if terminal or self._stream.isatty() else math.inf
        self._width = 0

    def due(self) -> bool:
        """Whether what is written there is old enough to be written anew; the caller then does so."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + 0.1
        return True

    def show(self, text: str) -> None:
        """Write the line."""
        self._write(text[: shutil.get_terminal_size().columns - 1])

    def clear(self) -> None:
        """Take the line away."""
        if not self._width:
            return
        if self._whole:
            self._stream.write(f"{UP}{ERASE}{UP}\n")
        else:
            self._write("")
            self._stream.write("\r")
        self._stream.flush()
        self._width = 0

    def _write(self, text: str) -> None:
        width, self._width = self._width, max(self._width, len(text))  # first: Ctrl-C may come at any time
        if self._whole:
            self._stream.write(f"{UP + ERASE if width else ''}{text}\n")
        else:
            self._stream.write(f"\r{text:<{width}}")
        self._stream.flush()


class ProgressLine(Line):
    """Tells how far a run is."""

    def __init__(self, stop: Stop, stream: TextIO | None, label: str = "", terminal: bool = False) -> None:
        super().__init__(stream, terminal)
        self._stop, self._label = stop, label

    def __call__(self, trace: Trace) -> None:
        """Write the line anew, if it is old enough."""
        if self.due():
            self.show(self._label + progress_text(trace, self._stop))


def progress_text(trace: Trace, stop: Stop) -> str:
    """How far a run is, in one line."""
    of = f" of {stop.rounds:,}" if stop.rounds else ""
    parts, rate = [f"round {trace.round:,}{of}"], trace.round / max(trace.elapsed, 1e-9)
    if stop.rounds:
        parts.append(f"at most {duration((stop.rounds - trace.round) / max(rate, 1e-9))} to go")
    if not math.isnan(trace.gap):
        parts.append(f"gap {trace.gap:.2e}")
    elif not math.isnan(trace.loss):
        parts.append(f"loss {trace.loss:.5g}")
    return ", ".join([*parts, f"{rate:,.0f} rounds/s", f"clock {trace.clock:.4g} s"])


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def table(rows: Sequence[Sequence[Any]], header: Sequence[str] = ()) -> str:
    """Columns aligned: the first to the left, the others to the right."""
    cells = [[str(cell) for cell in row] for row in ([header, *rows] if header else rows)]
    widths = [max(len(row[j]) for row in cells) for j in range(len(cells[0]))]
    lines = [
        "  ".join(
            cell.ljust(width) if j == 0 else cell.rjust(width)
            for j, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    ]
    if header:
        lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)


def markdown_table(rows: Sequence[Sequence[Any]], header: Sequence[str]) -> str:
    """The same for a Markdown document."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)


def closing_table(outcome: "Outcome") -> str:
    """How a run ended."""
    ended = (
        f"at {outcome.reason}"
        if outcome.reason
        else f"early, by {'Ctrl-C' if outcome.signal in ('', 'SIGINT') else outcome.signal}"
    )
    way = ", to go on with: --resume" if outcome.resumable and not outcome.reason else ""
    return ended_table(ended, outcome.figures(), way)


def ended_table(ended: str, figures: dict[str, Any], way: str = "") -> str:
    """The same of any run: how it ended, what it came to, where it was saved and how it goes on."""
    saved = [("saved", f"{figures['out']}{way}")] if figures["out"] else []
    return aligned([("ended", ended), *figure_rows(figures), *saved])


def figure_rows(figures: dict[str, Any]) -> list[tuple[str, str]]:
    """What a run came to, each figure in words."""
    return [
        ("rounds", f"{figures['rounds']:,}"),
        ("clock", f"{figures['clock']:,.6g} s"),
        ("worker time", f"{figures['worker_time']:,.6g} s on {counted(figures['workers'], 'worker')}"),
        (
            "waste",
            f"{figures['waste']:,.6g} s, {share(figures['waste'], figures['worker_time'])} of worker time",
        ),
        (
            "tasks started",
            f"{figures['tasks_started']:,} = {figures['tasks_used']:,} used"
            f" + {figures['tasks_wasted']:,} wasted + {figures['tasks_lost']:,} lost",
        ),
        *delays(figures),
        ("loss", "not known" if figures["loss"] is None else f"{figures['loss']:.8g}"),
        ("gap", "not known" if figures["gap"] is None else f"{figures['gap']:.3g}"),
        *((name, _known(value)) for name, value in figures["evaluation"].items()),
        ("elapsed", duration(figures["elapsed"])),
        *billed(figures),
    ]


def aligned(rows: Sequence[tuple[str, str]]) -> str:
    """Names and what is said of them, in two columns."""
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)


def shown(found: dict[str, Any]) -> str:
    """What a run file tells, as a person wants to read it."""
    state = f"finished at {found['reason']}" if found["finished"] else "not finished: go on with --resume"
    rows = [("run", found["run"]), ("state", state), *figure_rows(found)]
    parts = [
        aligned(rows),
        f"Events\n\n{aligned([event_row(event) for event in found['events']])}",
        f"Workers\n\n{workers_table(found['workers_table'])}",
        f"Job\n\n{found['job'].strip()}",
    ]
    if found["settings"]:
        parts.append("\n".join(f"--set {setting}" for setting in found["settings"]))
    return "\n\n".join(parts)


def event_row(event: dict[str, Any]) -> tuple[str, str]:
    """When something happened, and what."""
    who = f"worker {event['worker']} " if event["worker"] >= 0 else ""
    return when(event["time"]), f"{who}{event['kind']}: {event['text']}"


def workers_table(workers: Sequence[dict[str, Any]]) -> str:
    """Who worked, how fast and how much; and on what hardware."""
    header = ["worker", "host", "slot", "tasks", "mean [s]", "spread [s]", "overhead [s]", "share of time"]
    rows = [
        [
            number,
            worker["host"],
            worker["slot"],
            f"{worker['tasks']:,}",
            *(_brief(worker[name]) for name in ("mean", "spread", "overhead")),
            "-" if worker["share"] is None else share(worker["share"], 1.0),
        ]
        for number, worker in enumerate(workers[:MOST_WORKERS])
    ]
    lines = [table(rows, header)]
    if len(workers) > len(rows):
        lines.append(f"... and {len(workers) - len(rows):,} more")
    kinds = Counter(worker["hardware"] for worker in workers).most_common(MOST_KINDS)
    return "\n".join([*lines, "", *(f"{count:,} x {kind}" for kind, count in kinds)])


def when(seconds: float) -> str:
    """A moment, by the local clock."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _brief(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _known(value: float | None) -> str:
    return "not known" if value is None else f"{value:.6g}"


def delays(figures: dict[str, Any]) -> list[tuple[str, str]]:
    """How late gradients were, where updates are asynchronous."""
    if figures["mean_delay"] is None:
        return []
    mean, largest = figures["mean_delay"], figures["largest_delay"]
    return [("delay", f"{mean:.3g} updates on average, at most {largest:,}")]


def billed(figures: dict[str, Any]) -> list[tuple[str, str]]:
    """What a cluster charges for real ranks."""
    if figures["billed"] is None:
        return []
    return [("billed", f"{duration(figures['billed'])}: cores x elapsed, idle ones included")]


def ratio(a: float, b: float) -> str:
    """How many times b goes into a."""
    return f"{a / b:.2f}" if b else "-"


def share(part: float, whole: float) -> str:
    """A part as a percentage."""
    return f"{100 * part / whole:.1f} %" if whole else "0.0 %"


def comparison_table(rows: Sequence[dict[str, Any]], billed: bool = False) -> str:
    """Several runs of one job, side by side; where greedy allocation is among them, in multiples of it."""
    header = ["allocator", "rounds", "clock [s]", "worker time [s]", "wasted tasks", "waste"]
    greedy = next((row for row in rows if row["allocator"] == "gta"), None)
    if greedy:
        header += ["clock / greedy", "greedy / worker time"]
    body = []
    for row in rows:
        cells = [
            row["allocator"],
            f"{row['rounds']:,}",
            f"{row['clock']:,.4g}",
            f"{row['worker_time']:,.4g}",
            f"{row['tasks_wasted']:,}",
            share(row["waste"], row["worker_time"]),
        ]
        if greedy:
            cells.append(ratio(row["clock"], greedy["clock"]))
            cells.append(ratio(greedy["worker_time"], row["worker_time"]))
        body.append(cells)
    return table(body, header) + (billing(rows) if billed else "")


def billing(rows: Sequence[dict[str, Any]]) -> str:
    """What a comparison on real ranks does not show by itself."""
    ranks = rows[0]["workers"] + 1
    seconds = ", ".join(f"{row['allocator']} {row['billed']:,.0f} s" for row in rows)
    lines = [
        f"\n\nNot in the table: a cluster bills the cores of all {ranks} ranks, idle ones included:",
        f"{seconds}.",
        "Less worker time leaves cores to others and saves energy, and money where ranks are given back.",
    ]
    return "\n".join(lines)


def submission_text(result: dict[str, Any]) -> str:
    """What was given to Slurm, and how to watch it; or what would be."""
    if result["job"] is None:
        commands = [" ".join(shlex.quote(word) for word in words) for words in result["commands"]]
        return "\n".join([result["script"], *(f"$ {command}" for command in commands)])
    more = f" and {len(result['jobs']) - 1} that go on from it" if len(result["jobs"]) > 1 else ""
    runs = result["runs"]
    rows = [
        ("submitted", f"Slurm job {result['job']}{more}"),
        ("run file", runs[0] if len(runs) == 1 else f"{len(runs)} from {runs[0]} on"),
        ("log", result["log"]),
        ("watch it", f"mpi-ata status {result['job']}"),
        ("stop it", f"mpi-ata stop {result['job']}"),
    ]
    return "\n".join(f"{name:<9}  {text}" for name, text in rows)


def status_table(rows: Sequence[dict[str, Any]]) -> str:
    """How far submitted runs are."""
    if not rows:
        return "nothing was submitted from here, and nothing is queued"
    header = [
        "run",
        "Slurm job",
        "state",
        "rounds",
        "rounds/s",
        "to go",
        "starts",
        "billed [core h]",
        "worked [h]",
    ]
    body = []
    for row in rows:
        of = f" of {row['of_rounds']:,}" if row["of_rounds"] else ""
        left = row["expected_end"]
        body.append(
            [
                Path(row["run"]).stem,
                row["job"] or "-",
                row["state"],
                f"{row['rounds']:,}{of}",
                f"{row['rate']:.4g}" if row["rate"] else "-",
                duration(max(0.0, left - time.time())) if left else "-",
                row["starts"],
                f"{row['billed_core_hours']:.4g}",
                f"{row['worker_hours']:.4g}",
            ]
        )
    reasons = [f"{Path(row['run']).stem}: {row['why']}" for row in rows if row["why"]]
    return "\n".join([table(body, header), *reasons])
