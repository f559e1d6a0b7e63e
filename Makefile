# Everything a newcomer or CI needs. Every target is idempotent and says what it does.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# CI and small machines give a constraints file here (a CPU build of torch); the package itself leaves torch open.
PIP_ARGS ?=
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: run test test-slow faults types lint wheel clean help
help:
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 12

run: $(VENV)/.run ## set everything up and open the console on the bundled model
	@$(BIN)/vlmconsole $(ARGS)

test: $(VENV)/.test ## install the test extras, then run the default tests
	@$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

test-slow: $(VENV)/.test ## the longer tests too (real servers, real training)
	@$(BIN)/python -m pytest -m 'not optin' $(ARGS)

types: $(VENV)/.test ## strict type checking of everything that ships
	@sh tests/tools/types.sh $(BIN)

lint: $(VENV)/.test ## ruff, check and format
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

faults: $(VENV)/.test ## the long fault suite of the job queue
	@$(BIN)/python -m tests.tools.faults.long $(ARGS)

wheel: $(VENV)/.test ## build a wheel into dist/
	@$(BIN)/python -m pip wheel -q --no-deps -w dist . && ls dist

clean: ## forget the environment and build products
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache

# A stamp per set of extras: the install runs again only when pyproject.toml changes.
$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "vlmconsole needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "making the virtual environment $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { echo "python3 could not make a virtual environment (on Debian: apt install python3-venv)"; exit 1; }

$(VENV)/.run: pyproject.toml | $(VENV)/bin/python
	@echo "installing vlmconsole with the console and the local engine (about 1.2 GB, a few minutes; once)"
	@$(BIN)/python -m pip install -q $(PIP_ARGS) -e '.[tui,local]'
	@touch $@

$(VENV)/.test: pyproject.toml | $(VENV)/bin/python
	@echo "installing vlmconsole with everything the tests use (about 2.5 GB, some minutes; once)"
	@$(BIN)/python -m pip install -q $(PIP_ARGS) -e '.[test]'
	@touch $@ $(VENV)/.run
