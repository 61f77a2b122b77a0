"""How a gradient moves the point."""

from mpi_ata.updates.gradient import Adam, GradientUpdate, Momentum, Nesterov, Plain, Update, elementwise

__all__ = ["Adam", "GradientUpdate", "Momentum", "Nesterov", "Plain", "Update", "elementwise"]
