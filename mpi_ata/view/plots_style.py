"""The look of figures: colours that colour-blind readers can tell apart, and files without a display."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpi_ata.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# Okabe and Ito's palette without its yellow, which is too light for lines on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
DASHES = ("-", "--", ":", "-.")  # for more runs than colours
GREY = "#666666"
FORMATS = (".png", ".pdf", ".svg")
NARROW = 200.0  # a range up to this ratio has ticks at 1, 2 and 5
WIDTH, HEIGHT = 9.6, 2.4  # inches: of a figure, of a row of panels
STYLE = {
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.3,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.formatter.limits": (-3, 4),
    "axes.formatter.use_mathtext": True,
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
}


def check_figure_path(path: Path) -> None:
    """Reject a figure that cannot be drawn, before time is spent on what it shows."""
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"-o {path}: the name of a figure must end in .png, .pdf or .svg")
    if not path.parent.is_dir():
        raise UsageError(f"-o {path}: there is no folder {path.parent}; create it, or choose another file")
    if find_spec("matplotlib") is None:
        raise UsageError("figures need matplotlib; install it with: pip install 'mpi-ata[plot]'")


def line_style(number: int) -> dict[str, Any]:
    """Return colour and dashes of a run."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[number // len(COLOURS) % len(DASHES)],
    }


@contextmanager
def styled() -> Iterator[None]:
    """Draw with the settings of this file, whatever those of the user are."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


def whole_numbers(axis: "Axis", most: int = 8) -> None:
    """Put ticks at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(most, integer=True, steps=[1, 2, 5, 10]))


def plain_log_ticks(axis: "Axis") -> None:
    """Put few and plain numbers on a logarithmic axis that spans little."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    low, high = axis.get_view_interval()
    axis.set_minor_formatter(NullFormatter())
    if high < NARROW * low:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))


def new_figure(rows: int) -> "Figure":
    """Return an empty figure for rows of panels, which needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, HEIGHT * rows + 0.3), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: "Figure", path: Path) -> None:
    """Write a figure in the format of its file name; the same figure gives the same bytes."""
    stamp = {".png": {}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}[path.suffix.lower()]
    try:
        figure.savefig(path, dpi=110, bbox_inches="tight", pad_inches=0.05, metadata=stamp)
    except OSError as error:
        raise UsageError(f"{path}: the figure cannot be written: {error.strerror}") from None
