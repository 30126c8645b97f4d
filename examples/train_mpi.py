"""A plain program that sums arrays by Open MPI, to be started by mpirun."""

import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
for step in range(60):
    array = np.full(65_536, float(step + world.rank))
    world.Allreduce(MPI.IN_PLACE, array)
    assert np.all(array == sum(step + rank for rank in range(world.size)))
    if step % 10 == 0:
        print("summed", step, flush=True)
