# Every target makes its environment first (.venv, by tools/bootstrap.py) and is then one command that you can run yourself.
PYTHON ?= python3
BIN := .venv/bin
SIM_PYTHON ?= $(BIN)/python
MODE ?= cp
SEEDS ?= 200
N ?= 2000
RUNS ?= 200
HOURS ?= 24
FUZZ_SECONDS ?= 30
FRESH ?= 1
CASES ?= 1000000
WORKERS ?= 2
# a module's tests stay with one worker, in their order, but for those that share nothing; tests/conftest.py says which
# go first
PARALLEL = -n $(WORKERS) --dist loadfile --no-loadscope-reorder

NATIVE_SOURCES := tools/native.py native/Cargo.toml native/Cargo.lock $(wildcard native/src/*.rs)
NATIVE_STAMP := native/target/stamp

# else every server that a test starts, and every collection, compiles what it imports
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help env demo test interop chaos abuse browser spec drills night image lint types sim sim-many sim-kernels sim-day planted fuzz laws fuzz-frames fuzz-kernel sanitize native dist bench lock test-lowest test-newest sbom clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 10

env: $(if $(FULL),.venv/stamp,.venv/light) ## only the environment, .venv, with the rmqha command in it; FULL=1: with Spark and what tests need

demo: .venv/stamp ## a group of three, two killed masters, nothing lost: MODE=cp|ap, INPUT=my.jsonl
	$(BIN)/python examples/demo.py --mode $(MODE) $(if $(INPUT),--input "$(INPUT)")

test: WORKERS = 3
test: .venv/stamp ## everything but what needs the real RocketMQ or minutes of faults; WORKERS=3 at once, for many of its tests wait
	$(BIN)/pytest tests $(PARALLEL) -m "not interop and not chaos and not browser and not abuse and not sim and not spec"
	@echo "left to others: make interop (the real RocketMQ), make chaos (minutes of real processes), make abuse (minutes of attacks), make browser (Chromium), make sim (200 seeds, each planted bug), make spec (every run of the model), make fuzz"

interop: WORKERS = 3
interop: .venv/stamp ## beside the real Apache RocketMQ; WORKERS=3 at once, for many of its tests wait
	$(BIN)/pytest tests/interop $(PARALLEL) -m interop

chaos: WORKERS = 3
chaos: .venv/stamp ## faults and operators at work on real processes, for minutes; WORKERS=3 at once, then what is timed alone
	status=0; \
	$(BIN)/pytest tests/chaos tests/process tests/cli/test_unreachable.py tests/spark/test_source.py tests/spark/sink/test_sink.py tests/spark/test_connect.py $(PARALLEL) -m "chaos and not timed" || status=1; \
	$(BIN)/pytest tests/chaos tests/process -m "chaos and timed" || status=1; \
	exit $$status

abuse: .venv/stamp ## attacks beside honest traffic on real processes
	$(BIN)/pytest tests/abuse -m abuse

browser: .venv/stamp ## the name server's page in headless Chromium; SHOTS=docs/images keeps the screenshots
	tools/install_chromium.sh
	$(if $(SHOTS),RMQHA_SCREENSHOTS=$(SHOTS)) $(BIN)/pytest tests/nameserver/web/test_browser.py

spec: .venv/stamp ## docs/internals/spec, every run within its bounds, by Debian's Spin; CASE=name shows a counter-example
	tools/install_spin.sh
	$(BIN)/python tools/check_spec.py $(if $(CASE),"$(CASE)")
	$(if $(CASE),,$(BIN)/pytest tests/simulation/spec/test_specified.py -n $(WORKERS) --dist worksteal)

drills: .venv/stamp ## every drill ten times, twenty kills: ten minutes
	RMQHA_DRILLS=full $(BIN)/pytest tests/chaos/test_drills.py

night: .venv/stamp ## a night on call: faults and an operator's commands, every answer golden; RECORD=1 writes it anew
	$(BIN)/python -m tests.chaos.night $(if $(RECORD),--record) "$$(mktemp -d)"

image: .venv/stamp ## the Containerfile carried out without a container engine, and a group started by it; root and a package index
	$(BIN)/python -m tools.release.containerfile

lint: .venv/stamp ## format, rules, layers
	$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/lint-imports

types: .venv/stamp ## mypy --strict
	$(BIN)/mypy

sim: .venv/stamp ## whole clusters from SEEDS=200 seeds, then each planted bug; SEED=n replays one, THEME=name, FAULT_SECONDS=60 of faults, SHRINK=1
	status=0; \
	$(SIM_PYTHON) -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(if $(THEME),--theme $(THEME)) $(if $(FAULT_SECONDS),--seconds $(FAULT_SECONDS)) $(if $(SHRINK),--shrink) || status=1; \
	$(if $(SEED)$(THEME)$(FAULT_SECONDS),,$(BIN)/pytest tests/raft tests/simulation tests/store/damage/test_crash.py tests/scan/test_proof.py -n $(WORKERS) --dist worksteal -m sim || status=1;) \
	exit $$status

sim-kernels: .venv/stamp ## every kept seed on the kernel in Python and on the native one: the same traces
	$(SIM_PYTHON) -m tests.simulation.kernels

sim-many: .venv/stamp ## the same from N=2000 seeds, FIRST=1, FAULT_SECONDS=60 of faults each
	$(SIM_PYTHON) -m tests.simulation --seeds $(N) $(if $(FIRST),--first $(FIRST)) $(if $(FAULT_SECONDS),--seconds $(FAULT_SECONDS))

planted: .venv/stamp ## each planted bug alone through RUNS=200 runs of the rotation, until one fails: found and missed; BUG='name'
	$(SIM_PYTHON) -m tests.simulation.planted.planting --runs $(RUNS) $(if $(BUG),--bug "$(BUG)")

sim-day: .venv/stamp ## a simulated day (HOURS=24) without a fault: no election, nothing lost; SEED=1
	$(SIM_PYTHON) -m tests.simulation --day --hours $(HOURS) $(if $(SEED),--seed $(SEED))

fuzz: .venv/stamp ## hostile bytes, FUZZ_SECONDS=30 for each parser; FRESH= takes the same each time
	RMQHA_FRESH=$(FRESH) RMQHA_FUZZ_SECONDS=$(FUZZ_SECONDS) $(BIN)/pytest tests/fuzz tests/kernel/test_native.py -n $(WORKERS) --dist worksteal

laws: .venv/stamp ## Hypothesis tests with examples that no run before had; `make test` always takes the same
	RMQHA_FRESH=1 $(BIN)/pytest tests $(PARALLEL) -m "hypothesis and not interop and not chaos and not browser and not abuse and not sim and not spec"

fuzz-frames: .venv/stamp ## CASES=1000000 damaged streams through a server's sessions: no task and no descriptor is left
	RMQHA_FRAME_CASES=$(CASES) $(BIN)/pytest tests/fuzz/test_sessions.py -s

fuzz-kernel: .venv/stamp ## CASES=1000000 damaged sends to the native kernel and the one in Python: the same answers
	RMQHA_KERNEL_CASES=$(CASES) $(BIN)/pytest tests/kernel/test_native.py -s -k many

sanitize: .venv/stamp ## the native kernel's tests under AddressSanitizer, with CASES=20000 damaged sends
	$(BIN)/python tools/sanitize.py $(if $(filter command line,$(origin CASES)),$(CASES))

dist: .venv/stamp ## a release into dist/: wheels, with the native kernel too (LIBRARIES="…": of other machines), sources, list of packages, checksums
	$(BIN)/python -m tools.release.files dist $(LIBRARIES)

bench: .venv/stamp ## figures and plots, into benchmarks/results
	$(BIN)/python -m benchmarks

clean: ## the environment and all caches
	rm -rf native/target rmqha/kernel/librmqha_kernel.so
	rm -rf .venv .venv-lowest .venv-newest .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

lock: .venv/stamp ## renew requirements/*.lock: the newest versions that pyproject.toml allows, with their hashes
	$(BIN)/python -m tools.release.lock

test-lowest: .venv/stamp ## the tests that need no Java, with the lowest versions that pyproject.toml allows
	$(BIN)/python -m tools.release.lowest

test-newest: .venv/stamp ## the same with the newest Python here that the locks serve
	$(BIN)/python -m tools.release.newest

sbom: .venv/stamp ## build/rmqha.cdx.json: what the wheel needs at run time, as CycloneDX
	$(BIN)/python -m tools.release.sbom build/rmqha.cdx.json

native: ## the native kernel, if cargo is there; `make env` does it too
	$(PYTHON) tools/native.py

$(NATIVE_STAMP): $(NATIVE_SOURCES)
	$(PYTHON) tools/native.py
	@mkdir -p $(@D) && touch $@

.venv/light: pyproject.toml tools/bootstrap.py requirements/build.lock requirements/run.lock | $(NATIVE_STAMP)
	$(PYTHON) tools/bootstrap.py --light .venv
	@touch $@

.venv/stamp: pyproject.toml tools/bootstrap.py requirements/build.lock requirements/dev.lock | $(NATIVE_STAMP)
	$(PYTHON) tools/bootstrap.py .venv
	@touch .venv/light $@
