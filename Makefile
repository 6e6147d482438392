# Every target sets itself up: Python 3.11 or newer, make and a package index are enough.
# What else a test needs (Maven and Java for Apache's own programs) is skipped with one line that says why.
SHELL := /bin/bash
# An optimised python3.11, if there are several: bench/interpreter.py says how it is found. PYTHON=... wins, and an
# environment that exists keeps its own.
PYTHON ?= $(shell "$$(command -v python3.11 || command -v python3)" -I bench/interpreter.py)
VENV ?= .venv
BIN := $(VENV)/bin
OUT ?= out
# A newer Python, if this machine has one that runs.
OTHER ?= $(shell for p in python3.12 python3.13 "$$HOME"/.pyenv/versions/3.1[23]*/bin/python; do \
	"$$p" -c '' 2>/dev/null && echo "$$p"; done | tail -n 1)
SEEDS ?= 200
FUZZ_S ?= 60
WORKERS ?= $(shell nproc)
TEST_WORKERS ?= $(shell expr $(WORKERS) + 2)
PYTEST_ARGS ?=
# Targets that have what processor time the tests beside them leave.
BESIDE ?= types computes
# Tests of the benchmark that start whole runs, Spark or a browser.
RUNS := (bench or spark)
# Files that name a marker. To import all of them takes each worker nine seconds of processor time, of few one to three.
marked = $(sort $(shell grep -lrE --include='test_*.py' 'mark\.($(1))\b' tests))
export PYTHONHASHSEED = 0
export PYTHONWARNDEFAULTENCODING =
# Bytecode is kept even where the environment forbids it: tests start hundreds of processes that would compile the tree.
export PYTHONDONTWRITEBYTECODE =

.PHONY: help compare play containers containers-bench test test-all added shared one_core alone computes benchmark benchmark-runs
.PHONY: benchmark-alone benchmark-computes interop check lint style types unit
.PHONY: docs pictures unit-other other-installed remoting-and-nameserver sim fuzz clean
# What measures must not meet the rest, whatever -j says.
.NOTPARALLEL:
help:
	@echo "make compare  run three designs under load and faults, write the report ($(OUT)/STAMP/report.html)"
	@echo "make play     run three designs side by side and break them by hand in the browser"
	@echo "make test     all that proves nameserver, broker, client and tools; its parts: style, types, shared, one_core, alone, computes"
	@echo "make test-all test, and the benchmark's own runs (make benchmark), Apache's programs (make interop), containers"
	@echo "make check    ruff, mypy --strict, import rules"
	@echo "make unit     the fast tests only"
	@echo "make unit-other  those of remoting and nameserver on a newer Python, if there is one"
	@echo "make fuzz     fuzz what strangers reach for a minute (FUZZ_S=600 for longer)"
	@echo "make containers  run the compose files on podman: kill, cut off, restart (root, Debian)"
	@echo "make containers-bench  the same for compose/bench.yaml: Locust with its page, the comparison, Spark"
	@echo "make docs     the documents as a site ($(OUT)/site/index.html)"
	@echo "make pictures  pictures of console and playground for README and docs (needs chromium)"
	@echo "make sim      play simulator seeds on the whole raft mode (SEEDS=10000, or 5-9)"

compare: $(VENV)/.bench
	$(BIN)/mqbench compare --out $(OUT)

play: $(VENV)/.bench
	$(BIN)/mqbench play --out $(OUT)

# For a newcomer: ten minutes on two cores. Tests that wait leave some of the machine idle, tests that measure half of it.
# mypy and the tests that only compute take that: they yield at once to all others, and print at the end.
test: style
	$(BIN)/python -m tests.leftover "$(MAKE) --no-print-directory shared one_core alone" \
		"$(MAKE) --no-print-directory $(BESIDE)"
	@echo "make test-all adds $(ADDED)"

ADDED := the benchmark's own runs, Spark and browser (make benchmark), Apache RocketMQ's programs (make interop; Java, Maven), \
	the compose files in containers (make containers; root, Debian)

test-all: test added

added: benchmark interop
	@if [ "$$(id -u)" = 0 ]; then $(MAKE) containers; else echo "make containers is left out: it needs root"; fi

# Most tests wait more than they compute, so several workers share them.
shared: $(VENV)/.test
	$(BIN)/python -m pytest -m "not ($(RUNS) or alone or one_core or computes or interop or containers)" -n $(TEST_WORKERS) \
		$(PYTEST_ARGS)

# Tests that are judged in seconds have a core each, tests that measure milliseconds the machine.
one_core: $(VENV)/.test
	$(BIN)/python -m pytest -m "one_core and not $(RUNS)" -n $(WORKERS) $(PYTEST_ARGS) $(call marked,one_core)

alone: $(VENV)/.test
	$(BIN)/python -m pytest -m "alone and not $(RUNS)" $(PYTEST_ARGS) $(call marked,alone)

