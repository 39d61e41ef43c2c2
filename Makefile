# Every command sets up what it needs: `make run` on a fresh clone is enough. `make help` lists them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
FLOCK := $(shell command -v flock)
# Two more than there are CPUs: a part of the tests waits for other processes and for timers.
WORKERS ?= $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) + 2 )))
# Bytecode is kept whatever the environment says: a server that is compiled anew takes three times as long to start.
# An installation compiles what the server imports, and not the other nine tenths of the libraries.
WARM = import turnstream.cli.serve, turnstream.extension, turnstream.libraries.providers.anthropic.provider, turnstream.extensions.openai.provider, turnstream.libraries.copies.turn_copies, alembic.command; [each.calls() for each in turnstream.extension.installed().values()]
PYTEST = PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal
PYTEST_ARGS ?=
# The floors are those of a full run: a run of some tests, and one in a hurry, does not count coverage.
COVER = $(if $(FULL_TESTS),$(if $(filter-out --junitxml=% --durations=%,$(PYTEST_ARGS)),,--cov --cov-report=term))
# What the pages tell people to save in this folder is theirs.
SOURCES := app docs examples migrations tests
# What this repository is installed from: the server, and the distributions beside it.
DISTRIBUTIONS := . $(patsubst %/pyproject.toml,./%,$(wildcard app/*/pyproject.toml))
PROJECTS := $(DISTRIBUTIONS:%=%/pyproject.toml)

RUNTIME := $(VENV)/runtime.stamp
DEV := $(VENV)/dev.stamp
# Empty where Node is older than eslint needs.
NPM := $(shell command -v npm >/dev/null && node -e 'const [a, b] = process.versions.node.split("."); process.exit(a > 20 || (a == 20 && b >= 19) ? 0 : 1)' && command -v npm)
NODE_TOOLS := $(if $(NPM),node_modules/installed.stamp)
TYPES := app/turnstream/web/static/turnstream.d.ts
GENERATED_TYPES := node_modules/.types/$(TYPES)
JAVASCRIPT := app/turnstream/web/static/*.js tests/javascript/*.js tests/javascript/*.mjs tests/node/*.mjs eslint.config.js app/turnstream/web/packages/*/*.js
# Files that have not changed since they passed; neither tool looks at one file because of another.
CACHED := --cache --cache-strategy content
FORMATTED := app/turnstream/web/static/protocol.d.ts app/turnstream/web/static/client.d.ts tests/node/*.mts tests/browser/*.jsx

.PHONY: help run quick test cover soak live image check bench scoreboard migrations schema reference site release lock upgrade fmt clean types vendor check-format check-lint check-types check-floors check-budget check-javascript

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

run: $(RUNTIME) ## start the server (with its own database unless DATABASE_URL is set)
	@exec env PYTHONDONTWRITEBYTECODE= $(BIN)/turnstream serve

test: $(DEV) ## the tests of the day; with FULL_TESTS=1 more, and the coverage floors: every branch of domain, llm and stream; with FULL_TESTS=all all
	@$(BIN)/python -m tests.support.programs
	@$(PYTEST) $(COVER) $(PYTEST_ARGS)

# Of the tests that need no database those that cost least. These files are a tenth of them, and half of the CPU time:
# they replay recorded streams, start processes or build the site.
COSTLY = contracts/test_private_parts unit/test_alerts unit/test_release unit/test_site unit/test_telemetry

quick: check ## `make check`, and most tests that need no database, up to the first failure: about a minute of CPU time
	@$(PYTEST) --numprocesses logical --quiet --exitfirst tests/unit tests/contracts $(COSTLY:%=--ignore=tests/%.py)

cover: $(DEV) ## make test, with a page for each file in htmlcov/
	@$(PYTEST) --cov --cov-report=term --cov-report=html $(PYTEST_ARGS)

# A schedule waits more than it works.
soak: $(DEV) ## random schedules of faults for MINUTES=60 on SITES=3, beside a churn without any; seeds that fail are kept
	@$(BIN)/python -m tests.faults.soak $(or $(MINUTES),60) $(or $(SITES),3)

live: $(DEV) ## the main job with real models, where a key is set; says first what it may cost (LIVE_CEILING, default 1)
	@LIVE_TESTS=1 $(BIN)/python -m pytest --quiet tests/live $(PYTEST_ARGS)

image: $(DEV) ## build the image of the Dockerfile without an engine, run it and look into it (root, Debian; minutes)
	@IMAGE_TESTS=1 $(BIN)/python -m pytest --quiet tests/image $(PYTEST_ARGS)

check: $(DEV) $(NODE_TOOLS) ## format, lint, types, floors and budget of Python and JavaScript, side by side
	@$(MAKE) --no-print-directory --jobs --keep-going $(filter --output-sync,$(patsubst %,--%,$(.FEATURES))) check-format check-lint check-types check-floors check-budget check-javascript

check-format:
	@$(BIN)/ruff format --check --quiet $(SOURCES) || { echo 'not formatted: run `make fmt`'; $(BIN)/ruff format --check $(SOURCES); exit 1; }

check-lint:
	@$(BIN)/ruff check --quiet $(SOURCES)

# Status 2 is no error of types: on a busy machine its processes may miss one another.
check-types:
	@$(BIN)/mypy || { test $$? = 2 && $(BIN)/mypy --num-workers 0; }

check-floors:
	@$(BIN)/lint-imports --no-logo >$(VENV)/floors.txt || { cat $(VENV)/floors.txt; exit 1; }

check-budget:
	@$(BIN)/python -m tests.support.budget

check-javascript: $(NODE_TOOLS)
ifdef NPM
	@node_modules/.bin/prettier --check --log-level=warn $(CACHED) $(JAVASCRIPT) $(FORMATTED) || { echo 'not formatted: run `make fmt`'; exit 1; }
	@node_modules/.bin/eslint --max-warnings 0 $(CACHED) --cache-location node_modules/.cache/eslint $(JAVASCRIPT)
	@node_modules/.bin/tsc
	@node_modules/.bin/tsc --project tsconfig.client.json
	@cmp $(GENERATED_TYPES) $(TYPES) || { echo '$(TYPES) is not what turnstream.js says: run `make fmt`'; exit 1; }
else
	@echo 'JavaScript was not checked: that needs Node 20.19 or newer with npm (apt-get install nodejs npm)'
endif

bench: $(DEV) ## CPU per delta and added latency, as ratios against a bare relay
	@$(BIN)/python -m tests.bench

scoreboard: $(DEV) ## turnstream beside a relay, raw Python and peers from PyPI and npm (installed into .peers); writes docs/benchmarks
	@$(BIN)/python -m tests.bench.scoreboard

fmt: $(DEV) $(NODE_TOOLS) ## format, and fix what can be fixed
	@$(BIN)/ruff check --fix-only --quiet $(SOURCES)
	@$(BIN)/ruff format $(SOURCES)
ifdef NPM
	@node_modules/.bin/eslint --fix --quiet $(JAVASCRIPT) >/dev/null || true
	@node_modules/.bin/prettier --write --log-level=warn $(JAVASCRIPT) $(FORMATTED)
	@node_modules/.bin/tsc --project tsconfig.client.json && cp $(GENERATED_TYPES) $(TYPES)
endif

clean: ## remove the environment and every cache (your data stays)
	rm -rf $(VENV) .lock-venv build dist *.egg-info .coverage .coverage.* htmlcov .hypothesis
	rm -rf node_modules .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .reports .site
	find app tests -name __pycache__ -type d -prune -exec rm -rf {} +

# --- the environment ---------------------------------------------------------------------------------------------

# One `make` at a time may touch it. `unfinished` stands while pip works: an environment that was interrupted, or
# that was made in another folder (its scripts hold that name), is made again instead of being trusted. A lock file is
# complete, so pip resolves nothing: asked for `coverage[toml]`, an older pip takes the newest coverage, which has no hash.
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "turnstream needs Python 3.11 or newer; name one: make PYTHON=python3.12")'
	@$(if $(FLOCK),$(FLOCK) .venv.lock) $(SHELL) $(.SHELLFLAGS) '\
		if [ -e $(VENV)/unfinished ] || [ "$$(cat $(VENV)/folder 2>/dev/null)" != "$(CURDIR)" ] || ! $(BIN)/python -c ""; then \
			rm -rf $(VENV); mkdir $(VENV); : >$(VENV)/unfinished; $(PYTHON) -m venv $(VENV); echo "$(CURDIR)" >$(VENV)/folder; \
		fi; \
		echo "installing $(1) into $(VENV) ..."; : >$(VENV)/unfinished; \
		export PIP_DISABLE_PIP_VERSION_CHECK=1; \
		$(BIN)/python -m pip install -qq --require-hashes --no-deps --only-binary :all: --no-compile -r $(1); \
		$(BIN)/python -m pip install -qq --no-deps --no-build-isolation $(DISTRIBUTIONS:%=--editable %); \
		$(BIN)/python -m pip check -qq; \
		PYTHONDONTWRITEBYTECODE= $(BIN)/python -c "$(WARM)"; \
		rm $(VENV)/unfinished; touch $(2)'
endef

$(RUNTIME): requirements.lock requirements-build.lock $(PROJECTS)
	$(call install,requirements.lock -r requirements-build.lock,$(RUNTIME))

$(DEV): requirements-dev.lock $(PROJECTS)
	$(call install,requirements-dev.lock,$(RUNTIME) $(DEV))

# The formatter, linter and type checker of JavaScript. What the server serves needs none of it.
node_modules/installed.stamp: package-lock.json package.json
	@$(if $(FLOCK),$(FLOCK) .venv.lock) npm ci --silent && touch $@

ifneq ($(shell cat $(VENV)/folder 2>/dev/null),$(CURDIR))
.PHONY: $(RUNTIME) $(DEV)
endif

# --- the locks ---------------------------------------------------------------------------------------------------

UV := .lock-venv/bin/uv
PIN = UV_CUSTOM_COMPILE_COMMAND="make lock" $(UV) pip compile --quiet --no-config --universal --python-version 3.11 \
	--generate-hashes $(LOCK_ARGS)
COMPILE = $(PIN) --all-extras pyproject.toml

migrations: $(DEV) ## list new migrations with their digests; those that are listed do not change any more
	@$(BIN)/python -m tests.support.migration_files

schema: $(DEV) ## write migrations/schema.sql: the tables of a new database
	@$(BIN)/python -m tests.support.catalog

reference: $(DEV) ## write the pages of docs/reference (settings, metrics, log events, commands) and docs/diagrams
	@$(BIN)/python -m tests.support.reference
	@$(BIN)/python -m tests.support.diagrams

site: $(DEV) ## the documentation as a site in .site/html, with a search and llms.txt; a broken link is an error
	@$(BIN)/python -m tests.support.site

release: $(DEV) ## wheels, source distributions, npm packages, SBOM and checksums in dist, verified; nothing is published
	@$(BIN)/python -m tests.support.release

# Left out of what the tests need: an extra of jsonschema (the formats of IRIs) that nothing here uses. It compiles 39
# grammars as it is imported: a second of each process that a test starts.
UNUSED = rfc3987-syntax; python_version < "3"

lock: $(UV) ## pin what pyproject.toml asks for, keeping the pins that still hold
	$(COMPILE) --output-file requirements.lock
	$(PIN) --group build --constraint requirements.lock --output-file requirements-build.lock
	$(COMPILE) --group build --group dev --constraint requirements.lock --constraint requirements-build.lock --override <(echo '$(UNUSED)') --output-file requirements-dev.lock

upgrade: ## pin the newest versions of everything
	@$(MAKE) lock LOCK_ARGS=--upgrade

types: $(DEV) ## the types of the packages for JavaScript, from /openapi.json and from the modules (needs npm)
	@cd tests/node && npm ci --silent
	@$(BIN)/python -m tests.node.types

vendor: ## fetch the libraries of the page again, and verify them (needs npm)
	@app/turnstream/web/vendor.sh

$(UV):
	@$(PYTHON) -m venv .lock-venv
	@.lock-venv/bin/python -m pip install --quiet uv
