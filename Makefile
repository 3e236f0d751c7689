# Everything a user or CI runs. Needs Python >= 3.11 with pip, and make; the rest is installed into .venv.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN_STAMP := $(VENV)/.stamp-run
DEV_STAMP := $(VENV)/.stamp-dev
PYTEST_ARGS ?=

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
# Whatever environment make was called from, the tools below work on ours.
unexport VIRTUAL_ENV PYTHONHOME PYTHONPATH PYTHONDONTWRITEBYTECODE

# Three processes, each with servers of its own; `make test PYTEST_WORKERS=` runs everything in one.
PYTEST_WORKERS ?= -n 3 --dist loadfile --no-loadscope-reorder

.PHONY: help demo test lint slow model mutants up down status bench clean lock

help: ## Show this list
	@awk -F':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(RUN_STAMP) ## Show every promise on real servers, end to end
	$(BIN)/backstay demo

test: lint ## Everything that CI checks
	$(BIN)/python -m pytest -m "not slow" $(PYTEST_WORKERS) $(PYTEST_ARGS)

lint: $(DEV_STAMP) ## Style, types and import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy & mypy=$$!; $(BIN)/pyright && wait $$mypy
	$(BIN)/lint-imports

slow: $(DEV_STAMP) ## Tests that take long or need more than Python, pip and make
	$(BIN)/python -m pytest -m slow -rs --timeout 1200 $(PYTEST_ARGS) || { status=$$?; [ $$status -eq 5 ] && echo "There are no slow tests."; }

model: $(DEV_STAMP) ## Explore every way that small sagas can go
	$(BIN)/python -m tests.model

mutants: $(DEV_STAMP) ## Change the core in every small way; tests have to notice (about an hour)
	@$(PIP_INSTALL) -r requirements-mutants.lock
	$(BIN)/python -m tests.mutants

up: $(RUN_STAMP) ## Start PostgreSQL, Temporal and a worker on this machine
	$(BIN)/python -m worker.stack up

down: $(RUN_STAMP) ## Stop what `make up` started
	$(BIN)/python -m worker.stack down

status: $(RUN_STAMP) ## Tell what `make up` started and where its logs are
	$(BIN)/python -m worker.stack status

bench: $(RUN_STAMP) ## Measure against hand-written sagas, interleaved
	$(BIN)/python -m bench

clean: ## Stop the local stack and remove the environment, caches and local data
	if [ -x $(BIN)/python ]; then $(BIN)/python -m worker.stack clean || true; fi
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

lock: $(DEV_STAMP) ## Renew the lock files from pyproject.toml
	@$(PIP_INSTALL) 'uv>=0.13'
	$(BIN)/uv pip compile $(LOCK_FLAGS) --extra local --group build --output-file requirements.lock pyproject.toml
	$(BIN)/uv pip compile $(LOCK_FLAGS) --extra local --group build --group dev --constraint requirements.lock \
	  --output-file requirements-dev.lock pyproject.toml
	$(BIN)/uv pip compile $(LOCK_FLAGS) --group mutants --constraint requirements-dev.lock \
	  --output-file requirements-mutants.lock pyproject.toml
	$(BIN)/uv pip compile $(LOCK_FLAGS) --constraint requirements.lock --output-file deploy/requirements.lock pyproject.toml

LOCK_FLAGS := --universal --python-version 3.11 --upgrade --no-emit-index-url --no-emit-find-links \
  --no-annotate --generate-hashes --custom-compile-command "make lock" --quiet

# An environment holds the place it was built for, in each of its scripts: in a moved or copied checkout it is stale.
ifneq ($(wildcard $(VENV)/.place),)
ifneq ($(shell cat $(VENV)/.place),$(CURDIR))
$(shell rm -rf $(VENV))
endif
endif

# `--without-pip` and the caller's pip save five seconds; where that pip is too old or absent, venv brings its own.
$(VENV)/.place:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Backstay needs Python 3.11 or newer; call: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	@rm -rf $(VENV)
	@if $(PYTHON) -c 'import pip; exit(tuple(map(int, pip.__version__.split(".")[:2])) < (22, 3))' 2>/dev/null; \
	  then $(PYTHON) -m venv --without-pip $(VENV); else $(PYTHON) -m venv $(VENV); fi
	@echo "$(CURDIR)" > $@

# The venv's own pip if it has one, else the caller's pip working on the venv.
PIP_INSTALL = if [ -e $(BIN)/pip ]; then pip=($(BIN)/python -m pip); else pip=($(PYTHON) -m pip --python $(BIN)/python); fi; \
  "$${pip[@]}" install -qq

$(RUN_STAMP): requirements.lock pyproject.toml $(VENV)/.place
	@echo "Installing Backstay into $(VENV) (once; about 20 seconds) ..."
	@$(PIP_INSTALL) -r requirements.lock
	@$(PIP_INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

$(DEV_STAMP): requirements-dev.lock $(RUN_STAMP)
	@echo "Installing the development tools into $(VENV) ..."
	@$(PIP_INSTALL) -r requirements-dev.lock
	@touch $@
