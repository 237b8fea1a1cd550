# rlrun on this machine's CPU. `make quickstart` and `make test` each do all the set-up they need.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# Another transformers, the reference of the parity tests, in a folder of its own: see requirements/reference.txt.
REFERENCE := .reference
# Extra words for pip, e.g. PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"
PIP_ARGS ?=

# Engines start several processes: precompiled bytecode and one thread each matter on a small machine.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup quickstart test test-engines lint format clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) $(REFERENCE)/.ready  ## Install everything into .venv (about 3 minutes; again only when a pin changes)

$(READY): requirements/cpu.txt pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(f"rlrun needs Python 3.11 or 3.12, $(PYTHON) is {v[0]}.{v[1]}: make PYTHON=/path/to/python3.11") if v not in ((3, 11), (3, 12)) else None'
	@echo "setup: creating $(VENV) and installing the pinned CPU environment (a few minutes)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(PIP_ARGS) -r requirements/cpu.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@$(BIN)/python -c 'import torch' || { echo "setup: torch does not import; on an index that serves CUDA builds use: make setup PIP_ARGS='--extra-index-url https://download.pytorch.org/whl/cpu'"; exit 1; }
	@touch $(READY)
	@echo "setup: done. Next: make quickstart"

# Precompiling all of transformers would take longer than everything else here, and the tests import little of it.
$(REFERENCE)/.ready: requirements/reference.txt | $(READY)
	@rm -rf $(REFERENCE)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile $(PIP_ARGS) --target $(REFERENCE) -r requirements/reference.txt
	@touch $@

quickstart: setup  ## Train a tiny model with Ray, Megatron-core and SGLang on this machine's CPU
	$(BIN)/rlrun +experiment=quickstart

test: setup  ## Fast unit tests (no Ray, engines or network)
	$(BIN)/python -m pytest

test-engines: setup  ## Tests with the real engines on CPU (minutes)
	$(BIN)/python -m pytest -m engines

lint: setup  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup  ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## Remove the environments and every run
	rm -rf $(VENV) $(REFERENCE) runs
