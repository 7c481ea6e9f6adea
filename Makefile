# Two commands do everything on a fresh machine: `make run` and `make test`.
PYTHON ?= python3
VENV ?= .venv
# An index that carries a CPU build of torch, should yours not: make run TORCH_INDEX=<url>
TORCH_INDEX ?=
CONFIG ?= cpu.yaml
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: run test check install figures tables clean

run: install
	$(BIN)/evokernel run --config $(CONFIG)
	$(BIN)/evokernel top
	$(BIN)/evokernel export

test: install
	$(BIN)/python -m pytest -m "not gpu"

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -m "not gpu"

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("evokernel needs Python 3.11 or newer; this is %s (set PYTHON=...)" % sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(if $(TORCH_INDEX),$(BIN)/python -m pip install -q -c constraints.txt --index-url $(TORCH_INDEX) torch)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[figures,dashboard,mcp,dev]'
	@touch $@

figures: install
	$(BIN)/python -m benchmarks.figures

tables: install
	$(BIN)/python -m benchmarks.tables

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
