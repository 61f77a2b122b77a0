"""A whole run from Python, without a job file.

python jobs/script.py              # on 4 simulated workers
python jobs/script.py 4            # on real ranks, which it starts: a manager and 4 workers
mpirun -n 5 python jobs/script.py  # on the ranks that mpirun has started
"""

import sys

import mpi_ata
from mpi_ata import Plain, Quadratic, Sqrt

result = mpi_ata.minimize(
    Quadratic(dimension=100, noise=0.01),
    budget=8,  # results per round
    update=Plain(0.44),
    rounds=300,
    times=Sqrt(4, scale=1e-3),  # seconds per task; leave it out where tasks really compute
    workers=int(sys.argv[1]) if sys.argv[1:] else None,
)
if result:  # on the manager; workers get None
    print(f"{result.summary['rounds']} rounds, gap {result.summary['gap']:.4f}")
