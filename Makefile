# `make help` lists the targets. Everything runs in the environment that `make setup` makes.

SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3)
ACTIVATE := source ./env.sh
MYPY_PATHS := src/chunkpilot_core
# In a process of its own: DDS may crash when a node is destroyed on a busy machine, and that is one test, not all.
ISOLATED := -n 1
FILES ?= .

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all check format bench bench-bags bench-execution bench-gate bench-guard bench-strategies bench-policies fuzz soak bench-hazards docs clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:  ## make the environment and build the interfaces (again: nothing to do)
	@test -n "$(PYTHON)" || { echo '[setup] error: no python3 found; install Python 3.11' >&2; exit 1; }
	@$(PYTHON) tools/setup.py

demo: setup  ## 20 episodes through the whole graph, headless; writes runs/demo
	@.venv/bin/chunkpilot demo

test: setup  ## the tests that take seconds: unit, property, node, graph
	$(ACTIVATE) && ROS_PYTHON_CHECK_FIELDS=1 python -m pytest -m 'not slow' $(PYTEST_ARGS)

# Hundreds of these start real processes on machines that are shared: what fails is told, and has
# to pass when it is run once more, without the others.
test-all: setup  ## every test
	$(ACTIVATE) && export ROS_PYTHON_CHECK_FIELDS=1 && { python -m pytest $(ISOLATED) $(PYTEST_ARGS) || \
	  { test $$? -eq 1 && echo '== what failed, once more ==' && \
	    python -m pytest $(ISOLATED) --last-failed --last-failed-no-failures none $(PYTEST_ARGS); }; }

check: setup  ## format, lint, types
	$(ACTIVATE) && ruff format --check . && ruff check . && mypy $(MYPY_PATHS)

format: setup  ## rewrite the sources (or FILES=...) in the project's format
	$(ACTIVATE) && ruff check --fix-only $(FILES) && ruff format $(FILES)

bench: setup  ## the benchmarks
	@test -d benchmarks || { echo 'no benchmarks in this tree'; exit 1; }
	$(ACTIVATE) && for file in benchmarks/bench_*.py; do \
	  name=$${file%.py}; python -m "$${name//\//.}" || exit 1; done

bench-execution: setup  ## starvation, error and jumps while the policy is slow (BENCH_ARGS=--full)
	$(ACTIVATE) && python -m benchmarks.execution $(BENCH_ARGS)

bench-guard: setup  ## what a tick of the guard, the check and the prediction of a chunk cost
	$(ACTIVATE) && python -m benchmarks.guard $(BENCH_ARGS)

bench-gate: setup  ## what one wrong decision costs, with and without the gate (BENCH_ARGS='--episodes 60')
	$(ACTIVATE) && python -m benchmarks.gate $(BENCH_ARGS)

bench-strategies: setup  ## success and policy calls of the strategies on tasks (BENCH_ARGS=--full)
	$(ACTIVATE) && chunkpilot bench strategies $(BENCH_ARGS)

bench-policies: setup  ## time, memory, success and calls of the policies, with fewer steps, too (BENCH_ARGS=--full)
	$(ACTIVATE) && chunkpilot bench policies $(BENCH_ARGS)

bench-bags: setup  ## what the recorder loses at 2,000 messages/s and more (BENCH_ARGS='--only target')
	$(ACTIVATE) && python -m benchmarks.bags $(BENCH_ARGS)

fuzz: setup  ## the guard under attack for a million ticks, and in the sim (FUZZ_ARGS='--ticks 100000')
	$(ACTIVATE) && python -m benchmarks.fuzz $(FUZZ_ARGS)

soak: setup  ## the guard at work for an hour: holds, memory, CPU (SOAK_ARGS='--seconds 60')
	$(ACTIVATE) && python -m benchmarks.soak $(SOAK_ARGS)

bench-hazards: setup  ## things in the way: reactive checks against chunks judged before they run (BENCH_ARGS='--episodes 20')
	$(ACTIVATE) && python -m benchmarks.hazards $(BENCH_ARGS)

docs: setup  ## docs/parameters.md and docs/interfaces.md, from the code
	$(ACTIVATE) && python tools/reference.py

clean:  ## remove what was built; the environment (.venv) and runs/ stay
	rm -rf build install log .venv/stamps/build .mypy_cache .ruff_cache .pytest_cache .hypothesis
