# The front door. Every target may be run first, on a fresh clone; nothing is built twice.
#
#   make run         from nothing to a verified plan and exact distributed attention
#   make test        every test that needs no more than NumPy
#   make test-all    every test, those of several minutes (ctest -C All) included: installs PyTorch,
#                    transformers, Megatron, OR-tools and Chromium
#
# Variables: JOBS (parallel compiles and tests, default: all cores), PREFIX (make install),
# FUZZ_SECONDS, FUZZ_RUNS (per fuzz target), BENCH_ARGS (passed to every benchmark),
# MUTATE_ARGS (--count N, --seed N, --strategy NAME), TORCH (on, off: PyTorch, transformers,
# megatron-core and OR-tools in make python).
# Those of make test-loaded: LOADED_RUNS (of each test), LOADED_LOOPS (busy loops).

JOBS ?= $(shell nproc 2>/dev/null || echo 2)
PREFIX ?= /usr/local
FUZZ_SECONDS ?= 20
FUZZ_RUNS ?= 10000
BENCH_ARGS ?=
MUTATE_ARGS ?=
TORCH ?= on
LOADED_RUNS ?= 10
LOADED_LOOPS ?= 8

# Tests that stay quick under the sanitizers: not the search by predicted time, the program, the
# installed example, emulated GPUs (fuzz_ptx runs their machine under the sanitizers).
SANITIZE_TESTS ?= base_test mask_test input_test cluster_test partition_test hypergraph_test schedule_test \
  store_test strategy_test simulate_test training_setup_test bounds_test ahead_test plan_test transport_test kernel_test runtime_test \
  cache_test decode_test prefill_test prefill_plan_test model_test engine_test server_test helix_test \
  serve_simulation_test paged_attention_test
# Tests of the state that threads share; tests/CMakeLists.txt says which cases of them. The tests of
# gloo and MPI start transport_ranks.
TSAN_TESTS ?= transport_test gloo_transport mpi_transport runtime_test base_test ahead_test store_test kernel_test hypergraph_test \
  decode_test model_test engine_test server_test prefill_test
EMPTY :=
SPACE := $(EMPTY) $(EMPTY)

.DEFAULT_GOAL := help
.PHONY: help run test test-all test-loaded test-build build deps deps-dev python bench format lint sanitize sanitize-build sanitize-python tsan fuzz fuzz-replay fuzz-targets hosts numerics mutate install clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' Makefile

run: build  ## build, then plan, verify and execute a small batch; writes the page build/demo.html
	build/contextile demo -o build/demo.html

# Ends with 3 where Python or its packages cannot be had: their tests are then skipped, with a word.
PYTHON_PACKAGE = scripts/python-venv --if-needed --torch=$(1) || \
  { [ $$? = 3 ] && echo "make $@: without the Python package, whose tests are skipped" >&2; }
RUN_TESTS = ctest --preset default -j $(JOBS) $(1) --output-junit Testing/Temporary/junit.xml; status=$$?; \
  scripts/summarize-tests build; exit $$status

test: test-build  ## build, then run every test that needs no more than NumPy
	@scripts/install-deps --python
	$(call PYTHON_PACKAGE,off)
	$(call RUN_TESTS)

test-all: test-build  ## the same, and those that need PyTorch, transformers, Megatron, OR-tools, Chromium
	@scripts/install-deps --python --browser
	$(call PYTHON_PACKAGE,on)
	$(call RUN_TESTS,-C All)

test-loaded: test-build  ## LOADED_RUNS runs of tests that could depend on time, next to busy loops
	@scripts/install-deps --python
	$(call PYTHON_PACKAGE,off)
	scripts/test-loaded --runs $(LOADED_RUNS) --loops $(LOADED_LOOPS)

test-build: deps build/build.ninja
	cmake --build --preset default -j $(JOBS) --target all contextile_tests

build: deps build/build.ninja  ## the library and the program, build/contextile, optimized
	cmake --build --preset default -j $(JOBS)

deps:  ## install what the build needs (Debian, Ubuntu); nothing when it is there
	@scripts/install-deps

deps-dev:
	@scripts/install-deps --dev

build/build.ninja: | deps
	cmake --preset default

python: build  ## the Python package in build/venv, and its tests; TORCH=off without PyTorch
	scripts/python-venv --torch=$(TORCH)
	scripts/test-python

bench: deps build/build.ninja  ## build and run the benchmarks
	cmake --build --preset default -j $(JOBS) --target contextile_benchmarks
	@for bench in build/*_bench; do \
	  echo "== $$bench"; "$$bench" $(BENCH_ARGS) || exit 1; \
	done

format: deps-dev  ## format all C++ and Python in place
	scripts/lint --fix-format

lint: deps-dev  ## format, include and import rules, ruff and mypy, clang-tidy on every source
	scripts/lint -j $(JOBS)

sanitize: sanitize-build  ## a shorter selection of the tests under ASan and UBSan, in build-debug/
	ctest --preset debug -j $(JOBS) -R '^($(subst $(SPACE),|,$(strip $(SANITIZE_TESTS))))$$'

sanitize-build: deps
	@[ -f build-debug/build.ninja ] || cmake --preset debug
	cmake --build --preset debug -j $(JOBS) --target $(SANITIZE_TESTS)

sanitize-python: deps  ## NumPy's tests of the Python package under ASan and UBSan (needs make python)
	JOBS=$(JOBS) scripts/test-bindings

tsan: deps  ## transports, executor, planning ahead, stores under ThreadSanitizer, in build-tsan/
	@[ -f build-tsan/build.ninja ] || cmake --preset tsan
	cmake --build --preset tsan -j $(JOBS) --target $(filter %_test,$(TSAN_TESTS)) transport_ranks
	ctest --preset tsan -j $(JOBS) -R '^($(subst $(SPACE),|,$(strip $(TSAN_TESTS))))$$'

fuzz: fuzz-targets  ## every fuzz target at random for FUZZ_SECONDS, in build-fuzz/ (Clang)
	scripts/fuzz --seconds $(FUZZ_SECONDS) -j $(JOBS)

fuzz-replay: fuzz-targets  ## every fuzz target on its seeds and the same FUZZ_RUNS inputs each time
	scripts/fuzz --replay $(FUZZ_RUNS) -j $(JOBS)

fuzz-targets: deps-dev
	@[ -f build-fuzz/build.ninja ] || cmake --preset fuzz
	cmake --build --preset fuzz -j $(JOBS) --target $(basename $(notdir $(wildcard fuzz/fuzz_*.cc)))

hosts: deps build/build.ninja  ## 50 batches on 4 network hosts of this machine, plans made ahead, the planner killed once (root)
	cmake --build --preset default -j $(JOBS) --target train_ahead
	examples/train_ahead/run_hosts build/train_ahead

numerics: deps build/build.ninja  ## the numeric tests under other core types of OpenBLAS, kernels and threads; prints a table
	cmake --build --preset default -j $(JOBS) --target contextile_numeric_tests
	scripts/test-numerics

mutate: deps build/build.ninja  ## random changes of plans of every strategy: refused, flagged, or executed right
	cmake --build --preset default -j $(JOBS) --target mutate_plans
	build/mutate_plans $(MUTATE_ARGS)

install: build  ## install program, libraries, headers and CMake package under PREFIX
	cmake --install build --prefix $(PREFIX)

clean:  ## remove all build folders
	rm -rf build build-debug build-tsan build-fuzz build-tidy
