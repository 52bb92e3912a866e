# `make demo` and `make test` are all that a fresh machine needs: each makes .venv and installs first.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed

.PHONY: demo test test-all lint bench clean

demo: $(INSTALLED)
	$(BIN)/mpsae demo --out demo

test: $(INSTALLED)
	$(BIN)/pytest -m "not slow"

test-all: $(INSTALLED)
	$(BIN)/pytest

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

bench: $(INSTALLED)
	$(BIN)/python benchmarks/pursuit.py
	$(BIN)/python benchmarks/digits.py

# A CPU build of torch that pip can find locally is taken first; where there is none, the index decides.
$(INSTALLED): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --no-index --no-deps torch 2>/dev/null || true
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv demo
