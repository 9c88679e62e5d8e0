# Everything sets itself up: a fresh machine needs Python >= 3.11, Java >= 17 and make.
#
#   make demo     a real Kafka, real data, a Spark stream that is a consumer group, and what Kafka says of it
#   make test     lint, types, and every test (this is what CI runs)

PYTHON ?= python3
SPARK  ?= 4.3.0
MINUTES ?= 10
PROTOCOL ?= classic
BATCHES ?= 10000
KILLS ?= 10
FRAMES ?= 1000000
ANSWERS ?= 1000000
FIRST ?= 0
SEEDS ?= 2000
SCRIPTS ?= 240
RECORD_BATCHES ?= 10000000
CASES ?= 200000

VENV       := .venv
BIN        := $(VENV)/bin
SPARK_VENV := .venv-spark-$(SPARK)
WHEEL_DIR  := .build/wheel
# What is tested is what is locked: pip takes these versions of everything, also of what builds the packages, and no
# file with another hash. (--no-require-hashes lets it install this project, and a PySpark that has no file there.)
VERSIONS   := conf/versions.txt
HASHED     := --no-require-hashes --constraint $(VERSIONS)
DEV_SPARK  := $(shell sed -n 's/^ *"pyspark==\([^"]*\)".*/\1/p' pyproject.toml)
OF_DEV     := --constraint conf/pyspark/$(DEV_SPARK).txt
OF_SPARK   := $(patsubst %,--constraint %,$(wildcard conf/pyspark/$(SPARK).txt))
# In a terminal, pip shows how far it is; elsewhere make shows each command before it runs.
QUIET      := $(shell test -t 2 || echo --quiet)
PIP_ARGS   := $(QUIET) $(HASHED) --build-constraint $(VERSIONS)
# An environment has 4,000 to 7,000 modules, of which tests import a part: Python compiles these when it meets them.
LAZILY     := --no-compile
# pip itself comes from its own lines there: the pip that Python brings does not know --no-require-hashes.
PIP_LINES  := sed -n '/^pip==/,/[^\\]$$/p' $(VERSIONS)
NATIVE     := datasource/pyspark_kgroup/executor/native/records.c hatch_build.py
SOURCES    := $(shell find spark_kgroup datasource -name '*.py' -o -name 'kgroup-python' -o -name '*.pins' -o -name 'py.typed') $(NATIVE)

# Also where the environment says otherwise, Python keeps the code that it has compiled: a run of the tests starts hundreds
# of processes, each of which would compile our sources again, and pytest rewrites the asserts of 440 modules.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup lint docs format test test-unit simulate simulate-boundaries compare test-wheel fuzz mutants test-kafka interop test-spark \
  test-consumer-protocol test-versions test-all test-fallback test-fallback-reads test-fallback-queries chaos soak bench bench-assign bench-seats bench-sessions bench-scale bench-tasks wheel native-hashes release lock demo clean

help:  ## show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(VENV)/.ready $(VENV)/.native  ## build .venv in place

$(VENV)/.ready: pyproject.toml $(VERSIONS)
	@echo 'Making $(VENV): some minutes at first (500 MB).'
	$(PYTHON) -m venv $(VENV)
	$(PIP_LINES) | $(BIN)/python -m pip install $(QUIET) --requirement /dev/stdin
	$(BIN)/pip install $(PIP_ARGS) $(LAZILY) $(OF_DEV) --group dev
	$(BIN)/pip install $(QUIET) $(HASHED) $(OF_DEV) --no-build-isolation --editable '.[cli,testing]'  # with what dev has just brought
	@touch $@

$(VENV)/.native: $(VENV)/.ready $(NATIVE)
	$(BIN)/python hatch_build.py
	@touch $@

lint: setup  ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: setup  ## write the generated pages, and build the site into .build/site; links and anchors are checked
	cd tests && PYTHONPATH=.:programs ../$(BIN)/python -P -m harness.reference_pages
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

