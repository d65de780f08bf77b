# SPDX-License-Identifier: Apache-2.0
# The one list of commands: people and CI call these. It needs Python 3.11 or newer and make, and builds the rest.

PYTHON ?= python3
VENV ?= .venv
KEEP ?=
PYTEST_ARGS ?=

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PACKAGES = $(wildcard airflow_provider_dispatch tests example_dags)
# uv doesn't read pip's settings: it gets the package index that pip would use on this machine.
export UV_DEFAULT_INDEX ?= $(or $(PIP_INDEX_URL),$(shell $(PYTHON) -m pip config get global.index-url 2>/dev/null))

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-airflow test-cluster testbed-up testbed-down bench bench-cluster mutants lint types docs constraints clean

help: ## show these lines
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP) ## install everything into .venv, once (PYTHON=python3.12 chooses the interpreter)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip install -q -c constraints.txt uv && $(BIN)/uv pip install -q --python $(BIN)/python --compile-bytecode -c constraints.txt -e '.[dev]' && touch $@

demo: $(STAMP) ## watch a real Airflow train, hold, release and stop a job (KEEP=1 leaves its UI open)
	@$(BIN)/python -m tests.demo $(if $(KEEP),--keep)

test: $(STAMP) ## run all tests that need no running Airflow, no cluster and no browser, and check the coverage
	$(BIN)/coverage erase && $(BIN)/coverage run -m pytest -n 3 --dist loadgroup -m "not long and not cluster and not browser" --junitxml=build/junit/test.xml $(PYTEST_ARGS) && $(BIN)/python -m tests.coverage_floors && $(BIN)/python -m pytest -n 3 --dist loadgroup -m "long and not matrix and not airflow" --junitxml=build/junit/test-long.xml $(PYTEST_ARGS)

test-airflow: $(STAMP) ## run the tests against a real Airflow, its failures and users' actions, and all histories
	$(BIN)/python -m pytest tests/airflow tests/example_dags tests/contract -m "airflow or matrix" --junitxml=build/junit/test-airflow.xml $(PYTEST_ARGS)

test-cluster: $(STAMP) ## run the tests that need a cluster, on one that is built and started here (root; Go)
	$(BIN)/python -m tests.cluster $(PYTEST_ARGS)

testbed-up: $(STAMP) ## start a real Kubernetes with Kueue, JobSet and Trainer on this machine, and print its KUBECONFIG
	@$(BIN)/python -m tests.cluster.testbed up

testbed-down: $(STAMP) ## take it down again, and clear what a crashed one left
	@$(BIN)/python -m tests.cluster.testbed down

bench: $(STAMP) ## measure, each beside a peer in the same run, and print JSON
	@$(BIN)/python -m tests.benchmarks

bench-cluster: $(STAMP) ## measure what jobs cost a cluster, on one that is built and started here, and print JSON
	@$(BIN)/python -m tests.cluster.benchmarks

mutants: $(STAMP) ## change the pure code in 200 places and see that tests notice
	@$(BIN)/python -m tests.mutants

lint: $(STAMP) ## check style, format, and that every layer imports only what lies below it
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/lint-imports --no-logo

types: $(STAMP) ## check types
	$(BIN)/mypy $(PACKAGES)

docs: $(STAMP) ## build the documentation into build/docs; a warning is an error
	$(BIN)/sphinx-build -q -W --keep-going -b html docs build/docs

constraints: $(STAMP) ## find the newest versions that fit and pin them in constraints.txt
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --all-extras --upgrade --no-header --no-annotate --no-emit-index-url pyproject.toml -o constraints.txt

clean: ## remove what the other targets made
	rm -rf $(VENV) build dist .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
