# make run    installs what is missing, runs the main job: a sweep on real images, a forecast, a plan, the proof
# make test   installs what is missing, runs the tests
.PHONY: run test check bench screenshots setup clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= 1

run: setup
	$(BIN)/hpo run examples/digits.yaml
	$(BIN)/hpo report digits -o report.html

test: setup
	$(BIN)/pytest -n 2

check: setup
	$(BIN)/ruff check .
	$(BIN)/mypy

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
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[train,serve,export,dev]'
	touch $@

$(VENV)/.horovod: scripts/build_horovod.sh $(VENV)/.installed
	scripts/build_horovod.sh $(abspath $(BIN)/python) || \
		echo "horovod: could not be built here (see above); everything runs on torch.distributed instead" >&2
	touch $@

clean:
	rm -rf $(VENV) .hpo hpo.db hpo.db-wal hpo.db-shm report.html .mypy_cache .ruff_cache .pytest_cache
