# Everything runs in .venv, which is made on first use; nothing needs to be active or installed.
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Modules are compiled when they are first imported: most of what is installed never is.
PIP_OPTIONS := --disable-pip-version-check --no-compile
PIP := $(BIN)/python -m pip install $(PIP_OPTIONS) -c constraints.txt
# More processes of pytest than two cores can keep busy: many tests wait for servers and time-outs.
JOBS ?= 6
export PYTHON

.PHONY: help setup environments checked-environments demo test thorough coverage check audit integrations bench docs site-test clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    train a small model, stop in mid-epoch, resume, and count every row"
	@echo "make test    run the whole test-suite"
	@echo "make thorough   the random tests of plans, formats and tables, with ten times the examples"
	@echo "make coverage   run all tests but those of Paimon, and show which lines they reach"
	@echo "make check   lint, format check, types, import rules, documentation"
	@echo "make audit   kill, resume and resize loaders 200 times, and count every row"
	@echo "make integrations   train with FSDP, Trainer, DeepSpeed, Ray and MPI, two ranks each"
	@echo "make bench   run the benchmarks and write docs/benchmarks"
	@echo "make docs    build the documentation into site/"
	@echo "make site-test   open every page of it in a browser: errors, dead links, width of a phone"
	@echo "make clean   remove .venv and everything that was built"

setup: $(READY)
	@:

# To make one takes pip one core, and npm waits for the network: all at once, and each line is printed
# when it is whole.
environments:
	@$(MAKE) --jobs=3 $(if $(filter output-sync,$(.FEATURES)),--output-sync=line) \
		--silent $(READY) $(PAIMON)/.ready

# The same and the checks, which need no server and run while npm waits.
checked-environments:
	@$(MAKE) --jobs=3 $(if $(filter output-sync,$(.FEATURES)),--output-sync=line) \
		--silent $(READY) $(PAIMON)/.ready check

$(BIN)/python:
	@python=$$(scripts/find-python) && \
	scripts/step "making $(VENV) with $$("$$python" --version)" "$$python" -m venv $(VENV) || \
	{ rm -rf $(VENV); exit 1; }

# torch and headrace alone: all that the demo needs. torch comes first, so that nothing that follows
# can ask for another build of it.
CORE := $(VENV)/.ready-core
$(CORE): pyproject.toml constraints.txt | $(BIN)/python
	@scripts/step "installing torch" $(PIP) "$$(grep '^torch==' constraints.txt)"
	@scripts/step "installing headrace" $(PIP) -e .
	@touch $@

# The pip that comes with older Pythons takes three times as long to find out what fits.
NEW_PIP := 'pip>=25'

AZURITE := $(VENV)/.ready-azurite
$(AZURITE): scripts/install-azurite | $(BIN)/python
	@scripts/step "installing the Azure server of the tests" scripts/install-azurite $(BIN)/python
	@touch $@

DEV := $(VENV)/.ready-dev
$(DEV): $(CORE)
	@scripts/step "installing pip" $(PIP) $(NEW_PIP)
	@scripts/step "installing what the tests and checks need" $(PIP) -e '.[dev]'
	@touch $@

$(READY): $(DEV) $(AZURITE)
	@touch $@

# pypaimon holds pyarrow below 20: an environment of its own, with versions of its own.
PAIMON := .venv-paimon
PAIMON_PIP := $(PAIMON)/bin/python -m pip install $(PIP_OPTIONS) -c constraints-paimon.txt

$(PAIMON)/bin/python:
	@python=$$(scripts/find-python) && \
	scripts/step "making $(PAIMON) with $$("$$python" --version)" "$$python" -m venv $(PAIMON) || \
	{ rm -rf $(PAIMON); exit 1; }

$(PAIMON)/.ready: pyproject.toml constraints-paimon.txt | $(PAIMON)/bin/python
	@scripts/step "installing pip for Paimon" $(PAIMON_PIP) $(NEW_PIP)
	@scripts/step "installing torch for Paimon" $(PAIMON_PIP) "$$(grep '^torch==' constraints-paimon.txt)"
	@scripts/step "installing headrace with Paimon" $(PAIMON_PIP) -e '.[paimon,s3]' \
		hypothesis 'moto[server]' pytest pytest-cov pytest-timeout pytest-xdist
	@touch $@

$(VENV)/.ready-%: $(READY)
	@scripts/step "installing what make $* needs" $(PIP) -e '.[$*]'
	@touch $@

demo: $(CORE)
	@$(BIN)/python examples/demo.py

test: environments
	@scripts/run-tests $(JOBS)

# Ten times as many random examples, and others in every run.
thorough: $(READY)
	@env -u CI -u BUILD_NUMBER $(BIN)/python -m pytest -n $(JOBS) --hypothesis-profile=thorough \
		tests/plan tests/test_model.py tests/sources/files tests/sources/iceberg/test_iceberg_histories.py

# Apart from test: to count lines takes a quarter of the time again.
coverage: $(READY)
	@env -u CI -u BUILD_NUMBER $(BIN)/python -m pytest -n $(JOBS) --hypothesis-profile=ci \
		--cov --cov-report=term

check: $(DEV)
	@scripts/check

audit: $(READY)
	@$(BIN)/python scripts/audit.py

# Engines too large for .venv, in an environment of their own; minutes on a small machine.
integrations:
	@integrations/setup
	@.venv-integrations/bin/python -m pytest integrations --durations=0 --timeout=600 \
		-o faulthandler_timeout=590 -o cache_dir=.venv-integrations/pytest

bench: $(VENV)/.ready-bench
	@$(BIN)/python -m benchmarks

docs: $(READY)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet --site-dir site
	@echo "the documentation is in site/index.html"

# Not part of check: it needs a browser, which is larger than everything else together.
site-test: docs
	@$(BIN)/python -c 'import playwright' 2>/dev/null || scripts/step "installing playwright" $(PIP) playwright
	@$(BIN)/python scripts/check_site.py site

clean:
	rm -rf $(VENV) $(PAIMON) .venv-integrations build dist site demo-data .coverage* .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests integrations examples scripts -name __pycache__ -type d -prune -exec rm -rf {} +
