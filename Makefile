# Each target installs what is missing first; `make dist` only what builds, in an environment of its own.
# make run        the main job: a sweep on real images, a forecast, a plan, the proof
# make quick      about a minute: the tests of what a change breaks most often
# make test       the tests: every law, rule, contract and interface; what takes long beside them is in test-slow
# make test-slow  those marked slow: kills, installations, strangers' programs, many workers, whole documents
# make test-all   both
# make check      format, linter, types, and the coverage that was measured last
# make format     puts the code into the format, and repairs what the linter can
# make coverage   the tests, and the share of lines that they run, kept in CONTRIBUTING.md
# make docs       the pages that are written from the code, and the documentation as a site in site/
# make dist       the wheel and the source distribution, in dist/
.PHONY: run test test-slow test-all quick check format coverage docs dist bench screenshots setup clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BUILD_VENV := .venv-build
export OMP_NUM_THREADS ?= 1
# images of Python turn bytecode off; then every process of a test compiles this project again
export PYTHONDONTWRITEBYTECODE :=

run: setup
	$(BIN)/hpo run examples/digits.yaml
	$(BIN)/hpo report digits -o report.html

# half of the time of the tests is waiting (for processes, leases, time-outs): more of them than cores, at 1 to 2 GB each.
# A process that has nothing left takes tests from another: files differ in length by a factor of a hundred, and
# tests/conftest.py deals those with the longest to the processes first
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

# without what other builds left behind; the wheel is built from the source distribution, which shows that it is complete
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

# docs/screenshots: every page of the dashboard, of studies that are run for it; needs Debian's chromium
screenshots: setup
	$(BIN)/python -m scripts.screenshots

# one stamp for Python packages, one for Horovod: a failed Horovod build is said once, and everything runs without it
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
