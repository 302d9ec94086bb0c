# Every target makes .venv from the project's files if it is missing or out of date, and re-uses it otherwise.
PYTHON ?= python3
CONSTRAINTS ?= constraints-cpu.txt
# Everything else, by version and hash; empty for the newest versions that pyproject.toml takes.
LOCK ?= requirements.lock
VENV := .venv
# glibc hands large tensors back to the system after each step; keeping them saved 3 to 26 % of training time here.
export MALLOC_MMAP_THRESHOLD_ ?= 4294967296
export MALLOC_TRIM_THRESHOLD_ ?= 4294967296
# Compiled files are kept, or each process of the tests compiles all modules again.
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

# What torch.compile, exports and Triton, in its interpreter, make of the layers: some seconds each.
test-compilers: $(READY)
	$(BIN)/python -m pytest -n auto --dist worksteal tests/compilers

# Every kernel with every relative kernel, backend and second factor, where `test` meets a choice of them.
test-exhaustive: $(READY)
	TEKA_TESTS=exhaustive $(BIN)/python -m pytest -n auto --dist worksteal tests tests/compilers

# The folders whose tests compare numbers, restricted to what every x86 processor has and with all that this one has.
PORTABLE_TESTS := $(addprefix tests/,contracts convert functional models nn audit/measure audit/statistics)
EVERY_CPU := ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_CBWR=COMPATIBLE
THIS_CPU := $(addprefix -u ,ATEN_CPU_CAPABILITY ONEDNN_MAX_CPU_ISA MKL_CBWR)
test-portable: $(READY)
	for cpu in "$(EVERY_CPU)" "$(THIS_CPU)"; do \
		env $$cpu $(BIN)/python -c 'import torch; print("PyTorch uses", torch.backends.cpu.get_cpu_capability())' && \
		env $$cpu $(BIN)/python -m pytest -n auto --dist worksteal $(PORTABLE_TESTS) || exit 1; \
	done

# The contracts that can run on a GPU, and its kernels, there; with a build of PyTorch for it, CONSTRAINTS=. Without the
# checks of annotations, with which Triton cannot compile.
CUDA_TESTS := $(addprefix tests/contracts/test_,$(addsuffix .py,fast_equals_dense causal cross padding state signed prefix permutation shift))
test-cuda: $(READY)
	TEKA_DEVICE=cuda $(BIN)/python -m pytest -o addopts=--import-mode=importlib -n 4 $(CUDA_TESTS) tests/compilers/test_triton.py

# The oldest and the newest versions that are promised, in environments of their own.
test-oldest:
	$(MAKE) test-compilers test VENV=.venv-oldest PYTHON=$(or $(OLDEST),python3.10) CONSTRAINTS=constraints-oldest.txt LOCK=

test-newest:
	$(MAKE) test-compilers test VENV=.venv-newest PYTHON=$(or $(NEWEST),python3.14) CONSTRAINTS= LOCK=

# The source archive and the wheel, in dist, checked to be what an index takes and to hold the package alone.
wheel: $(BUILD_READY)
	rm -rf dist
	$(BUILD_VENV)/bin/python -m build --outdir dist
	$(BUILD_VENV)/bin/twine check --strict dist/*
	$(BUILD_VENV)/bin/check-wheel-contents dist/*.whl

# The newest versions that fit each other on every Python and system. PyTorch's build is a machine's own, and Triton its.
lock: $(BUILD_READY)
	$(BUILD_VENV)/bin/uv pip compile pyproject.toml --extra dev --universal --python-version 3.10 --generate-hashes --upgrade \
		--excludes constraints-cpu.txt --no-emit-package triton --no-annotate --custom-compile-command 'make lock' -qo requirements.lock

# What is done beside timm and torchvision, in an environment that has them; compiling, since its PyTorch is the oldest.
test-vision: $(VISION_READY)
	$(VISION_VENV)/bin/python -m pytest tests/vision
	$(VISION_VENV)/bin/python -m pytest tests/compilers/test_compile.py

vision: $(VISION_READY)

# The pages of the audit in a headless Chromium, which must be installed.
browser: $(READY)
	$(BIN)/python -m pytest tests/browser

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/pyright

# The pages, made from the sources' text in an environment of its own without torch; tutorials and examples are run again.
docs: $(DOCS_READY) $(READY)
	$(DOCS_VENV)/bin/mkdocs build --strict
	$(BIN)/python -m pytest -n auto tests/documentation

# The pages of this version, as a commit on the branch gh-pages beside those of others; its name and which is the latest.
docs-version: $(DOCS_READY)
	PATH="$(CURDIR)/$(DOCS_VENV)/bin:$$PATH" mike deploy --update-aliases $(VERSION) latest
	PATH="$(CURDIR)/$(DOCS_VENV)/bin:$$PATH" mike set-default latest

# What is released: this commit, with nothing else in the tree, whose changes are written down under its version.
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