format: setup  ## rewrite the sources the way ruff wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# One test process leaves both cores idle for two thirds of its time, so lanes run side by side (tests/programs/lanes).
# LANES="--keep-going" finishes all of them when a test has failed; LANES="--help" for more.
test:  ## lint, types and every test
	@$(MAKE) --no-print-directory --jobs 2 setup $(SPARK_VENV)/.ready  # pip keeps one core busy
	@$(MAKE) --no-print-directory $(SPARK_VENV)/.installed
	cd tests && PYTHONPATH=.:programs ../$(BIN)/python -P -m lanes $(LANES)

# Several test processes share the tests, one by one, the dearest first (tests/harness/handing_out.py).
ONE_BY_ONE := --dist loadgroup --no-loadscope-reorder

# Some tests have a longer form, marked `full` (pyproject.toml), which `make test-all` runs: WHICH=full.
WHICH      := not full

# Of each target below, TESTS=tests/unit/test_layers.py runs these tests alone, and PYTEST="-x" gives pytest more options.
test-unit: setup  ## pure machines: seconds; and what the KIPs say of them, sentence by sentence
	$(BIN)/pytest -m "$(WHICH)" -n 2 $(PYTEST) $(or $(TESTS),tests/unit tests/spec)

simulate: setup  ## SEEDS=100000 simulated groups under each protocol; FIRST=7 SEEDS=1 for one of them
	KGROUP_SIMULATION_FIRST=$(FIRST) KGROUP_SIMULATION_SEEDS=$(SEEDS) $(BIN)/pytest -q -x \
	  tests/unit/member/test_simulated_groups.py tests/unit/member/test_simulated_consumer_groups.py

simulate-boundaries: setup  ## SEEDS=10000 simulated queries: their boundaries, and the seats of their executors
	KGROUP_SIMULATION_SEEDS=$(SEEDS) $(BIN)/pytest -q -x \
	  tests/unit/datasource/driver/test_boundary_world.py tests/unit/datasource/driver/test_seats_world.py

compare: setup  ## SCRIPTS=1000 random scripts of group requests, to a real Kafka and to our coordinator; FIRST=7 SCRIPTS=1 for one
	KGROUP_COMPARED_FIRST=$(FIRST) KGROUP_COMPARED_SCRIPTS=$(SCRIPTS) $(BIN)/pytest -q -x \
	  tests/kafka/test_coordinator_against_kafka.py

test-wheel: setup  ## the wheel, built twice: all platforms' decoders in it, the same bytes
	$(BIN)/pytest $(PYTEST) $(or $(TESTS),tests/packaging)

fuzz: setup  ## FRAMES=1000000 hostile messages, ANSWERS=1000000 to Fetch; SEED=7 for the same again
	cd tests && PYTHONPATH=.:programs ../$(BIN)/python -P -m fuzz.native --answers $(RECORD_BATCHES) $(if $(SEED),--seed $(SEED))
	cd tests && PYTHONPATH=.:programs ../$(BIN)/python -P -m fuzz.fetch_run --answers $(ANSWERS) $(if $(SEED),--seed $(SEED))
	cd tests && PYTHONPATH=.:programs ../$(BIN)/python -P -m fuzz --frames $(FRAMES) $(if $(SEED),--seed $(SEED))

# mutmut is not in the environment of the other targets. It runs beside other work, and leaves it the machine.
mutants: $(VENV)/.mutmut  ## change lines, and see unit tests fail; ROOM=seats SAMPLE=300 SEED=7, FRESH=1 to believe no earlier run
	cd tests && PYTHONPATH=.:programs nice -n 19 ../$(BIN)/python -P -m mutants $(if $(ROOM),--room $(ROOM)) \
	  $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED)) $(if $(FRESH),--fresh) $(MUTANTS)

$(VENV)/.mutmut: $(VENV)/.ready
	$(BIN)/pip install $(PIP_ARGS) --group mutants
	@touch $@

