"""Numbers and tables as text."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

ELAPSED = {  # what the wall time of a run on real ranks goes into, and the key of its summary
    "set-up": "setup_time",
    "rounds": "clock",
    "decision": "decision_time",
    "update": "update_time",
    "evaluation": "evaluation_time",
    "saving": "saving_time",
}


def duration(seconds: float) -> str:
    """Return a number of seconds in the units a person would use."""
    for unit, name in ((1e-6, "us"), (1e-3, "ms")):
        if 0 < seconds < 999.5 * unit:
            return f"{seconds / unit:.3g} {name}"
    if seconds < 99.95:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} d {hours % 24:02} h"
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def file_size(size: int) -> str:
    """Return a number of bytes in the units a person would use."""
    number, units = float(size), ["B", "kB", "MB", "GB"]
    while number >= 999.5 and len(units) > 1:
        number, units = number / 1000, units[1:]
    return f"{number:.3g} {units[0]}"


def rate(rounds: int, seconds: float) -> str:
    """Return rounds per second, or seconds per round where those are fewer than one per second."""
    if not rounds or not seconds:
        return "0 rounds"
    if rounds < seconds:
        return f"{duration(seconds / rounds)} per round"
    return f"{significant(rounds / seconds, 2)} rounds/s"


def significant(value: float | None, digits: int) -> str:
    """Return a number with this many digits, or with all those before the point, and never as 1e+05."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 10**digits else f"{value:,.{digits}g}"


def when(seconds: float, short: bool = False) -> str:
    """Return a Unix time as local date and time; `short`: without the date, if that is today's."""
    text, today = (time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)) for at in (seconds, None))
    return text.partition(" ")[2] if short and text[:10] == today[:10] else text


def ratio(a: float | None, b: float) -> str:
    """Return a / b with two decimals."""
    return f"{a / b:.2f}" if b and a is not None else "-"


def share(part: float | None, whole: float = 1.0) -> str:
    """Return a part of a whole as a percentage."""
    if part is None:
        return "-"
    return f"{100 * part / whole:.1f} %" if whole else "0.0 %"


def elapsed_shares(summary: Mapping[str, Any]) -> str:
    """Return into what the wall time of a run on real ranks went, and which part; nothing if not known."""
    if summary.get("setup_time") is None:
        return ""
    elapsed, seconds = summary["elapsed"], {what: summary[key] for what, key in ELAPSED.items()}
    seconds["other"] = max(elapsed - sum(seconds.values()), 0.0)
    parts = ((what, share(spent, elapsed)) for what, spent in seconds.items())
    return ", ".join(f"{what} {part}" for what, part in parts if part != share(0.0))


def table(rows: Sequence[Sequence[Any]], header: Sequence[str] = ()) -> str:
    """Return aligned columns, the first one to the left and the others to the right."""
    cells = [[str(cell) for cell in row] for row in ([header, *rows] if header else rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    if header:
        cells.insert(1, ["-" * width for width in widths])
    form = "  ".join(f"{{:{'>' if column else '<'}{width}}}" for column, width in enumerate(widths))
    return "\n".join(form.format(*row).rstrip() for row in cells)


def markdown_table(rows: Sequence[Sequence[Any]], header: Sequence[str]) -> str:
    """Return a table for a Markdown document."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)


def aligned(rows: Sequence[tuple[str, str]]) -> str:
    """Return names and their texts in two columns."""
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)
