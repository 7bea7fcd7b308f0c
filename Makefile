# Every task of this repository. Needs Debian 12's git, make, g++ and python3 with venv; everything else goes into .venv.
# Installs happen by themselves, and again only when pyproject.toml, the constraints or the native sources change.

PYTHON ?= python3
# One version of every package; `CONSTRAINTS=/dev/null` takes the newest, for another Python or PyTorch (docs/development.md).
CONSTRAINTS ?= requirements/constraints.txt
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --quiet install --constraint $(CONSTRAINTS)
NATIVE_SOURCES := $(wildcard native/*/*.cpp native/*/*.hpp)
INPUTS := pyproject.toml setup.py requirements/constraints.txt $(NATIVE_SOURCES)
ARGS ?=
# One worker of pytest-xdist more than cores: tests that start processes wait for them half of their time.
WORKERS ?= $(shell echo $$(($$(nproc) + 1)))
# Tests and commands start a thousand interpreters, each of which would compile our modules anew.
unexport PYTHONDONTWRITEBYTECODE
# For recipes that compile against Python, torch.compile's included: sets the compiler's CPATH where Python.h is elsewhere.
WITH_HEADERS := headers=$$(tools/python_headers.sh $(PY) $(VENV)/headers) && export CPATH="$$headers" &&

.DEFAULT_GOAL := help
.PHONY: help demo demo-text test test-thorough test-fast lint format tidy types imports drift constants p4 wheel wheel-smoke sanitize \
	sanitize-address sanitize-thread fuzz fuzz-control simulate compose-check launchers docs docs-pages docs-version wheels bench ci clean

help: ## This list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "ARGS=... is passed on: make demo ARGS='--workers 2', make test ARGS='tests/switch -k drop'"

demo: $(VENV)/demo.stamp ## Train handwritten digits on 4 workers through the software switch, then over gloo
	@$(VENV)/bin/fanin demo $(ARGS)

demo-text: $(VENV)/demo.stamp ## The same with a small transformer on text
	@$(VENV)/bin/fanin demo --task text $(ARGS)

test: $(VENV)/dev.stamp ## The tests, but for those that are marked thorough
	@$(WITH_HEADERS) $(PY) -m pytest --numprocesses $(WORKERS) --dist loadgroup -m 'not thorough' $(ARGS)

# Files that say the word, or each worker of xdist would collect ten thousand tests for the sake of a hundred.
THOROUGH = $(shell grep -rl --include='test_*.py' thorough tests)
test-thorough: $(VENV)/dev.stamp ## What repeats tests with larger worlds, more steps and more seeds, and checks the gallery
	@$(WITH_HEADERS) $(PY) -m pytest --numprocesses $(WORKERS) --dist loadgroup -m thorough $(or $(ARGS),$(THOROUGH))

test-fast: $(VENV)/dev.stamp ## Every test that is not marked slow
	@$(WITH_HEADERS) $(PY) -m pytest --numprocesses $(WORKERS) --dist loadgroup -m 'not slow and not thorough' $(ARGS)

