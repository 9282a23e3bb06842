# The commands of this repository. `make` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PY := .venv/bin/python
TESTS := ./hack/tests.sh
# A file stays on one worker, which creates its groups and servers once. tests/conftest.py begins with the longest files.
# Two workers, because most tests wait for processes; WORKERS=3 is for a machine with more cores.
SPREAD := -n $(or $(WORKERS),2) --dist loadfile --no-loadscope-reorder

-include hack/cluster/cluster.mk
-include hack/images/images.mk
-include hack/release.mk

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z][a-z-]*:.*##' $(MAKEFILE_LIST) | sort | sed -E 's/:[^#]*## */\t/' | expand -t 22

.PHONY: venv
venv: ## create .venv from the lock files (does nothing if it is current)
	@./hack/venv.sh

.PHONY: demo
demo: venv ## run a job without a cluster: four gloo workers, one is killed, the group recovers and completes
	@$(PY) -m dtj.main run examples/demo.yaml --fresh --kill worker:1@step=150

.PHONY: test
test: lint ## run everything: lint, fast tests, control plane, kind
	@$(MAKE) --no-print-directory -j2 test-fast cluster-ready  # starting the cluster is mostly waiting
	@# One worker each: with three tests at a time, a machine of two slow cores had a load of 43.
	@$(MAKE) --no-print-directory -j2 WORKERS=1 test-controlplane test-e2e

# The lock keeps a second look of the tests until the cluster is ready (hack/tests.sh).
.PHONY: cluster-ready
cluster-ready:
	@mkdir -p build
	@$(if $(shell command -v flock),flock --shared --close build/tests.lock) \
	    $(SHELL) -ec '$(MAKE) --no-print-directory cluster-up; $(MAKE) --no-print-directory deploy'

.PHONY: test-fast
test-fast: venv ## run the tests without a cluster: planners, agents as real processes, training with gloo
	@$(CLUSTER) bin helm >/dev/null  # built before any test's deadline runs
	@$(TESTS) fast $(SPREAD) --durations=15 -- -m "not controlplane and not e2e and not thorough" tests

.PHONY: test-controlplane
test-controlplane: venv ## run the tests on a real control plane: etcd, kube-apiserver, kube-controller-manager
	@$(CLUSTER) bin >/dev/null
	@$(TESTS) controlplane $(SPREAD) --durations=5 -- -m "controlplane and not thorough" tests/integration tests/unit/client

.PHONY: test-e2e
test-e2e: venv cluster-ready ## run the tests on kind: install the chart, kill real pods
	@$(TESTS) e2e --durations=30 -- -s -m "e2e and not thorough" tests/e2e tests/integration

