# make demo   install into .venv, then the main recipe without a network: prune, train, save a ticket, check it
# make test   install into .venv, run the tests
# PYTHON=python3.12 make test   with another Python
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -qq

.DELETE_ON_ERROR:
.PHONY: demo test slow lint clean

demo: $(VENV)/.installed
	$(BIN)/accelerate launch --quiet --num_processes 1 --num_machines 1 --mixed_precision no --dynamo_backend no \
		recipes/prune_finetune.py --overwrite
	$(BIN)/hf-px verify out/resnet20-digits-px-path-0.982-s0
	$(BIN)/hf-px bench out/resnet20-digits-px-path-0.982-s0

test: $(VENV)/.installed
	$(BIN)/python -m pytest -q --numprocesses 2 --dist loadfile --no-loadscope-reorder

slow: $(VENV)/.installed-slow
	$(BIN)/python -m pytest -q -m slow

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# the stamp is the last step of each recipe: an install that fails leaves none and is tried again
$(VENV)/.installed: pyproject.toml
	@echo "installing into $(VENV): minutes the first time, torch is large"
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[test]'
	@touch $@

# playwright drives a Chromium that is on the machine; without one, the tests that need it are skipped
$(VENV)/.installed-slow: $(VENV)/.installed
	$(PIP) --editable '.[test,browser]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find hf_px tests recipes -name __pycache__ -type d -prune -exec rm -rf {} +
