"""`make images` and `make deploy`: build what changed, push it to the local registry, install the chart from it."""
