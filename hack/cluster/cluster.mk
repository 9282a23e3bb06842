# A real Kubernetes for development and tests: hack/cluster/README.md.
# These commands need only the standard library, so they run without a virtual environment.
CLUSTER ?= python3 -m hack.cluster

.PHONY: cluster-up
cluster-up: ## create or repair a kind cluster (1 control plane, 2 workers) with a local registry
	@$(CLUSTER) up

.PHONY: cluster-down
cluster-down: ## delete the cluster; the registry's images stay
	@$(CLUSTER) down

.PHONY: cluster-env
cluster-env: ## print the exports for this shell: eval "$(make -s cluster-env)"
	@$(CLUSTER) env

.PHONY: control-plane
control-plane: ## run an API server without nodes on loopback, in the foreground
	@$(CLUSTER) control-plane
