"""A loop of your own, without a job file.

mpirun -n 5 python jobs/own_loop.py    # on real ranks: a manager and 4 workers
python jobs/own_loop.py                # on 4 simulated workers
"""

import mpi_ata
from mpi_ata import SGD, ATAEmpirical, DrawnTimes, Plain, Quadratic, Sqrt

problem = Quadratic(dimension=100, noise=0.01)
times = DrawnTimes(Sqrt(4, scale=1e-3))  # emulated seconds per task; leave it out where tasks really compute

with mpi_ata.cluster(problem, times) as cluster:  # all ranks get here; only the manager gets further
    method = SGD(problem.x0, ATAEmpirical(cluster.n, budget=8), Plain(step_size=0.44))
    for round in mpi_ata.run(method, cluster):
        if round.number % 100 == 0:
            gap = problem.loss(method.x) - problem.minimum
            print(f"round {round.number}: quotas {round.quota}, gap {gap:.4f}")
        if round.number == 300:
            break