test-kafka: setup  ## over the wire, against a real Apache Kafka
	$(BIN)/pytest -m "$(WHICH)" -n 2 $(ONE_BY_ONE) $(PYTEST) $(or $(TESTS),tests/kafka tests/programs/differential)

interop: setup  ## members of Java, librdkafka, kafka-python and ours in one group, each of them leading
	$(BIN)/pytest -s tests/programs/interop

differential: setup  ## CASES=200000 random groups, our assignors beside Java's; SEED=7 for the same again
	cd tests && PYTHONPATH=.:programs ../$(BIN)/python -P -m differential --cases $(CASES) $(if $(SEED),--seed $(SEED))

# Spark runs the wheel, never the source tree: what is not packaged must fail here. The sources of `spark_kgroup`
# and `pyspark_kgroup` are not on the path of this environment.
test-spark: $(SPARK_VENV)/.installed  ## Spark with the wheel installed; SPARK=4.0.4 for another PySpark
	$(SPARK_VENV)/bin/pytest -m "$(WHICH)" -n 2 $(ONE_BY_ONE) $(PYTEST) $(or $(TESTS),tests/spark)

# What speaks of membership, under the protocol that CI runs with the most telling tests alone (`group_protocol`).
ABOUT_MEMBERSHIP := tests/spark/test_sharing_a_group.py tests/spark/test_gone_and_back.py tests/spark/test_fenced.py \
  tests/spark/test_executors_die.py tests/spark/test_checkpoint_set_back.py tests/spark/test_kill_points.py \
  tests/spark/test_replay_across_owners.py tests/spark/test_brokers_fail.py tests/spark/test_batches_read_again.py

test-consumer-protocol: $(SPARK_VENV)/.installed  ## the tests about membership with kafka.group.protocol=consumer
	GROUP_PROTOCOL=consumer $(SPARK_VENV)/bin/pytest $(ABOUT_MEMBERSHIP)
	GROUP_PROTOCOL=consumer $(BIN)/pytest tests/kafka/test_back_in_a_rebalance.py tests/kafka/test_consumer_protocol.py

# Each release of Kafka and of PySpark with the tests that tell most of it. Brokers before 4.0 have no consumer protocol.
KAFKA_VERSIONS := 3.2.3 3.7.2 3.9.2 4.0.2 4.3.1
SPARK_VERSIONS := 4.0.1 4.1.4 4.2.0 4.3.0
ABOUT_KAFKA := tests/kafka/test_apache_kafka.py tests/kafka/test_static_membership_operations.py \
  tests/kafka/test_wire_against_kafka.py tests/kafka/test_odd_logs.py tests/kafka/test_member_command.py \
  tests/kafka/test_consumer_protocol.py
ABOUT_SPARK := tests/spark/test_rows_are_the_topic.py tests/spark/test_kill_points.py tests/spark/test_batch_reads.py \
  tests/spark/test_sharing_a_group.py

ON_VERSIONS := $(KAFKA_VERSIONS:%=test-kafka-%) $(SPARK_VERSIONS:%=test-spark-%)

test-versions: $(ON_VERSIONS)  ## on each Kafka (test-kafka-3.2.3 for one) and each PySpark (test-spark-4.0.1)

test-kafka-%: setup
	KGROUP_KAFKA_VERSION=$* $(BIN)/pytest $(ABOUT_KAFKA) $(if $(filter 3.%,$*),-m 'not since_kafka_4')

test-spark-%:
	$(MAKE) --no-print-directory SPARK=$* .venv-spark-$*/.installed
	.venv-spark-$*/bin/pytest $(ABOUT_SPARK)

ALL ?= test 'test-unit WHICH=full' 'test-kafka WHICH=full' 'test-spark WHICH=full' test-consumer-protocol test-fallback \
  interop $(ON_VERSIONS) 'simulate SEEDS=100000' 'simulate-boundaries SEEDS=10000'