# Two workers, because tests that compute outlast those that measure; a limit for two that share idle processor time.
computes: $(VENV)/.test
	$(BIN)/python -m pytest -m "computes and not $(RUNS)" -n $(WORKERS) -p no:cacheprovider $(PYTEST_ARGS) \
		$(call marked,computes)

# The same three kinds of tests, of the benchmark itself.
benchmark: $(VENV)/.test
	$(BIN)/python -m tests.leftover "$(MAKE) --no-print-directory benchmark-runs benchmark-alone" \
		"$(MAKE) --no-print-directory benchmark-computes"

benchmark-runs: $(VENV)/.test
	$(BIN)/python -m pytest -m "$(RUNS) and not (alone or computes)" -n $(WORKERS) $(PYTEST_ARGS) \
		$(call marked,bench|spark)

benchmark-alone: $(VENV)/.test
	$(BIN)/python -m pytest -m "$(RUNS) and alone" $(PYTEST_ARGS) $(call marked,alone)

# One worker has the tests that share a Spark session, the other one has the browser and sessions of their own.
benchmark-computes: $(VENV)/.test
	$(BIN)/python -m pytest -m "$(RUNS) and computes" -n $(WORKERS) -p no:cacheprovider $(PYTEST_ARGS) \
		$(call marked,computes)

# Apache's programs use the machine until their run has ended. One worker has the deployments that most tests share, the
# other what needs servers of its own; both mostly wait.
interop: $(VENV)/.test
	$(BIN)/python -m pytest -m interop -n 2 $(PYTEST_ARGS) $(call marked,interop)

# Image, volumes and networks lie in a store of their own and are gone in the end. CONTAINERS_BASE names a base image
# (python:3.11-slim-bookworm) where a registry can be reached; without it one is made of Debian's packages.
containers: $(VENV)/.test
	$(BIN)/python -m pytest -m containers --capture=no $(PYTEST_ARGS) --ignore=tests/containers/test_bench.py tests/containers

# The image with Spark takes minutes to build.
containers-bench: $(VENV)/.test
	$(BIN)/python -m pytest -m containers --capture=no $(PYTEST_ARGS) tests/containers/test_bench.py

check: lint
	$(BIN)/python -m pytest -q tests/tidy

lint: style types

style: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test
	$(BIN)/mypy

unit: $(VENV)/.test
	$(BIN)/python -m pytest -m "not (slow or faults or interop or spark or bench or sim or fuzz or containers or alone)" \
		-n $(WORKERS) $(PYTEST_ARGS)

# The same lock file must serve every Python that the package names. Tests of 0.4 s and more start processes of the same
# code again, and are left to Python 3.11.
unit-other: other-installed
	@test -z "$(OTHER)" || $(MAKE) PYTHON="$(OTHER)" VENV=$(VENV)-other remoting-and-nameserver

other-installed:
	@test -n "$(OTHER)" || echo "no Python beside 3.11 here: its tests are left out"
	@test -z "$(OTHER)" || $(MAKE) PYTHON="$(OTHER)" VENV=$(VENV)-other $(VENV)-other/.test

remoting-and-nameserver: $(VENV)/.test
	$(BIN)/python -m pytest -m "not (faults or sim or slow or one_core)" -n $(WORKERS) tests/remoting tests/nameserver \
		$(PYTEST_ARGS)

fuzz: $(VENV)/.test
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_S)

sim: $(VENV)/.test
	$(BIN)/python -m tests.sim --seeds $(SEEDS) --workers $(WORKERS) --keep-going

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed, found: $$($(PYTHON) --version 2>&1)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "this Python has no venv module (on Debian: apt-get install python3-venv)"; exit 1; }

# Hashes are checked; the project itself is installed in place, so that the tree is what runs.
$(VENV)/.bench: requirements-bench.lock pyproject.toml setup.py | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-bench.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

# docker-compose is fetched for the schema inside it only (tests/tidy/test_compose.py) and never installed.
$(VENV)/.test: requirements-test.lock requirements-compose.lock pyproject.toml setup.py | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-test.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	$(BIN)/pip download --quiet --disable-pip-version-check --no-deps --require-hashes \
		--requirement requirements-compose.lock --dest $(VENV)/compose-schema
	@touch $@ $(VENV)/.bench

# Pictures of the pages for README and docs; needs Chromium.
pictures: $(VENV)/.test
	$(BIN)/python -m tests.pictures.console
	$(BIN)/python -m tests.pictures.playground

docs: $(VENV)/.test
	$(BIN)/mkdocs build --strict --quiet --site-dir $(abspath $(OUT))/site
	@echo "$(abspath $(OUT))/site/index.html"

clean:
	rm -rf $(VENV) $(VENV)-other $(OUT) build *.egg-info .mypy_cache .ruff_cache .pytest_cache
