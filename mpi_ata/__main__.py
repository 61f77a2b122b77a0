"""So that ranks can be started as `python -m mpi_ata`."""

from mpi_ata.cli import main

main()