.PHONY: test-long
test-long: venv ## run 100,000 simulated groups, 20,000 operators, 1,000 faults, 10,000 specs, frameworks, engines, Kueue, schedulers, policies, the tracking servers, the dashboard, the terraform modules, sweeps that are killed, here and on kind, another torch and Kubernetes
	@DTJ_MUTATIONS_EVERY=1 $(PY) -m pytest -q -n 2 tests/unit/agent/test_mutations.py tests/unit/operator/test_operator_mutations.py
	@DTJ_SAVE_KILLS=100 $(PY) -m pytest -q tests/unit/trainer/test_kills.py
	@$(PY) -m pytest -q -n 2 --dist loadfile -m "thorough and not controlplane and not e2e" tests
	@DTJ_SIMULATOR_SEEDS=$(or $(SEEDS),100000) $(PY) -m pytest -q -n 2 tests/unit/agent/test_simulator.py
	@DTJ_PLANNER_SEEDS=$(or $(PLANNER_SEEDS),20000) $(PY) -m pytest -q -n 2 tests/unit/operator/test_simulator.py
	@for group in plain spare elastic; do $(PY) -m tests.chaos --slow --faults $(or $(FAULTS),300) --group $$group || exit 1; done
	@$(PY) -m tests.chaos --slow --faults $(or $(TORCH_FAULTS),100) --group torch
	@$(CLUSTER) bin promtool >/dev/null
	@$(PY) -m pytest -q tests/integration/chart/on_promtool.py
	@$(CLUSTER) bin >/dev/null && $(CLUSTER) bin kueue kstatus coscheduling kube-scheduler >/dev/null
	@$(PY) -m pytest -q tests/integration/controlplane/on_kueue.py tests/integration/controlplane/on_gang.py \
	  tests/integration/controlplane/on_kstatus.py tests/integration/controlplane/on_upgrade.py
	@$(PY) -m pytest -q -m "thorough and controlplane" tests/integration
	@DTJ_LEADER_ENDS=20 $(PY) -m pytest -q -k end_at_random tests/integration/controlplane/test_leader_election.py
	@if [ "$${VOLCANO_SOURCE:-}" ]; then $(MAKE) --no-print-directory test-volcano; \
	  else echo "make test-volcano was not run: VOLCANO_SOURCE names no checkout of Volcano"; fi
	@DTJ_SPECS=$(or $(SPECS),10000) $(PY) -m pytest -q tests/integration/controlplane/test_conformance.py
	@$(MAKE) --no-print-directory test-oldest
	@$(MAKE) --no-print-directory cluster-ready
	@$(PY) -m pytest -q tests/e2e/on_clean_ground.py
	@$(PY) -m pytest -q -m "thorough and e2e" tests/e2e
	@$(MAKE) --no-print-directory test-policies
	@$(MAKE) --no-print-directory test-tracking
	@$(MAKE) --no-print-directory test-dashboard
	@$(MAKE) --no-print-directory test-terraform
	@DTJ_TUNE_KILLS=$(or $(TUNE_KILLS),20) $(PY) -m pytest -q -s tests/unit/client/test_tune_kills.py
	@$(PY) -m pytest -q -s tests/e2e/on_sweep.py
	@$(MAKE) --no-print-directory test-frameworks-kind
	@$(MAKE) --no-print-directory test-engines-kind
	@./hack/test_long.sh
	@./hack/frameworks.sh tests/engines/on_engines.py tests/engines/on_readme.py tests/frameworks/on_launchers.py tests/frameworks/on_kept_launchers.py tests/frameworks/on_deepspeed.py tests/frameworks/on_deepspeed_trainer.py tests/frameworks/on_wandb.py
	@./hack/composer.sh
	@./hack/engines.sh

# kubectl, etcd and the controllers' programs of the other version are entries of their own in the cache.
.PHONY: test-oldest
test-oldest: export K8S_VERSION = $(shell sed -n 's/^OLDEST_KUBERNETES = "\(.*\)"/\1/p' hack/cluster/versions.py)
test-oldest: venv ## run the control-plane tests on the oldest Kubernetes that is supported, built from its Go modules
	@$(CLUSTER) bin etcd kube-apiserver kube-controller-manager kubectl >/dev/null
	@$(TESTS) oldest $(SPREAD) -- -m controlplane tests/integration/controlplane

# VOLCANO_SOURCE names a checkout of its repository, because module proxies do not serve its module.
.PHONY: test-volcano
test-volcano: venv ## run gangs under Volcano's scheduler and controllers, built from the checkout that VOLCANO_SOURCE names
	@$(CLUSTER) bin >/dev/null
	@$(PY) -m pytest -q --durations=5 tests/integration/controlplane/on_volcano.py

SLURM_PACKAGES := slurmctld slurmd slurm-client munge
.PHONY: test-slurm
test-slurm: venv ## run jobs of `dtj submit --slurm` on a real Slurm of three nodes (as root; installs Debian's packages)
	@PATH=$$PATH:/usr/sbin; command -v slurmctld slurmd srun munged >/dev/null || \
	  apt-get install --yes --no-install-recommends $(SLURM_PACKAGES)
	@unshare --net --mount --uts $(PY) -m pytest -q --durations=10 tests/integration/slurm/on_slurm.py

# kube-router is built on demand. Its rules are removed again whatever the tests' result, because other tests expect none.
.PHONY: test-policies
test-policies: venv cluster-ready ## run jobs under their NetworkPolicy on kind, with a firewall on its nodes that enforces policies
	@trap '$(CLUSTER) policies off' EXIT; $(CLUSTER) policies on; \
	  DTJ_POLICIES_REQUIRED=1 $(PY) -m pytest -q --durations=10 tests/e2e/test_network.py

.PHONY: test-tracking
test-tracking: venv cluster-ready ## run MLflow and TensorBoard of the chart on kind, and jobs that write to them and to W&B (builds MLflow's image once)
	@trap '$(CLUSTER) policies off' EXIT; $(CLUSTER) policies on; \
	  DTJ_POLICIES_REQUIRED=1 $(PY) -m pytest -q -s --durations=10 tests/e2e/on_tracking.py

