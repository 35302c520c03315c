# `make help` lists the targets. Everything runs in the environment that `make setup` makes.

SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3)
ACTIVATE := source ./env.sh
MYPY_PATHS := src/chunkpilot_core
FILES ?= .

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all check format bench docs clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:  ## make the environment and build the interfaces (again: nothing to do)
	@test -n "$(PYTHON)" || { echo '[setup] error: no python3 found; install Python 3.11' >&2; exit 1; }
	@$(PYTHON) tools/setup.py

demo: setup  ## 20 episodes through the whole graph, headless; writes runs/demo
	@.venv/bin/chunkpilot demo

test: setup  ## the tests that take seconds: unit, property, node, graph
	$(ACTIVATE) && ROS_PYTHON_CHECK_FIELDS=1 python -m pytest -m 'not slow' $(PYTEST_ARGS)

test-all: setup  ## every test
	$(ACTIVATE) && ROS_PYTHON_CHECK_FIELDS=1 python -m pytest $(PYTEST_ARGS)

check: setup  ## format, lint, types
	$(ACTIVATE) && ruff format --check . && ruff check . && mypy $(MYPY_PATHS)

format: setup  ## rewrite the sources (or FILES=...) in the project's format
	$(ACTIVATE) && ruff check --fix-only $(FILES) && ruff format $(FILES)

bench: setup  ## the benchmarks
	@test -d benchmarks || { echo 'no benchmarks in this tree'; exit 1; }
	$(ACTIVATE) && for file in benchmarks/bench_*.py; do python "$$file" || exit 1; done

docs: setup  ## docs/parameters.md and docs/interfaces.md, from the code
	$(ACTIVATE) && python tools/reference.py

clean:  ## remove what was built; the environment (.venv) and runs/ stay
	rm -rf build install log .venv/stamps/build .mypy_cache .ruff_cache .pytest_cache .hypothesis
