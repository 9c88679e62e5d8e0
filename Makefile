# Everything sets itself up: a fresh machine needs Python >= 3.11, Java >= 17 and make.
#
#   make demo     a real Kafka, real data, a Spark stream that is a consumer group, and what Kafka says of it
#   make test     lint, types, and every test (this is what CI runs)

PYTHON ?= python3
SPARK  ?= 4.3.0
MINUTES ?= 10
BATCHES ?= 10000
KILLS ?= 10
FRAMES ?= 1000000
ANSWERS ?= 10000000

VENV       := .venv
BIN        := $(VENV)/bin
SPARK_VENV := .venv-spark-$(SPARK)
WHEEL_DIR  := .build/wheel
# What is tested is what is locked: pip takes these versions of everything, also of what builds the packages.
VERSIONS   := conf/versions.txt
PIP_ARGS   := --quiet --constraint $(VERSIONS) --build-constraint $(VERSIONS)
NATIVE     := datasource/pyspark_kgroup/executor/native/records.c hatch_build.py
SOURCES    := $(shell find spark_kgroup datasource -name '*.py' -o -name 'py.typed') $(NATIVE)

.PHONY: help setup lint format test test-unit test-wheel fuzz mutants test-kafka test-spark chaos soak bench bench-seats wheel lock demo clean

help:  ## show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(VENV)/.ready $(VENV)/.native  ## build .venv in place

$(VENV)/.ready: pyproject.toml $(VERSIONS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint $(VERSIONS) --upgrade pip
	$(BIN)/pip install $(PIP_ARGS) --group dev
	$(BIN)/pip install --quiet --constraint $(VERSIONS) --no-build-isolation --editable .  # with what dev has just brought
	@touch $@

$(VENV)/.native: $(VENV)/.ready $(NATIVE)
	$(BIN)/python hatch_build.py
	@touch $@

lint: setup  ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup  ## rewrite the sources the way ruff wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: lint test-unit test-wheel  ## lint, types and every test
	$(MAKE) --no-print-directory -j2 --output-sync=line test-kafka test-spark  # side by side: both mostly wait

test-unit: setup  ## pure machines: seconds
	$(BIN)/pytest tests/unit

test-wheel: setup  ## the wheel, built twice: all platforms' decoders in it, the same bytes
	$(BIN)/pytest tests/packaging

fuzz: setup  ## FRAMES=1000000 hostile messages, and ANSWERS=10000000 to the native decoder; SEED=7 for the same again
	cd tests && PYTHONPATH=. ../$(BIN)/python -P -m fuzz.native --answers $(ANSWERS) $(if $(SEED),--seed $(SEED))
	cd tests && PYTHONPATH=. ../$(BIN)/python -P -m fuzz --frames $(FRAMES) $(if $(SEED),--seed $(SEED))

# mutmut is not in the environment of the other targets. It runs beside other work, and leaves it the machine.
mutants: $(VENV)/.mutmut  ## change lines, and see unit tests fail; ROOM=seats SAMPLE=300 SEED=7, FRESH=1 to believe no earlier run
	cd tests && PYTHONPATH=. nice -n 19 ../$(BIN)/python -P -m mutants $(if $(ROOM),--room $(ROOM)) \
	  $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED)) $(if $(FRESH),--fresh) $(MUTANTS)

$(VENV)/.mutmut: $(VENV)/.ready
	$(BIN)/pip install $(PIP_ARGS) --group mutants
	@touch $@

test-kafka: setup  ## over the wire, against a real Apache Kafka
	$(BIN)/pytest tests/kafka

# Spark runs the wheel, never the source tree: what is not packaged must fail here. The sources of `spark_kgroup`
# and `pyspark_kgroup` are not on the path of this environment.
test-spark: $(SPARK_VENV)/.installed  ## Spark with the wheel installed; SPARK=4.0.4 for another PySpark
	$(SPARK_VENV)/bin/pytest tests/spark

# Long runs, not in CI. They use the wheel and the harness of the tests.
IN_TESTS = cd tests && PYTHONPATH=. ../$(SPARK_VENV)/bin/python -P

chaos: $(SPARK_VENV)/.installed  ## random faults for MINUTES=10, then a verdict; SEED=7 for the same faults again
	$(IN_TESTS) -m chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

bench: $(SPARK_VENV)/.installed  ## the built-in Kafka source and ours, in turn on the same topics (BENCH="--quick")
	$(IN_TESTS) -m bench $(BENCH)

bench-seats: $(SPARK_VENV)/.installed  ## who reads what when executors die; KILLS=10 of each (BENCH="--only undisturbed")
	$(IN_TESTS) -m bench_seats --kills $(KILLS) $(BENCH)

soak: $(SPARK_VENV)/.installed  ## BATCHES=10000 tiny batches: does anything leak?
	$(IN_TESTS) -m soak --batches $(BATCHES)

wheel: $(WHEEL_DIR)/.built  ## build the wheel into .build/wheel

$(WHEEL_DIR)/.built: $(VENV)/.ready $(SOURCES) pyproject.toml README.md
	rm -rf $(WHEEL_DIR)
	$(BIN)/python -m build --wheel --no-isolation --outdir $(WHEEL_DIR) . >/dev/null
	@touch $@

$(SPARK_VENV)/.ready: pyproject.toml $(VERSIONS)
	$(PYTHON) -m venv $(SPARK_VENV)
	$(SPARK_VENV)/bin/python -m pip install --quiet --constraint $(VERSIONS) --upgrade pip
	$(SPARK_VENV)/bin/pip install $(PIP_ARGS) 'pyspark[connect]==$(SPARK)' --group spark-tests
	@touch $@

$(SPARK_VENV)/.installed: $(SPARK_VENV)/.ready $(WHEEL_DIR)/.built
	$(SPARK_VENV)/bin/pip uninstall --quiet --yes spark-kgroup 2>/dev/null
	$(SPARK_VENV)/bin/pip install $(PIP_ARGS) $(WHEEL_DIR)/*.whl
	@touch $@

# One resolution of everything that any environment here needs, on the oldest Python that is supported: what runs on it
# runs on newer ones. PySpark is left out, since each Spark environment names its own, and py4j comes with it.
LOCK_VENV  := .build/lock
lock:  ## lock the newest versions that pyproject.toml allows (needs Python 3.11), and the hashes of Kafka's jars
	$(PYTHON) -c 'import sys; assert sys.version_info[:2] == (3, 11), "lock with the oldest Python: make lock PYTHON=python3.11"'
	$(PYTHON) -m venv --clear $(LOCK_VENV)
	$(LOCK_VENV)/bin/python -m pip install --quiet --upgrade pip setuptools  # setuptools builds PySpark
	$(LOCK_VENV)/bin/pip install --quiet . 'pyspark[connect]==$(SPARK)' --group dev --group spark-tests --group mutants
	{ echo '# What CI tests with; `make lock` writes this file. PySpark has its version in the Makefile and pyproject.toml.'; \
	  $(LOCK_VENV)/bin/pip freeze --all | grep -vE '^(spark-kgroup|pyspark|py4j)\b'; } >$(VERSIONS)
	$(LOCK_VENV)/bin/python -c 'from spark_kgroup.testing.kafka_jars import write_pins; write_pins()'

demo: setup  ## flights through a real consumer group, then the group as Kafka itself sees it
	$(BIN)/python examples/demo.py

clean:  ## remove everything that make built
	rm -rf .venv .venv-spark-* .build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse
