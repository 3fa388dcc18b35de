# Two commands do everything on a fresh machine: `make demo` and `make test`.
# They need Python >= 3.11, a C++ compiler and make.

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: demo test check test-unit test-gpu format clean

demo: $(VENV)/installed
	$(BIN)/preheat demo

test: $(VENV)/installed-tests
	$(BIN)/python -m pytest

check: $(VENV)/installed-tests
	$(BIN)/ruff format --check lib daemon tests
	$(BIN)/ruff check lib daemon tests
	$(BIN)/mypy

test-unit: $(VENV)/installed-tests
	$(BIN)/python -m pytest tests/unit

# By hand, on a machine with a GPU and its own torch: PYTHON is used as it is.
test-gpu:
	PYTHONPATH=lib:daemon $(PYTHON) -m pytest tests/gpu -m gpu -p no:cacheprovider

format: $(VENV)/installed-tests
	$(BIN)/ruff format lib daemon tests
	$(BIN)/ruff check --fix lib daemon tests

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[daemon]'
	touch $@

$(VENV)/installed-tests: $(VENV)/installed requirements-acceptance.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[daemon,test,acceptance]'
	$(BIN)/python -m pip install --quiet --no-deps --requirement requirements-acceptance.txt
	touch $@
