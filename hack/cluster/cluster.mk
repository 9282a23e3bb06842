# A real Kubernetes for development and tests: hack/cluster/README.md.
# Standard library only, so that it needs no virtual environment.
CLUSTER ?= python3 -m hack.cluster

.PHONY: cluster-up
cluster-up: ## a kind cluster (1 control plane, 2 workers) with a local registry; does nothing when it is healthy
	@$(CLUSTER) up

.PHONY: cluster-down
cluster-down: ## remove the cluster; the registry's images stay
	@$(CLUSTER) down

.PHONY: cluster-env
cluster-env: ## print the exports for this shell: eval "$(make -s cluster-env)"
	@$(CLUSTER) env

.PHONY: control-plane
control-plane: ## an API server without nodes on loopback, in the foreground
	@$(CLUSTER) control-plane
