# The commands of this repository. `make` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PY := .venv/bin/python
# Two at a time: most tests wait for processes. A file stays on one worker, which makes its groups and servers once.
TESTS := ./hack/tests.sh
TWO := -n 2 --dist loadfile

-include hack/cluster/cluster.mk
-include hack/images/images.mk
-include hack/release.mk

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z][a-z-]*:.*##' $(MAKEFILE_LIST) | sort | sed -E 's/:[^#]*## */\t/' | expand -t 22

.PHONY: venv
venv: ## .venv from the lock file (nothing to do when it is there)
	@./hack/venv.sh

.PHONY: demo
demo: venv ## the main job with no cluster: four gloo workers, one killed on the way, recovered, Complete
	@$(PY) -m dtj.main run examples/demo.yaml --fresh --kill worker:1@step=150

.PHONY: test
test: lint test-fast ## everything: lint, fast tests, real API server, kind
	@$(MAKE) --no-print-directory -j2 test-controlplane cluster-ready  # the cluster comes up meanwhile: that is mostly waiting
	@$(MAKE) --no-print-directory test-e2e

.PHONY: cluster-ready
cluster-ready:
	@$(MAKE) --no-print-directory cluster-up
	@$(MAKE) --no-print-directory deploy

.PHONY: test-fast
test-fast: venv ## no cluster: planners, agents as real processes, gloo trainings
	@$(CLUSTER) bin helm >/dev/null  # built once, before the deadline of any test runs
	@$(TESTS) fast $(TWO) --durations=15 -- -m "not controlplane and not e2e" tests

.PHONY: test-controlplane
test-controlplane: venv ## etcd, kube-apiserver and kube-controller-manager on loopback
	@$(CLUSTER) bin >/dev/null
	@$(TESTS) controlplane $(TWO) --durations=5 -- -m controlplane tests

.PHONY: test-e2e
test-e2e: venv cluster-up deploy ## kind: the chart installed, real pods killed
	@$(TESTS) e2e --durations=30 -- -s -m e2e tests

.PHONY: test-long
test-long: venv ## the trainer's tests with the other version of torch that we support, in a venv of its own
	@./hack/test_long.sh

.PHONY: benchmark-trainer
benchmark-trainer: venv ## step time, memory, checkpoint stalls beside torch, Lightning, Accelerate; writes its README's tables (10 minutes, idle machine)
	@./benchmarks/venv.sh
	@build/benchmarks-venv/bin/python -m benchmarks.trainer --trials $(or $(TRIALS),10) --out benchmarks/trainer/results.json
	@build/benchmarks-venv/bin/python -m benchmarks.trainer --render

.PHONY: benchmark-gpu
benchmark-gpu: venv ## MFU, precision, compile, recompute, batch edge, checkpoint stall of a 1B GPT on one CUDA GPU; writes its README's tables
	@$(PY) -m benchmarks.gpu --trials $(or $(TRIALS),10) --out benchmarks/gpu/results.json
	@$(PY) -m benchmarks.gpu --render

.PHONY: figures
figures: venv ## train both examples here and draw their curves into docs/figures
	@$(PY) hack/figures.py

.PHONY: lint
lint: venv ## lint, format, types, import layers, generated files
	@.venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/mypy && .venv/bin/lint-imports --no-cache && $(PY) hack/generate.py --check

.PHONY: format
format: venv ## what the linters can mend by themselves
	@.venv/bin/ruff check --fix . ; .venv/bin/ruff format .

.PHONY: generate
generate: venv ## the CRD, its copy in the chart, the reference pages
	@$(PY) hack/generate.py

.PHONY: lock
lock: ## compile requirements/*.lock from the pyproject files (needs uv)
	@./hack/lock.sh