test-all: setup  ## everything, for hours; its last result is tests/LAST_FULL_RUN.md (ALL="test-kafka-3.2.3 interop")
	cd tests && PYTHONPATH=.:programs ../$(BIN)/python -P -m full_run $(ALL)

# Where the decoder has no binary for a platform, all is read with librdkafka, as `reader=librdkafka` says.
WITHOUT_DECODER := $(CURDIR)/.build/without-decoder
READS_AS_EVER   := tests/kafka/test_odd_logs.py tests/kafka/test_data_loss.py tests/kafka/test_reads_through_an_outage.py
QUERIES_AS_EVER := tests/spark/test_rows_are_the_topic.py tests/spark/test_data_loss_in_queries.py
LOAD_DECODER    := from pyspark_kgroup.executor.native.library import load

test-fallback: test-fallback-reads test-fallback-queries  ## reading without the native decoder

test-fallback-reads: setup
	rm -rf $(WITHOUT_DECODER) && mkdir -p $(WITHOUT_DECODER)
	cp -r datasource/pyspark_kgroup $(WITHOUT_DECODER)
	rm -rf $(WITHOUT_DECODER)/pyspark_kgroup/executor/native/lib
	export PYTHONPATH=$(WITHOUT_DECODER); $(BIN)/python -c '$(LOAD_DECODER); assert load().library is None' && \
	  $(BIN)/pytest $(PYTEST) $(or $(TESTS),$(READS_AS_EVER))

test-fallback-queries: $(SPARK_VENV)/.installed
	READER=librdkafka $(SPARK_VENV)/bin/pytest $(PYTEST) $(or $(TESTS),$(QUERIES_AS_EVER))

# Long runs, not in CI. They use the wheel and the harness of the tests.
IN_TESTS = cd tests && PYTHONPATH=.:programs ../$(SPARK_VENV)/bin/python -P

chaos: $(SPARK_VENV)/.installed  ## random faults for MINUTES=10, then a verdict; SEED=7 for the same faults again; PROTOCOL=consumer; TASKS=8; CHAOS="--help"
	$(IN_TESTS) -m chaos --minutes $(MINUTES) --protocol $(PROTOCOL) $(if $(SEED),--seed $(SEED)) $(if $(MEMBER_IDS),--member-ids $(MEMBER_IDS)) $(if $(TASKS),--min-partitions $(TASKS)) $(CHAOS)

bench: $(SPARK_VENV)/.installed  ## the built-in Kafka source and ours, in turn on the same topics (BENCH="--help")
	$(IN_TESTS) -m bench $(BENCH)

bench-assign: setup  ## the sticky assignor beside Java's, up to a million partitions (BENCH="--help")
	cd tests && PYTHONPATH=.:programs ../$(BIN)/python -P -m bench_assign $(BENCH)

bench-sessions: setup  ## 1,000 seats in one process on a real Kafka: CPU and memory (BENCH="--help")
	cd tests && PYTHONPATH=.:programs ../$(BIN)/python -P -m bench_sessions $(BENCH)

bench-scale: setup  ## what grows with partitions, seats and executors (BENCH="--minutes 60")
	cd tests && PYTHONPATH=.:programs ../$(BIN)/python -P -m bench_scale $(BENCH)

bench-seats: $(SPARK_VENV)/.installed  ## who reads what when executors die; KILLS=10 of each (BENCH="--only undisturbed")
	$(IN_TESTS) -m bench_seats --kills $(KILLS) $(BENCH)

bench-tasks: $(SPARK_VENV)/.installed  ## a slow operator behind few partitions, with minPartitions and without (BENCH="--help")
	$(IN_TESTS) -m bench_tasks $(BENCH)

soak: $(SPARK_VENV)/.installed  ## BATCHES=10000 tiny batches: does anything leak?
	$(IN_TESTS) -m soak --batches $(BATCHES)