.PHONY: test-terraform
test-terraform: venv ## check terraform/ with the real terraform and mocked providers (needs terraform; builds the helm provider where no registry is reached)
	@$(CLUSTER) bin helm etcd kube-apiserver kube-controller-manager kubectl >/dev/null
	@./hack/terraform.sh

.PHONY: test-dashboard
test-dashboard: venv cluster-ready ## draw the Grafana dashboard in Chromium, with a real Prometheus that scrapes a run on kind (needs Node.js; builds Prometheus once; installs Chromium as root)
	@command -v chromium chromium-browser google-chrome >/dev/null || apt-get install --yes --no-install-recommends chromium
	@$(CLUSTER) bin prometheus >/dev/null
	@$(PY) -m tests.e2e.browser >/dev/null
	@$(PY) -m pytest -q tests/e2e/on_dashboard.py

.PHONY: test-frameworks-kind
test-frameworks-kind: venv cluster-ready ## run scripts of Lightning, Accelerate, transformers, DeepSpeed and torch on kind, and kill a rank of each
	@./hack/frameworks.sh --install
	@$(PY) -m pytest -q -s --durations=10 tests/e2e/on_frameworks.py

.PHONY: test-engines-kind
test-engines-kind: venv cluster-ready ## run scripts of Horovod, JAX, Ray and TensorFlow on kind, in their images: undisturbed, a rank killed, a pod deleted, suspended
	@$(PY) -m pytest -q -s --durations=10 tests/e2e/on_engines.py

.PHONY: chaos-kind
chaos-kind: venv cluster-up deploy ## stop nodes, kubelets, pods and the API server of kind under a job, and print the recoveries
	@$(PY) -m tests.chaos.on_kind --trials $(or $(TRIALS),10)

.PHONY: benchmark-trainer
benchmark-trainer: venv ## compare step time, memory, checkpoint stalls with torch, Lightning, Accelerate; update its README (10 minutes)
	@./benchmarks/venv.sh
	@build/benchmarks-venv/bin/python -m benchmarks.trainer --trials $(or $(TRIALS),10) --out benchmarks/trainer/results.json
	@build/benchmarks-venv/bin/python -m benchmarks.trainer --render

.PHONY: benchmark-gpu
benchmark-gpu: venv ## measure a GPT of 1B parameters on one CUDA GPU; update its README
	@$(PY) -m benchmarks.gpu --trials $(or $(TRIALS),10) --out benchmarks/gpu/results.json
	@$(PY) -m benchmarks.gpu --render

.PHONY: benchmark-pauses
benchmark-pauses: venv ## run a script that pauses for 30 minutes and count false alarms of hang detection; update its README
	@$(PY) -m benchmarks.pauses --minutes $(or $(MINUTES),30) --out benchmarks/pauses/results.json
	@$(PY) -m benchmarks.pauses --render

.PHONY: benchmark-tune
benchmark-tune: venv ## run a sweep of 40 trials undisturbed, killed 5 times and with ASHA; update its README (12 minutes)
	@$(PY) -m benchmarks.tune --trials $(or $(TRIALS),1) --out benchmarks/tune/results.json
	@$(PY) -m benchmarks.tune --render

.PHONY: benchmark-group
benchmark-group: venv ## let all members of groups of 64 to 4,096 fail at once; update its README (20 minutes)
	@$(PY) -m benchmarks.group --trials $(or $(TRIALS),20) --out benchmarks/group/results.json
	@$(PY) -m benchmarks.group --render

.PHONY: benchmark-operator
benchmark-operator: venv ## run 1,000 jobs under the operator, JobSet and the Training Operator; update its README (1 hour; builds both)
	@$(CLUSTER) bin etcd kube-apiserver kube-controller-manager >/dev/null
	@$(PY) -m benchmarks.operator --jobs $(or $(JOBS),1000) --trials $(or $(TRIALS),3) --out benchmarks/operator/results.json
	@$(PY) -m benchmarks.operator --render

.PHONY: benchmark-communication
benchmark-communication: venv ## time compressed gradients on a shaped link (as root), and train with them; update its README (2 hours)
	@$(PY) -m benchmarks.communication --trials $(or $(TRIALS),10) --out benchmarks/communication/results.json
	@$(PY) -m benchmarks.communication --render

.PHONY: benchmark-simulation
benchmark-simulation: venv ## compare `dtj simulate` with real steps on shaped links (as root); update its README (20 minutes)
	@$(PY) -m benchmarks.simulation --trials $(or $(TRIALS),5) --out benchmarks/simulation/results.json
	@$(PY) -m benchmarks.simulation --render

.PHONY: benchmark-kind
benchmark-kind: venv cluster-up deploy ## delete pods, kill ranks and stop nodes of jobs on kind, also under JobSet; update its README (100 minutes; builds JobSet)
	@$(PY) -m benchmarks.kind $(if $(TRIALS),--trials $(TRIALS)) --out benchmarks/kind/results.json
	@$(PY) -m benchmarks.kind --render

.PHONY: benchmark-recovery
benchmark-recovery: venv ## kill workers and agents under dtj, torchrun, NVRx and torchft; update its README and plot (4 hours)
	@./benchmarks/venv.sh
	@build/benchmarks-venv/bin/python -m benchmarks.recovery --trials $(or $(TRIALS),20) --minutes $(or $(MINUTES),20) --out benchmarks/recovery/results.json
	@build/benchmarks-venv/bin/python -m benchmarks.recovery --render

.PHONY: benchmark-warm-restart
benchmark-warm-restart: venv ## kill a rank of each framework's script and time the first step resumed; update its README (1 hour)
	@./hack/frameworks.sh --install
	@build/frameworks-venv/bin/python -m benchmarks.warm_restart --trials $(or $(TRIALS),12) --out benchmarks/warm_restart/results.json
	@build/frameworks-venv/bin/python -m benchmarks.warm_restart --render

.PHONY: benchmark-engines
benchmark-engines: venv ## kill a rank under each engine and its framework's own launcher; update its README (4 hours)
	@./hack/engines.sh --install
	@./hack/frameworks.sh --install
	@$(PY) -m benchmarks.engines --trials $(or $(TRIALS),10) --out benchmarks/engines/results.json
	@$(PY) -m benchmarks.engines --render

.PHONY: benchmark-scaling
benchmark-scaling: venv ## train with 1, 2 and 4 ranks of each engine (as root); update its README and the page of claims (1 hour)
	@for engine in horovod ray tensorflow; do ./hack/engines.sh --install $$engine; done
	@$(PY) -m benchmarks.engines.scaling --trials $(or $(TRIALS),10) --out benchmarks/engines/results.json
	@$(PY) -m benchmarks.engines --render
	@$(PY) -m benchmarks.claims

.PHONY: figures
figures: venv ## train both examples and draw their curves into docs/figures
	@$(PY) hack/figures.py

.PHONY: figure-recovery
figure-recovery: venv ## run the demo with its kill, and draw its timeline into docs/figures/recovery.svg
	@rm -rf build/figure-recovery
	@$(PY) -m dtj.main run examples/demo.yaml --fresh --kill worker:1@step=150 --run-dir build/figure-recovery --volumes-dir build/figure-volumes
	@$(PY) -m dtj.main report build/figure-recovery --timeline -o docs/figures/recovery.svg

.PHONY: lint
lint: venv ## check lint, format, house style, types, import layers, generated files
	@$(MAKE) --no-print-directory --output-sync=target -j2 lint-types lint-text

.PHONY: lint-text
lint-text:
	@.venv/bin/ruff check . && .venv/bin/ruff format --check . && $(PY) hack/style.py && .venv/bin/lint-imports --no-cache && $(PY) hack/generate.py --check

# All clones share mypy's cache: torch and the other libraries take 43 s without it, and 1 s with it. It allows one user at a time.
MYPY_CACHE := $(or $(DTJ_CACHE_DIR),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/dtj)/mypy
.PHONY: lint-types
lint-types:
	@mkdir -p $(MYPY_CACHE)
	@$(if $(shell command -v flock),flock --timeout 1800 $(MYPY_CACHE)/lock) .venv/bin/mypy --cache-dir $(MYPY_CACHE)

.PHONY: format
format: venv ## fix what the linters can fix
	@.venv/bin/ruff check --fix . ; .venv/bin/ruff format .

.PHONY: generate
generate: venv ## write the CRD, its copy in the chart, the reference pages, the versions
	@$(PY) hack/generate.py

.PHONY: lock
lock: ## compile requirements/*.lock from the pyproject.toml files (needs uv)
	@./hack/lock.sh
