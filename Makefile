# make demo | test | soak | bench | figures | fuzz | lint | clean.  `make help` says what each does.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV   := .venv
BIN    := $(VENV)/bin
# The newest Python from 3.11 on that this machine has.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	  if command -v $$p >/dev/null 2>&1 && $$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then echo $$p; break; fi; done)
export PROTOC := $(CURDIR)/$(BIN)/protoc
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# A registry that does not answer for a moment is asked again.
export PIP_RETRIES := 10
export CARGO_NET_RETRY := 10

RUST_SOURCES := $(shell find crates -name '*.rs' -o -name Cargo.toml 2>/dev/null) Cargo.toml Cargo.lock

.PHONY: help demo test soak bench figures fuzz lint setup test-rust test-python test-r clean

help: ## what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 18

# Where the demo keeps its data: embedded, or kinetic.
DRIVES ?= embedded
demo: setup ## everything that is needed, then marker genes of pbmc3k found by the drives themselves
	@$(BIN)/msgx demo --drives $(DRIVES)

test: setup test-rust test-python test-r ## everything that is needed, then every test

soak: setup $(VENV)/.dev ## the long repetition of what `make test` shows in short (hours; CONTRIBUTING.md lists it)
	SKYTETHER_SOAK=1 SKYTETHER_FAULTS=all $(NEXTEST) run $(WORKSPACE) --profile soak -E '$(SOAK)'
	SKYTETHER_SOAK=1 $(BIN)/python -m pytest -q python/tests/test_table_roundtrips.py
	cd python/tests && $(abspath $(BIN))/python -m oracles
	SKYTETHER_SOAK=1 $(BIN)/python -m pytest -q -n 2 python/tests/test_anndata_roundtrips.py
	SKYTETHER_SOAK=1 $(BIN)/python -m pytest -q python/tests/kinetic
	SKYTETHER_SOAK=1 $(BIN)/python -m pytest -q python/tests/block/test_guest.py
	SKYTETHER_CEPH_STORE=bluestore $(NEXTEST) run -p skytether-rados -p skytether-ceph --profile soak
	cd python/tests && SKYTETHER_CEPH_STORE=bluestore $(abspath $(BIN))/python -m pytest -q test_ceph*.py

bench: $(VENV)/.benchmarked ## benchmarks, in comparison with other tools (hours; benches/run.py --help lists the parts)
	@$(BIN)/python benches/run.py

figures: setup $(VENV)/.dev ## the papers' figures into figures-out/, published values next to ours (about 10 minutes)
	@$(BIN)/python benches/figures/run.py

# All but the Python extension, which is tested from Python.
WORKSPACE := --workspace --exclude skytether-python
NEXTEST := $(BIN)/cargo-nextest nextest
# What `make soak` repeats of the Rust tests; the oracles over SQL follow (SKYTETHER_ORACLE_QUERIES, .._SEED).
# It reads SKYTETHER_SOAK (and dst SKYTETHER_STORMS=FROM..TO, faulty SKYTETHER_FAULTS=all).
SOAK := test(/^dst::/) | test(/^faulty::/) | test(/^chaos::/) | test(/^regret::/) \
  | ((package(skytether-store) | package(skytether-kv) | package(skytether-volume) | package(skytether-fleet-volume)) & kind(test)) \
  | (package(skytether-nvme-tcp) & test(/^guest::/))

# All targets of fuzz/, or one: make fuzz FUZZ_TARGETS=plan_read FUZZ_SECONDS=600. Findings stay in $(FUZZ_DIR).
FUZZ_SECONDS ?= 20
FUZZ_TARGETS ?= $(shell sed -n 's/.*Target { name: "\([a-z_]*\)".*/\1/p' fuzz/src/lib.rs)
FUZZ_DIR ?= target/fuzz
# Where cargo puts the program.
FUZZ_PROGRAM = $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR),target)/debug/fuzz

fuzz: setup ## the parsers of bytes from outside, FUZZ_SECONDS each, with libFuzzer
	@RUSTC_WORKSPACE_WRAPPER=$(CURDIR)/fuzz/instrument.sh cargo build -p skytether-fuzz --features libfuzzer --bin fuzz
	@for target in $(FUZZ_TARGETS); do \
	  mkdir -p $(FUZZ_DIR)/$$target/seeds $(FUZZ_DIR)/$$target/corpus; echo "$$target ..." >&2; \
	  (ulimit -s 32768; FUZZ_TARGET=$$target FUZZ_SEEDS=$(FUZZ_DIR)/$$target/seeds $(FUZZ_PROGRAM) -max_total_time=$(FUZZ_SECONDS) -timeout=20 -rss_limit_mb=4096 \
	    -max_len=65536 -print_final_stats=0 -artifact_prefix=$(FUZZ_DIR)/$$target/ $(FUZZ_DIR)/$$target/corpus $(FUZZ_DIR)/$$target/seeds) \
	    > $(FUZZ_DIR)/$$target/log 2>&1 || { tail -n 40 $(FUZZ_DIR)/$$target/log >&2; echo "$$target: what it was given is in $(FUZZ_DIR)/$$target" >&2; exit 1; }; \
	  tail -n 1 $(FUZZ_DIR)/$$target/log; \
	done

