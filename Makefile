# README's two commands: `make demo` and `make test`. Both do their own set-up.
VENV := .venv
BIN  := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo kafka-demo test pytest check format soak bench clean

setup: $(READY)

$(READY): pyproject.toml scripts/setup
	@scripts/setup $(VENV)
	@touch $@

demo: setup
	@rm -rf examples/routers/out
	@$(BIN)/watersmeet run examples/routers/topology.yaml --once --checkpoint examples/routers/out/checkpoint

kafka-demo: setup
	@rm -rf examples/kafka/out
	@$(BIN)/python scripts/kafka_demo.py

test: setup
	@$(MAKE) --no-print-directory -j 2 check pytest

pytest: export PYTHONDONTWRITEBYTECODE :=  # 600 modules are compiled once, and not by every process that a test starts
pytest: setup
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --durations 20 --durations-min 8

check: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

soak: setup
	$(BIN)/python scripts/soak.py

bench: setup
	$(BIN)/python benchmarks/w2.py
	$(BIN)/python benchmarks/w2.py --table growth
	$(BIN)/python benchmarks/w2.py --table steady
	$(BIN)/python benchmarks/latency.py
	$(BIN)/python benchmarks/queries.py
	$(BIN)/python benchmarks/ping.py
	$(BIN)/python benchmarks/packing.py
	$(BIN)/python benchmarks/links.py
	$(BIN)/python benchmarks/links.py --table spark
	$(BIN)/python benchmarks/links.py --table throughput
	$(BIN)/python benchmarks/links.py --table delay
	$(BIN)/python benchmarks/shipping.py
	$(BIN)/python benchmarks/planners.py
	$(BIN)/python benchmarks/overlays.py --table hops
	$(BIN)/python benchmarks/overlays.py --table scale
	$(BIN)/python benchmarks/rjoin.py
	$(BIN)/python benchmarks/rjoin.py --table growth
	$(BIN)/python benchmarks/rjoin.py --table long

clean:
	rm -rf $(VENV) build dist examples/*/out .pytest_cache .mypy_cache .ruff_cache .hypothesis
