# One command a task, on a fresh machine with nothing but Python 3.11 or newer.
#
#   make quickstart   install, then one real run over a document of several MB; SCRIPTED=1: no model is downloaded
#   make install      .venv with the project (editable) and what its development needs
#   make install-train  also torch for CPUs, TRL and Ray, without which their tests are skipped
#   make test         the tests, in some minutes
#   make test-all     all tests: also Docker, the providers' SDKs, a browser, the notebooks, the wheel, the benchmarks
#   make check        ruff, mypy, tests
#   make bench        the benchmark table, beside bare DSPy, rlms and dspy.RLM
#   make clean        remove everything that these made
#
# PYTHON=python3.12 chooses the Python of the virtual environment, VENV=path its place, TORCH=torch==2.13.0 the torch,
# ARGS="..." is passed on to pytest, the quickstart or the benchmark.

SHELL := /bin/bash
VENV ?= .venv
BIN := $(VENV)/bin
BENCH := .venv-bench
WORKERS ?= 2
ROOMS := signatures environments optimizers training
SOURCES := rlm_dspy $(ROOMS) tests benchmarks
TYPES := build/types

# The first Python that runs, is new enough, and has the modules that a virtual environment needs.
FIND_PYTHON = for python in $(if $(PYTHON),"$(PYTHON)",python3.13 python3.12 python3.11 python3); do \
	command -v "$$python" >/dev/null 2>&1 || continue; \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue; \
	version=$$("$$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])'); \
	"$$python" -c 'import ensurepip, venv' >/dev/null 2>&1 || { lacking=$$version; continue; }; \
	echo "$$python"; exit 0; \
	done; \
	if [ -n "$$lacking" ]; then \
		echo "$$lacking has no venv module with pip. Install it with: apt install $$lacking-venv" >&2; \
	else \
		echo "no $(if $(PYTHON),$(PYTHON) that is Python 3.11 or newer,Python 3.11 or newer found); name one with make PYTHON=..." >&2; \
	fi; exit 1

.PHONY: help quickstart install install-train test test-heavy test-all check lint types bench clean

help:
	@sed -n 's/^#   make/make/p' Makefile

quickstart: $(if $(SCRIPTED),$(VENV)/.installed,$(VENV)/.installed-local)
	@$(BIN)/python -m rlm_dspy.quickstart $(ARGS)

install: $(VENV)/.installed-dev

install-train: $(VENV)/.installed-train

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m "not heavy" -n $(WORKERS) --dist loadfile $(ARGS)

test-heavy: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m "heavy and not alone" -n $(WORKERS) --dist loadfile $(ARGS)
	$(BIN)/python -m pytest -m "heavy and alone" $(ARGS)

test-all: test test-heavy

check: lint types test

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check $(SOURCES) notebooks

# Type checkers follow no import hooks, and an editable install of a package whose parts lie in several folders is one.
# They are shown the package as it will be installed: links to the sources.
types: $(VENV)/.installed-dev
	@rm -rf $(TYPES) && mkdir -p $(TYPES)/rlm_dspy
	@for path in rlm_dspy/*; do ln -s "../../../$$path" $(TYPES)/rlm_dspy/; done; rm -f $(TYPES)/rlm_dspy/__pycache__
	@for room in $(ROOMS); do ln -s "../../../$$room" $(TYPES)/rlm_dspy/$$room; done
	@ln -s ../../benchmarks $(TYPES)/benchmarks
	cd $(TYPES) && "$(abspath $(BIN))/python" -m mypy --config-file ../../pyproject.toml \
		--cache-dir ../../.mypy_cache -p rlm_dspy -p benchmarks

bench: $(VENV)/.installed $(BENCH)/.installed
	@$(BIN)/python -m benchmarks.engine $(ARGS)

clean:
	rm -rf $(VENV) $(BENCH) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find $(SOURCES) notebooks -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@python=$$($(FIND_PYTHON)) || exit 1; echo "creating $(VENV) with $$python"; \
	"$$python" -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# The stamps are newer than pyproject.toml as long as nothing that is installed has changed.
$(VENV)/.installed: pyproject.toml | $(BIN)/python
	@echo "installing the project into $(VENV), about a minute"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/.installed-local: pyproject.toml | $(BIN)/python
	@echo "installing the project, and what runs a model on this machine, into $(VENV), about a minute"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[local]'
	@touch $(VENV)/.installed $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	@echo "installing the project and its development tools into $(VENV), about a minute"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $(VENV)/.installed $(VENV)/.installed-local $@

# The usual torch brings some gigabytes for GPUs, so one for CPUs alone is looked for among what pip can find.
$(VENV)/.installed-train: pyproject.toml | $(VENV)/.installed-dev
	@torch="$(TORCH)"; cpu=; extras=trl,ray; \
	[ -n "$$torch" ] || cpu=$$($(BIN)/python -m pip index versions torch 2>/dev/null | grep -o '[0-9.]*+cpu' | head -n 1); \
	[ -z "$$cpu" ] || torch="torch==$$cpu"; \
	if [ -z "$$torch" ]; then \
		extras=ray; \
		echo "pip finds no torch for CPUs alone, so the tests of local training are skipped. Give pip an index" \
			"that has one (PIP_EXTRA_INDEX_URL), or take the usual one: make install-train TORCH=torch"; \
	fi; \
	echo "installing [$$extras] $$torch into $(VENV), some minutes"; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[$$extras]" $$torch
	@touch $@

# The peers of the benchmark. Where they cannot be had it runs without them and says so.
$(BENCH)/.installed: benchmarks/peers.txt | $(BIN)/python
	@echo "installing the peers into $(BENCH), about a minute"
	@{ $(BIN)/python -m venv $(BENCH) && \
		$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/peers.txt && touch $@; } || \
		echo "the peers cannot be installed; the table will be without them" >&2
