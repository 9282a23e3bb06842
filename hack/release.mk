# One command each. A dry run prints its commands; PUBLISH=1 runs all, BUILD=1 runs those whose results stay on this machine.
RELEASE = python3 -m hack.release $(patsubst release-%,%,$@) $(if $(BUILD),--build) $(if $(PUBLISH),--publish) $(if $(REGISTRY),--registry $(REGISTRY))

.PHONY: release-wheels
release-wheels: ## the wheels to the package index (a dry run: BUILD=1 builds them, PUBLISH=1 uploads them)
	@$(RELEASE)

.PHONY: release-images
release-images: ## the images to REGISTRY=ghcr.io/you (a dry run: BUILD=1 builds them, PUBLISH=1 pushes them)
	@$(RELEASE)

.PHONY: release-chart
release-chart: ## the chart to REGISTRY=ghcr.io/you (a dry run: BUILD=1 packs it, PUBLISH=1 pushes it)
	@$(RELEASE)
