# The commands of this repository. `make` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PY := .venv/bin/python
# Two at a time: most tests wait for processes. A file stays on one worker, which makes its groups and servers once.
PYTEST := $(PY) -m pytest -q
TWO := -n 2 --dist loadfile

-include hack/cluster/cluster.mk
-include hack/images/images.mk

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
test: lint test-fast test-controlplane test-e2e ## everything: lint, fast tests, real API server, kind

.PHONY: test-fast
test-fast: venv ## no cluster: planners, agents as real processes, gloo trainings
	@$(PYTEST) $(TWO) -m "not controlplane and not e2e" --durations=15 tests

.PHONY: test-controlplane
test-controlplane: venv ## etcd, kube-apiserver and kube-controller-manager on loopback
	@$(PYTEST) $(TWO) -m controlplane --durations=5 tests

.PHONY: test-e2e
test-e2e: venv cluster-up deploy ## kind: the chart installed, real pods killed
	@$(PYTEST) -s -m e2e --durations=30 tests

.PHONY: benchmark-trainer
benchmark-trainer: venv ## step time and checkpoint stalls beside bare torch loops (minutes; on a machine that does nothing else)
	@$(PY) -m benchmarks.trainer

.PHONY: figures
figures: venv ## train both examples here and draw their curves into docs/figures
	@$(PY) docs/figures/make.py

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