lint: $(VENV)/dev.stamp ## ruff (lint and format), shellcheck, clang-format, words
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/shellcheck .ci/run $(wildcard tools/*.sh examples/launchers/*.sh)
	$(VENV)/bin/clang-format --dry-run --Werror $(NATIVE_SOURCES)
	$(PY) -m tools.words

format: $(VENV)/dev.stamp ## Rewrite files as ruff wants them
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
	$(VENV)/bin/clang-format -i $(NATIVE_SOURCES)

tidy: $(VENV)/tools.stamp ## clang-tidy on native/ (skipped, by name, where it is not installed)
	@$(WITH_HEADERS) tools/tidy.sh $(PY) $(ARGS)

types: $(VENV)/dev.stamp ## mypy --strict
	$(PY) tools/linked_tree.py
	$(PY) -m mypy

imports: $(VENV)/dev.stamp ## Who may import whom (contracts in pyproject.toml)
	$(PY) tools/linked_tree.py
	cd build/tree && $(CURDIR)/$(VENV)/bin/lint-imports --no-logo

constants: $(VENV)/dev.stamp ## Regenerate what native code and P4 share with Python, and docs/rules.md
	$(PY) -m fanin.constants native/wire/wire_constants.hpp
	$(PY) -m fanin.constants p4/shared/constants.p4
	$(PY) -m tools.p4_words > p4/tna/words.p4
	$(PY) -m tools.rules --write

p4: ## Compile the P4 programs into p4/build (needs p4c on PATH)
	$(PYTHON) -m tools.p4_artefacts build

drift: $(VENV)/dev.stamp ## Generated constants and compiled P4 are current, and the stubs match the native module
	$(PY) -m fanin.constants | diff native/wire/wire_constants.hpp -
	$(PY) -m tools.p4_words | diff p4/tna/words.p4 -
	$(PY) -m tests.documents.systems | diff docs/systems.md -
	$(PY) -m tools.rules --check
	$(PY) -m tools.p4_artefacts check
	$(PY) tools/linked_tree.py
	cd build/tree && $(CURDIR)/$(PY) -m mypy.stubtest --allowlist $(CURDIR)/tools/stubtest-allowlist.txt fanin._native

wheel: $(VENV)/dev.stamp ## Build dist/*.tar.gz, and dist/*.whl from it
	@$(WITH_HEADERS) tools/wheel_from_sdist.sh $(PY)

wheel-smoke: wheel ## Install the wheel into a new environment and reduce something with it
	tools/wheel_smoke.sh $(PY)

sanitize: sanitize-address sanitize-thread ## The native tests under ASan + UBSan, then under TSan

sanitize-address: $(VENV)/dev.stamp ## The native tests under ASan + UBSan
	@$(WITH_HEADERS) tools/sanitize.sh address,undefined $(ARGS)

sanitize-thread: $(VENV)/dev.stamp ## The native tests under TSan
	@$(WITH_HEADERS) tools/sanitize.sh thread $(ARGS)

fuzz: $(VENV)/tools.stamp ## libFuzzer on every native parser (skipped, by name, without clang)
	tools/fuzz.sh $(ARGS)

fuzz-control: $(VENV)/dev.stamp ## 10,000,000 mutated messages at the controllers, in virtual time (about two hours)
	FANIN_FUZZ_MESSAGES=$${FANIN_FUZZ_MESSAGES:-10000000} $(VENV)/bin/python -m pytest tests/hostile/test_control_fuzz.py -q --timeout 0

simulate: $(VENV)/dev.stamp ## Thousands of schedules in virtual time: native, in trains, twin, and seven planted defects that must be found
	$(VENV)/bin/fanin simulate --native --search 5000
	$(VENV)/bin/fanin simulate --trains --search 500
	$(VENV)/bin/fanin simulate --python --search 500 --seed 100000
	$(VENV)/bin/fanin simulate --canary 3
	$(VENV)/bin/fanin simulate --shards --search 2000
	$(VENV)/bin/fanin simulate --shards --cards --search 1000
	$(VENV)/bin/fanin simulate --shards --canary 2

wheels: $(VENV)/tools.stamp ## Fill wheels/ with what the container image installs, for a build without a package index
	tools/fetch_wheels.sh $(PY)

compose-check: $(VENV)/dev.stamp ## docker-compose.yml on a real engine (skipped, by name, where none can be had)
	tools/compose_check.sh $(PY) $(ARGS)

# With a tree of its own, since `make types` may remake the other one at the same time.
docs: docs-pages ## The documentation as a site in build/site/html, notebooks run, links and docstrings checked
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet $(ARGS)

docs-pages: $(VENV)/dev.stamp $(VENV)/docs.stamp ## Pages, reference, reports and notebooks, staged for mkdocs in build/site/pages
	@$(PY) tools/linked_tree.py build/site/tree
	@$(PY) -m tools.site
	@$(PY) -m tools.notebooks

MINOR = $(shell sed -nE 's/^__version__ = "([0-9]+\.[0-9]+).*/\1/p' fanin/__init__.py)
docs-version: docs-pages ## The documentation of this version as a commit on the branch gh-pages (docs/releases.md); ARGS=--push publishes it
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mike deploy --update-aliases $(ARGS) $(MINOR) latest
	@$(VENV)/bin/mike set-default $(ARGS) latest

launchers: $(VENV)/dev.stamp ## Ranks that Slurm, mpirun, Ray and torchrun on two hosts start (skipped, by name, where one cannot be had)
	-tools/debian_packages.sh slurm-wlm=sbatch munge=munged openmpi-bin=mpirun
	@$(PIP) kubernetes-validate
	-@$(PIP) 'ray[train]>=2.50'
	@$(WITH_HEADERS) FANIN_TEST_LAUNCHERS=1 $(PY) -m pytest tests/launchers $(ARGS)

bench: $(VENV)/demo.stamp ## All-reduce against gloo and, where installed, OpenMPI
	$(VENV)/bin/fanin bench allreduce --against gloo,mpi $(ARGS)

ci: ## What .ci/run runs
	.ci/run

clean: ## Remove what was built; .venv stays
	rm -rf build dist ./*.egg-info fanin/*.so .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# --- set-up ---

$(VENV)/tools.stamp: requirements/constraints.txt
	@test -x $(PY) || { echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@$(PIP) 'setuptools>=77' pybind11
	@touch $@

# What an extra needs, without fanin itself.
REQUIREMENTS = $(PY) tools/requirements_of.py $(1) > $(VENV)/$(1).txt && $(PIP) --requirement $(VENV)/$(1).txt

$(VENV)/docs.stamp: $(VENV)/tools.stamp pyproject.toml requirements/constraints.txt
	@echo "installing what builds the documentation"
	@$(call REQUIREMENTS,docs)
	@touch $@

# Compiling takes all cores for minutes, and pip one for a minute: they go on beside each other. pip's own build then finds
# the objects in build/, and says what was wrong where compiling has failed.
INSTALL = $(WITH_HEADERS) { $(PY) setup.py --quiet build_ext --inplace > $(VENV)/compiled.txt 2>&1 & } && \
	{ $(call REQUIREMENTS,$(1)); \
	installed=$$?; wait; [ $$installed -eq 0 ]; } && $(PIP) --no-build-isolation --editable '.[$(1)]'

$(VENV)/demo.stamp: $(VENV)/tools.stamp $(INPUTS)
	@echo "installing fanin and what the demo needs (PyTorch is the large one), compiling native/"
	@$(call INSTALL,demo)
	@touch $@

$(VENV)/dev.stamp: $(VENV)/tools.stamp $(INPUTS)
	@echo "installing fanin and what its tests need, compiling native/"
	@export FANIN_BUILD_WARNINGS=error; $(call INSTALL,dev)
	@touch $@ $(VENV)/demo.stamp
