# `make help` says what each does. Everything installs what it needs by the project's own files.
PYTHON ?= python3
BIN := .venv/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)

.DEFAULT_GOAL := help
.PHONY: help demo test check format prove docs lock clean

help: ## Say what there is to make.
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-8s %s\n", $$1, $$2 }'

demo: ## See Ferryman work, on servers of its own that go away.
	@echo "demo: brings up a PostgreSQL and a Kafka of its own, lets payments flow while processes are killed, and removes" \
		"all of it; only .venv and a cache of packages in your home stay, nothing else on this machine is changed"
	@$(MAKE) -s .venv/ready
	@ferryman demo payments

test: check ## Every check and test, against real servers.
	@scripts/test

check: .venv/ready ## Under a minute, no servers: ruff, mypy, import contracts, unit and architecture tests.
	@scripts/check

format: .venv/ready ## Format the code, and mend what ruff can mend.
	@ruff format -q . && ruff check -q --fix .

prove: .venv/ready ## The long proofs, with a new seed each time; SEED=N has those of another run again.
	@pytest -m prove --timeout 3600 --seed $(or $(SEED),$(shell date +%s))

docs: .venv/ready ## Write the generated references in docs/ anew.
	@python scripts/reference.py
	@ferryman schemas docs --for all

lock: .venv/ready ## Resolve requirements.lock anew from pyproject.toml.
	@uv pip compile -q --universal --generate-hashes --no-header --no-annotate --python-version 3.11 \
		--all-extras --group dev pyproject.toml -o requirements.lock --upgrade

clean: ## Remove what was built here; the cache of downloads stays.
	@rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

.venv/ready: requirements.lock pyproject.toml scripts/prepare.py
	@$(PYTHON) scripts/prepare.py
