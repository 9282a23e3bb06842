"""The Kubernetes I/O: observes a job and executes its plan."""
