# Everything happens in .venv, which `make install` makes; nothing else on the machine is changed.

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed

# 3.11 first: it is what CI tests. A name on the PATH proves nothing (pyenv's shims), so each is tried.
PYTHONS := python3.11 python3.12 python3.13 python3.14 python3
USABLE := import sys, ensurepip, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 15))

.PHONY: help install train test test-slow check-wheel format clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(INSTALLED) ## make .venv with everything: three minutes the first time, nothing to do the second
	@echo "install: .venv is ready"

train: $(INSTALLED) ## train; settings go into ARGS="task=sst2 trainer.max_steps=100"
	@$(BIN)/python train.py $$(cat $(INSTALLED)) $(ARGS)

test: $(INSTALLED) ## what CI runs: linters, types and the tests that are not slow
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/python -m pytest -m "not slow" -n 2 --dist loadgroup

test-slow: $(INSTALLED) ## the long proofs and measurements
	@$(BIN)/python -m pytest -m slow

check-wheel: $(INSTALLED) ## build the wheel, install it in a clean environment without vLLM, use it from another folder
	@$(BIN)/python scripts/check_wheel.py

format: $(INSTALLED) ## format the code and mend what a linter can
	@$(BIN)/ruff format
	@$(BIN)/ruff check --fix

clean: ## remove caches and build output; .venv, outputs and multirun stay
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

# What an interrupted install left behind can look whole to pip, so it goes.
$(INSTALLED): pyproject.toml Makefile scripts/install.py
	@if [ -e $(VENV)/installing ]; then rm -rf $(VENV); fi
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
	  for python in $(PYTHONS); do \
	    if $$python -c '$(USABLE)' >/dev/null 2>&1; then \
	      echo "install: making $(VENV) with $$($$python --version)"; \
	      exec $$python -m venv --clear $(VENV); \
	    fi; \
	  done; \
	  echo "install: no Python 3.11 to 3.14 with its venv module was found: install one, for example" \
	    "the packages python3.11 and python3.11-venv of Debian or Ubuntu, and try again" >&2; \
	  exit 1; }
	@$(BIN)/python scripts/install.py
