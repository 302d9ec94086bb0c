# Every target creates the virtual environment .venv if it is missing or older than the project's requirements.
PYTHON ?= python3
CONSTRAINTS ?= constraints-cpu.txt
# Versions and hashes of all packages except PyTorch. LOCK= installs the newest versions that pyproject.toml allows.
LOCK ?= requirements.lock
VENV := .venv
# By default, glibc returns the memory of large tensors to the system after each step. Keeping it saves training time.
export MALLOC_MMAP_THRESHOLD_ ?= 4294967296
export MALLOC_TRIM_THRESHOLD_ ?= 4294967296
# Write .pyc files, because otherwise each test process compiles all modules again.
export PYTHONDONTWRITEBYTECODE =
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DOCS_VENV := .venv-docs
DOCS_READY := $(DOCS_VENV)/.ready
BUILD_VENV := .venv-build
BUILD_READY := $(BUILD_VENV)/.ready
VISION_VENV := .venv-vision
VISION_READY := $(VISION_VENV)/.ready
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"$$/\1/p' src/teka/__init__.py)
MAKE_VENV = $(PYTHON) -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || \
	{ echo "$(PYTHON) is not Python 3.10 or newer with its module venv: install these (Debian: apt install python3-venv), or name another, make PYTHON=…" >&2; exit 1; }; \
	$(PYTHON) -m venv

.PHONY: demo test test-compilers test-exhaustive test-portable test-cuda test-oldest test-newest test-vision vision wheel lock browser lint types docs docs-version release clean

demo: $(READY)
	$(BIN)/teka demo --out runs/demo

test: $(READY)
	$(BIN)/python -m pytest -n auto --dist worksteal

# Tests of the layers with torch.compile, exported and in Triton's interpreter. Each takes some seconds.
test-compilers: $(READY)
	$(BIN)/python -m pytest -n auto --dist worksteal tests/compilers

# All combinations of content kernel, relative kernel and backend. `test` runs a selection of them.
test-exhaustive: $(READY)
	TEKA_TESTS=exhaustive $(BIN)/python -m pytest -n auto --dist worksteal tests tests/compilers

# Numeric tests, first with the instructions that every x86 processor has, then with all instructions of this one.
PORTABLE_TESTS := $(addprefix tests/,contracts convert functional models nn audit/measure audit/statistics)
EVERY_CPU := ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_CBWR=COMPATIBLE
THIS_CPU := $(addprefix -u ,ATEN_CPU_CAPABILITY ONEDNN_MAX_CPU_ISA MKL_CBWR)
test-portable: $(READY)
	for cpu in "$(EVERY_CPU)" "$(THIS_CPU)"; do \
		env $$cpu $(BIN)/python -c 'import torch; print("PyTorch uses", torch.backends.cpu.get_cpu_capability())' && \
		env $$cpu $(BIN)/python -m pytest -n auto --dist worksteal $(PORTABLE_TESTS) || exit 1; \
	done

# Tests on a GPU. They need PyTorch with CUDA, which CONSTRAINTS= installs. The option -o addopts turns off the checks of
# type annotations, because Triton cannot compile functions that have them.
CUDA_TESTS := $(addprefix tests/contracts/test_,$(addsuffix .py,fast_equals_dense causal cross padding state signed prefix permutation shift))
test-cuda: $(READY)
	TEKA_DEVICE=cuda $(BIN)/python -m pytest -o addopts=--import-mode=importlib -n 4 $(CUDA_TESTS) tests/compilers/test_triton.py

# All tests with the oldest and with the newest supported versions, in separate virtual environments.
test-oldest:
	$(MAKE) test-compilers test VENV=.venv-oldest PYTHON=$(or $(OLDEST),python3.10) CONSTRAINTS=constraints-oldest.txt LOCK=

test-newest:
	$(MAKE) test-compilers test VENV=.venv-newest PYTHON=$(or $(NEWEST),python3.14) CONSTRAINTS= LOCK=

