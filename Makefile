# On a machine with only Python 3.11+, git and make:
#   make demo    cluster the embedded digits, print the table, write a report
#   make test    every check: lint, types, layers, tests, examples, docs, packages
#   make docs    the docs site, in site/
#   make dist    wheel and sdist, in dist/
PYTHON ?= python3
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
# one thread a test process: two processes with two threads each wait for each other's cores
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses $(JOBS)

.PHONY: demo test check docs dist bench figures table1 table2 runtime results clean

demo: $(VENV)/.installed
	$(BIN)/ckm demo --report ckm-demo/report.html

test: check
	$(PYTEST)

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# tests/test_site.py does the same in a folder of its own: make test needs no other step; with
# --quiet, --strict would not see the warnings
docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/python docs/links.py site
	@echo "site/index.html; $(BIN)/mkdocs serve has the search, too"

dist: $(VENV)/.installed-dev
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist

# quick, into benchmarks/results/quick/; the committed results are those of ckm bench --full
bench: $(VENV)/.installed-bench
	$(BIN)/ckm bench --quick

table1: $(VENV)/.installed-dev
	$(BIN)/ckm reproduce table1 --out docs/results

# hours without a GPU; the autoencoders (200 MB and more) stay in runs/
table2: $(VENV)/.installed-dev
	$(BIN)/ckm reproduce table2 --out runs/table2
	cp runs/table2/table2.json docs/results/
	$(MAKE) results

runtime: $(VENV)/.installed-dev
	$(BIN)/ckm reproduce runtime --out docs/results
	$(MAKE) results

results: $(VENV)/.installed-dev
	$(BIN)/python docs/results_page.py

figures: $(VENV)/.installed-dev
	$(BIN)/python docs/figures.py
	$(BIN)/python docs/performance_page.py
	$(BIN)/python docs/cost_model.py

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "concrete-kmeans needs Python 3.11 or later; try make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) --editable '.[data,report]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) --editable '.[dev]'
	@touch $(VENV)/.installed $@

$(VENV)/.installed-bench: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) --editable '.[dev,bench]'
	-$(PIP) --no-deps clustpy  # its torchvision may not match torch; where it does not build, it is named as missing
	@touch $(VENV)/.installed $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist site
