# Every target sets itself up: Python 3.11 or newer, make and a package index are enough.
# What else a test needs (Maven and Java for Apache's own programs) is skipped with one line that says why.
SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
OUT ?= out
SEEDS ?= 200
WORKERS ?= $(shell nproc)
PYTEST_ARGS ?=
export PYTHONHASHSEED = 0
export PYTHONWARNDEFAULTENCODING =
# Bytecode is kept even where the environment forbids it: tests start hundreds of processes that would compile the tree.
export PYTHONDONTWRITEBYTECODE =

.PHONY: help compare test check unit sim clean
help:
	@echo "make compare  run both modes under load and faults, write the report ($(OUT)/report.html)"
	@echo "make test     tidiness and every test this machine can run"
	@echo "make check    ruff, mypy --strict, import rules"
	@echo "make unit     the fast tests only"
	@echo "make sim      play simulator seeds on the whole raft mode (SEEDS=10000, or 5-9)"

compare: $(VENV)/.bench
	$(BIN)/mqbench compare --out $(OUT)

test: $(VENV)/.test check
	$(BIN)/python -m pytest $(PYTEST_ARGS)

check: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/tidy

unit: $(VENV)/.test
	$(BIN)/python -m pytest -m "not (faults or interop or spark or bench)" $(PYTEST_ARGS)

sim: $(VENV)/.test
	$(BIN)/python -m tests.sim --seeds $(SEEDS) --workers $(WORKERS) --keep-going

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed, found: $$($(PYTHON) --version 2>&1)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "this Python has no venv module (on Debian: apt-get install python3-venv)"; exit 1; }

# Hashes are checked; the project itself is installed in place, so that the tree is what runs.
$(VENV)/.bench: requirements-bench.lock pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-bench.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

# docker-compose is fetched for the schema inside it only (tests/tidy/test_compose.py) and never installed.
$(VENV)/.test: requirements-test.lock requirements-compose.lock pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-test.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --editable .
	$(BIN)/pip download --quiet --disable-pip-version-check --no-deps --require-hashes \
		--requirement requirements-compose.lock --dest $(VENV)/compose-schema
	@touch $@ $(VENV)/.bench

clean:
	rm -rf $(VENV) $(OUT) build *.egg-info .mypy_cache .ruff_cache .pytest_cache
