"""Draws the pictures of docs/results.md: the report in a browser, and the live view on a terminal.

`python -m docs.screenshots` needs Chromium and rich; it simulates two small runs, and writes
to docs/pictures.
"""

import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from rich.console import Console

from mpi_ata import Plain, Quadratic, Round, Sqrt, Trace, minimize
from mpi_ata.cli import main
from mpi_ata.job.schema import RunDescription
from mpi_ata.job.tables import Tables
from mpi_ata.view.live import RunView, run_panel

PICTURES = Path(__file__).parent / "pictures"
BELOW = 120  # pixels at the lower end of a window, which a headless Chromium does not paint
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DARK = "--blink-settings=preferredColorScheme=0"  # 1 is light
LIGHT = "--blink-settings=preferredColorScheme=1"


def screenshot(page: Path, name: str, width: int, height: int, *options: str) -> None:
    """Write the top of a page, as a browser shows it, to a picture."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit("there is no Chromium here; install it, or leave the pictures as they are")
    target = PICTURES / name
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *options]
    command += [f"--user-data-dir={page.parent / 'profile'}", f"--window-size={width},{height + BELOW}"]
    command += ["--virtual-time-budget=3000", f"--screenshot={target}", page.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=120)  # noqa: S603  (all words are ours)
    Image.open(target).crop((0, 0, width, height)).quantize(96).save(target, optimize=True)
    print(f"{target.name}: {target.stat().st_size // 1000} kB")


class Camera(RunView):
    """Keeps what the live view would show in one round."""

    console = Console(file=io.StringIO(), width=100, record=True, force_terminal=True)

    def on_round(self, round: Round, trace: Trace) -> None:
        """Look at round 200."""
        if round.number == 200:
            self.console.clear()
            self.console.print(run_panel(self.snapshot(trace)))


def recorded(folder: Path, camera: Camera) -> list[Path]:
    """Run the same problem under two allocators, and return their run files."""
    paths = []
    for allocator in ("gta", "ata-auto"):
        paths.append(folder / f"{allocator}.h5")
        minimize(
            Quadratic(50),
            16,
            update=Plain(0.3),
            rounds=300,
            times=Sqrt(12, scale=0.02),
            allocator=allocator,
            seed=1,
            out=paths[-1],
            observers=[camera],
            progress=False,
        )
        if allocator == "gta":
            camera.console.export_text()  # which forgets it
    return paths


def draw(folder: Path) -> None:
    """Draw all pictures."""
    names = {"problem": "quadratic", "method": "sgd", "allocator": "ata-auto"}
    tables: Tables = {table: {"name": name} for table, name in names.items()}
    camera = Camera(RunDescription.of_tables(tables | {"stop": {"rounds": 300}}, {}), None)
    runs, page = recorded(folder, camera), folder / "report.html"
    main(["report", *map(str, runs), "-o", str(page)], standalone_mode=False)
    for theme, name in ((LIGHT, ""), (DARK, "-dark")):
        screenshot(page, f"report{name}.png", 1200, 1480, theme)
        screenshot(page, f"report-phone{name}.png", 390, 1200, theme)
    svg = camera.console.export_svg(title="mpi-ata run")
    width, height = map(float, svg.partition('viewBox="0 0 ')[2].partition('"')[0].split())
    terminal = folder / "terminal.html"  # a browser would centre a mere SVG in its window
    terminal.write_text(f'<meta charset="utf-8"><body style="margin:0">{svg}', encoding="utf-8")
    screenshot(terminal, "live.png", round(width), round(height))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="mpi_ata-") as folder:
        draw(Path(folder))
