# Two commands do all the set-up on a fresh machine with Python 3.11+ and make: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile --constraint constraints.txt

.PHONY: environment demo test test-plain test-slow sanitize laws recipes check clean
.DEFAULT_GOAL := demo

$(VENV)/.ready: pyproject.toml constraints.txt setup.py $(wildcard src/fedax/models/layers/native/*)
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	touch $@

$(VENV)/.ready-to-test: $(VENV)/.ready
	$(PIP) --editable ".[test,dev]"
	touch $@

environment: $(VENV)/.ready-to-test ## everything that tests and checks need

demo: $(VENV)/.ready ## compare four methods on three tasks, about three minutes
	$(BIN)/fedax demo

test: $(VENV)/.ready-to-test ## all tests and the examples in the documentation
	$(BIN)/python -m pytest --numprocesses auto --dist loadgroup

laws: $(VENV)/.ready-to-test ## the laws and edges that `make test` leaves out, of all algorithms
	$(BIN)/python -m pytest --numprocesses auto --dist loadgroup -m slow tests/laws tests/closed_forms/test_edges.py

recipes: $(VENV)/.ready-to-test ## every recipe at smoke scale, but for the one in `make test`
	$(BIN)/python -m pytest --numprocesses auto -m slow tests/recipes

test-slow: $(VENV)/.ready-to-test ## the tests that take long: recipes at smoke scale, MPI, killed runs
	$(BIN)/python -m pytest --numprocesses auto --dist loadgroup -m slow tests

test-plain: $(VENV)/.ready-to-test ## the models without the native layers, as where there is no C++ compiler
	FEDAX_NATIVE=0 $(BIN)/python -m pytest --numprocesses auto --dist loadgroup tests/models tests/cli/test_doctor.py

sanitize: ## the native layers under the address, undefined-behaviour and thread sanitizers
	tests/native/sanitize.sh

check: $(VENV)/.ready-to-test ## format, lint, types, imports contract
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/pyright
	$(BIN)/pyright --project pyright-strict.json
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV)
