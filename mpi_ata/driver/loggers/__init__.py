"""Loggers: observers that write the totals of a run, at each evaluation, for other programs."""

from mpi_ata.driver.loggers.csv_file import CSVLogger
from mpi_ata.driver.loggers.logger import Logger
from mpi_ata.driver.loggers.mlflow import MLflowLogger
from mpi_ata.driver.loggers.tensorboard import TensorBoardLogger
from mpi_ata.driver.loggers.wandb import WandbLogger

__all__ = ["LOGGERS", "CSVLogger", "Logger", "MLflowLogger", "TensorBoardLogger", "WandbLogger"]

LOGGERS: dict[str, type[Logger]] = {
    "csv": CSVLogger,
    "tensorboard": TensorBoardLogger,
    "wandb": WandbLogger,
    "mlflow": MLflowLogger,
}
