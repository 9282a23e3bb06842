# Images and deployment: docs/decisions/0004-images.md. Standard library only.

.PHONY: images
images: ## build and push changed images to the local registry (TORCH_INDEX_URL selects torch's build)
	@python3 -m hack.images build

.PHONY: images-engines
images-engines: ## build and push the images of the engines (ENGINE=jax builds one; horovod compiles for minutes)
	@python3 -m hack.images engines $(ENGINE)

.PHONY: deploy
deploy: ## install images and chart into the cluster of `make cluster-up`; wait until the operator is ready
	@python3 -m hack.images deploy
