# Two commands do all the set-up on a fresh machine with Python 3.11+ (or uv) and make: `make demo` and `make test`.
# PYTHON names an interpreter; by default .ci/python looks for one
VENV := .venv
BIN := $(VENV)/bin
UV := $(shell command -v uv)
PIP := $(if $(UV),uv pip install --quiet --python $(BIN)/python,$(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile) \
  --constraint constraints.txt
PYTEST := $(BIN)/python -m pytest --numprocesses auto --dist loadscope

# many short processes import the same packages: none of them should have to compile these again
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help environment demo test slow torch faults format generate docs pages check
.DEFAULT_GOAL := demo

help: ## list what make can do here
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# pip says nothing while it works; requirements of extras are installed without the project, whose extension would be built again
$(VENV)/.ready: pyproject.toml constraints.txt setup.py $(wildcard src/fedax/ops/native/*)
	@echo "Installing into $(VENV): one to three minutes."
	@python=$$(.ci/python $(PYTHON)) && $(if $(UV),uv venv --quiet --allow-existing --seed --python "$$python",$$python -m venv) $(VENV)
	$(PIP) --editable .
	touch $@

$(VENV)/.ready-to-test: $(VENV)/.ready
	@echo "Installing what tests and checks need: one to four minutes."
	$(BIN)/python .ci/requirements test dev | $(PIP) --requirement /dev/stdin
	touch $@

environment: $(VENV)/.ready-to-test ## everything that tests and checks need

demo: $(VENV)/.ready ## compare five methods on three tasks, at most three minutes on two cores
	$(BIN)/fedax demo

test: $(VENV)/.ready-to-test ## all tests but the slow ones, and the examples in the documentation
	$(PYTEST)

format: $(VENV)/.ready-to-test ## format the code and sort its imports
	$(BIN)/ruff check --quiet --fix src tests benchmarks docs || true
	$(BIN)/ruff format src tests benchmarks docs

generate: $(VENV)/.ready-to-test ## write exports, the list of the public interface and the pages on the benchmark, after a new algorithm, a changed signature or new benchmark results
	$(BIN)/python .ci/generate

# one process more than there are cores: deployments wait much of their time
SLOW := tests
slow: $(VENV)/.ready-to-test ## the tests that `make test` leaves out: further engines, recipes, MPI, killed runs, deployments: make slow SLOW=tests/flower for a folder
	$(PYTEST) --numprocesses $$(($$($(BIN)/python -c "import os; print(os.cpu_count())") + 1)) -m slow --ignore tests/site $(SLOW)

# PyTorch has an environment of its own, because its builds with CUDA take several GB: the index is that of builds for CPUs
TORCH := .venv-torch
TORCH_INDEX := https://download.pytorch.org/whl/cpu
$(TORCH)/.ready: pyproject.toml constraints.txt setup.py $(wildcard src/fedax/ops/native/*)
	@python=$$(.ci/python $(PYTHON)) && "$$python" -m venv $(TORCH)
	$(TORCH)/bin/python .ci/requirements test torch | $(TORCH)/bin/python -m pip install --quiet --constraint constraints.txt \
	  --extra-index-url $(TORCH_INDEX) --requirement /dev/stdin --editable .
	touch $@

torch: $(TORCH)/.ready ## the tests of PyTorch modules, their tutorial and their deployment, in an environment with PyTorch
	$(TORCH)/bin/python -m pytest --quiet -m "slow or not slow" tests/pytorch tests/flower/test_deploy_torch.py

KILLS ?= 100
FAULTS ?= 30
RUNS ?= 1000
ROUNDS ?= 16000
faults: $(VENV)/.ready-to-test ## mutate files, kill and resume runs, let MPI ranks fail, run on a thousand tasks, and for long: make faults KILLS=100 FAULTS=30 RUNS=1000 ROUNDS=16000
	$(BIN)/python tests/fuzz/fuzz.py bits 3000
	$(BIN)/python tests/fuzz/fuzz.py data 2000
	$(BIN)/python tests/fuzz/fuzz.py specifications 2000
	$(BIN)/python tests/faults --kills $(KILLS) --faults $(FAULTS)
	$(BIN)/python tests/faults/many.py $(RUNS) $(ROUNDS)

$(VENV)/.ready-for-docs: $(VENV)/.ready-to-test
	$(BIN)/python .ci/requirements docs | $(PIP) --requirement /dev/stdin
	touch $@

docs: export NO_MKDOCS_2_WARNING := 1
docs: $(VENV)/.ready-for-docs ## the documentation as a site, in site/
	$(BIN)/mkdocs build --quiet

pages: docs ## the site's links, search and notebooks, and its pages in a browser (Chromium), two to four minutes
	FEDAX_SITE=site $(PYTEST) --quiet -m slow tests/site

check: $(VENV)/.ready-to-test ## format, lint, imports contract, ceilings of tokens, and types
	$(BIN)/ruff format --check src tests benchmarks docs
	$(BIN)/ruff check src tests benchmarks docs
	$(BIN)/lint-imports
	.ci/tokens --check
	$(BIN)/pyright
	$(BIN)/pyright --project pyright-strict.json