wheel: $(WHEEL_DIR)/.built  ## build the wheel into .build/wheel

# They are the same on every machine, so a change that nobody meant, or a compiler that was tampered with, is seen.
native-hashes: wheel  ## the hashes of the wheel's decoders into conf/native.sha256, after a change of records.c or of zig
	cd .build/native && sha256sum darwin-arm64.dylib darwin-x86_64.dylib linux-aarch64.so linux-x86_64.so >../../conf/native.sha256

release: setup  ## build the sdist, and the wheel from it, into dist
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist . >/dev/null
	@ls -1 dist/*

$(WHEEL_DIR)/.built: $(VENV)/.ready $(SOURCES) pyproject.toml README.md
	rm -rf $(WHEEL_DIR)
	$(BIN)/python -m build --wheel --no-isolation --outdir $(WHEEL_DIR) . >/dev/null
	@touch $@

$(SPARK_VENV)/.ready: pyproject.toml $(VERSIONS)
	@echo 'Making $(SPARK_VENV): some minutes at first (600 MB).'
	$(PYTHON) -m venv $(SPARK_VENV)
	$(PIP_LINES) | $(SPARK_VENV)/bin/python -m pip install $(QUIET) --requirement /dev/stdin
	$(SPARK_VENV)/bin/pip install $(PIP_ARGS) $(LAZILY) $(OF_SPARK) 'pyspark[connect]==$(SPARK)' --group spark-tests
	@touch $@

$(SPARK_VENV)/.installed: $(SPARK_VENV)/.ready $(WHEEL_DIR)/.built
	$(SPARK_VENV)/bin/pip uninstall --quiet --yes spark-kgroup 2>/dev/null
	$(SPARK_VENV)/bin/pip install $(PIP_ARGS) "$$(echo $(WHEEL_DIR)/*.whl)[cli,testing]"
	@touch $@

# One resolution of everything that any environment here needs, on the oldest Python that is supported: what runs on it
# runs on newer ones. PySpark is left out, since each Spark environment names its own, and py4j comes with it.
LOCK_VENV  := .build/lock
WITH_HASHES = $(LOCK_VENV)/bin/uv pip compile --quiet --generate-hashes --no-header --no-annotate --python-version 3.11.5
lock:  ## lock the newest versions that pyproject.toml allows (needs Python 3.11), and the hashes of Kafka's jars
	$(PYTHON) -c 'import sys; assert sys.version_info[:2] == (3, 11), "lock with the oldest Python: make lock PYTHON=python3.11"'
	$(PYTHON) -m venv --clear $(LOCK_VENV)
	$(LOCK_VENV)/bin/python -m pip install --quiet --upgrade pip setuptools uv  # setuptools builds PySpark
	$(LOCK_VENV)/bin/pip install --quiet '.[cli,testing]' 'pyspark[connect]==$(SPARK)' --group dev --group spark-tests --group mutants
	$(LOCK_VENV)/bin/pip freeze --all | grep -vE '^(spark-kgroup|pyspark|py4j|uv)\b' >$(LOCK_VENV)/versions.in
	{ echo '# What CI installs, and the hashes of all its files; `make lock` writes this file. PySpark has conf/pyspark.'; \
	  $(WITH_HASHES) --no-deps --universal $(LOCK_VENV)/versions.in; } >$(VERSIONS)
	rm -rf conf/pyspark && mkdir conf/pyspark
	set -e; for release in $(SPARK_VERSIONS); do \
	  echo pyspark==$$release | $(WITH_HASHES) - >conf/pyspark/$$release.txt; done
	$(LOCK_VENV)/bin/python -c 'from spark_kgroup.testing.kafka_jars import write_pins; write_pins()'

demo: setup  ## flights through a real consumer group, then the group as Kafka itself sees it
	$(BIN)/python examples/demo.py

clean:  ## remove everything that make built
	rm -rf .venv .venv-spark-* .build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse
