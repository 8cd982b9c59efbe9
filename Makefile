# Sets up .venv and works in it. "make help" lists the targets and what can be set.

PYTHON ?= python3
RANKS ?= 101
# The embedded Open MPI is the extra "mpi": on a cluster that has its own, say EXTRAS=test,lint.
EXTRAS ?= mpi,test,lint
# The metadata take a range; here one version, so that the same tests see the same training.
TORCH ?= torch==2.13.0
TEST_SECONDS ?= 3000
TEST_WORKERS ?= 2

VENV := .venv
comma := ,
# One stamp for each choice of extras, so that another choice is installed as well.
STAMP := $(VENV)/.setup-$(subst $(comma),-,$(EXTRAS))
TRAIN_STAMP := $(STAMP)-train
DOCS_STAMP := $(STAMP)-docs
# The test suite starts mpirun: whatever hangs in spite of its own limits ends here.
LIMIT := $(if $(shell command -v timeout),timeout -k 30 $(TEST_SECONDS))
PYTEST := PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(LIMIT) \
    $(VENV)/bin/python -m pytest -n $(TEST_WORKERS) --dist loadgroup

ifeq ($(shell id -u),0)
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
endif

# Where nothing compiled is kept, every process that a test starts compiles hpcfl again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := setup
.DELETE_ON_ERROR:
.PHONY: help setup setup-train bench test test-full dist-check mpi-matrix lint size docs clean distclean

help:
	@echo 'make setup        set up $(VENV) (the default)'
	@echo 'make setup-train  the same with PyTorch, for hpcfl train'
	@echo 'make bench        then run: mpirun -n $(RANKS) hpcfl bench sparse'
	@echo 'make test         then run the tests for every change: a few minutes on two cores'
	@echo 'make test-full    then run the expensive ones too, and property tests with more examples'
	@echo 'make dist-check   then build sdist and wheel, and use them and contrib/ outside of it'
	@echo 'make mpi-matrix   then run tests with five MPI libraries, and print the table of docs/clusters.md'
	@echo 'make lint         then check style and types'
	@echo 'make size         print how many lines each part has, and how many at most'
	@echo 'make docs         then make the site of the documentation in site/'
	@echo 'make clean        remove caches and build products; results stay'
	@echo 'make distclean    remove $(VENV) as well'
	@echo 'Can be set: PYTHON=$(PYTHON) RANKS=$(RANKS) EXTRAS=$(EXTRAS) TEST_SECONDS=$(TEST_SECONDS)' \
	    'TEST_WORKERS=$(TEST_WORKERS) TORCH=$(TORCH)'

setup: $(STAMP)

$(STAMP): pyproject.toml setup.py hpcfl/crypto/kernel.c
	@$(VENV)/bin/python -m pip --version >/dev/null 2>&1 || { \
	    '$(PYTHON)' -c 'import sys; sys.exit(sys.version_info < (3, 11, 4))' || { \
	        echo 'hpcfl needs Python 3.11.4 or newer, and $(PYTHON) is not:' \
	             'make setup PYTHON=/path/to/python3.11' >&2; exit 1; }; \
	    echo 'creating $(VENV)'; '$(PYTHON)' -m venv --clear $(VENV); }
	$(VENV)/bin/python -m pip install --quiet --editable '.[$(EXTRAS)]'
	$(if $(filter mpi,$(subst $(comma), ,$(EXTRAS))),$(VENV)/bin/python -c 'from hpcfl.system import mpiconfig; mpiconfig.allow_oversubscription()')
	@touch $@

# Training needs PyTorch, which is large: only what uses it installs it.
setup-train: $(TRAIN_STAMP)

$(TRAIN_STAMP): $(STAMP)
	$(VENV)/bin/python -m pip install --quiet --editable '.[train]' '$(TORCH)'
	@touch $@

bench: setup
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" mpirun -n $(RANKS) hpcfl bench sparse

test: setup-train
	$(PYTEST) -m 'not full'

# Of the tests that "make test" has run, only those again that try more examples now.
test-full: test
	$(PYTEST) --hypothesis-profile=full -m 'full or tiered or hypothesis'

# With every Python of PYTHONS, paths with ":" between them; by default that of the tests.
dist-check: setup-train
	HPCFL_PYTHONS='$(PYTHONS)' $(PYTEST) tests/campaigns/test_packages.py tests/campaigns/test_recipes.py

mpi-matrix: setup-train
	$(VENV)/bin/python tests/campaigns/mpi_matrix.py

lint: setup-train
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

size:
	@'$(PYTHON)' tests/size.py

# Warnings are errors: a link that leads nowhere, a page without a place in the navigation.
docs: $(DOCS_STAMP)
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

$(DOCS_STAMP): $(STAMP)
	$(VENV)/bin/python -m pip install --quiet --editable '.[docs]'
	@touch $@

clean:
	rm -rf build dist site *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name $(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
