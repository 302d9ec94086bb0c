# Every target makes .venv from the project's files if it is missing or out of date, and re-uses it otherwise.
PYTHON ?= python3
CONSTRAINTS ?= constraints-cpu.txt
VENV := .venv
# glibc hands large tensors back to the system after each step; keeping them saved 3 to 26 % of training time here.
export MALLOC_MMAP_THRESHOLD_ ?= 4294967296
export MALLOC_TRIM_THRESHOLD_ ?= 4294967296
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DOCS_VENV := .venv-docs
DOCS_READY := $(DOCS_VENV)/.ready

.PHONY: demo test test-exhaustive browser lint types docs clean

demo: $(READY)
	$(BIN)/teka demo --out runs/demo

test: $(READY)
	$(BIN)/python -m pytest -n auto --dist loadgroup

# Every kernel with every relative kernel, backend and second factor, where `test` meets a choice of them.
test-exhaustive: $(READY)
	TEKA_TESTS=exhaustive $(BIN)/python -m pytest -n auto --dist loadgroup

# The pages of the audit in a headless Chromium, which must be installed.
browser: $(READY)
	$(BIN)/python -m pytest tests/browser

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/pyright

# An environment of its own, without torch: the pages are made from the sources' text.
docs: $(DOCS_READY)
	$(DOCS_VENV)/bin/mkdocs build --strict

clean:
	rm -rf $(VENV) $(DOCS_VENV) runs/demo build dist .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(if $(CONSTRAINTS),-c $(CONSTRAINTS)) -e '.[dev]'
	touch $@

$(DOCS_READY): pyproject.toml
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' > $(DOCS_VENV)/requirements.txt
	$(DOCS_VENV)/bin/python -m pip install --quiet -r $(DOCS_VENV)/requirements.txt
	touch $@
