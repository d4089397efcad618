# `make demo` and `make test` set up a virtual environment of their own and then do their job.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt
SOURCES := pyproject.toml constraints.txt
JOBS ?= 2
PYTHONS ?= 3.11 3.12 3.13
JAXES ?= 0.10 0.11 0.12
BENCHES := ir shard lean compile lockstep engine load cpu jax_door torch_door

.PHONY: help demo test test-all test-versions test-jax reach mutants lint format tour bench against clean

help:
	@echo "make demo      train a small Llama on 8 virtual devices, and look at the examples"
	@echo "make test      the tests, about 13 minutes on 2 cores"
	@echo "make test-all  the same and the long ones"
	@echo "make test-versions  the JAX plugin on every Python and JAX (PYTHONS='3.12' JAXES='0.11' for one)"
	@echo "make test-jax  JAX's own tests, of the checkout DIR of jax-ml/jax (FILES, ARGS)"
	@echo "make reach     which tests reach which lines, so that make mutants is quick"
	@echo "make mutants   change weft/ in 100 random places; how many do the tests see? (ARGS=--help)"
	@echo "make lint      ruff and mypy --strict"
	@echo "make format    let ruff write the code in its form"
	@echo "make tour      write docs/tour.md anew, from what the compiler makes of examples/block.py"
	@echo "make bench     Weft and its peers side by side (benchmarks/)"
	@echo "make against REV=main  whether the working tree is slower than a revision (ARGS=--quick)"
	@echo "make clean     remove the virtual environments and all caches"

$(BIN)/python:
	@echo "making $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(SOURCES) | $(BIN)/python
	@echo "installing weft[jax,cpu,cli] into $(VENV) ..."
	@$(PIP) -e '.[jax,cpu,cli]'
	@touch $@

$(VENV)/.dev: $(SOURCES) | $(BIN)/python
	@echo "installing weft[dev] into $(VENV) ..."
	@$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/.demo

$(VENV)/.zoo: $(VENV)/.dev
	@echo "installing weft[zoo] into $(VENV) ..."
	@$(PIP) -e '.[dev,zoo]'
	@touch $@

demo: $(VENV)/.demo
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh examples/demo.sh

test: $(VENV)/.dev
	$(BIN)/python -m pytest -q -n $(JOBS)

test-all: $(VENV)/.zoo
	WEFT_EXAMPLES=200 $(BIN)/python -m pytest -q -n $(JOBS) -m "not gpu"

test-versions:
	@$(PYTHON) tests/versions.py --pythons $(PYTHONS) --jaxes $(JAXES) --jobs $(JOBS) $(ARGS)

test-jax: $(VENV)/.dev
	@test -n "$(DIR)" || { echo "make test-jax DIR=a checkout of jax-ml/jax"; exit 2; }
	$(BIN)/python tests/upstream/run.py $(DIR) $(FILES) --jobs $(JOBS) $(ARGS)

reach: $(VENV)/.dev
	$(BIN)/python tests/reach.py -n $(JOBS) $(ARGS)

mutants: $(VENV)/.dev
	$(BIN)/python tests/mutants.py --jobs $(JOBS) $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict weft

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

tour: $(VENV)/.dev
	$(BIN)/python docs/tour.py --write

bench: $(VENV)/.dev
	@for subject in $(BENCHES); do $(BIN)/python benchmarks/$$subject.py || exit 1; done

against: $(VENV)/.dev
	@test -n "$(REV)" || { echo "make against REV=a commit, branch or tag"; exit 2; }
	$(BIN)/python benchmarks/against.py $(REV) $(ARGS)

clean:
	rm -rf $(VENV) .venv-*-jax* .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