# Build the source archive and the wheel in dist/, and check that PyPI accepts them and that they contain only the package.
wheel: $(BUILD_READY)
	rm -rf dist
	$(BUILD_VENV)/bin/python -m build --outdir dist
	$(BUILD_VENV)/bin/twine check --strict dist/*
	$(BUILD_VENV)/bin/check-wheel-contents dist/*.whl

# Write requirements.lock with the newest versions for all supported versions of Python and systems. PyTorch and Triton
# are left out, because their builds depend on the machine.
lock: $(BUILD_READY)
	$(BUILD_VENV)/bin/uv pip compile pyproject.toml --extra dev --universal --python-version 3.10 --generate-hashes --upgrade \
		--excludes constraints-cpu.txt --no-emit-package triton --no-annotate --custom-compile-command 'make lock' -qo requirements.lock

# Tests with timm and torchvision, in a separate virtual environment. Its PyTorch is the oldest supported version, so the
# tests of torch.compile run there too.
test-vision: $(VISION_READY)
	$(VISION_VENV)/bin/python -m pytest tests/vision
	$(VISION_VENV)/bin/python -m pytest tests/compilers/test_compile.py

vision: $(VISION_READY)

# Tests of the audit pages in headless Chromium, which must be installed.
browser: $(READY)
	$(BIN)/python -m pytest tests/browser

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/pyright

# Build the documentation in a virtual environment without PyTorch, and run the tutorials and examples.
docs: $(DOCS_READY) $(READY)
	$(DOCS_VENV)/bin/mkdocs build --strict
	$(BIN)/python -m pytest -n auto tests/documentation

# Add the documentation of this version to the branch gh-pages, and mark it as the latest version.
docs-version: $(DOCS_READY)
	PATH="$(CURDIR)/$(DOCS_VENV)/bin:$$PATH" mike deploy --update-aliases $(VERSION) latest
	PATH="$(CURDIR)/$(DOCS_VENV)/bin:$$PATH" mike set-default latest

# Build a release and tag it. The working tree must be clean, and CHANGELOG.md must have a heading for the version.
release:
	test -z "$$(git status --porcelain)" || { git status --short; exit 1; }
	$(MAKE) wheel
	grep -q '^## \[$(VERSION)\] - ' CHANGELOG.md || { echo "CHANGELOG.md has no heading of version $(VERSION) with a date" >&2; exit 1; }
	git tag --annotate v$(VERSION) --message 'teka $(VERSION)'

clean:
	rm -rf $(VENV) $(DOCS_VENV) $(BUILD_VENV) $(VISION_VENV) .venv-oldest .venv-newest runs/demo build dist .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml $(CONSTRAINTS) $(LOCK)
	@$(MAKE_VENV) $(VENV)
ifneq ($(LOCK),)
	$(BIN)/python -m pip install --quiet $(if $(CONSTRAINTS),-c $(CONSTRAINTS)) torch
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes -r $(LOCK)
endif
	$(BIN)/python -m pip install --quiet $(if $(CONSTRAINTS),-c $(CONSTRAINTS)) -e '.[dev]'
	touch $@

$(DOCS_READY): pyproject.toml
	@$(MAKE_VENV) $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' > $(DOCS_VENV)/requirements.txt
	$(DOCS_VENV)/bin/python -m pip install --quiet -r $(DOCS_VENV)/requirements.txt
	touch $@

$(BUILD_READY): Makefile
	@$(MAKE_VENV) $(BUILD_VENV)
	$(BUILD_VENV)/bin/python -m pip install --quiet build twine check-wheel-contents uv
	touch $@

$(VISION_READY): pyproject.toml constraints-vision.txt
	@$(MAKE_VENV) $(VISION_VENV)
	$(VISION_VENV)/bin/python -m pip install --quiet -c constraints-vision.txt -e '.[audit,transformers]' \
		timm torchvision onnx onnxscript beartype hypothesis 'pytest<9.2' pytest-timeout
	touch $@
