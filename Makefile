# The project's commands. Everything runs in .venv, which 'make setup' builds from constraints.txt;
# a fresh Debian or Ubuntu with Python 3.11+ and Java 17+ needs nothing else.
SHELL := /bin/bash -euo pipefail
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PACKAGES := $(VENV)/.packages
PROJECT := $(VENV)/.project
CLASSES := $(VENV)/spark-classes/spark.jsa
JAR := ha_engine/jvm/ha-engine.jar
JAVA_SOURCES := $(wildcard ha_engine/jvm/haengine/*/*.java)
JAVAC = $(shell command -v "$${JAVA_HOME:+$$JAVA_HOME/bin/}javac")
PIP := --disable-pip-version-check
PROTOS := $(wildcard proto/ha_engine/v1/*.proto)
ARGS ?=
SEEDS ?= 2000
SHARE ?= 0.33
WORKERS ?= 3
TIER := -m 'not nightly' -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations=50

.PHONY: help setup kafka kubernetes kubernetes-api demo demo-cluster demo-slow test test-all test-slow sim dst coverage diagram reference docs check wheel proto proto-check bench constraints clean distclean java python

help: ## Print this list.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

setup: $(PROJECT) $(JAR) ## Build .venv with everything that the other commands need.

demo: java $(PROJECT) ## Send a year of real flights through two nodes, kill one, and compare with a reference.
	$(BIN)/ha-engine demo $(ARGS)

demo-cluster: java $(PROJECT) $(JAR) ## The flights through receivers, Kafka and a Spark cluster, of which parts are killed.
	$(BIN)/python -m tests.cluster.demo $(ARGS)

demo-slow: java $(PROJECT) ## The same with a third of one core; SHARE=0.5 gives more.
	$(BIN)/python -m tests.slow_host --share $(SHARE) -- $(BIN)/ha-engine demo $(ARGS)

kafka: java $(PROJECT) ## Fetch the programs of the Kafka broker that some tests need.
	$(BIN)/python -m tests.connectors.kafka_jars

kubernetes-api: $(PROJECT) ## Build the API server of Kubernetes with Go, for the nightly tests of executors in pods.
	$(BIN)/python -m tests.kubernetes.api_programs

kubernetes: $(PROJECT) ## Build Helm and kubeconform with Go, for the nightly tests of the chart.
	$(BIN)/python -m tests.kubernetes.programs

test: java $(CLASSES) $(JAR) ## Run what a change must pass, in ten minutes; ARGS='-k journal' picks some.
	$(BIN)/pytest $(TIER) $(ARGS)

test-all: java $(PROJECT) $(JAR) ## Run every test, seed and mutant: for the night, and before a release.
	$(BIN)/pytest --thorough --durations=50 $(ARGS)

test-slow: java $(CLASSES) $(JAR) ## Run the tests with a third of one core.
	$(BIN)/python -m tests.slow_host --share $(SHARE) -- $(BIN)/pytest $(TIER) --timeout=7200 $(ARGS)

sim: $(PROJECT) ## Play histories of faults over simulated nodes; SEEDS=100000 says how many.
	$(BIN)/python -m tests.sim --seeds $(SEEDS) --workers 2 $(ARGS)

dst: $(PROJECT) ## Play histories of faults over the real journal on a simulated disk; ARGS='--kind pair' for two nodes.
	$(BIN)/python -m tests.dst --seeds $(SEEDS) --workers 2 $(ARGS)

coverage: export COVERAGE_FILE := build/coverage
coverage: SEEDS = 30
coverage: $(PROJECT) ## Show which lines 30 histories of each kind of 'make dst' reach.
	mkdir -p build && rm -f $(COVERAGE_FILE)
	for kind in journal outbox publish snapshot pair; do \
		$(BIN)/coverage run --append --source=ha_engine -m tests.dst --kind $$kind --seeds $(SEEDS); \
	done
	$(BIN)/coverage report --skip-empty --fail-under=85 --include='ha_engine/journal/*,ha_engine/outbox/*,ha_engine/publish/*.py,ha_engine/snapshot/*,ha_engine/node/driver.py,ha_engine/core/*,ha_engine/sync/*' --omit='ha_engine/publish/sinks/*'

diagram: $(PROJECT) ## Draw docs/diagrams.
	$(BIN)/python -m tests.docs.diagram

reference: $(PROJECT) ## Write docs/CONFIGURATION.md from the schema, and the tables of docs/FAULTS.md.
	$(BIN)/python -m tests.docs.reference
	$(BIN)/python -m tests.docs.faults

docs: $(PROJECT) ## Build the documents as a site, into build/site.
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict $(ARGS)

check: $(PROJECT) ## Lint, format, types, import rules, generated code.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MAKE) --no-print-directory proto-check

wheel: $(PROJECT) $(JAR) ## Build the wheel and the source distribution, into dist.
	$(BIN)/python -m hatchling build

bench: java $(PROJECT) ## Measure everything, for an hour or a little more; ARGS=--quick for a quarter of one.
	$(BIN)/python -m benchmarks $(ARGS)

# -- generated code --------------------------------------------------------------------------------

define generate # $(1): where to
PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m grpc_tools.protoc -Iproto \
	--python_out=$(1) --grpc_python_out=$(1) --mypy_out=quiet:$(1) --mypy_grpc_out=quiet:$(1) $(PROTOS)
endef

proto: $(PROJECT) ## Generate ha_engine/v1 from proto/.
	$(call generate,.)

proto-check: $(PROJECT)
	@fresh=$$(mktemp -d) && trap 'rm -rf "$$fresh"' EXIT && $(call generate,$$fresh) && \
	diff -r -x __init__.py -x __pycache__ "$$fresh/ha_engine/v1" ha_engine/v1 \
		|| { echo "ha_engine/v1 is not what proto/ generates; run 'make proto' and commit."; exit 1; }

# -- the environment -------------------------------------------------------------------------------

python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed; install it, or name it: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null \
		|| { echo "$(PYTHON) cannot make virtual environments; install python3-venv."; exit 1; }

java:
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	version=$$("$$java" -version 2>&1 | sed -nE 's/.*version "([0-9]+).*/\1/p' | head -n 1) || true; \
	[ "$${version:-0}" -ge 17 ] || { echo "Spark needs Java 17 or newer and found $${version:-none};" \
		"install it (apt-get install openjdk-17-jre-headless) or set JAVA_HOME."; exit 1; }

$(PACKAGES): constraints.txt | python
	@echo "Installing the packages of constraints.txt into $(VENV); what is there already is kept."
	@echo "The first time this downloads about 600 MB, of which PySpark's source is 456 MB, and takes"
	@echo "some minutes. Building PySpark takes one of them, in which pip says 'Building wheel'."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(PIP) --require-hashes -r constraints.txt
	@touch $@

$(PROJECT): $(PACKAGES) pyproject.toml
	@echo "Installing the project itself into $(VENV), which downloads nothing."
	$(BIN)/python -m pip install $(PIP) --no-index --no-deps --no-build-isolation --editable .
	@touch $@

$(CLASSES): $(PROJECT)
	@echo "Writing down Spark's classes once, from which the tests start it in half the time."
	$(BIN)/python -m tests.class_archive
	@touch $@

$(JAR): $(JAVA_SOURCES) ha_engine/jvm/build.py | $(PROJECT)
ifeq ($(JAVAC),)
	@echo "There is no javac, so the jar for Spark clusters is not built (apt-get install openjdk-17-jdk-headless)."
else
	$(BIN)/python -m ha_engine.jvm.build
	@touch $@
endif

constraints: | python ## Pin every package anew, with hashes, into constraints.txt.
	$(PYTHON) -m venv build/pip-tools
	build/pip-tools/bin/pip install --quiet 'pip-tools>=7.4,<8'
	build/pip-tools/bin/pip-compile --quiet --upgrade --all-extras --generate-hashes --strip-extras \
		--no-header --no-annotate --no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
		--unsafe-package ha-engine --output-file build/constraints.txt pyproject.toml
	{ echo "# Every package of the development environment, with hashes. Made by 'make constraints'."; \
		grep -E '^( +--hash|[a-z0-9-]+==)' build/constraints.txt; } > constraints.txt

clean: ## Remove caches and what demo and tests leave behind.
	rm -rf build dist var $(JAR) spark-warehouse metastore_db derby.log .hypothesis
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean ## Remove .venv too.
	rm -rf $(VENV)
