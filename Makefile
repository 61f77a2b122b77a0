# `make run` and `make test` do everything on a fresh clone: no root, nothing written outside of it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready

export PIP_CACHE_DIR := $(CURDIR)/$(VENV)/cache
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: run test slow check benchmarks clean

run: $(READY)
	$(BIN)/mpi-ata compare jobs/quadratic.toml --virtual

test: $(READY)
	$(BIN)/pytest -n auto -m "not slow"

slow: $(READY)
	$(BIN)/pytest -n auto -m slow

check: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

benchmarks: $(READY)
	$(BIN)/python -m benchmarks.allocation
	$(BIN)/python -m benchmarks.simulation

$(READY): setup.cfg pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "mpi_ata needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
