# One target for each kind of artifact. A dry run prints its commands; PUBLISH=1 runs all, BUILD=1 those whose results stay on this machine.
RELEASE = python3 -m hack.release $(patsubst release-%,%,$@) $(if $(BUILD),--build) $(if $(PUBLISH),--publish) $(if $(REGISTRY),--registry $(REGISTRY))

.PHONY: release-wheels
release-wheels: ## release the wheels to the package index (a dry run; BUILD=1 builds, PUBLISH=1 uploads)
	@$(RELEASE)

.PHONY: release-images
release-images: ## release the images to REGISTRY=ghcr.io/you (a dry run; BUILD=1 builds, PUBLISH=1 pushes)
	@$(RELEASE)

.PHONY: release-chart
release-chart: ## release the chart to REGISTRY=ghcr.io/you (a dry run; BUILD=1 packages, PUBLISH=1 pushes)
	@$(RELEASE)
