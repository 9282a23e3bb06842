# The images and their way into the cluster: docs/decisions/0004-images.md. Standard library only.

.PHONY: images
images: ## build what changed and push it to the local registry (TORCH_INDEX_URL chooses torch's build)
	@python3 -m hack.images build

.PHONY: deploy
deploy: ## images and chart into the cluster of `make cluster-up`; waits until the operator is ready
	@python3 -m hack.images deploy