lint: setup ## format, clippy, links in documentation, line widths and plain words
	$(BIN)/python tools/lint_words.py
	cargo fmt --all --check
	RUSTDOCFLAGS="-D rustdoc::broken_intra_doc_links" cargo doc --workspace --no-deps --document-private-items
	cargo clippy --workspace -- -D warnings
	cargo clippy --workspace --all-targets -- -D warnings -A clippy::unwrap_used -A clippy::expect_used -A clippy::panic

setup: $(VENV)/.built $(VENV)/.installed

# 1. Tools: what the build itself needs (maturin, protoc), as wheels, so that no system package is asked for.
$(VENV)/.tools: requirements-build.txt
	@command -v cargo >/dev/null || { echo "Rust is missing: install it with rustup (https://rustup.rs), then run make again." >&2; exit 1; }
	@command -v cc >/dev/null || { echo "A C compiler is missing: install one (Debian: apt-get install gcc), then run make again." >&2; exit 1; }
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer with venv is missing: install it (Debian: apt-get install python3-venv), then run make again." >&2; exit 1; }
	@test -x $(BIN)/python || { echo "Making $(VENV) with $(PYTHON) ..." >&2; $(PYTHON) -m venv $(VENV); }
	@echo "Installing the build tools ..." >&2
	@$(BIN)/python -m pip install -q -r requirements-build.txt
	@touch $@

# 2. Our own: the Rust workspace (the long part; cargo shows how far it is). Meanwhile pip installs the Python packages
# that ours need and, where tests or benchmarks follow, those that they compare with.
PACKAGES := -r requirements.txt $(if $(filter test test-rust test-python test-r soak bench figures,$(MAKECMDGOALS)),-r requirements-dev.txt)

$(VENV)/.built: $(VENV)/.tools requirements.txt $(RUST_SOURCES) pyproject.toml
	@echo "Building Skytether (12 to 28 minutes the first time, on two cores) ..." >&2
	@$(BIN)/python -m pip install -q $(PACKAGES) & packages=$$!; built=0; \
	  $(BIN)/maturin develop --skip-install || built=$$?; wait $$packages; exit $$built
	@touch $@

# 3. The Python package, in place: what changes later need not be installed again.
$(VENV)/.installed: pyproject.toml | $(VENV)/.built
	@echo "Installing Skytether into $(VENV) ..." >&2
	@rm -f $(VENV)/.benchmarked
	@PIP_QUIET=1 $(BIN)/maturin develop -q
	@touch $@

# 4. What tests and benchmarks compare with.
$(VENV)/.dev: requirements-dev.txt | $(VENV)/.built
	@echo "Installing what the tests compare with ..." >&2
	@$(BIN)/python -m pip install -q -r requirements-dev.txt
	@touch $@

# 5. Everything optimised, for benchmarks. One extension is installed at a time: each of `.installed` and `.benchmarked`
# removes the other's stamp, and neither depends on the other. The next `make demo` or `make test` installs the demo's
# again.
$(VENV)/.benchmarked: $(VENV)/.tools $(RUST_SOURCES) pyproject.toml | $(VENV)/.dev
	@echo "Building Skytether for benchmarks (about 25 minutes the first time, on two cores) ..." >&2
	@rm -f $(VENV)/.installed
	@$(BIN)/maturin develop -q --profile benchmark
	@touch $@

# nextest does not run the examples in documentation. Crates without examples say `doctest = false`; crates/house checks
# that. Tests of `kinetic` use the Java simulator, where Java is and Maven reaches its registry.
test-rust: setup $(VENV)/.dev
	jars="$$($(BIN)/python python/tests/kinetic/jars.py)" && SKYTETHER_KINETIC_JARS="$$jars" $(NEXTEST) run $(WORKSPACE)
	cargo test -q --doc $(WORKSPACE)

# A file's tests share what they set up, so a file stays with one process.
test-python: setup $(VENV)/.dev
	$(BIN)/python -m pytest -q -n 3 --dist loadfile python/tests

# Says so where there is no R, which nothing else needs.
test-r: setup $(VENV)/.dev
	@r/test.sh

clean: ## remove what was built (not your data)
	rm -rf target $(VENV) demo-out bench-out figures-out
