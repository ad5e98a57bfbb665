# Each target first installs what is missing; `make dist` installs only the build tools, in a separate environment.
# make run        runs the main job: a sweep on real images, a forecast, a plan, and its validation
# make quick      the tests that changes break most often; takes about a minute
# make test       all tests except those marked slow
# make test-slow  the tests marked slow: kills, installations, third-party programs, many workers, whole documents
# make test-all   runs make test and make test-slow
# make check      checks format, lint rules, types, and the last measured coverage
# make format     formats the code, and applies the linter's automatic fixes
# make coverage   runs the tests, and writes their line coverage to CONTRIBUTING.md
# make docs       generates the reference pages from the code, and builds the documentation site in site/
# make dist       builds the wheel and the source distribution in dist/
.PHONY: run test test-slow test-all quick check format coverage docs dist bench screenshots setup clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BUILD_VENV := .venv-build
export OMP_NUM_THREADS ?= 1
# Python's container images disable bytecode files; without this line every test process would recompile this project
export PYTHONDONTWRITEBYTECODE :=

run: setup
	$(BIN)/hpo run examples/digits.yaml
	$(BIN)/hpo report digits -o report.html

# Tests spend half of their time waiting for processes, leases and time-outs, so there are more test processes than
# cores; each takes 1 to 2 GB. Because test files differ in duration by a factor of a hundred, an idle process takes over
# tests from another, and tests/conftest.py assigns the longest files first
TEST_PROCESSES ?= 3
test: setup
	$(BIN)/pytest -n $(TEST_PROCESSES) --dist worksteal -m "not slow"

test-slow: setup
	$(BIN)/pytest -n $(TEST_PROCESSES) --dist worksteal -m slow

test-all: test test-slow

quick: setup
	$(BIN)/pytest -n 2 --dist worksteal -m "not (slow or medium or fit or postgres or processes or browser)"

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m scripts.coverage_figure

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

coverage: setup
	$(BIN)/pytest -n $(TEST_PROCESSES) --dist worksteal -m "not slow" --cov --cov-report term:skip-covered --cov-report json:coverage.json
	$(BIN)/python -m scripts.coverage_figure --write coverage.json

docs: setup
	$(BIN)/python -m scripts.settings_table > docs/reference/settings.md
	$(BIN)/python -m scripts.api_reference > docs/reference/api.md
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

# removes leftovers of earlier builds; building the wheel from the source distribution verifies that the latter is complete
dist: $(BUILD_VENV)/.installed
	rm -rf build dist *.egg-info
	$(BUILD_VENV)/bin/python -m build --no-isolation --outdir dist .
	rm -rf build

bench: setup
	$(BIN)/python benchmarks/trial_overhead.py
	$(BIN)/python benchmarks/step_overhead.py
	$(BIN)/python benchmarks/optimizer_step.py --floor
	$(BIN)/python benchmarks/all_reduce.py
	$(BIN)/python benchmarks/reading.py
	$(BIN)/python -m benchmarks.techniques goyal digits
	$(BIN)/python -m benchmarks.techniques tuned digits
	$(BIN)/python -m benchmarks.noisy_quadratic
	$(BIN)/python -m benchmarks.extrapolation

# takes screenshots of every dashboard page into docs/screenshots, with studies run for this; needs Debian's chromium
screenshots: setup
	$(BIN)/python -m scripts.screenshots

# one stamp file for Python packages and one for Horovod, so that a failed Horovod build, which is optional, is reported once
setup: $(VENV)/.installed $(VENV)/.horovod

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[train,serve,export,mcp,docs,dev]'
	touch $@

$(BUILD_VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BUILD_VENV)/bin/python || $(PYTHON) -m venv $(BUILD_VENV)
	$(BUILD_VENV)/bin/python -m pip install --quiet --constraint constraints.txt build setuptools
	touch $@

$(VENV)/.horovod: trainers/distributed/build_horovod.sh $(VENV)/.installed
	PIP_CONSTRAINT=$(abspath constraints.txt) bash $< $(abspath $(BIN)/python) || \
		echo "horovod: could not be built here (see above); everything runs on torch.distributed instead" >&2
	touch $@

clean:
	rm -rf $(VENV) $(BUILD_VENV) dist site .hpo hpo.db hpo.db-wal hpo.db-shm report.html .coverage coverage.json .mypy_cache .ruff_cache .pytest_cache
