"""`make images` and `make deploy`: build changed images, push them to the local registry, install the chart."""
