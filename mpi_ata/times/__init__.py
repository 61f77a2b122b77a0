"""How long a task takes, where that is drawn instead of measured."""

from mpi_ata.times.drawn import DrawnTimes as DrawnTimes
from mpi_ata.times.laws import Constant as Constant
from mpi_ata.times.laws import Exponential as Exponential
from mpi_ata.times.laws import Law as Law
from mpi_ata.times.laws import Linear as Linear
from mpi_ata.times.laws import Mix as Mix
from mpi_ata.times.laws import Sqrt as Sqrt
from mpi_ata.times.recorded import Lognormal as Lognormal
from mpi_ata.times.recorded import Recorded as Recorded
from mpi_ata.times.recorded import bytedance_ar as bytedance_ar
from mpi_ata.times.recorded import bytedance_se as bytedance_se
from mpi_ata.times.recorded import frontera as frontera
from mpi_ata.times.recorded import gpu_generations as gpu_generations
from mpi_ata.times.recorded import lonestar6 as lonestar6
from mpi_ata.times.recorded import longhorn as longhorn
