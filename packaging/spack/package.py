# Belongs into packages/py_mpi_ata/ of a Spack repository; packaging/README.md shows how to use it from here.

from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class PyMpiAta(PythonPackage):
    """Adaptive task allocation over MPI: iterative algorithms on workers of unknown, unequal speed."""

    homepage = "https://arxiv.org/abs/2502.00775"
    pypi = "mpi-ata/mpi_ata-0.1.0.tar.gz"

    license("MIT")

    # The checksum of the sdist is added when it is on PyPI; until then: spack develop.
    version("0.1.0")

    variant("plot", default=False, description="Figures: mpi-ata plot")
    variant("torch", default=False, description="PyTorch models and optimizers")
    variant("sklearn", default=False, description="The example of handwritten digits")

    depends_on("python@3.11:", type=("build", "run"))
    depends_on("py-setuptools@77:", type="build")

    depends_on("py-numpy@1.26:", type=("build", "run"))
    depends_on("py-click@8.2.1:", type=("build", "run"))
    depends_on("py-h5py@3.10:", type=("build", "run"))
    depends_on("py-mpi4py@4.1:", type=("build", "run"))

    depends_on("py-matplotlib@3.8:", type=("build", "run"), when="+plot")
    depends_on("py-torch@2.10:", type=("build", "run"), when="+torch")
    depends_on("py-scikit-learn@1.4:", type=("build", "run"), when="+sklearn")
