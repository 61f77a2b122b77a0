"""Scripts as jobs of a real Slurm: recorded, requeued and resumed without a word of theirs."""

from pathlib import Path

import pytest

from tests.slurm.site import Site, kinds, record, rounds_of

pytestmark = pytest.mark.cluster

SCRIPT = """
import sys
import time

import mpi_ata
import neighbour

def work(value):
    time.sleep(0.2)
    return neighbour.square(value)

with mpi_ata.Pool() as pool:
    found = pool.map(work, range(int(sys.argv[1])))
    again = pool.map(neighbour.square, range(9))
assert found == [value**2 for value in range(int(sys.argv[1]))]
print("sum", sum(found) + sum(again), *sys.argv[2:], flush=True)
"""


def test_a_script_with_a_pool_is_requeued_after_a_signal_and_resumed_to_its_end(site: Site) -> None:
    script = site.folder / "script.py"
    script.write_text(SCRIPT)
    script.with_name("neighbour.py").write_text("def square(value):\n    return value**2\n")
    words = ("--nodes", 3, "--ntasks-per-node", 1, "--time", 10, "--set", "kind=a b")
    submitted = site.submit(script, 150, *words)
    script.with_name("neighbour.py").write_text("def square(value):\n    return 0\n")  # it has its copy
    id = str(submitted["job"])
    site.wait_beyond(submitted["run"], 2)
    assert site.status(id)[0]["state"] == "running"
    site.slurm.ask("scancel", "--batch", "--signal=USR1", id)
    site.wait_requeued(id)
    assert rounds_of(Path(submitted["run"])) > 2
    site.wait_completed(id)
    assert kinds(submitted["run"]).count("resumed") == 1
    assert int(record(submitted["run"]).totals["used"]) == 159, "each item once"
    assert f"sum {sum(i**2 for i in range(150)) + 204} --kind=a b\n" in site.log(submitted)
    assert site.state_of(id) == ("finished", 2)
    failing = site.folder / "failing.py"
    failing.write_text("import mpi_ata\nwith mpi_ata.Pool() as pool:\n    pool.map(abs, [1])\n    1 / 0\n")
    failed = site.submit(failing, *words)
    assert site.wait_over(failed["job"]) == "FAILED"
    assert site.state_of(failed["run"])[0] == "failed", site.log(failed)
