"""What `mpi-ata recommend` predicts for two sizes, beside what they take on real ranks.

python -m benchmarks.recommended [--rounds N]

Needs root and the packages of a private Slurm (see tests/slurm).  A run on five nodes, two of which are three
times slower, learns the speeds; then the fastest 2 and 4 nodes are asked for by name, with a warm start.
Prints clock, elapsed and billed, predicted and measured.  Takes about a minute and a half.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measuring import options
from mpi_ata.view.text import table
from tests.slurm.private import private_slurm
from tests.slurm.site import Site, record

SLEEP = 'time.sleep(0.02 * (3 if os.environ["SLURMD_NODENAME"] in ("n2", "n4") else 1))'
SIZES, PER_NODE = (2, 4), 2


def measured(site: Site, job: Path, rounds: int, *words: object) -> dict[str, Any]:
    """Run a job on the private Slurm, and return its summary."""
    allocator = ("--set", "allocator.name=ata-auto", "--set", "allocator.budget=24")
    limits = ("--ntasks-per-node", PER_NODE, "--time", 10, "--set", f"stop.rounds={rounds}")
    found = site.complete(job, *words, *allocator, *limits)
    return {**record(found["run"]).summary, "run": found["run"]}


def main() -> None:
    """Learn, recommend, and compare."""
    rounds = options(__doc__ or "", rounds=150).rounds
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        user = Path(folder) / "user"
        with private_slurm(Path(folder) / "slurm") as slurm:
            user.mkdir()
            site = Site(slurm, user)
            job = site.own(SLEEP, rounds=rounds)
            first = measured(site, job, rounds, "--nodes", 5)
            sizes = [word for size in SIZES for word in ("--nodes", size)]
            answer = json.loads(site.ata("recommend", first["run"], *sizes, "--json"))
            rows = []
            for row in [row for row in answer["sizes"] if row["which"] == "chosen"]:
                named = f"--nodelist={','.join(row['nodelist'])}"
                words = ("--nodes", row["nodes"], "--sbatch", named, "--warm-start", first["run"])
                ran = measured(site, job, rounds, *words)
                for name in ("clock", "elapsed", "billed"):
                    cells = [f"{row[name]:.2f}", f"{ran[name]:.2f}", f"{row[name] / ran[name]:.2f}"]
                    rows.append([f"{row['nodes']} nodes, {name} [s]", *cells])
    print(table(rows, ["", "predicted", "measured", "ratio"]))


if __name__ == "__main__":
    main()
