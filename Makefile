# Everything runs in the project's own environment, made from pyproject.toml.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: test install lint types unit clean quickstart
test: lint types unit ## what CI runs: style, types and every test

install: $(VENV)/.installed
$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

unit: install
	$(BIN)/python -m pytest

clean:
	rm -rf $(VENV)

quickstart: install ## adapt the embedded CLIP to a small data set and write a report
	$(BIN)/dear quickstart
